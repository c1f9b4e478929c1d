"""Training of draft heads and small draft models for a target, from text that the target itself writes.

``data`` the texts and their folder; ``write`` the target writes them; ``students`` what is trained, and how it is
published; ``losses`` what each is taught; ``train`` the loop; ``check`` the acceptance that comes of it.
"""

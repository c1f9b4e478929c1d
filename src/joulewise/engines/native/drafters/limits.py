"""What holds for every draft."""

MOST_NODES = 256
"""The most nodes of a draft tree, the root included: more cost more to verify than any head repays."""

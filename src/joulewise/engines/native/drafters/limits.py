"""What holds for every draft."""

MOST_NODES = 256
"""The most nodes below the root. Verifying more costs more than any head repays, and the buffers are made for it."""

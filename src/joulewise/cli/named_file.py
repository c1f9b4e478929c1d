"""Paths that options name."""

from __future__ import annotations

from pathlib import Path

from joulewise.errors import UserError


def named_file(text: str | None, option: str, wanted: str = "the file's name, or - for standard output") -> Path | None:
    """The path that an option names; a path of no characters would be the current folder.

    Args:
        text: what was given, if anything.
        option: the option's name.
        wanted: what is to be given.

    Raises:
        UserError: no characters.
    """
    if text is not None and not text.strip():
        raise UserError(f"{option} is empty; give {wanted}")
    return None if text is None else Path(text)

"""Paths that options name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from joulewise.errors import EnvironmentFault, UserError


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


def output_file(text: str | None, option: str, command: str) -> Path | None:
    """The file that an option names to be written, its place looked at before any work is done.

    Args:
        text: what was given, if anything; ``-`` is standard output.
        option: the option's name.
        command: that has the option, for the way out.

    Raises:
        UserError: no characters.
        EnvironmentFault: there is no such folder, or it may not be written to.
    """
    file = named_file(text, option)
    if file is None or text == "-":
        return file
    number = None
    if not file.parent.is_dir():
        number = errno.ENOTDIR if file.parent.exists() else errno.ENOENT
    elif file.is_dir():
        number = errno.EISDIR
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        number = errno.EACCES
    if number is not None:
        raise EnvironmentFault(
            f"{file}: cannot be written ({os.strerror(number)}); name another place with `{command} {option} FILE`"
        )
    return file

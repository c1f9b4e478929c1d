"""Files that are whole or not there, and folders that one process alone writes to."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from joulewise.errors import EnvironmentFault, UserError


def write_whole(file: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place and move it there, so that a kill leaves the old one or the new one.

    Args:
        file: its place.
        write: writes to the path that it is given.

    Raises:
        EnvironmentFault: it cannot be written; nothing new is left.
    """
    part = file.with_name(f".{file.name}.part")
    try:
        write(part)
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.chmod(0o644)  # some writers give no one else leave to read
        part.replace(file)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise cannot_write(file, error) from error


def cannot_write(place: Path, error: Exception) -> EnvironmentFault:
    """The error for a file or folder that the machine does not let us write."""
    why = getattr(error, "strerror", None) or error
    return EnvironmentFault(f"{place} cannot be written ({why}): make room there, and run the same command again.")


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object, whole or not at all."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(file, lambda part: part.write_text(text, encoding="utf-8"))


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object that ``write_json`` wrote.

    Raises:
        UserError: it is not there or is none.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} could not be read as JSON ({error}): is this the right folder?") from error
    if not isinstance(value, dict):
        raise UserError(f"{file} holds no JSON object: is this the right folder?")
    return value


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make a folder and hold it, so that no second process writes there. A kill lets go of it.

    Where it fails with nothing written, the folders that were made for it are taken away again.

    Raises:
        UserError: another process holds it.
        EnvironmentFault: it cannot be made.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise EnvironmentFault(f"{folder} cannot be made ({error.strerror or error}): name another.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"Another process is writing to {folder}: wait for it, or name another folder.") from error
        try:
            yield
        except BaseException:  # whatever ended it, Ctrl-C too
            if made and os.listdir(folder) == [".lock"]:
                (folder / ".lock").unlink()
                with suppress(OSError):  # another process has put something there by now
                    for place in made:
                        place.rmdir()
            raise

"""A file that is whole or not there: a full disk or a kill leaves what was there before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Where to write a file, beside its place; it is moved there once it is whole.

    A block that removes what it has written gives up: the target stays as it was. What is no ordinary file (a pipe, a
    device, a link such as /dev/stdout) is written as it stands.

    Args:
        target: its place.

    Yields:
        the path to write to.

    Raises:
        OSError: as it comes; nothing new is left.
    """
    if target.is_symlink() or (target.exists() and not target.is_file()):
        yield target
        return
    part = target.with_name(f"{target.name}.part")
    try:
        yield part
        if part.exists():
            with part.open("rb") as written:
                os.fsync(written.fileno())
            if target.exists():
                shutil.copymode(target, part)
            os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)

"""What could not be captured for lack of memory, and runs uncaptured: warned of, and noted for the record."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_NOTED: ContextVar[list[str] | None] = ContextVar("given_up", default=None)


def give_up(what: str) -> None:
    """Tell that there is no memory to capture something, such as ``a forward of the head x``."""
    noted = _NOTED.get()
    if noted is not None:
        noted.append(what)
    warnings.warn(
        f"No memory is left to capture {what}: it runs uncaptured, which is slower; use a smaller model or draft, or "
        "fewer tokens.",
        RuntimeWarning,
        stacklevel=3,
    )


@contextmanager
def noting() -> Iterator[list[str]]:
    """Gather what is given up within the block."""
    found: list[str] = []
    token = _NOTED.set(found)
    try:
        yield found
    finally:
        _NOTED.reset(token)


def note_of(given_up: Sequence[str]) -> str | None:
    """What a reader of the results must know of it; None where nothing was given up."""
    if not given_up:
        return None
    what = ", ".join(dict.fromkeys(given_up))
    return f"no memory was left to capture {what}: from then on it runs uncaptured, which is slower"

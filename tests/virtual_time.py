"""An event loop whose clock jumps to the next timer: seconds of load in no time, exactly repeatable."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("nothing will ever happen")
        self.now_s += max(0.0, timeout)
        return super().select(0.0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = _Jumping()
        super().__init__(self.jumping)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.jumping.now_s


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in virtual time, which begins at 1000 s."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)

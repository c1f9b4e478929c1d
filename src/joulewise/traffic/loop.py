"""An event loop that looks at the clock often, and runs undisturbed.

asyncio handles everything that is ready before it looks at its timers again. With two thousand streams that step in
unison that is some fifty milliseconds, by which requests would be sent late and later chunks stamped late. This loop
takes a few events at a time; what is left stays in the kernel's queue, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import select
import selectors
import sys
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

EVENTS_AT_A_TIME = 8
"""From a timer to the request that it sends are three rounds of the loop, each with so many pieces of streams."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on such a loop, without what would stop all streams for milliseconds now and then.

    That is the collector of garbage, called so rarely here that it takes a thousandth of the time, and other threads
    (a meter's), which may not keep the interpreter for as long as they usually may. Where the system has no epoll, the
    loop is asyncio's own.
    """
    factory = (lambda: asyncio.SelectorEventLoop(_FewAtATime())) if hasattr(select, "epoll") else None
    switch_s, collected = sys.getswitchinterval(), gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(_collected_now_and_then(main))
    finally:
        sys.setswitchinterval(switch_s)
        gc.unfreeze()
        if collected:
            gc.enable()


async def _collected_now_and_then(main: Coroutine[Any, Any, T]) -> T:
    async def collect() -> None:
        took_s = 0.0
        while True:
            await asyncio.sleep(max(_BETWEEN_COLLECTIONS_S, 1000.0 * took_s))
            start_s = time.monotonic()
            gc.collect()
            took_s = time.monotonic() - start_s

    collecting = asyncio.ensure_future(collect())
    try:
        return await main
    finally:
        collecting.cancel()


_BETWEEN_COLLECTIONS_S = 5.0
"""asyncio leaves a kilobyte of garbage for each closed connection."""

_SWITCH_S = 5e-4
"""So long another thread may keep the interpreter; Python's own is ten times that."""


class _FewAtATime(selectors.BaseSelector):
    """epoll, but at most ``EVENTS_AT_A_TIME`` events a call."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, _number(fileobj), events, data)
        if key.fd in self._keys:
            raise KeyError(f"{fileobj!r} is registered already")
        self._poll.register(key.fd, _mask(events))
        self._keys[key.fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self._keys.pop(_number(fileobj))
        with contextlib.suppress(OSError):  # closed by now: the kernel has forgotten it
            self._poll.unregister(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        old = self._keys[_number(fileobj)]
        if events != old.events:
            self._poll.modify(old.fd, _mask(events))
        key = self._keys[old.fd] = old._replace(events=events, data=data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        try:
            ready = self._poll.poll(timeout, EVENTS_AT_A_TIME)
        except InterruptedError:
            return []
        found = []
        for fd, happened in ready:
            if (key := self._keys.get(fd)) is not None:
                events = (selectors.EVENT_WRITE if happened & ~select.EPOLLIN else 0) | (
                    selectors.EVENT_READ if happened & ~select.EPOLLOUT else 0
                )
                found.append((key, events & key.events))
        return found

    def close(self) -> None:
        self._poll.close()
        self._keys.clear()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_number(fileobj)]


def _number(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())


def _mask(events: int) -> int:
    return (select.EPOLLIN if events & selectors.EVENT_READ else 0) | (
        select.EPOLLOUT if events & selectors.EVENT_WRITE else 0
    )

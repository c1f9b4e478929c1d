"""Sampler: the one thread of a process that follows all its open meters.

It is started with the first meter and ends with the last. A driver may hang inside one meter's reading: the others'
reading then hangs with it until that meter is closed, which gives the thread up and starts another for the rest.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol

SHORTEST_SLEEP_S, LONGEST_SLEEP_S = 0.0005, 0.05
"""Between two looks at what is due. A window's end may ask for an earlier reading than was due, hence the longest."""

JOIN_S = 2.0
"""Closing waits so long for the sampler; a driver that hangs must not hang the program."""


class Followed(Protocol):
    """What the sampler follows: a meter."""

    @property
    def due_in_s(self) -> float:
        """Seconds until ``tend`` has something to do."""
        ...

    def tend(self) -> None:
        """Do what is due."""
        ...

    def charge(self, cpu_s: float) -> None:
        """Take note of CPU seconds that were spent on it."""
        ...


class Sampler:
    """A thread that tends meters when something is due in them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # A plain lock that the thread waits for costs half of what waiting for a condition does.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._leaving = 0
        self._followed: list[Followed] = []
        self._tending: Followed | None = None
        self._thread: threading.Thread | None = None
        self._no_more = False

    def follow(self, meter: Followed) -> None:
        """From now on tend it."""
        with self._changed:
            self._followed.append(meter)
            self._ring()
            if self._thread is None:
                self._start()

    def follows(self, meter: Followed) -> bool:
        """Whether it is tended."""
        return meter in self._followed

    def leave(self, meter: Followed) -> bool:
        """Tend it no more.

        Returns:
            Whether the thread has left it; if not, it hangs there, may hold any lock of it, and has been given up.
        """
        with self._changed:
            if meter not in self._followed:
                return True
            self._followed.remove(meter)
            self._ring()
            thread = self._thread
            self._leaving += 1
            left = self._changed.wait_for(lambda: self._tending is not meter, JOIN_S)
            self._leaving -= 1
            if not left:
                self._thread = self._tending = None
                if self._followed:
                    self._start()
                return False
            if self._followed:
                return True
            self._thread = None
        if thread is not None:
            thread.join(JOIN_S)
        return True

    def last_thread(self) -> None:
        """From now on start no further thread: an interpreter that is ending refuses to."""
        self._no_more = True

    def _start(self) -> None:
        if self._no_more:
            return
        self._thread = threading.Thread(target=self._run, name="joulewise-sampler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        me, before_s = threading.current_thread(), time.thread_time()
        wait_s = SHORTEST_SLEEP_S
        while True:
            self._bell.acquire(timeout=wait_s)
            with self._changed:
                if self._thread is not me:  # it was given up
                    return
                if not self._followed:
                    self._thread = None  # the last one is just leaving
                    return
                meters = tuple(self._followed)
            for meter in meters:
                if self._begin(meter, me):
                    meter.tend()
                    self._end(me)
            now_s = time.thread_time()
            for meter in meters:  # waking up is for all of them
                meter.charge((now_s - before_s) / len(meters))
            before_s = now_s
            wait_s = min(max(min(meter.due_in_s for meter in meters), SHORTEST_SLEEP_S), LONGEST_SLEEP_S)

    def _begin(self, meter: Followed, me: threading.Thread) -> bool:
        with self._changed:
            if self._thread is not me or meter not in self._followed:
                return False
            self._tending = meter
            return True

    def _end(self, me: threading.Thread) -> None:
        with self._changed:
            if self._thread is me:
                self._tending = None
                if self._leaving:
                    self._changed.notify_all()

    def _ring(self) -> None:
        """Let the thread look at what is due. The lock is held, so that nobody else rings."""
        if self._bell.locked():
            self._bell.release()


_sampler = Sampler()


def sampler() -> Sampler:
    """The process's own."""
    return _sampler


def _after_fork() -> None:
    global _sampler
    _sampler = Sampler()  # the thread is the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

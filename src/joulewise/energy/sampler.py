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
        self._followed: list[Followed] = []
        self._tending: Followed | None = None
        self._thread: threading.Thread | None = None
        self._no_more = False

    def follow(self, meter: Followed) -> None:
        """From now on tend it."""
        with self._changed:
            self._followed.append(meter)
            self._changed.notify_all()
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
            self._changed.notify_all()
            thread = self._thread
            left = self._changed.wait_for(lambda: self._tending is not meter, JOIN_S)
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
        before_s = time.thread_time()
        while meters := self._due():
            for meter in meters:
                if self._begin(meter):
                    meter.tend()
                    self._end(meter)
            now_s = time.thread_time()
            for meter in meters:  # waking up is for all of them
                meter.charge((now_s - before_s) / len(meters))
            before_s = now_s

    def _due(self) -> tuple[Followed, ...]:
        """The meters, once something may be due; none where the thread is to end."""
        with self._changed:
            if self._mine():
                due_in_s = min((meter.due_in_s for meter in self._followed), default=0.0)
                self._changed.wait(min(max(due_in_s, SHORTEST_SLEEP_S), LONGEST_SLEEP_S))
            if self._mine() and not self._followed:
                self._thread = None  # the last one is just leaving
            return tuple(self._followed) if self._mine() else ()

    def _begin(self, meter: Followed) -> bool:
        with self._changed:
            if not self._mine() or meter not in self._followed:
                return False
            self._tending = meter
            return True

    def _end(self, meter: Followed) -> None:
        with self._changed:
            if self._mine():
                self._tending = None
                self._changed.notify_all()

    def _mine(self) -> bool:
        """Whether the running thread is still the sampler, and not one that was given up."""
        return self._thread is threading.current_thread()


_sampler = Sampler()


def sampler() -> Sampler:
    """The process's own."""
    return _sampler


def _after_fork() -> None:
    global _sampler
    _sampler = Sampler()  # the thread is the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

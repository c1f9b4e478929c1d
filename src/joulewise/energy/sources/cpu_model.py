"""A model of the CPU's joules from its utilisation, for machines without RAPL. A guess, and marked as one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from joulewise.counted import counted
from joulewise.energy.reading import Reading
from joulewise.energy.source import Discovery, SourceSpec

BUSY_W = 4.0
"""Watts of a logical CPU at full load.

CodeCarbon's constant where it does not know the processor, and the middle of what the makers state: thermal design
power per hardware thread is about 2 W (EPYC 9654) to 6 W (desktop parts).
"""

IDLE_SHARE = 0.25
"""An idle package draws about this share of its full-load power; servers lie between roughly 0.15 and 0.4."""

_WORK = ("user", "nice", "system", "irq", "softirq")

GAIN = 0.5
"""Relative standard uncertainty: the constants above are each uncertain by a factor of about two."""


class CpuModel:
    """Watts per logical CPU, idle and busy, times seconds and utilisation of all that may be used.

    Args:
        logical_cpus: how many there are.
        cpu_times: the kernel's CPU seconds since boot of each of them (``psutil.cpu_times(percpu=True)``).
        clock: monotonic clock, in seconds.
        chosen: the numbers of those that this process may run on; None: all.
    """

    def __init__(
        self,
        logical_cpus: int,
        cpu_times: Callable[[], Sequence[Any]],
        clock: Callable[[], float] = time.monotonic,
        chosen: Collection[int] | None = None,
    ) -> None:
        self._chosen = range(logical_cpus) if chosen is None else sorted(chosen)
        part = "" if len(self._chosen) == logical_cpus else f"{len(self._chosen)} of "
        self.spec = SourceSpec(
            source_id="model:cpu",
            component="cpu",
            device=part + counted(logical_cpus, "logical CPU"),
            provenance="modelled",
            method=f"{BUSY_W:g} W per busy and {BUSY_W * IDLE_SHARE:g} W per idle logical CPU, by utilisation",
            scope="machine",
            gain=GAIN,
        )
        self._cpu_times, self._clock = cpu_times, clock
        self._lock = threading.Lock()
        self._last_s, self._counted_busy_s = clock(), self._busy_s()
        self._energy_j = 0.0

    def read(self) -> Reading:
        """Joules since the model was made; between two readings at least all CPUs idle and at most all busy."""
        with self._lock:
            start_s = self._clock()
            busy_s = self._busy_s()
            end_s = self._clock()
            time_s = (start_s + end_s) / 2
            all_s = len(self._chosen) * (time_s - self._last_s)
            # The kernel counts in ticks, which may be longer than a window, and may step back by one. What does not
            # fit in the time since the last reading is left to the next one.
            worked_s = min(max(0.0, busy_s - self._counted_busy_s), all_s)
            self._energy_j += BUSY_W * (IDLE_SHARE * all_s + (1 - IDLE_SHARE) * worked_s)
            self._last_s, self._counted_busy_s = time_s, self._counted_busy_s + worked_s
            return Reading(time_s, end_s - start_s, self._energy_j)

    def sample(self) -> Reading:
        """Nothing: the kernel's counters are cumulative, so there is nothing to follow between window ends."""
        return Reading(self._clock(), 0.0, None)

    def close(self) -> None:
        """Nothing to let go of."""

    def _busy_s(self) -> float:
        """CPU seconds spent working. Guests are in ``user`` already; what a hypervisor steals is not ours."""
        times = self._cpu_times()
        return float(sum(getattr(times[cpu], name, 0.0) for cpu in self._chosen for name in _WORK))


def discover() -> Discovery:
    """The model of this machine's CPUs, of those alone that this process may use where not all are given to it."""
    import psutil

    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    times = partial(psutil.cpu_times, percpu=True)
    count = len(times())
    if allowed is not None and (len(allowed) >= count or max(allowed) >= count):
        allowed = None  # all of them, or numbered otherwise (some are offline)
    return Discovery((CpuModel(count, times, chosen=allowed),))

"""How much of the CPU did other programs use meanwhile? Competition for cores can change a result many times over."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU seconds used so far: by everything on the CPUs that this process may use, and by it with its children."""

    time_s: float
    machine_s: float
    own_s: float


def cpu_use(servers: Iterable[psutil.Process] = ()) -> CpuUse:
    """A reading, for the two ends of a window.

    Args:
        servers: processes whose CPU time counts as own: those of a server that is measured.
    """
    each = psutil.cpu_times(percpu=True)
    busy = sum(_busy_s(each[cpu]) for cpu in _cpus(len(each)))
    own = os.times()
    own_s = own.user + own.system + own.children_user + own.children_system
    for process in servers:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            own_s += times.user + times.system
    return CpuUse(time.monotonic(), busy, own_s)


def _cpus(count: int) -> Iterable[int]:
    """Those that this process may use, of so many that are told of; programs pinned to others do not compete."""
    if not hasattr(os, "sched_getaffinity"):
        return range(count)
    mine = os.sched_getaffinity(0)
    return mine if max(mine) < count else range(count)  # where CPUs are offline, they are not told of by number


def _busy_s(times: Any) -> float:
    also = sum(getattr(times, name, 0.0) for name in ("nice", "irq", "softirq"))
    return float(times.user + times.system + also)


def other_cores(before: CpuUse, after: CpuUse) -> float | None:
    """Cores' worth of CPU time that other processes used between two readings, on the CPUs that this one may use.

    Returns:
        None where the window is too short for the kernel's ticks (10 ms a core) to tell a tenth of a core.
    """
    seconds = after.time_s - before.time_s
    if seconds < 0.2:
        return None
    return max(0.0, ((after.machine_s - before.machine_s) - (after.own_s - before.own_s)) / seconds)

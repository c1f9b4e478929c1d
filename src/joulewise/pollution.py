"""How much of the CPU did other programs use meanwhile? Competition for cores can change a result many times over."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU seconds used so far: by everything on the machine, and by this process with its children."""

    time_s: float
    machine_s: float
    own_s: float


def cpu_use() -> CpuUse:
    """A reading, for the two ends of a window."""
    total = psutil.cpu_times()
    busy = total.user + total.system + getattr(total, "nice", 0.0) + getattr(total, "irq", 0.0)
    busy += getattr(total, "softirq", 0.0)
    own = os.times()
    return CpuUse(time.monotonic(), busy, own.user + own.system + own.children_user + own.children_system)


def other_cores(before: CpuUse, after: CpuUse) -> float | None:
    """Cores' worth of CPU time that other processes used between two readings.

    Returns:
        None where the window is too short for the kernel's ticks (10 ms a core) to tell a tenth of a core.
    """
    seconds = after.time_s - before.time_s
    if seconds < 0.2:
        return None
    return max(0.0, ((after.machine_s - before.machine_s) - (after.own_s - before.own_s)) / seconds)

"""A model of the memory's joules from its size and time, for machines without a DRAM counter. A guess, and marked."""

from __future__ import annotations

import time
from collections.abc import Callable

from joulewise.energy.reading import Reading
from joulewise.energy.source import Discovery, SourceSpec

POWER_W_PER_GB = 0.2
"""Watts per GB of memory, whatever it does.

Between 0.08 (a 64 GB module at 5 W) and 0.375 (the rule of 3 W per 8 GB, from the time of small modules).
"""

GAIN = 0.5
"""Relative standard uncertainty: the range above is about the 95 % interval of this."""


class DramModel:
    """Watts per GB times GB times seconds.

    Args:
        memory_gb: memory of the machine, in GB (1e9 bytes).
        clock: monotonic clock, in seconds.
    """

    def __init__(self, memory_gb: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._power_w = POWER_W_PER_GB * memory_gb
        self.spec = SourceSpec(
            source_id="model:dram",
            component="dram",
            device=f"{memory_gb:.0f} GB of memory",
            provenance="modelled",
            method=f"{POWER_W_PER_GB:g} W per GB of memory, by time alone",
            scope="machine",
            gain=GAIN,
        )
        self._clock = clock
        self._start_s = clock()

    def read(self) -> Reading:
        """Joules since the model was made."""
        time_s = self._clock()
        return Reading(time_s, 0.0, self._power_w * (time_s - self._start_s))

    def sample(self) -> Reading:
        """Nothing: it grows by time alone."""
        return Reading(self._clock(), 0.0, None)

    def close(self) -> None:
        """Nothing to let go of."""


def discover() -> Discovery:
    """The model of this machine's memory."""
    import psutil

    return Discovery((DramModel(psutil.virtual_memory().total / 1e9),))

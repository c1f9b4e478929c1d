"""Watch counters for a while: how often do they step, and what does reading them cost?"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joulewise.energy.reading import Reading
from joulewise.energy.source import Source

PAUSE_S = 0.001
"""Between two rounds of readings, so that watching leaves the CPU to others."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of one source.

    Args:
        source_id: the source.
        period_s: mean seconds between two steps; None where fewer than two steps were seen, or each reading showed a
            new value (the counter is then faster than it was read, or continuous).
        steps: how many steps were seen.
        readings: in how many readings.
        read_s: median seconds of one reading.
        fault: why it could not be read; None when all is well.
    """

    source_id: str
    period_s: float | None
    steps: int
    readings: int
    read_s: float
    fault: str | None


def observe(
    sources: Sequence[Source], seconds: float = 1.2, clock: Callable[[], float] = time.monotonic
) -> list[Observation]:
    """Read all counters in turn, as often as they can be, for ``seconds``."""
    readings: list[list[Reading]] = [[] for _ in sources]
    pause = threading.Event()
    end_s = clock() + seconds
    while clock() < end_s:
        for source, seen in zip(sources, readings, strict=True):
            seen.append(source.read())
        pause.wait(PAUSE_S)
    return [_observation(source.spec.source_id, seen) for source, seen in zip(sources, readings, strict=True)]


def _observation(source_id: str, readings: Sequence[Reading]) -> Observation:
    known = [r for r in readings if r.energy_j is not None]
    steps = [now.time_s for before, now in itertools.pairwise(known) if now.energy_j != before.energy_j]
    resolved = 2 <= len(steps) < len(known) - 1
    return Observation(
        source_id,
        (steps[-1] - steps[0]) / (len(steps) - 1) if resolved else None,
        len(steps),
        len(readings),
        statistics.median(r.read_s for r in readings) if readings else 0.0,
        next((r.fault for r in reversed(readings) if r.fault), None),
    )

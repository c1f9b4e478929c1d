"""Does a counter agree with the power readings? Both come from the same device, by two ways.

Over a whole run what the counter gained must be what the power readings integrate to. A gap tells that one of them
misses time (a power reading that shows 25 of every 100 ms, a sampler held up) or is scaled wrongly. It does not tell
which, and an error that both share stays unseen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

MOST_PAUSE_S = 1.0
"""Nothing is integrated across a longer time without a power reading: the process was not there, or was held up."""

LEAST_S = 10.0
"""Less time than this is not compared: the counter's two ends (0.1 s each) alone may make a percent."""

LIMIT = 0.03
"""A gap above this, either way, is warned about."""


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """One device's counter against its power readings.

    Args:
        source_id: the source that gives both.
        counter_j: what the counter gained, in joules.
        trace_j: integral of the power over the same time (trapezoids), in joules.
        gap: how far ``trace_j`` lies above ``counter_j``, relative.
        duration_s: the time that was compared.
    """

    source_id: str
    counter_j: float
    trace_j: float
    gap: float
    duration_s: float


def cross_check(source_ids: Sequence[str], time_s: Floats, energy_j: Floats, power_w: Floats) -> tuple[CrossCheck, ...]:
    """Compare counter and power of every source that has both, over a whole timeline.

    Args:
        source_ids: the source of each row, shape ``(rows,)``; each source's rows stand in the order they were read in.
        time_s: monotonic time of each row. It may start again (a run that went on after a restart), as the counter may:
            the timeline is cut there.
        energy_j: the counter, nan where a row has none.
        power_w: the power, likewise.

    Returns:
        one entry a source by name; those with less than ``LEAST_S`` to compare, or no joules, are left out.
    """
    names, codes = np.unique(np.asarray(source_ids, dtype=str), return_inverse=True)
    found = []
    for code, name in enumerate(names.tolist()):
        mine = codes == code
        stretches = list(_stretches(time_s[mine], energy_j[mine], power_w[mine]))
        counter_j, trace_j, duration_s = (math.fsum(column) for column in zip((0.0, 0.0, 0.0), *stretches, strict=True))
        if duration_s >= LEAST_S and counter_j > 0.0:
            found.append(CrossCheck(name, counter_j, trace_j, trace_j / counter_j - 1.0, duration_s))
    return tuple(found)


def _stretches(time_s: Floats, energy_j: Floats, power_w: Floats) -> list[tuple[float, float, float]]:
    """Counter's joules, power's joules and seconds of each stretch without a pause or a restart."""
    powered, counted = np.flatnonzero(~np.isnan(power_w)), np.flatnonzero(~np.isnan(energy_j))
    cuts = {
        0,
        len(time_s),
        *(np.flatnonzero(np.diff(time_s) < 0.0) + 1).tolist(),
        *powered[1:][np.diff(time_s[powered]) > MOST_PAUSE_S].tolist(),
        *counted[1:][np.diff(energy_j[counted]) < 0.0].tolist(),
    }
    found = []
    for start, end in itertools.pairwise(sorted(cuts)):
        known = powered[(powered >= start) & (powered < end)]
        if not len(known):
            continue
        moments_s, watts = time_s[known], power_w[known]
        read = counted[(counted >= start) & (counted < end)]
        read = read[(time_s[read] >= moments_s[0]) & (time_s[read] <= moments_s[-1])]
        if len(read) < 2:
            continue
        joules = np.concatenate([[0.0], np.cumsum(np.diff(moments_s) * (watts[1:] + watts[:-1]) / 2)])
        from_j, to_j = np.interp(time_s[read[[0, -1]]], moments_s, joules)
        counter_j = energy_j[read[-1]] - energy_j[read[0]]
        found.append((float(counter_j), float(to_j - from_j), float(time_s[read[-1]] - time_s[read[0]])))
    return found

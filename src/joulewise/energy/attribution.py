"""Who caused the joules? A window shared over stretches of time, over requests that ran at once, and over tokens.

- ``attribute``: by time. Whoever was at work at a moment shares that moment's joules by stated weights.
- ``divide``: one share by weights alone, such as a request's joules over its tokens.

Phases shorter than a sensor can see are told from many windows together: ``joulewise.analysis.phase_energy``.

Shares always sum to the window. What the machine draws at rest is a row of its own, and so is what nobody named.

Uncertainties are standard uncertainties. The window's own (edges and sampling, gain, offset) are passed on to first
order: each share takes as much of an error as it would change by, so that the shares, which err together, add linearly
to the window's. ``split_j`` is what the split itself adds: joules that may belong to another share of the same window.
It cancels in their sum.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from joulewise.energy.reading import Z95, ComponentEnergy, Provenance

IDLE = "idle"
UNATTRIBUTED = "unattributed"


class Interval(NamedTuple):
    """Something at work from ``start_s`` to ``end_s``, on the window's clock. Intervals of one name add up.

    Args:
        name: who the joules go to: a phase, a request.
        weight: its part against those at work at the same time: 1, its tokens in the batch, FLOPs. Not negative; what
            has weight 0 takes no part.
    """

    name: str
    start_s: float
    end_s: float
    weight: float = 1.0


class TracePoint(NamedTuple):
    """Joules that had flowed up to a moment, from any zero, and their standard uncertainty against other moments."""

    time_s: float
    energy_j: float
    standard_j: float = 0.0


class PowerAtRest(NamedTuple):
    """Idle power with its standard uncertainty, read by the sensor that read the window; gain and offset apart."""

    power_w: float
    standard_w: float = 0.0


@dataclass(frozen=True, slots=True)
class Share:
    """One row of a shared window.

    Args:
        name: that of an interval, ``idle`` or ``unattributed``.
        provenance: of the window's joules.
        method: how the share came about, in words.
        energy_j: None where the window's joules are unknown.
        independent_j: standard uncertainty from the window's edges and sampling.
        gain_j, offset_j: from the sensor's gain and offset.
        split_j: from the split; None where nobody knows it: evenly drawn power is assumed, not read.
    """

    name: str
    provenance: Provenance
    method: str
    energy_j: float | None
    independent_j: float = 0.0
    gain_j: float = 0.0
    offset_j: float = 0.0
    split_j: float | None = 0.0

    @property
    def interval_j(self) -> tuple[float, float] | None:
        """95 % interval, cut at 0 from below; None where the joules or the split's uncertainty are not known."""
        if self.energy_j is None or self.split_j is None:
            return None
        half = Z95 * math.hypot(self.independent_j, self.split_j, self.gain_j + self.offset_j)
        return max(0.0, self.energy_j - half), self.energy_j + half


def attribute(
    whole: ComponentEnergy,
    start_s: float,
    end_s: float,
    intervals: Sequence[Interval],
    *,
    trace: Sequence[TracePoint] = (),
    idle: PowerAtRest | None = None,
) -> tuple[Share, ...]:
    """Share a window by time and weight; docs/measurement.md has the formulas.

    The ends of the intervals cut the window into segments. A segment's joules are what the trace gained in it, scaled
    so that all segments give the window's; without a trace, power is taken as even. Of them idle power x seconds (all,
    if that is more) is idle, and the rest goes to those at work, each by its weight over the sum of weights. Where
    nobody is at work, or nobody with a weight, the rest is unattributed.

    Args:
        whole: the window's joules.
        start_s, end_s: its ends; intervals are cut off there.
        intervals: who was at work when.
        trace: joules flowed, by rising time, straight between points; it reaches over the whole window.
        idle: None where it is not known: there is no idle row then, and gaps are unattributed.

    Returns:
        a share for each name in the order of first appearance, then ``idle`` (if known) and ``unattributed``.

    Raises:
        ValueError: an empty window, an interval or weight that is none, a name that is taken, or a trace that falls or
            does not reach.
    """
    _check(start_s, end_s, intervals)
    names = [*dict.fromkeys(i.name for i in intervals), *([IDLE] if idle else []), UNATTRIBUTED]
    moments, fractions = _segments(start_s, end_s, intervals)
    flowed = _flowed(trace, moments) if trace else []
    gained = [after.energy_j - before.energy_j for before, after in itertools.pairwise(flowed)]
    traced = math.fsum(gained) > 0.0  # a trace that saw nothing flow says nothing about where
    method = f"by {'the power trace' if traced else 'even power'} and weights" + (", above idle power" if idle else "")
    if whole.energy_j is None:
        return tuple(Share(name, whole.provenance, method, None, split_j=None) for name in names)
    seconds = [after - before for before, after in itertools.pairwise(moments)]
    flow = gained if traced else seconds
    scale = whole.energy_j / math.fsum(flow)
    joules = [part * scale for part in flow]
    resting = [min(e, idle.power_w * t) if idle else 0.0 for e, t in zip(joules, seconds, strict=True)]
    edges_j = [point.standard_j * scale for point in flowed] if traced else None

    mine: dict[str, dict[int, float]] = {name: {} for name in names}
    for place, by_name in enumerate(fractions):
        for name, fraction in by_name.items():
            mine[name][place] = fraction
    duration_s = math.fsum(seconds)
    rows = []
    for name in names:
        gross_j = math.fsum(f * joules[i] for i, f in mine[name].items())
        at_work_s = math.fsum(f * seconds[i] for i, f in mine[name].items())
        if name == IDLE and idle:
            rows.append(_share(whole, name, method, math.fsum(resting), 0.0, 1.0, idle.standard_w * duration_s))
            continue
        energy_j = math.fsum(f * (joules[i] - resting[i]) for i, f in mine[name].items())
        moved_j = _moved(mine[name], len(seconds), edges_j)
        split_j = None if moved_j is None else math.hypot(moved_j, at_work_s * idle.standard_w if idle else 0.0)
        # The offset is in the idle reading too: what is taken off takes it along.
        offset_part = 0.0 if idle else at_work_s / duration_s
        rows.append(_share(whole, name, method, energy_j, _part(gross_j, whole.energy_j), offset_part, split_j))
    return tuple(rows)


def divide(share: Share, weights: Mapping[str, float]) -> tuple[Share, ...]:
    """Share a share by weights alone; all of it is unattributed where all weights are 0.

    Args:
        share: what is divided.
        weights: by name, not negative.

    Raises:
        ValueError: a weight that is none.
    """
    for name, weight in weights.items():
        _check_weight(name, weight)
    parts = _normalised(weights) or {UNATTRIBUTED: 1.0}
    return tuple(
        replace(
            share,
            name=name,
            method=f"{share.method}; by weights",
            energy_j=None if share.energy_j is None else share.energy_j * part,
            independent_j=share.independent_j * part,
            gain_j=share.gain_j * part,
            offset_j=share.offset_j * part,
            split_j=None if share.split_j is None else share.split_j * part,
        )
        for name, part in parts.items()
    )


def _part(energy_j: float, of_j: float) -> float:
    return energy_j / of_j if of_j else 0.0


def _share(
    whole: ComponentEnergy,
    name: str,
    method: str,
    energy_j: float,
    independent_part: float,
    offset_part: float,
    split_j: float | None,
) -> Share:
    """A row with its parts of the window's own uncertainties; the gain scales every row alike."""
    assert whole.energy_j is not None
    return Share(
        name,
        whole.provenance,
        method,
        energy_j,
        whole.independent_j * independent_part,
        whole.gain_j * _part(energy_j, whole.energy_j),
        whole.offset_j * offset_part,
        split_j,
    )


def _check(start_s: float, end_s: float, intervals: Sequence[Interval]) -> None:
    if not (math.isfinite(start_s) and math.isfinite(end_s) and start_s < end_s):
        raise ValueError(f"a window from {start_s} s to {end_s} s has no length")
    for interval in intervals:
        if interval.name in (IDLE, UNATTRIBUTED):
            raise ValueError(f"the name {interval.name!r} is taken: it is a row of its own")
        if not (math.isfinite(interval.start_s) and math.isfinite(interval.end_s)):
            raise ValueError(f"{interval.name}: an interval from {interval.start_s} s to {interval.end_s} s is none")
        if interval.start_s > interval.end_s:
            raise ValueError(f"{interval.name}: the interval ends ({interval.end_s} s) before it starts")
        _check_weight(interval.name, interval.weight)


def _check_weight(name: str, weight: float) -> None:
    if not (math.isfinite(weight) and weight >= 0.0):
        raise ValueError(f"{name}: a weight is a number of at least 0, not {weight}")


def _segments(
    start_s: float, end_s: float, intervals: Sequence[Interval]
) -> tuple[list[float], list[dict[str, float]]]:
    """The moments between segments, ends included, and each segment's fractions by name; they sum to 1."""
    starting, ending = defaultdict(list), defaultdict(list)
    for number, interval in enumerate(intervals):
        from_s, to_s = max(start_s, interval.start_s), min(end_s, interval.end_s)
        if from_s < to_s and interval.weight > 0.0:
            starting[from_s].append(number)
            ending[to_s].append(number)
    moments = sorted({start_s, end_s, *starting, *ending})
    at_work: dict[int, Interval] = {}
    fractions = []
    for moment in moments[:-1]:
        for number in ending[moment]:
            del at_work[number]
        at_work.update((number, intervals[number]) for number in starting[moment])
        top = max((i.weight for i in at_work.values()), default=0.0)
        weights: dict[str, float] = defaultdict(float)
        for interval in at_work.values():
            weights[interval.name] += interval.weight / top  # so that sums of huge weights stay finite
        fractions.append(_normalised(weights) or {UNATTRIBUTED: 1.0})
    return moments, fractions


def _normalised(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights that sum to 1; empty if all are 0."""
    top = max(weights.values(), default=0.0)
    if top == 0.0:
        return {}
    scaled = {name: weight / top for name, weight in weights.items()}
    total = math.fsum(scaled.values())
    return {name: weight / total for name, weight in scaled.items()}


def _flowed(trace: Sequence[TracePoint], moments: Sequence[float]) -> list[TracePoint]:
    """The trace at some moments."""
    times = [p.time_s for p in trace]
    if not (times[0] <= moments[0] and moments[-1] <= times[-1]):
        raise ValueError(
            f"the trace ({times[0]} to {times[-1]} s) does not reach over the window ({moments[0]} to {moments[-1]} s)"
        )
    for a, b in itertools.pairwise(trace):
        if not (a.time_s < b.time_s and a.energy_j <= b.energy_j):
            raise ValueError(f"the trace falls, or stands still, between {a.time_s} and {b.time_s} s")
    found = []
    for moment in moments:
        place = min(max(1, bisect.bisect_right(times, moment)), len(trace) - 1)
        a, b = trace[place - 1], trace[place]
        part = (moment - a.time_s) / (b.time_s - a.time_s)
        found.append(
            TracePoint(
                moment,
                a.energy_j + part * (b.energy_j - a.energy_j),
                max(a.standard_j, b.standard_j),
            )
        )
    return found


def _moved(mine: Mapping[int, float], segments: int, edges_j: Sequence[float] | None) -> float | None:
    """Standard uncertainty from the joules at the moments inside the window: each goes from one segment to the next.

    Args:
        mine: a name's fraction of each segment that it has a part in.
        segments: how many there are.
        edges_j: standard uncertainty at each moment, the window's ends included; None if nothing is known of them.
    """
    moves = []
    for edge in sorted({i for place in mine for i in (place, place + 1)} - {0, segments}):
        step = mine.get(edge, 0.0) - mine.get(edge - 1, 0.0)
        if abs(step) > 1e-12:
            if edges_j is None:
                return None
            moves.append(step * edges_j[edge])
    return math.hypot(*moves)

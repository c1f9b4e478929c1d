"""Edge: what is known of one source at one end of a window, from its timeline."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from joulewise.energy.course import course
from joulewise.energy.reading import Reading
from joulewise.energy.source import SourceSpec
from joulewise.energy.timeline import AVERAGED_S, Knot, Knots, PowerTrace

LAG_POINTS = 16
"""How many phases of an unlocked counter are averaged over."""

VARIED_S = 0.5
"""How far around a step the power's variation is looked for,"""

BLIND = 0.6
"""and what share of it may hide behind a held reading; found with `benchmarks/meter_accuracy.py`."""

LATE = 0.15
"""A gap of so many seconds between two power readings is told: the sampler was held up."""


@dataclass(frozen=True, slots=True)
class Edge:
    """What is known of one source at one end of a window.

    Args:
        time_s: the window's end, on the monotonic clock.
        reading: the counter's reading nearest to it, unwrapped.
        energy_j: the best estimate of the cumulative joules at ``time_s``; None where the counter could not be read.
        sigma_j: its standard uncertainty; None where nothing tells it.
        trace_j: integral of the power up to ``time_s``; None without power readings.
        trace_variance: variance of ``trace_j``, in J^2, growing with time.
        resets: how often the counter has run backwards so far.
        locked: whether the counter's steps were known.
        span_j: what the cumulative joules cannot be below or above; None where nothing tells. Only where ``locked``.
        asleep_s: how long the machine has been suspended so far, in seconds.
        note: why it is less certain than usual, in words.
    """

    time_s: float
    reading: Reading
    energy_j: float | None
    sigma_j: float | None
    trace_j: float | None
    trace_variance: float
    resets: int
    locked: bool = False
    span_j: tuple[float, float] | None = None
    asleep_s: float = 0.0
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What a source's timeline holds now.

    Args:
        spec: the source.
        trace: its power.
        knots: steps of its counter.
        period_s: how often that steps, in seconds; None where it is not followed step by step.
        read_s: how long reading it takes as a rule, in seconds.
        resets: how often it has run backwards so far.
        asleep_s: how long the machine has been suspended so far, in seconds.
    """

    spec: SourceSpec
    trace: PowerTrace
    knots: Knots
    period_s: float | None
    read_s: float
    resets: int
    asleep_s: float


def between_steps(known: Known, reading: Reading, time_s: float) -> Edge | None:
    """Exact at a step; inside one, its joules are shared as the power readings say."""
    if known.period_s is None or reading.energy_j is None:
        return None
    first, second = known.knots.around(time_s)
    if first is None or (second is None and time_s - first.time_s > 2 * known.period_s):
        return None
    power_w, seen = 0.0, len(known.trace) > 0 and known.trace.first_s < first.time_s
    gap_s, note = 0.0, None
    if seen:
        power_w = known.trace.at(time_s)
        gap_s = known.trace.longest_gap_s(first.time_s, second.time_s if second else time_s)
        if gap_s > LATE:
            note = f"the sampler was held up for {gap_s:.2g} s"
    if second is None:
        if not seen:
            return None
        energy_j = first.energy_j + max(0.0, known.trace.seen_until(time_s) - known.trace.seen_until(first.time_s))
        # Nothing has been seen since that would take an error back.
        changes = [c.power_w for c in known.trace.changes(first.time_s, time_s)]
        unseen_s = known.trace.lag_s + known.trace.gap_s
        shape_j = math.hypot(*changes, power_w, known.trace.roughness_w(time_s - VARIED_S, time_s)) * unseen_s / 2
    else:
        energy_j, shape_j, mean_w = _shared(known, first, second, time_s, seen)
        power_w = power_w if seen else mean_w
    if note is not None:
        shape_j = math.hypot(shape_j, gap_s * max(power_w, (known.spec.max_power_w or 0.0) / 2) / 4)
    if second is not None:
        shape_j = min(shape_j, (second.energy_j - first.energy_j) / 2)
    # The reading's unknown moment of fetching, and what the brackets leave open.
    read_s = known.read_s
    phase_s = math.hypot((first.half_width_s - read_s / 2) / math.sqrt(3), read_s / math.sqrt(12))
    quantum_j = known.spec.quantum_j / math.sqrt(12)
    trace_j, variance = known.trace.integral(time_s) if len(known.trace) else (None, 0.0)
    return Edge(
        time_s,
        reading,
        energy_j,
        math.hypot(shape_j, power_w * phase_s, quantum_j),
        trace_j,
        variance,
        known.resets,
        locked=True,
        span_j=_span(known, first, second, time_s),
        asleep_s=known.asleep_s,
        note=note,
    )


def _shared(known: Known, first: Knot, second: Knot, time_s: float, seen: bool) -> tuple[float, float, float]:
    """Joules at a moment between two knots, their standard uncertainty, and the mean power between the knots."""
    step_j, step_s = second.energy_j - first.energy_j, second.time_s - first.time_s
    share, scale = (time_s - first.time_s) / step_s, 0.0
    if seen:
        reach_s = known.trace.reach_s
        power = course(known.trace, first.time_s - reach_s, second.time_s + reach_s)
        seen_share, scale = power.share(first.time_s, time_s, second.time_s, step_j, reach_s)
        share = seen_share if scale else share
    if scale == 0:
        return first.energy_j + share * step_j, step_j * math.sqrt(share * (1 - share) / 3), step_j / step_s
    return first.energy_j + share * step_j, _shape_j(known, first, second, time_s, share, scale), step_j / step_s


def _shape_j(known: Known, first: Knot, second: Knot, time_s: float, share: float, scale: float) -> float:
    """Standard uncertainty of the joules at a moment inside a step, from not knowing the power's course exactly.

    A change of D watts that is seen d seconds too late moves D d joules over the moment in question; as the step's
    joules are known, scaling takes a ``share`` of it back, and the rest of it for changes after the moment. All
    changes are late together by an error of the lag, and each by itself by up to the time between two readings, or
    by how long the sensor holds one. What the sensor does not look at, while it holds a value, may differ from it
    by as much as the power has varied around.
    """
    trace = known.trace
    gap_s, held_s = trace.gap_s, trace.held_s
    changes = trace.changes(first.time_s, second.time_s)
    weighted = [c.power_w * ((1 - share) if c.time_s <= time_s else -share) for c in changes]
    late_j = math.fsum(weighted) * gap_s / 4
    each_j = math.hypot(*weighted) * max(gap_s, held_s) / math.sqrt(12)
    blind = max(0.0, 1 - (gap_s + AVERAGED_S) / held_s)
    varied_w = trace.roughness_w(first.time_s - VARIED_S, second.time_s + VARIED_S)
    unseen_j = BLIND * blind * varied_w * (second.time_s - first.time_s) * math.sqrt(share * (1 - share))
    return math.hypot(scale * late_j, scale * each_j, unseen_j)


def _span(known: Known, first: Knot, second: Knot | None, time_s: float) -> tuple[float, float] | None:
    """What the cumulative joules cannot be below or above, the counter rising by at most the device's most."""
    most_w = known.spec.max_power_w
    if most_w is None:
        return None
    since_first_s = time_s - first.time_s
    low_j = first.energy_j - most_w * max(0.0, first.half_width_s - since_first_s)
    high_j = first.energy_j + most_w * (since_first_s + first.half_width_s)
    if second is not None:
        to_second_s = second.time_s - time_s
        low_j = max(low_j, second.energy_j - most_w * (to_second_s + second.half_width_s))
        high_j = min(high_j, second.energy_j + most_w * max(0.0, second.half_width_s - to_second_s))
    return low_j - known.spec.quantum_j, high_j + known.spec.quantum_j


def between_readings(known: Known, reading: Reading, time_s: float) -> Edge:
    """Where the counter's steps are not known.

    A counter that steps every T seconds shows the joules of its last step, which lies up to T before the reading,
    at an unknown phase. So the joules at ``time_s`` are the reading plus what the power trace says has flowed since
    that step: its mean over all phases is the estimate and its standard deviation the uncertainty. At constant
    power P these are P T / 2 and P T / sqrt(12).
    """
    spec = known.spec
    if reading.energy_j is None or not len(known.trace):
        return Edge(time_s, reading, reading.energy_j, None, None, 0.0, known.resets, asleep_s=known.asleep_s)
    trace_j, variance = known.trace.integral(time_s)
    if spec.update_period_s is None:
        return Edge(time_s, reading, reading.energy_j, None, trace_j, variance, known.resets, asleep_s=known.asleep_s)
    # The counter was fetched somewhere within the read, so its phase is uncertain by that much more.
    newest_s = reading.time_s + reading.read_s / 2
    span_s = spec.update_period_s + reading.read_s
    phases = [trace_j - known.trace.integral(newest_s - span_s * (i + 0.5) / LAG_POINTS)[0] for i in range(LAG_POINTS)]
    since = variance - known.trace.integral(newest_s - span_s)[1]
    sigma_j = math.hypot(statistics.pstdev(phases), math.sqrt(max(0.0, since)), spec.quantum_j / math.sqrt(12))
    energy_j = reading.energy_j + statistics.fmean(phases)
    return Edge(time_s, reading, energy_j, sigma_j, trace_j, variance, known.resets, asleep_s=known.asleep_s)

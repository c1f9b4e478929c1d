"""Which part of a load was its steady state? What was ramp-up and drain is left out, and shown. Pure.

The rule, in order:

1. From the moment on which nothing more became due, it is drain.
2. Before that there are two series over equal slices of time: the requests in flight, and the output per second. The
   marginal standard error rule (White 1997, "An effective truncation heuristic for bias reduction in simulation
   output", as MSER-5) tells where the transient of each ends: the first d batches of five slices are left out, where d
   is the smallest for which ``sum((x_i - mean)^2) / (n - d)^2`` over the others is within ``TOLERANCE`` of its minimum.
   (At the minimum itself, chance alone cuts off a fifth of a level series now and then.) The later of the two ends the
   ramp-up.
3. It is no steady state, and none is claimed, where the minimum lies at half of a series (still changing), or where
   what is left drifts: its second half differs from its first by more than ``DRIFT`` of the mean and by more than three
   standard errors of that difference (between batches), in either series. An open loop over the server's capacity is
   the usual case: its queue grows until the end. Nor is it one where no request was answered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from joulewise.traffic.course import Course, Floats

BATCH, FEWEST_BATCHES = 5, 20
TOLERANCE, DRIFT = 0.5, 0.1


@dataclass(frozen=True, slots=True)
class Steady:
    """The parts of a load; monotonic seconds.

    Args:
        start_s: of the load.
        from_s, until_s: the steady part; both None where there is none.
        end_s: of the load, its drain included.
        reason: why there is no steady part; None where there is one.
    """

    start_s: float
    from_s: float | None
    until_s: float | None
    end_s: float
    reason: str | None = None

    @property
    def duration_s(self) -> float:
        """Of the steady part; 0 where there is none."""
        return 0.0 if self.from_s is None or self.until_s is None else self.until_s - self.from_s

    def has(self, time_s: float) -> bool:
        """Whether a moment lies in the steady part. A request belongs to it by its due time."""
        return self.from_s is not None and self.until_s is not None and self.from_s <= time_s < self.until_s


def steady_part(course: Course, offered_until_s: float, end_s: float) -> Steady:
    """The steady part of a load.

    Args:
        course: all of it, requests that failed included.
        offered_until_s, end_s: as ``joulewise.traffic.generator.Driven`` has them.
    """
    start_s = float(course.edges_s[0])
    whole = int(np.searchsorted(course.edges_s, offered_until_s + 1e-6, side="right")) - 1
    slices = whole // BATCH * BATCH
    if slices < FEWEST_BATCHES * BATCH:
        too_short = f"it was offered for {max(0, whole)} of its {len(course.edges_s) - 1} slices only"
        return Steady(start_s, None, None, end_s, too_short)
    if not course.whole:
        return Steady(start_s, None, None, end_s, "no request was answered")
    first, reason = steady_from(course.in_flight[:slices], course.output[:slices])
    if reason is not None:
        return Steady(start_s, None, None, end_s, reason)
    return Steady(start_s, float(course.edges_s[first]), float(course.edges_s[slices]), end_s)


def steady_from(flight: Floats, produced: Floats) -> tuple[int, str | None]:
    """The first slice of the steady state, by the rule above, or why there is none.

    Args:
        flight: mean requests in flight by slice, shape ``(n,)``, n a multiple of ``BATCH``.
        produced: output by slice, shape ``(n,)``.
    """
    series = {"the requests in flight": _batches(flight), "the output per second": _batches(produced)}
    cut = 0
    for name, batches in series.items():
        first = _mser(batches)
        if first is None:
            return 0, f"{name} had not settled by half of the load; load it for longer"
        cut = max(cut, first)
    for name, batches in series.items():
        if (drift := _drift(batches[cut:])) is not None:
            return 0, f"{name} {'rose' if drift > 0 else 'fell'} by {abs(drift):.0%} from one half to the next"
    return cut * BATCH, None


def _batches(series: Floats) -> Floats:
    means: Floats = series.reshape(-1, BATCH).mean(axis=1)
    return means


def _mser(batches: Floats) -> int | None:
    """How many batches to leave out; None where the transient reaches to half of the series or beyond."""
    n = len(batches)
    errors = [float(np.sum((batches[d:] - batches[d:].mean()) ** 2)) / (n - d) ** 2 for d in range(n // 2 + 1)]
    least = min(errors)
    enough = next(d for d, error in enumerate(errors) if error <= (1.0 + TOLERANCE) * least)
    return None if enough and errors.index(least) == n // 2 else enough


def _drift(batches: Floats) -> float | None:
    """By how much, relative to the mean, the second half differs from the first; None where it is none to speak of."""
    half = len(batches) // 2
    one, two = batches[:half], batches[len(batches) - half :]
    mean = float(batches.mean())
    if mean <= 0.0 or half < 2:
        return None
    change = float(two.mean() - one.mean())
    error = math.sqrt((float(one.var(ddof=1)) + float(two.var(ddof=1))) / half)
    return change / mean if abs(change) > max(DRIFT * mean, 3.0 * error) else None

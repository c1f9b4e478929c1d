"""When does a counter step? The period and the phase of a counter's steps, learnt from readings around them.

A reading next to a step tells on which side of the step it fell: a *bracket*, two moments with the step between them.
A counter that steps evenly puts step k at ``phase + k x period``, so each bracket is a pair of straight lines between
which the pair (phase, period) must lie. What is left after some tens of brackets is far narrower than any of them. If
nothing is left, the steps are uneven, and what is missing tells by how much.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

KEPT = 32
"""So many brackets are kept: enough to be narrow, few enough to follow a drift."""

LEARNT_FROM = 5
"""A period is first taken from so many steps in a row."""

LOOSE, LOST = 1 / 8, 1 / 4
"""Steps are known once they are to within the first share of the period, and until they no longer are to within the
second: a sampler that is held up for a while is not to begin anew."""

TRUSTED_FROM, TRUSTED_UNEVEN = 12, 1 / 20
"""Joules rest on steps of which so many have been seen, none further from even than this share of the period."""

AHEAD = 25
"""Steps are foretold over so many, with what is open growing evenly."""

LEAST_UNEVEN = 1 / 500
"""No counter is taken to be more even than this share of its period."""

REMEMBERED = 1 / 50
"""How uneven the steps were is remembered over a new beginning, up to this share of the period."""

SEARCHES, SEARCHED = 30, 0.1
"""How the period of uneven steps is searched for, and how far around the last one."""


class Step(NamedTuple):
    """One step of a counter: its number since the lock was made, and when it comes, on the monotonic clock."""

    number: int
    time_s: float


class _Bracket(NamedTuple):
    number: int
    earliest_s: float
    latest_s: float


class StepLock:
    """Period and phase of one counter's steps.

    Args:
        period_s: the period to expect, in seconds; what is seen counts.
    """

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self._brackets: deque[_Bracket] = deque(maxlen=KEPT)
        self._next = Step(0, 0.0)
        self._half_widths_s: tuple[float, ...] = (math.inf, math.inf)
        self._locked = False
        self._uneven_s = 0.0

    def reset(self) -> None:
        """Forget the phase: the counter began anew, or the clock stood still."""
        self._brackets.clear()
        self._half_widths_s = (math.inf, math.inf)
        self._locked = False
        self._uneven_s = min(self._uneven_s, REMEMBERED * self.period_s)

    @property
    def locked(self) -> bool:
        """Whether the steps are known well enough to be used."""
        return self._locked

    @property
    def trusted(self) -> bool:
        """Whether enough steps have been seen where they were foretold for joules to rest on them."""
        enough = len(self._brackets) >= TRUSTED_FROM
        return self.locked and enough and self._uneven_s <= TRUSTED_UNEVEN * self.period_s

    @property
    def uneven(self) -> bool:
        """Whether the steps seen do not fit any period."""
        return self._uneven_s > LOOSE * self.period_s

    def half_width_s(self, number: int) -> float:
        """Step ``number`` lies within this of where it is told, in seconds; it grows with the time since the last one
        seen. How a reading's own length shifts all steps is not in it."""
        near_s, far_s = self._half_widths_s
        ahead = max(0, number - self._next.number)
        return near_s if ahead == 0 else near_s + (far_s - near_s) * ahead / AHEAD

    def seen(self, earliest_s: float, latest_s: float) -> None:
        """A step came between two moments, and the step before it was the one last told."""
        number = self._brackets[-1].number + 1 if self._brackets else 0
        self._brackets.append(_Bracket(number, earliest_s, latest_s))
        if len(self._brackets) >= LEARNT_FROM:
            self._fit()

    def narrowed(self, number: int, earliest_s: float, latest_s: float) -> None:
        """Step ``number`` came between two moments. Only where ``locked``."""
        self._brackets.append(_Bracket(number, earliest_s, latest_s))
        self._fit()

    def before(self, time_s: float) -> Step:
        """The last step up to a moment. Only where ``locked``."""
        return self.step(self._next.number + math.floor((time_s - self._next.time_s) / self.period_s))

    def nearest(self, time_s: float) -> Step:
        """The step nearest to a moment. Only where ``locked``."""
        return self.step(self._next.number + round((time_s - self._next.time_s) / self.period_s))

    def step(self, number: int) -> Step:
        """One step by its number. Only where ``locked``."""
        return Step(number, self._next.time_s + (number - self._next.number) * self.period_s)

    def _fit(self) -> None:
        """Between which moments the next step must come, and one further ahead; the middles give phase and period."""
        following = max(b.number for b in self._brackets) + 1
        widening_s = max(1.5 * self._uneven_s, LEAST_UNEVEN * self.period_s)
        near, far = (self._range(n, widening_s) for n in (following, following + AHEAD))
        if near[0] > near[1] or far[0] > far[1]:
            # No even steps go through all brackets: widen them until some do, and half as much again.
            self._uneven_s = max(self._uneven_s, self._least_widening_s())
            near, far = (self._range(n, 1.5 * self._uneven_s) for n in (following, following + AHEAD))
        middle_s = (near[0] + near[1]) / 2
        self.period_s = ((far[0] + far[1]) / 2 - middle_s) / AHEAD
        self._next = Step(following, middle_s)
        # A single step may lie as far from even ones as the worst that was seen.
        self._half_widths_s = tuple(abs(b - a) / 2 + self._uneven_s for a, b in (near, far))
        self._locked = self._half_widths_s[0] <= (LOST if self._locked else LOOSE) * self.period_s

    def _range(self, number: int, widening_s: float) -> tuple[float, float]:
        """The earliest and latest that step ``number`` can be, later than all brackets.

        A straight line above one point and below a later one is, beyond both, below the line through them, and the
        lowest of these lines is the tightest limit (a linear programme of two variables rests on two constraints).
        """
        earliest_s, latest_s = -math.inf, math.inf
        brackets = [(k, a_s - widening_s, b_s + widening_s) for k, a_s, b_s in sorted(self._brackets)]
        for i, (first, low_s, high_s) in enumerate(brackets):
            for second, earlier_s, later_s in brackets[i + 1 :]:
                if second > first:
                    stretch = (number - first) / (second - first)
                    if (upper_s := low_s + (later_s - low_s) * stretch) < latest_s:
                        latest_s = upper_s
                    if (lower_s := high_s + (earlier_s - high_s) * stretch) > earliest_s:
                        earliest_s = lower_s
        return earliest_s, latest_s

    def _least_widening_s(self) -> float:
        """By how much all brackets must be widened for even steps to go through them: the period that leaves the phase
        the most room tells (the room is a concave function of the period)."""
        low = self.period_s * (1 - SEARCHED)
        high = self.period_s * (1 + SEARCHED)
        for _ in range(SEARCHES):
            third = (high - low) / 3
            if self._room_s(low + third) < self._room_s(high - third):
                low += third
            else:
                high -= third
        return max(0.0, -self._room_s((low + high) / 2) / 2)

    def _room_s(self, period_s: float) -> float:
        """Seconds that the phase may still move; negative where it cannot be."""
        origin = self._brackets[-1].number
        latest_s = min(b.latest_s - (b.number - origin) * period_s for b in self._brackets)
        return latest_s - max(b.earliest_s - (b.number - origin) * period_s for b in self._brackets)

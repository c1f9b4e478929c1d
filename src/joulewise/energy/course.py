"""Course: how the power went around one step of a counter, as readings and the step's joules tell together.

A window of work begins where the power rises and ends where it falls, so an error in *when* is an error in one
direction: seen too late or too early, a rise is taken for energy before it, and a fall for energy after it. Readings
alone tell a rise to within the time that a value is held. The step's joules tell it far better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.energy.timeline import Change, PowerTrace

SHIFTS = 8
"""The shift of a course is looked for in so many places to either side."""

APART = 1.5
"""Two changes that are no further apart than this many times as long as a value is held may be one change,"""

ALONE = 0.1
"""if those next to them are no larger than this share of it."""


@dataclass(frozen=True, slots=True)
class Course:
    """A power that changes at once.

    Args:
        start_w: before the first change, in watts.
        changes: when it changes, and by how much.
    """

    start_w: float
    changes: tuple[Change, ...]

    def joules(self, start_s: float, end_s: float) -> float:
        """The integral between two moments."""
        length_s = end_s - start_s
        after = (c.power_w * min(length_s, max(0.0, end_s - c.time_s)) for c in self.changes)
        return self.start_w * length_s + math.fsum(after)

    def share(
        self, start_s: float, time_s: float, end_s: float, energy_j: float, reach_s: float
    ) -> tuple[float, float]:
        """How the joules of a stretch that are known divide at a moment inside it.

        The course is shifted as a whole until it has these joules: by the least that does it, or, where no shift up to
        ``reach_s`` does, by that which comes nearest; the rest is then taken for an error of the sensor's gain.

        Returns:
            The share up to ``time_s``, and the known joules over the course's (0 where it has none).
        """
        shifts = [reach_s * i / SHIFTS for i in range(-SHIFTS, SHIFTS + 1)]
        missing = [(shift_s, energy_j - self.joules(start_s + shift_s, end_s + shift_s)) for shift_s in shifts]
        exact = [
            a_s + (b_s - a_s) * a_j / (a_j - b_j)
            for (a_s, a_j), (b_s, b_j) in itertools.pairwise(missing)
            if a_j * b_j <= 0 and a_j != b_j
        ]
        nearest_s, _ = min(missing, key=lambda m: (round(abs(m[1]), 9), abs(m[0])))
        shift_s = min(exact, key=abs, default=nearest_s)
        whole_j = self.joules(start_s + shift_s, end_s + shift_s)
        if whole_j <= 0:
            return 0.0, 0.0
        return self.joules(start_s + shift_s, time_s + shift_s) / whole_j, energy_j / whole_j


def course(trace: PowerTrace, start_s: float, end_s: float) -> Course:
    """The power between two moments, the sensor's lag taken off."""
    # From a little earlier, so that a power that has been rising for some time is seen to.
    start_s -= 2 * APART * trace.held_s
    changes = trace.changes(start_s, end_s)
    return Course(trace.at(start_s), tuple(sharpened([c for c in changes if c.power_w], trace.held_s)))


def sharpened(changes: Sequence[Change], held_s: float) -> list[Change]:
    """Pairs of changes that are one: a jump inside the time that a reading is a mean of shows as two smaller ones.

    Their joint joules stay. A power that goes on rising shows more than two changes, and stays as it is.
    """
    found: list[Change] = []
    sizes = [0.0, *(c.power_w for c in changes), 0.0, 0.0]
    place = 0
    while place < len(changes):
        now = changes[place]
        before_w, one_w, other_w, after_w = sizes[place : place + 4]
        whole_w = one_w + other_w
        if (
            one_w * other_w > 0
            and changes[place + 1].time_s - now.time_s <= APART * held_s
            and max(before_w / whole_w, after_w / whole_w) <= ALONE
        ):
            second = changes[place + 1]
            time_s = (now.time_s * one_w + second.time_s * other_w) / whole_w
            found.append(Change(time_s, max(now.gap_s, second.gap_s), whole_w))
            place += 2
        else:
            found.append(now)
            place += 1
    return found

"""Timeline: what one source said, kept in bounded memory: its power over time, and its counter where it is known.

Flat arrays of numbers: an hour of one card takes about 5 MB.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from array import array
from collections import deque
from typing import NamedTuple

from joulewise.energy.reading import DeviceState

KEPT_S = 3600.0
"""A timeline reaches back this far."""

POWER_HELD_S = 0.1
"""A power reading may be this old: on an H200 (driver 580) the value changes about every 100 ms, whoever asks."""

AVERAGED_S = 0.025
"""An instantaneous power reading is a mean of about so long (18 to 25 ms on A100 and H100), so it lies half of this
before the moment it was read."""

LATEST = 32
"""So many changes of a power reading tell how long it is held."""


class TimelineRow(NamedTuple):
    """One row of the timeline: what one source said at one moment of the monotonic clock.

    A row tells the counter, the power, or both; or, about once a second, the device's state.
    """

    time_s: float
    source_id: str
    energy_j: float | None
    power_w: float | None
    state: DeviceState | None = None


class Change(NamedTuple):
    """The power rose or fell between two readings.

    Args:
        time_s: the middle between them, less the sensor's lag.
        gap_s: seconds between them.
        power_w: by how much, in watts.
    """

    time_s: float
    gap_s: float
    power_w: float


class PowerTrace:
    """Power over time, and its integral."""

    def __init__(self) -> None:
        self._times, self._powers = array("d"), array("d")
        self._joules, self._variances = array("d"), array("d")
        self._changed_s: float | None = None
        self._held = deque([POWER_HELD_S], maxlen=LATEST)
        self._gaps = deque([POWER_HELD_S], maxlen=LATEST)

    def __len__(self) -> int:
        return len(self._times)

    @property
    def first_s(self) -> float:
        """The earliest moment that is kept."""
        return self._times[0]

    @property
    def last_s(self) -> float:
        """The latest."""
        return self._times[-1]

    def add(self, time_s: float, power_w: float) -> None:
        """Go on with one reading; one that is no later than the last is passed over."""
        if not self._times:
            self._append(time_s, power_w, 0.0, 0.0)
            return
        gap_s = time_s - self._times[-1]
        if gap_s <= 0:
            return
        before_w = self._powers[-1]
        self._gaps.append(gap_s)
        if power_w != before_w:
            if self._changed_s is not None:
                self._held.append(time_s - self._changed_s)
            self._changed_s = time_s
        # A change of power shows up late: on average by half the gap and half the time that a reading is held, at most
        # by twice that. The average is taken as the standard uncertainty.
        sigma_j = abs(power_w - before_w) * (gap_s + POWER_HELD_S) / 2
        self._append(
            time_s,
            power_w,
            self._joules[-1] + gap_s * (power_w + before_w) / 2,
            self._variances[-1] + sigma_j**2,
        )
        if self._times[0] < time_s - 1.1 * KEPT_S:
            forget(time_s - KEPT_S, self._times, self._powers, self._joules, self._variances)

    def _append(self, time_s: float, power_w: float, energy_j: float, variance: float) -> None:
        self._times.append(time_s)
        self._powers.append(power_w)
        self._joules.append(energy_j)
        self._variances.append(variance)

    def integral(self, time_s: float) -> tuple[float, float]:
        """Joules up to a moment, and their variance; outside what is kept the power is held."""
        place = bisect.bisect_right(self._times, time_s)
        if place == 0:
            return self._joules[0] + (time_s - self._times[0]) * self._powers[0], self._variances[0]
        since_s = time_s - self._times[place - 1]
        if place == len(self._times):
            return self._joules[-1] + since_s * self._powers[-1], self._variances[-1]
        gap_s = self._times[place] - self._times[place - 1]
        slope_w = (self._powers[place] - self._powers[place - 1]) / gap_s
        return (
            self._joules[place - 1] + since_s * (self._powers[place - 1] + slope_w * since_s / 2),
            self._variances[place - 1] + since_s / gap_s * (self._variances[place] - self._variances[place - 1]),
        )

    def at(self, time_s: float) -> float:
        """The power at a moment, in watts, the sensor's lag taken off."""
        place = bisect.bisect_right(self._times, time_s + self.lag_s)
        return self._powers[max(0, place - 1)]

    def seen_until(self, time_s: float) -> float:
        """Joules up to a moment, the sensor's lag taken off."""
        return self.integral(time_s + self.lag_s)[0]

    def changes(self, start_s: float, end_s: float) -> list[Change]:
        """How the power changed between two moments, from reading to reading."""
        lag_s = self.lag_s
        first = max(1, bisect.bisect_right(self._times, start_s + lag_s))
        last = min(len(self._times) - 1, bisect.bisect_left(self._times, end_s + lag_s))
        return [
            Change(
                (self._times[i] + self._times[i - 1]) / 2 - lag_s,
                self._times[i] - self._times[i - 1],
                self._powers[i] - self._powers[i - 1],
            )
            for i in range(first, last + 1)
        ]

    def longest_gap_s(self, start_s: float, end_s: float) -> float:
        """The longest time without a reading that reaches into a stretch, in seconds."""
        return max((c.gap_s for c in self.changes(start_s, end_s)), default=end_s - start_s)

    def roughness_w(self, start_s: float, end_s: float) -> float:
        """How far each new reading of a stretch lies from the middle of its neighbours, in watts (root mean square).

        A power that rises evenly is smooth; one that jumps to and fro is rough by as much as it jumps.
        """
        first = bisect.bisect_left(self._times, start_s)
        seen = [
            power_w for power_w, _ in itertools.groupby(self._powers[first : bisect.bisect_right(self._times, end_s)])
        ]
        if len(seen) < 3:
            return 0.0
        return math.sqrt(
            statistics.fmean((b - (a + c) / 2) ** 2 for a, b, c in zip(seen, seen[1:], seen[2:], strict=False))
        )

    @property
    def gap_s(self) -> float:
        """Seconds between two readings, of late (median)."""
        return statistics.median(self._gaps)

    @property
    def held_s(self) -> float:
        """How long the sensor holds a value, as seen of late: the median time between two changes of it. It cannot be
        seen to be shorter than the time between two readings."""
        return statistics.median(self._held)

    @property
    def lag_s(self) -> float:
        """How late power readings are, on average: half of what they are a mean of, and half of how long they are held.
        Where they are held no longer than from reading to reading, that may be anything from nothing to all of it."""
        held_s, gap_s = self.held_s, self.gap_s
        return AVERAGED_S / 2 + (held_s / 2 if held_s > 1.5 * gap_s else gap_s / 4)

    @property
    def reach_s(self) -> float:
        """A single change of power is seen by so much earlier or later than ``lag_s`` says."""
        return (self.held_s + self.gap_s) / 2


class Knots:
    """Moments at which the counter's joules are known, unwrapped, in rising order."""

    def __init__(self) -> None:
        self._times, self._joules, self._half_widths = array("d"), array("d"), array("d")

    def __len__(self) -> int:
        return len(self._times)

    def clear(self) -> None:
        """Forget them: the counter began anew."""
        for column in (self._times, self._joules, self._half_widths):
            del column[:]

    def add(self, time_s: float, energy_j: float, half_width_s: float) -> None:
        """A further one; one that is not later than the last, or less, is passed over."""
        if self._times and (time_s <= self._times[-1] + 1e-9 or energy_j < self._joules[-1]):
            return
        for column, value in zip(
            (self._times, self._joules, self._half_widths), (time_s, energy_j, half_width_s), strict=True
        ):
            column.append(value)
        if self._times[0] < time_s - 1.1 * KEPT_S:
            forget(time_s - KEPT_S, self._times, self._joules, self._half_widths)

    def around(self, time_s: float) -> tuple[Knot | None, Knot | None]:
        """The last one up to a moment and the first one after it."""
        place = bisect.bisect_right(self._times, time_s)
        return self._knot(place - 1), self._knot(place)

    def _knot(self, place: int) -> Knot | None:
        if not 0 <= place < len(self._times):
            return None
        return Knot(self._times[place], self._joules[place], self._half_widths[place])


class Knot(NamedTuple):
    """The counter's joules at one moment, which is known to within ``half_width_s``."""

    time_s: float
    energy_j: float
    half_width_s: float


def forget(before_s: float, times: array[float], *others: array[float]) -> None:
    """Drop all rows before a moment."""
    place = bisect.bisect_left(times, before_s)
    for column in (times, *others):
        del column[:place]

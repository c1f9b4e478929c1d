"""Track: follows one source from reading to reading, and says what is known of it at a moment.

Two things are kept up: the counter, unwrapped, and the integral of the power over time (the *trace*), with a variance.
Where a window begins or ends, both become an ``Edge``; ``joulewise.energy.estimate`` makes joules of two Edges.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from joulewise.energy.reading import Reading
from joulewise.energy.source import Source

POWER_HELD_S = 0.1
"""A power reading may be this old: on an H200 (driver 580) the value changes about every 100 ms, whoever asks."""

KEPT_S = 1.0
"""How far the trace reaches back at least; a longer counter period keeps more."""

LAG_POINTS = 16
"""How many phases of the counter are averaged over."""


class TimelineRow(NamedTuple):
    """One row of the timeline: what one source said at one moment of the monotonic clock."""

    time_s: float
    source_id: str
    energy_j: float | None
    power_w: float | None


@dataclass(frozen=True, slots=True)
class Edge:
    """What is known of one source at one end of a window.

    Args:
        time_s: the window's end, on the monotonic clock.
        reading: the counter's reading nearest to it, unwrapped.
        energy_j: the best estimate of the cumulative joules at ``time_s``; None where the counter could not be read.
        sigma_j: its standard uncertainty from not knowing when the counter last stepped; None without a power trace.
        trace_j: integral of the power up to ``time_s``; None without a power trace.
        trace_variance: variance of ``trace_j``, in J^2, growing with time.
        resets: how often the counter has run backwards so far.
    """

    time_s: float
    reading: Reading
    energy_j: float | None
    sigma_j: float | None
    trace_j: float | None
    trace_variance: float
    resets: int


class _Point(NamedTuple):
    time_s: float
    power_w: float
    trace_j: float
    variance: float


class Track:
    """Follows one source. Threads may share it.

    Args:
        source: the source.
        keep: takes each row for the timeline.
    """

    def __init__(self, source: Source, keep: Callable[[TimelineRow], None]) -> None:
        self.source = source
        self._keep = keep
        # One reading at a time: two threads' readings in the wrong order would look like a counter running backwards.
        self._lock = threading.Lock()
        self._raw_j: float | None = None
        self._wrapped_j = 0.0
        self._resets = 0
        self._points: deque[_Point] = deque()
        self._kept_s = max(KEPT_S, 3 * (source.spec.update_period_s or 0.0))
        self._last_edge: tuple[float, float] | None = None

    def sample(self) -> None:
        """Take a cheap reading into the timeline."""
        with self._lock:
            self._take(self.source.sample())

    def read(self) -> Reading:
        """Read the counter; the reading comes back unwrapped."""
        with self._lock:
            return self._take(self.source.read())

    def edge(self, reading: Reading, time_s: float) -> Edge:
        """What is known at ``time_s``, a moment just before or after ``reading``.

        A counter that steps every T seconds shows the joules of its last step, which lies up to T before the reading,
        at an unknown phase. So the joules at ``time_s`` are the reading plus what the power trace says has flowed since
        that step: its mean over all phases is the estimate and its standard deviation the uncertainty. At constant
        power P these are P T / 2 and P T / sqrt(12).
        """
        spec = self.source.spec
        with self._lock:
            if reading.energy_j is None or not self._points:
                return Edge(time_s, reading, reading.energy_j, None, None, 0.0, self._resets)
            trace_j, variance = self._trace(time_s)
            if spec.update_period_s is None:
                return Edge(time_s, reading, reading.energy_j, None, trace_j, variance, self._resets)
            # The counter was fetched somewhere within the read, so its phase is uncertain by that much more.
            newest_s = reading.time_s + reading.read_s / 2
            span_s = spec.update_period_s + reading.read_s
            phases = [trace_j - self._trace(newest_s - span_s * (i + 0.5) / LAG_POINTS)[0] for i in range(LAG_POINTS)]
            since = variance - self._trace(newest_s - span_s)[1]
            sigma_j = math.hypot(statistics.pstdev(phases), math.sqrt(max(0.0, since)), spec.quantum_j / math.sqrt(12))
            energy_j = reading.energy_j + statistics.fmean(phases)
            # A counter never runs backwards, so neither does its estimate: idle time added never lowers the energy.
            if self._last_edge is not None and time_s >= self._last_edge[0]:
                energy_j = max(energy_j, self._last_edge[1])
            self._last_edge = (time_s, energy_j)
            return Edge(time_s, reading, energy_j, sigma_j, trace_j, variance, self._resets)

    def _take(self, reading: Reading) -> Reading:
        """Unwrap, integrate, and keep for the timeline. The lock is held."""
        if reading.energy_j is not None and reading.fault is None:
            reading = replace(reading, energy_j=self._unwrap(reading.energy_j))
        elif reading.energy_j is not None:
            reading = replace(reading, energy_j=None)  # a value that cannot be trusted is not a value
        if reading.power_w is not None:
            self._integrate(reading.time_s, reading.power_w)
        if reading.energy_j is not None or reading.power_w is not None:
            self._keep(TimelineRow(reading.time_s, self.source.spec.source_id, reading.energy_j, reading.power_w))
        return reading

    def _unwrap(self, raw_j: float) -> float:
        wrap_j = self.source.spec.wrap_j
        if self._raw_j is not None and raw_j < self._raw_j:
            if wrap_j is not None and self._raw_j - raw_j > wrap_j / 2:
                self._wrapped_j += wrap_j
            else:
                self._resets += 1
                self._last_edge = None
        self._raw_j = raw_j
        return raw_j + self._wrapped_j

    def _integrate(self, time_s: float, power_w: float) -> None:
        if not self._points:
            self._points.append(_Point(time_s, power_w, 0.0, 0.0))
            return
        last = self._points[-1]
        if time_s <= last.time_s:
            return
        # Trapezoid. A change of power shows up late: on average by half the gap and half the time that a reading is
        # held, at most by twice that. The average is taken as the standard uncertainty.
        gap_s = time_s - last.time_s
        sigma_j = abs(power_w - last.power_w) * (gap_s + POWER_HELD_S) / 2
        self._points.append(
            _Point(
                time_s,
                power_w,
                last.trace_j + gap_s * (power_w + last.power_w) / 2,
                last.variance + sigma_j**2,
            )
        )
        while len(self._points) > 2 and self._points[1].time_s < time_s - self._kept_s:
            self._points.popleft()

    def _trace(self, time_s: float) -> tuple[float, float]:
        """Integral of the power up to ``time_s``, and its variance; outside the kept points the power is held."""
        later: _Point | None = None
        for point in reversed(self._points):
            if point.time_s <= time_s:
                if later is None:
                    return point.trace_j + (time_s - point.time_s) * point.power_w, point.variance
                share = (time_s - point.time_s) / (later.time_s - point.time_s)
                return (
                    point.trace_j + share * (later.trace_j - point.trace_j),
                    point.variance + share * (later.variance - point.variance),
                )
            later = point
        first = self._points[0]
        return first.trace_j + (time_s - first.time_s) * first.power_w, first.variance

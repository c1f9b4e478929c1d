"""Windows placed in a recording of a real card, against a truth that the windows' own readings do not make.

The recording (`benchmarks/record_nvml.py --dense`) holds the loads one after another, and when each burst and each ramp
began and ended. Truth: of steady load its long-run power, straight lines over 10 s each, so that slow drift is in it.
Of ramps and bursts the mean course of the power by time since the last event (for ramps lines with a knot every 85 ms,
for bursts steps), fitted by least squares to all of the counter's steps together; a single window's few steps hardly
count in it. By how much the counter lags behind bursts is fitted too. What the load itself wandered around its truth is
told, over whole steps of the counter: no meter can be nearer than that. So windows are also held against the joules of
all steps, the mean course in between (rows `steps`): of these the meter knows the few that it reads.

Whoever recorded saw a step only at the next reading, some milliseconds late. Where all of them lie on a straight line,
they are played back when they came, and not when they were seen.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from meter_accuracy import AIMS, LENGTHS_S, Outcome, Row, outcome, row
from numpy.typing import NDArray
from simulated_card import Behaviour, Clock, run_to

from joulewise.energy import Meter, Reading
from joulewise.energy.sources.nvml import PEAK
from joulewise.energy.sources.replay import Recording, ReplaySource, Series, load_recording, replay

Floats = NDArray[np.float64]
Bracket = tuple[float, float, float]
"""Between which two moments a step of the counter came, and the joules after it."""

Truth = Callable[[float], float]
"""Joules up to a moment."""

SETTLE_S = 1.5
"""Of each phase so much is left out at its start: the load before it still shows."""

STEADY_KNOT_S = 10.0
BURST_BINS_S = (0.0, 0.01, 0.03, 0.06, 0.1, 10.0)
RAMP_KNOTS_S = tuple(i * 0.085 for i in range(48))
PIECE_S = 0.005
"""Straight lines are made of pieces so long."""

LAGS_S = tuple(i * 0.005 for i in range(17))
LATE_S = 0.0002
WARM_S = 20.0
"""A meter has followed the card for so long before its first window, where the recording reaches back so far."""

EVEN_S = 0.001
"""Steps that miss a straight line by no more are taken to lie on it."""

POLL_S = 0.1


class TakingTime:
    """A replayed source whose readings take time; now and then longer, as the simulated card's.

    Args:
        source: the source.
        clock: its clock; a reading moves it on.
        read_s: a counter reading takes so long as a rule.
        draw: chance.
    """

    def __init__(self, source: ReplaySource, clock: Clock, read_s: float, draw: random.Random) -> None:
        self.spec = source.spec
        self._source, self._clock, self._read_s, self._draw = source, clock, read_s, draw

    def read(self) -> Reading:
        """The counter, in the middle of its usual time, and the power."""
        b, start_s = Behaviour(), self._clock.now_s
        slow_s = self._draw.uniform(0.0, b.slow_s - b.read_s) if self._draw.random() < b.slow_share else 0.0
        self._clock.now_s = start_s + self._draw.uniform(0.0, slow_s) + self._read_s / 2
        reading = self._source.read()
        self._clock.now_s = start_s + self._read_s + slow_s
        return dataclasses.replace(reading, time_s=(start_s + self._clock.now_s) / 2, read_s=self._read_s + slow_s)

    def sample(self) -> Reading:
        """The power alone."""
        reading = self._source.sample()
        self._clock.now_s += Behaviour().power_read_s
        return reading

    def close(self) -> None:
        """Nothing to let go of."""


class Course:
    """The power's mean course over one phase: ``energy_j(t)`` is its integral.

    Args:
        steps: times and joules of the counter's steps in the phase.
        events: moments at which the load changed kind, as ``(time_s, kind)``, in rising order.
        bins_s: limits of the bins of time since the last event, in each of which the power is the same;
        lines: or knots, between which it goes in straight lines.
        lags_s: how late the counter may be.
    """

    def __init__(
        self,
        steps: list[tuple[float, float]],
        events: list[tuple[float, int]],
        bins_s: tuple[float, ...],
        lags_s: tuple[float, ...] = (0.0,),
        *,
        lines: bool = False,
    ):
        kinds = sorted({kind for _, kind in events})
        last_s = steps[-1][0] + 10.0
        starts, shares = _parts(np.array(bins_s), lines)
        times, rows = [], []
        for (time_s, kind), (end_s, _) in itertools.pairwise([*events, (last_s, 0)]):
            begun = time_s + starts < end_s
            times.append(time_s + starts[begun])
            block = np.zeros((int(np.sum(begun)), len(kinds) * len(bins_s)))
            first = kinds.index(kind) * len(bins_s)
            block[:, first : first + len(bins_s)] = shares[begun]
            rows.append(block)
        self._knots = np.append(np.concatenate(times), last_s)
        inside = np.vstack(rows) * np.diff(self._knots)[:, None]
        inside = inside[:, np.any(inside > 0, axis=0)]
        # Seconds spent in each bin up to the start of each piece.
        spent = np.vstack([np.zeros(inside.shape[1]), np.cumsum(inside, axis=0)])
        at = np.array([t for t, _ in steps])
        joules = np.diff(np.array([e for _, e in steps]))
        fits = []
        for lag_s in lags_s:
            seconds = np.diff(
                np.column_stack([np.interp(at - lag_s, self._knots, column) for column in spent.T]), axis=0
            )
            powers, *_ = np.linalg.lstsq(seconds, joules, rcond=None)
            fits.append((float(np.sum((seconds @ powers - joules) ** 2)), lag_s, powers))
        _, self.lag_s, powers = min(fits, key=lambda fit: fit[0])
        self._flowed = spent @ powers

    def energy_j(self, time_s: float) -> float:
        """Joules since the phase's start, on the counter's clock: its lag is put on again."""
        return float(np.interp(time_s - self.lag_s, self._knots, self._flowed))


def _parts(bins_s: Floats, lines: bool) -> tuple[Floats, Floats]:
    """The pieces of time after an event: their starts, and the share that each bin, or knot, has in each."""
    if not lines:
        return bins_s[:-1], np.eye(len(bins_s))[:-1]
    starts = np.arange(bins_s[0], bins_s[-1], PIECE_S)
    middles = starts + PIECE_S / 2
    return starts, np.column_stack([np.interp(middles, bins_s, knot) for knot in np.eye(len(bins_s))])


def wander(course: Course, steps: list[tuple[float, float]]) -> dict[str, float]:
    """How far the load went from its own course over about each length: 95th percentile in percent, by whole steps."""
    period_s = (steps[-1][0] - steps[0][0]) / (len(steps) - 1)
    times, joules = (np.array([s[i] for s in steps]) for i in (0, 1))
    truth = np.array([course.energy_j(float(t)) for t in times])
    found = {}
    for length_s in LENGTHS_S:
        count = max(1, round(length_s / period_s))
        if count < len(steps):
            off = (joules[count:] - joules[:-count]) / (truth[count:] - truth[:-count]) - 1
            found[str(length_s)] = 100 * float(np.quantile(np.abs(off), 0.95))
    return found


def by_steps(steps: Sequence[tuple[float, float]], course: Course) -> Truth:
    """All steps, the course in between: true to within what the load's wandering moves inside a single step."""
    times, joules = zip(*steps, strict=True)
    flowed = [course.energy_j(t) for t in times]

    def energy_j(time_s: float) -> float:
        place = min(max(1, bisect.bisect_right(times, time_s)), len(times) - 1)
        share = (course.energy_j(time_s) - flowed[place - 1]) / (flowed[place] - flowed[place - 1])
        return float(joules[place - 1] + share * (joules[place] - joules[place - 1]))

    return energy_j


def brackets(readings: Sequence[Sequence[float]]) -> list[Bracket]:
    """The steps that readings show.

    Args:
        readings: of the counter, in order: the middle of the read and how long it took, in seconds, and the joules. The
            value may have been fetched anywhere in it.
    """
    pairs = itertools.pairwise(readings)
    return [(a[0] - a[1] / 2, b[0] + b[1] / 2, b[2]) for a, b in pairs if b[2] != a[2]]


def evened(found: Sequence[Bracket], period_s: float | None = None) -> tuple[list[tuple[float, float]], float]:
    """Steps put on a straight line through the narrower ones of their brackets.

    Args:
        found: the brackets, in order.
        period_s: about how long a step takes; None where these are, as a rule, steps in a row.

    Returns:
        Times and joules of the steps, and by how much brackets miss the line (95th percentile), in seconds.
    """
    early, late = (np.array([b[i] for b in found]) for i in (0, 1))
    middles, widths = (early + late) / 2, late - early
    narrow = widths <= 1.5 * np.median(widths)
    period_s = float(np.median(np.diff(middles))) if period_s is None else period_s
    numbers = np.concatenate([[0], np.cumsum(np.maximum(1, np.round(np.diff(middles) / period_s)))])
    line = np.polyval(np.polyfit(numbers[narrow], middles[narrow], 1), numbers)
    off_s = float(np.quantile(np.maximum(0.0, np.maximum(early - line, line - late)), 0.95))
    return [(float(t), b[2]) for t, b in zip(line, found, strict=True)], off_s


def counter_readings(path: Path) -> list[tuple[float, float, float]]:
    """The counter's readings of a recording's first source: time, how long each took, joules."""
    recording = load_recording(path)
    columns = [recording.header["columns"].index(c) for c in ("source", "time_s", "read_s", "energy_j")]
    found = []
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        if not line.startswith("[") or not line.endswith("]"):
            continue
        row = json.loads(line)
        source, time_s, read_s, energy_j = (row[c] for c in columns)
        if source == 0 and energy_j is not None:
            found.append((time_s, read_s or 0.0, energy_j))
    return sorted(found)


def step_powers(path: Path, phase: str) -> list[float]:
    """Mean power of each of the counter's steps in one phase of a recording, in watts.

    Args:
        path: the recording.
        phase: its name.
    """
    steps, _ = evened(brackets(counter_readings(path)))
    (start_s, end_s), *_ = [p[1:] for p in load_recording(path).header["phases"] if p[0] == phase]
    pairs = itertools.pairwise(s for s in steps if start_s + SETTLE_S <= s[0] <= end_s)
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs]


def replayed(path: Path, windows: int) -> tuple[list[Row], dict[str, Any]]:
    """Windows over each load of a recording: the table's rows, and what else was found."""
    recording = load_recording(path)
    steps, off_s = evened(brackets(counter_readings(path)))
    if off_s < EVEN_S:
        series = Series(tuple(t for t, _ in steps), tuple(j for _, j in steps))
        recording = dataclasses.replace(recording, energy=(series, *recording.energy[1:]))
    if limit_w := recording.header.get("environment", {}).get("power_limit_w"):
        # The bound is the source's of today, not that of the day of the recording.
        spec = dataclasses.replace(recording.specs[0], max_power_w=PEAK * limit_w)
        recording = dataclasses.replace(recording, specs=(spec, *recording.specs[1:]))
    rows: list[Row] = []
    found: dict[str, Any] = {"synthetic": recording.synthetic, "left_out": [], "steps_off_a_line_s": off_s}
    for name, start_s, end_s in recording.header["phases"]:
        if name not in AIMS:
            continue
        start_s += SETTLE_S
        inside = [s for s in steps if start_s <= s[0] <= end_s]
        if name == "steady":
            lasts_s = end_s - start_s + 0.4
            knots_s = np.linspace(0.0, lasts_s, max(1, round(lasts_s / STEADY_KNOT_S)) + 1)
            course = Course(inside, [(start_s - 0.2, 0)], tuple(knots_s), lines=True)
        else:
            events = [(t, kind) for t, kind in recording.header.get("events", []) if start_s - 5.0 <= t <= end_s]
            if not events:
                found["left_out"].append(f"{name}: the recording does not say when the load changed")
                continue
            if name == "bursts":
                course = Course(inside, events, BURST_BINS_S, LAGS_S)
                found["bursts_counter_lag_s"] = course.lag_s
            else:  # a ramp has no edge that would show a lag: its course is that on the counter's clock
                course = Course(inside, events, RAMP_KNOTS_S, lines=True)
                found["ramps"] = sum(start_s <= t <= end_s for t, _ in events)
        found[f"{name}_wandered_percent"] = wander(course, inside)
        around = [s for s in steps if start_s - 1.0 <= s[0] <= end_s + 1.0]
        truths: dict[str, Truth] = {"card": course.energy_j, "steps": by_steps(around, course)}
        rows += _rows(recording, name, truths, (start_s, end_s), windows)
    return rows, found


def _rows(
    recording: Recording, name: str, truths: dict[str, Truth], phase: tuple[float, float], windows: int
) -> list[Row]:
    draw = random.Random(name)
    rows: dict[str, list[Row]] = {truth: [] for truth in truths}
    for length_s in LENGTHS_S:
        latest_s = phase[1] - length_s - 0.5
        outcomes: dict[str, list[Outcome]] = {truth: [] for truth in truths}
        opened = 0
        while opened < windows and latest_s > phase[0] + 0.5:
            # A meter for a stretch of the recording: it learns the steps before its windows begin.
            first_s = draw.uniform(phase[0], latest_s)
            clock = Clock(max(recording.start_s, first_s - WARM_S))
            (source,) = replay(recording, clock, origin_s=recording.start_s)
            timed = TakingTime(source, clock, recording.read_s[0], draw)
            meter = Meter([timed], clock=clock, sample_period_s=None, asleep=lambda: 0.0)
            run_to(meter, clock, first_s, draw, LATE_S)
            while clock.now_s < latest_s and opened < windows:
                opened += 1
                with meter.window() as window:
                    run_to(meter, clock, clock.now_s + length_s, draw, LATE_S)
                run_to(meter, clock, clock.now_s + draw.uniform(0.25, 0.6), draw, LATE_S)
                (first,), (last,) = window.readings_start.values(), window.readings_end.values()
                assert window.energy.gpu is not None
                assert first.energy_j is not None
                assert last.energy_j is not None
                polls = np.arange(window.start_s, window.end_s, POLL_S)
                powers = [recording.power[0].at(float(t)) or 0.0 for t in polls]
                for truth, energy_j in truths.items():
                    outcomes[truth].append(
                        outcome(
                            window.energy.gpu,
                            energy_j(window.end_s) - energy_j(window.start_s),
                            last.energy_j - first.energy_j,
                            sum(powers) / len(powers) * window.duration_s,
                        )
                    )
        for truth, found in outcomes.items():
            if found:
                rows[truth].append(row(truth, name, length_s, found))
    return [r for found in rows.values() for r in found]

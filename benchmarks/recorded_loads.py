"""Windows placed in a recording of a real card, against a truth that the windows' own readings do not make.

The recording (`benchmarks/record_nvml.py --dense`) holds the loads one after another, and when each burst and each ramp
began and ended. Truth: of steady load its long-run mean power. Of bursts and ramps the mean course of the power, in
bins of time since the last event, fitted by least squares to all of the counter's steps together; a single window's
few steps hardly count in it. By how much the counter lags behind the load is fitted too, and taken off.

Whoever recorded saw a step only at the next reading, some milliseconds late. Where all of them lie on a straight line,
they are played back when they came, and not when they were seen.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from meter_accuracy import AIMS, LENGTHS_S, Outcome, Row, outcome, row
from numpy.typing import NDArray
from simulated_card import Clock, run_to

from joulewise.energy import Meter
from joulewise.energy.sources.replay import Recording, Series, load_recording, replay

Floats = NDArray[np.float64]

SETTLE_S = 1.5
"""Of each phase so much is left out at its start: the load before it still shows."""

BURST_BINS_S = (0.0, 0.01, 0.03, 0.06, 0.1, 10.0)
RAMP_BINS_S = tuple(i * 0.085 for i in range(23))
LAGS_S = tuple(i * 0.005 for i in range(17))
LATE_S = 0.0002
EVEN_S = 0.001
"""Steps that miss a straight line by no more are taken to lie on it."""

POLL_S = 0.1


class Course:
    """The power's mean course over one phase: ``energy_j(t)`` is its integral.

    Args:
        steps: times and joules of the counter's steps in the phase.
        events: moments at which the load changed kind, as ``(time_s, kind)``, in rising order.
        bins_s: limits of the bins of time since the last event.
        lags_s: how late the counter may be.
    """

    def __init__(
        self,
        steps: list[tuple[float, float]],
        events: list[tuple[float, int]],
        bins_s: tuple[float, ...],
        lags_s: tuple[float, ...],
    ):
        kinds = sorted({kind for _, kind in events})
        pieces: list[tuple[float, int]] = []  # start of a piece, and its bin
        last_s = steps[-1][0] + 10.0
        for (time_s, kind), (end_s, _) in itertools.pairwise([*events, (last_s, 0)]):
            for number, bin_s in enumerate(bins_s[:-1]):
                if time_s + bin_s < end_s:
                    pieces.append((time_s + bin_s, kinds.index(kind) * len(bins_s) + number))
        self._times = np.array([t for t, _ in pieces])
        used = sorted({b for _, b in pieces})
        which = np.array([used.index(b) for _, b in pieces])
        lengths = np.diff(self._times, append=last_s)
        inside = np.zeros((len(pieces), len(used)))
        inside[np.arange(len(pieces)), which] = lengths
        # Seconds spent in each bin up to the start of each piece.
        self._spent = np.vstack([np.zeros(len(used)), np.cumsum(inside, axis=0)])
        self._knots = np.append(self._times, last_s)
        at = np.array([t for t, _ in steps])
        joules = np.diff(np.array([e for _, e in steps]))
        fits = []
        for lag_s in lags_s:
            spent = np.diff(self._seconds(at - lag_s), axis=0)
            powers, *_ = np.linalg.lstsq(spent, joules, rcond=None)
            fits.append((float(np.sum((spent @ powers - joules) ** 2)), lag_s, powers))
        _, self.lag_s, self._powers = min(fits, key=lambda fit: fit[0])

    def energy_j(self, time_s: float) -> float:
        """Joules since the phase's start, on the counter's clock: its lag is put on again."""
        return float((self._seconds(np.array([time_s - self.lag_s])) @ self._powers)[0])

    def _seconds(self, times_s: Floats) -> Floats:
        return np.column_stack([np.interp(times_s, self._knots, column) for column in self._spent.T])


def evened(
    brackets: Sequence[tuple[float, float, float]], period_s: float | None = None
) -> tuple[list[tuple[float, float]], float]:
    """Steps put on a straight line through their brackets.

    Args:
        brackets: between which two moments each step came, and the joules after it.
        period_s: about how long a step takes; None where these are, as a rule, steps in a row.

    Returns:
        Times and joules of the steps, and by how much brackets miss the line (95th percentile; a slow reading says
        little of when it was taken), in seconds.
    """
    early, late = (np.array([b[i] for b in brackets]) for i in (0, 1))
    middles = (early + late) / 2
    period_s = float(np.median(np.diff(middles))) if period_s is None else period_s
    numbers = np.concatenate([[0], np.cumsum(np.maximum(1, np.round(np.diff(middles) / period_s)))])
    line = np.polyval(np.polyfit(numbers, middles, 1), numbers)
    off_s = float(np.quantile(np.maximum(0.0, np.maximum(early - line, line - late)), 0.95))
    return [(float(t), b[2]) for t, b in zip(line, brackets, strict=True)], off_s


def step_powers(path: Path, phase: str) -> list[float]:
    """Mean power of each of the counter's steps in one phase of a recording, in watts.

    Args:
        path: the recording.
        phase: its name.
    """
    recording = load_recording(path)
    counter = recording.energy[0]
    points = list(zip(counter.times_s, counter.values, strict=True))
    steps, _ = evened([(a[0], b[0], b[1]) for a, b in itertools.pairwise(points) if b[1] != a[1]])
    (start_s, end_s), *_ = [p[1:] for p in recording.header["phases"] if p[0] == phase]
    pairs = itertools.pairwise(s for s in steps if start_s + SETTLE_S <= s[0] <= end_s)
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs]


def replayed(path: Path, windows: int) -> tuple[list[Row], dict[str, Any]]:
    """Windows over each load of a recording: the table's rows, and what else was found."""
    recording = load_recording(path)
    counter = recording.energy[0]
    points = list(zip(counter.times_s, counter.values, strict=True))
    steps, off_s = evened([(a[0], b[0], b[1]) for a, b in itertools.pairwise(points) if b[1] != a[1]])
    if off_s < EVEN_S:
        series = Series(tuple(t for t, _ in steps), tuple(j for _, j in steps))
        recording = dataclasses.replace(recording, energy=(series, *recording.energy[1:]))
    rows: list[Row] = []
    found: dict[str, Any] = {"synthetic": recording.synthetic, "left_out": [], "steps_off_a_line_s": off_s}
    for name, start_s, end_s in recording.header["phases"]:
        if name not in AIMS:
            continue
        start_s += SETTLE_S
        inside = [s for s in steps if start_s <= s[0] <= end_s]
        if name == "steady":
            course = Course([inside[0], inside[-1]], [(start_s - 10.0, 0)], (0.0, 1e9), (0.0,))
        else:
            events = [(t, kind) for t, kind in recording.header.get("events", []) if start_s - 5.0 <= t <= end_s]
            if not events:
                found["left_out"].append(f"{name}: the recording does not say when the load changed")
                continue
            # A ramp has no edge that would show a lag: its course is that on the counter's clock.
            kinds = (BURST_BINS_S, LAGS_S) if name == "bursts" else (RAMP_BINS_S, (0.0,))
            course = Course(inside, events, *kinds)
        found[f"{name}_counter_lag_s"] = course.lag_s
        rows += _rows(recording, name, course, (start_s, end_s), windows)
    return rows, found


def _rows(recording: Recording, name: str, course: Course, phase: tuple[float, float], windows: int) -> list[Row]:
    draw = random.Random(name)
    rows = []
    for length_s in LENGTHS_S:
        latest_s = phase[1] - length_s - 0.5
        outcomes: list[Outcome] = []
        while len(outcomes) < windows and latest_s > phase[0] + 0.5:
            # A meter for a stretch of the recording: it learns the steps before its windows begin.
            clock = Clock(max(recording.start_s, draw.uniform(phase[0], latest_s) - 6.0))
            sources = replay(recording, clock, origin_s=recording.start_s)
            meter = Meter(sources, clock=clock, sample_period_s=None, asleep=lambda: 0.0)
            run_to(meter, clock, max(clock.now_s + 6.0, phase[0]), draw, LATE_S)
            while clock.now_s < latest_s and len(outcomes) < windows:
                with meter.window() as window:
                    run_to(meter, clock, clock.now_s + length_s, draw, LATE_S)
                run_to(meter, clock, clock.now_s + draw.uniform(0.25, 0.6), draw, LATE_S)
                (first,), (last,) = window.readings_start.values(), window.readings_end.values()
                assert window.energy.gpu is not None
                assert first.energy_j is not None
                assert last.energy_j is not None
                polls = np.arange(window.start_s, window.end_s, POLL_S)
                powers = [recording.power[0].at(float(t)) or 0.0 for t in polls]
                outcomes.append(
                    outcome(
                        window.energy.gpu,
                        course.energy_j(window.end_s) - course.energy_j(window.start_s),
                        last.energy_j - first.energy_j,
                        sum(powers) / len(powers) * window.duration_s,
                    )
                )
        if outcomes:
            rows.append(row("card", name, length_s, outcomes))
    return rows

"""Windows placed in a recording: the benchmark's way to a truth that a window's own readings do not make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from load_benchmark import load_benchmark

load_benchmark("simulated_card")
load_benchmark("meter_accuracy")
recorded = load_benchmark("recorded_loads")


def test_the_mean_course_of_a_load_is_found_from_the_counters_steps() -> None:
    """Bursts of 500 W over 100 W, each of 0.3 s every 0.73 s; the counter shows them 20 ms late."""
    starts = np.arange(0.0, 60.0, 0.73)
    events = [(float(t), kind) for s in starts for t, kind in ((s, 1), (s + 0.3, 0))]

    def truth_j(time_s: float) -> float:
        return 100.0 * time_s + 400.0 * float(np.sum(np.clip(time_s - starts, 0.0, 0.3)))

    steps = [(0.1 * i, truth_j(0.1 * i - 0.02)) for i in range(5, 595)]
    course = recorded.Course(steps, events, recorded.BURST_BINS_S, recorded.LAGS_S)
    assert course.lag_s == pytest.approx(0.02)
    for start_s, end_s in ((10.03, 10.083), (20.2, 21.237), (33.33, 38.377)):
        told_j = course.energy_j(end_s) - course.energy_j(start_s)
        assert told_j == pytest.approx(truth_j(end_s - 0.02) - truth_j(start_s - 0.02), rel=1e-6)


def test_the_course_of_ramps_goes_in_straight_lines() -> None:
    """Up from 100 to 600 W and down again in 0.935 s each, over and over."""
    ramp_s = 0.935
    fine = np.arange(0.0, 200.0, 0.001)
    power_w = 100.0 + 500.0 * (1 - np.abs((fine % (2 * ramp_s)) / ramp_s - 1))
    flowed = np.concatenate([[0.0], np.cumsum((power_w[1:] + power_w[:-1]) / 2 * 0.001)])
    events = [(float(t), 2) for t in np.arange(0.0, 200.0, 2 * ramp_s)]
    steps = [(float(t), float(np.interp(t, fine, flowed))) for t in np.arange(0.05, 199.0, 0.1)]
    course = recorded.Course(steps, events, recorded.RAMP_KNOTS_S, lines=True)
    for start_s, length_s in ((20.0, 0.053), (30.9, 0.053), (33.33, 0.217), (40.4, 1.037)):
        true_j = float(np.interp(start_s + length_s, fine, flowed) - np.interp(start_s, fine, flowed))
        told_j = course.energy_j(start_s + length_s) - course.energy_j(start_s)
        assert told_j == pytest.approx(true_j, rel=0.005)
    assert max(recorded.wander(course, steps).values()) < 0.2


def test_what_a_load_wandered_is_told() -> None:
    draw = np.random.default_rng(0)
    powers = 500.0 * (1 + 0.02 * draw.standard_normal(400))
    steps = [(0.1 * i, float(e)) for i, e in enumerate(np.cumsum(powers) * 0.1)]
    course = recorded.Course(steps, [(-0.2, 0)], tuple(np.linspace(0.0, 40.4, 5)), lines=True)
    wandered = recorded.wander(course, steps)
    assert wandered["0.053"] == pytest.approx(100 * 1.96 * 0.02, rel=0.15)
    assert wandered["0.537"] == pytest.approx(100 * 1.96 * 0.02 / np.sqrt(5), rel=0.2)


def test_steps_are_put_where_they_came_and_not_where_they_were_seen() -> None:
    seen = [(0.1 * i - 0.004, 0.1 * i + 0.006, float(i)) for i in range(100)]
    steps, off_s = recorded.evened(seen)
    assert off_s == pytest.approx(0.0, abs=1e-9)
    assert np.diff([t for t, _ in steps]) == pytest.approx(0.1)
    uneven = [(a + 0.02 * (i % 2), b + 0.02 * (i % 2), j) for i, (a, b, j) in enumerate(seen)]
    assert recorded.evened(uneven)[1] > recorded.EVEN_S


def test_windows_in_a_recorded_steady_load_are_nearer_than_the_difference(repository: Path) -> None:
    rows, found = recorded.replayed(repository / "tests" / "data" / "nvml_h200.jsonl", 8)
    assert found["left_out"] == ["bursts: the recording does not say when the load changed"]
    assert found["steps_off_a_line_s"] < recorded.EVEN_S
    for row in rows:
        if row.length_s > 1:
            assert row.joulewise_p95 < row.difference_p95 / 2
            assert row.joulewise_p95 < 1.0

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

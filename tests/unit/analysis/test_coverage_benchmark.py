"""The simulation behind docs/statistics.md: whether intervals of the break-even hold the truth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from load_benchmark import load_benchmark

coverage = load_benchmark("coverage")
TYPICAL, HEAVY, EVEN = coverage.DRAFTINGS


def test_without_any_spread_the_truth_is_what_a_run_says() -> None:
    same = replace(TYPICAL, token_sigma=0.0, cost_sigma=0.0, kept_sigma=0.0, round_sigma=0.0, edge_j=0.0)
    (found,) = coverage.simulated_runs(same, 6, 1, 1.0, np.random.default_rng(0))
    # 100 tokens in 40 rounds: a round of 16 ms at 350 W against steps of 10 ms at 300 W, less 10 ms of draft's prefill.
    assert found.gross.length.value == pytest.approx(2.5)
    assert found.time.needed.value == pytest.approx(0.016 / (0.010 - 0.010 / 100))
    assert found.gross.needed.value == pytest.approx(0.016 * 350 / (0.010 * 300 - 0.010 * 350 / 100))
    sums = coverage.answers(same, 6, np.random.default_rng(0)).sum(axis=0)
    assert coverage.needed(sums, 6, 1.0, 1.0) == pytest.approx(found.time.needed.value)
    assert coverage.needed(sums, 6, same.round_w, coverage.STEP_W) == pytest.approx(found.gross.needed.value)


def test_a_share_of_the_intervals_holds_the_truth() -> None:
    row = coverage.simulate_break_even(TYPICAL, 25, 100, 1)
    for name in coverage.TRUTHS:
        assert 0.88 <= row[f"{name}_coverage"] <= 1.0
        assert row[f"{name}_without_interval"] == 0.0


def test_at_the_break_even_both_cost_the_same() -> None:
    row = coverage.simulate_break_even(EVEN, 5, 2, 1)
    assert row["true_time"] == pytest.approx(row["true_length"])
    assert row["true_energy"] == pytest.approx(row["true_length"])


def test_what_is_recorded_covers_as_it_should(repository: Path) -> None:
    recorded = json.loads((repository / "results/cpu-2core/coverage.json").read_text())["break_even"]
    assert len(recorded) == len(coverage.DRAFTINGS) * len(coverage.SIZES)
    for row in recorded:
        shares = [row[f"{name}_coverage"] for name in coverage.TRUTHS]
        typical = row["scenario"] != HEAVY.name and row["questions"] >= 10
        assert all((0.93 if typical else 0.91) <= share <= 0.97 for share in shares), row
        if row["scenario"] == EVEN.name and row["questions"] >= 10:
            assert row["says_saves"] + row["says_costs"] <= 0.07

"""Two identical cells through meter, Trials and analysis: a small version of ``benchmarks/aa.py``."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from load_benchmark import load_benchmark

aa = load_benchmark("aa")


@pytest.mark.parametrize("number", [0, 1])
def test_what_is_alike_is_not_told_apart_and_what_is_not_is(number: int) -> None:
    row = aa.row(replace(aa.CASES[number], questions=15), pairs=3)
    assert row.false_alarms["0.05"] == 0.0
    assert row.gamma_holds_1 >= 4 / 6
    assert row.gamma_half_width_median < 0.04
    assert row.found_by_gamma == 1.0
    assert row.found_by_compare["0.00"] == 1.0


def test_answers_between_idle_are_not_measured_short() -> None:
    """A rise that is seen late or early must not move joules out of the answer that it begins."""
    case = replace(aa.CASES[1], questions=40)
    for seed in range(3):
        draw = random.Random(seed)
        run = aa.Run("run", case, draw)
        run.table(draw.choices(aa.recorded(case.task), k=case.questions), 1.0)
        measured_j = sum(trial.energy[0].energy_j for trial in run.trials)
        true_j = sum(run.work.energy_j(trial.end_s) - run.work.energy_j(trial.start_s) for trial in run.trials)
        assert measured_j == pytest.approx(true_j, rel=0.005)


def test_seconds_that_differ_by_chance_widen_the_interval() -> None:
    case = replace(aa.CASES[2], questions=10)
    assert aa.row(case, pairs=1).gamma_half_width_median > 0.05
    assert aa.row(replace(case, blurred=False), pairs=1).gamma_half_width_median < 0.02

"""RouteLLM's frame from its own per-question results, which lie beside the repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from joulewise.routing.evaluate import apgr, first_crossing, recovered
from load_benchmark import load_benchmark

DATA = Path(__file__).parents[3].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not (DATA / "routellm").exists(), reason="../shared/data/routellm is absent")


@pytest.mark.parametrize(
    ("task", "questions", "weak", "strong", "oracle"),
    [("mmlu", 14_037, 68.09, 80.59, 1.268), ("gsm8k", 1_307, 63.73, 85.77, 1.115)],
)
def test_the_frame(task: str, questions: int, weak: float, strong: float, oracle: float) -> None:
    outcomes = load_benchmark("routing").routellm(DATA, task)
    assert len(outcomes.queries) == questions
    low, high = outcomes.correct.T
    assert 100 * low.mean() == pytest.approx(weak, abs=0.006)
    assert 100 * high.mean() == pytest.approx(strong, abs=0.006)
    by_chance = [apgr(np.random.default_rng(seed).random(questions), low, high) for seed in range(10)]
    assert np.mean(by_chance) == pytest.approx(0.499, abs=0.012)  # published: 0.500 and 0.497, reproduced: 0.497, 0.501
    tenths = np.linspace(0, 1, 11)  # RouteLLM's own grid, which cuts the corner of so steep a curve
    in_tenths = np.trapezoid(np.interp(tenths, *recovered(high - low, low, high)), tenths)
    assert in_tenths == pytest.approx(oracle, abs=0.001)
    assert apgr(high - low, low, high) > in_tenths


def test_first_crossings_of_the_oracle_order() -> None:
    low, high = load_benchmark("routing").routellm(DATA, "mmlu").correct.T
    shares, gap = recovered(high - low, low, high)
    assert [100 * first_crossing(shares, gap, x) for x in (0.2, 0.5, 0.8)] == pytest.approx([2.5, 6.2, 10.0], abs=0.06)

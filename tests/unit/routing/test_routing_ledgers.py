"""``benchmarks/routing_ledgers.py`` on planted answers, and what is recorded of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joulewise.routing.past_answers import Past, PastAnswer
from load_benchmark import load_benchmark

ledgers = load_benchmark("routing_ledgers")

SMALL, LARGE = "e/vanilla/direct", "e/vanilla/cot-64"
RECORD = Path(__file__).parents[3] / "results" / "h200" / "routing_ledgers.json"


def answers(question: str, small: bool, large: bool, kept: tuple[str, ...] = (SMALL, LARGE)) -> list[PastAnswer]:
    """Of two options: 2 J for 5 tokens, 20 J for 50."""
    return [
        PastAnswer(name, "e/vanilla", question, float(right), "d", 1, 20.0, tokens, joules)
        for name, right, tokens, joules in ((SMALL, small, 5.0, 2.0), (LARGE, large, 50.0, 20.0))
        if name in kept
    ]


@pytest.fixture(scope="module")
def planted() -> Any:
    """The small option knows capitals, the large one sums too; what one of them was not asked is left out."""
    rows: list[PastAnswer] = []
    for i in range(60):
        rows += answers(f"What is the capital of land number {i}?", small=True, large=True)
        rows += answers(f"Add the numbers {i} and {i + 7}, then tell the sum.", small=False, large=True)
    rows += answers("Only one of them was asked this.", small=True, large=True, kept=(SMALL,))
    return ledgers.judge(ledgers.Ledger(Past(tuple(rows))), seeds=(0, 1))


def at(found: dict[str, Any], policy: str, figure: str) -> float:
    return float(found["policies"][policy][figure]["value"])


def test_fixed_options_the_oracle_and_lots_by_hand(planted: dict[str, Any]) -> None:
    assert planted["questions"] == 120
    assert planted["best"] == LARGE
    assert (at(planted, SMALL, "accuracy"), at(planted, SMALL, "energy_j")) == pytest.approx((0.5, 2.0))
    assert (at(planted, LARGE, "accuracy"), at(planted, LARGE, "energy_j")) == pytest.approx((1.0, 20.0))
    assert (at(planted, ledgers.ORACLE, "accuracy"), at(planted, ledgers.ORACLE, "energy_j")) == (1.0, 11.0)
    assert (at(planted, ledgers.LOT, "accuracy"), at(planted, ledgers.LOT, "energy_j")) == pytest.approx((0.75, 11.0))
    assert at(planted, SMALL, "regret") == pytest.approx(0.5)
    assert at(planted, ledgers.STRONGEST, "energy_j") == pytest.approx(20.0)
    assert at(planted, ledgers.CHEAPEST, "energy_j") == pytest.approx(2.0)


def test_a_router_that_can_tell_saves_at_equal_accuracy(planted: dict[str, Any]) -> None:
    router = "router, within 10%"
    assert at(planted, router, "accuracy") > 0.97
    assert at(planted, router, "energy_j") < 12.5
    against = planted["policies"][router]["against"][ledgers.STRONGEST]
    assert against["saved"]["lower"] > 0.3
    same = planted["same_accuracy"][ledgers.STRONGEST]
    assert same["value"] < 0.7
    assert sum(planted["policies"][router]["shares"].values()) == pytest.approx(1.0)


def test_what_is_asked_is_never_learnt_from() -> None:
    """Labels that no text tells: who sees them beforehand is right, and nobody else."""
    rng = np.random.default_rng(0)
    rows: list[PastAnswer] = []
    for i, right in enumerate(rng.random(200) < 0.5):
        rows += answers(f"Is the statement number {i} true?", small=bool(right), large=not right)
    found = ledgers.judge(ledgers.Ledger(Past(tuple(rows))), seeds=(0,))
    assert at(found, ledgers.ORACLE, "accuracy") == 1.0
    assert abs(at(found, "router, within 0%", "accuracy") - 0.5) < 0.12


def test_modelled_joules_are_refused() -> None:
    row, other = answers("What?", small=True, large=True)
    with pytest.raises(SystemExit, match="not measured"):
        ledgers.Ledger(Past((replace(row, provenance="modelled"), other)))


def test_the_record_is_of_all_questions() -> None:
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    assert (found["folds"], found["seeds"], found["replicates"]) == (5, [0, 1, 2, 3, 4], 1000)
    thinking, decoding = (found["ledgers"][run] for run in ledgers.RUNS)
    assert (thinking["questions"], len(thinking["options"])) == (573, 7)
    assert (decoding["questions"], len(decoding["options"])) == (207, 2)
    for one in (thinking, decoding):
        oracle = one["policies"][ledgers.ORACLE]["accuracy"]["value"]
        assert all(row["accuracy"]["value"] <= oracle + 1e-9 for row in one["policies"].values())

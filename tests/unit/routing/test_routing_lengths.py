from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from joulewise.errors import UserError
from joulewise.routing.lengths import ATOMS, fit_lengths

RESPONSES = Path(__file__).parents[4] / "shared" / "data" / "routellm" / "gsm8k" / "gsm8k_responses.csv"


def covered(lengths: np.ndarray, found: list[np.ndarray], share: float) -> float:
    low, high = (1 - share) / 2, (1 + share) / 2
    inside = [np.quantile(f, low) <= o <= np.quantile(f, high) for o, f in zip(lengths, found, strict=True)]
    return float(np.mean(inside))


@pytest.mark.parametrize("learnt", [60, 1000])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.9])
def test_intervals_hold_as_many_new_answers_as_they_say(learnt: int, share: float) -> None:
    rng = np.random.default_rng(1)
    n = learnt + 1500
    prompts = rng.lognormal(5, 1, n)
    maths = rng.random(n) < 0.4
    outputs = np.exp(0.4 * np.log(prompts) + 2 + 0.8 * maths + rng.normal(0, 0.5, n))
    names = [("maths" if m else "history") for m in maths]
    model = fit_lengths(prompts[:learnt].tolist(), outputs[:learnt].tolist(), names[:learnt])
    found = [model.tokens(prompts[i], names[i]) for i in range(learnt, n)]
    assert covered(outputs[learnt:], found, share) == pytest.approx(share, abs=0.10 if learnt < 100 else 0.05)


@pytest.mark.skipif(not RESPONSES.exists(), reason="../shared/data/routellm is absent")
@pytest.mark.parametrize("column", ["mistralai/Mixtral-8x7B-Instruct-v0.1_response", "gpt-4-1106-preview_response"])
def test_intervals_hold_on_answers_to_gsm8k(column: str) -> None:
    with RESPONSES.open(newline="", encoding="utf-8") as file:
        rows = [(len(row["prompt"].split()), len(row[column].split())) for row in csv.DictReader(file)]
    prompts, outputs = np.array(rows, dtype=float)[np.random.default_rng(0).permutation(len(rows))].T
    model = fit_lengths(prompts[:600].tolist(), outputs[:600].tolist())
    found = [model.tokens(p) for p in prompts[600:]]
    for share in (0.5, 0.8, 0.9):
        assert covered(outputs[600:], found, share) == pytest.approx(share, abs=0.05)
    assert found[int(np.argmax(prompts[600:]))].mean() > found[int(np.argmin(prompts[600:]))].mean()


def test_few_answers_of_a_domain_move_little_many_move_much() -> None:
    prompts, outputs = [10.0] * 200, [float(100 + i % 7) for i in range(200)]
    few = fit_lengths([*prompts, 10.0], [*outputs, 900.0], [None] * 200 + ["law"])
    many = fit_lengths(prompts + [10.0] * 400, outputs + [900.0] * 400, [None] * 200 + ["law"] * 400)
    assert few.tokens(10, "law").mean() < 250 < 800 < many.tokens(10, "law").mean()
    assert few.tokens(10, "never seen").tolist() == few.tokens(10).tolist()


def test_one_answer_is_enough_and_none_is_refused() -> None:
    assert fit_lengths([5], [70]).tokens(1e6).tolist() == pytest.approx([70.0] * ATOMS)
    with pytest.raises(UserError, match="no answers"):
        fit_lengths([], [])


@pytest.mark.parametrize(("prompts", "outputs"), [([1, 2], [1]), ([1], [-1]), ([float("nan")], [1])])
def test_lengths_that_are_none_are_refused(prompts: list[float], outputs: list[float]) -> None:
    with pytest.raises(UserError):
        fit_lengths(prompts, outputs)

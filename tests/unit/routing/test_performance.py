from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest

from joulewise.errors import UserError
from joulewise.routing.outcomes import Outcomes, gather
from joulewise.routing.performance import calibration_error, fit, predict_all, reliability
from planted_outcomes import planted

pytest.importorskip("scipy", reason="learning needs the extra routing")


def test_the_gain_follows_the_field() -> None:
    model = fit(planted(600))
    assert model.options[model.reference] == "large"
    algebra = model.predict("a polynomial equation with an integer root")
    cooking = model.predict("whisk the butter and simmer the onion")
    assert algebra.gain[0] < -0.3 < cooking.gain[0] < 0.3
    assert algebra.accuracy[0] < 0.45 < cooking.accuracy[0]
    assert algebra.gain[1] == 0.0


def test_accuracies_are_calibrated_on_queries_not_learnt_from() -> None:
    model, other = fit(planted(800)), planted(2000, seed=1)
    found = predict_all(model, other.queries)
    for option in range(2):
        assert calibration_error(found.accuracy[:, option], other.correct[:, option]) < 0.06
    assert (model.calibration_error < 0.08).all()


def test_same_seed_same_model_another_seed_another() -> None:
    outcomes = planted(120)
    first, second, third = fit(outcomes, 3), fit(outcomes, 3), fit(outcomes, 4)
    for field in dataclasses.fields(first):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(second, field.name))
    assert not np.array_equal(first.waves, third.waves)


def test_labels_by_chance_leave_the_gain_near_its_mean() -> None:
    rng, outcomes = np.random.default_rng(5), planted(200)
    noise = dataclasses.replace(outcomes, correct=(rng.random((200, 2)) < [0.5, 0.7]).astype(float))
    found = predict_all(fit(noise), planted(200, seed=9).queries)
    assert found.gain[:, 0].std() < 0.08


def test_few_labels_give_the_means() -> None:
    model = fit(planted(8))
    found = predict_all(model, ["polynomial", "", "🦊", "x" * 1_000_000])
    assert np.ptp(found.accuracy, axis=0).max() == 0.0


def test_one_class_only() -> None:
    outcomes = dataclasses.replace(planted(100), correct=np.ones((100, 2)))
    found = fit(outcomes).predict("anything")
    assert ((found.accuracy > 0.9) & (found.accuracy < 1)).all()
    assert found.gain == pytest.approx(0.0)


def test_options_that_were_not_asked_everywhere() -> None:
    full = planted(400)
    correct = full.correct.copy()
    correct[::2, 0] = math.nan
    correct[:300, 1] = math.nan
    never = np.column_stack([correct, np.full(400, math.nan)])
    model = fit(Outcomes(full.queries, ("small", "large", "never"), never, full.domains))
    found = model.predict("polynomial equation")
    assert np.isfinite(found.accuracy).all()
    assert found.accuracy[2] == pytest.approx(0.5, abs=0.3)
    assert model.labels.tolist() == [200, 100, 0]


def test_a_named_domain_moves_a_query_without_words_of_its_field() -> None:
    model = fit(planted(400, named=True))
    query = "And the next one?"
    assert model.predict(query, "algebra").gain[0] < model.predict(query, "cooking").gain[0] - 0.05
    np.testing.assert_array_equal(model.predict(query, "unheard of").gain, model.predict(query).gain)


def test_nothing_to_learn_from() -> None:
    with pytest.raises(UserError, match="no outcomes"):
        fit(Outcomes(("q",), ("a",), np.array([[math.nan]]), (None,)))


def test_one_option_alone() -> None:
    model = fit(gather((f"word{i % 7} number {i}", "only", float(i % 7 < 3), None) for i in range(100)))
    assert model.predict("word1").accuracy[0] > model.predict("word6").accuracy[0]


def test_reliability_counts_every_query() -> None:
    table = reliability(np.linspace(0, 1, 25), np.ones(25))
    assert sum(n for *_, n in table) == 25
    assert calibration_error(np.array([0.25, 0.75]), np.array([0.0, 1.0]), bins=2) == pytest.approx(0.25)


def test_predicting_loads_neither_torch_nor_scipy() -> None:
    code = "import sys, joulewise.routing.router_file; print([m for m in ('torch', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

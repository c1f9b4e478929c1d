from __future__ import annotations

import functools
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.errors import EnvironmentFault, UserError
from joulewise.routing.correction import (
    LEARN_FIRST,
    OF_ACCURACY,
    OF_JOULES,
    VERSION,
    Alarm,
    Corrections,
    Feedback,
    Offsets,
    corrected,
    corrected_estimator,
    drift,
    load_corrections,
    reset,
    save_corrections,
    update,
)
from joulewise.routing.energy import Quantiles
from joulewise.routing.policy import Estimate, Goal, Load, Option, Query, State, choose

EXPECTED = Estimate(0.6, Quantiles(12.0, 10.0, 30.0), Quantiles(1, 1, 1), Quantiles(2, 2, 2))


def learnt(feedback: Iterable[Feedback], start: Corrections | None = None) -> Corrections:
    return functools.reduce(update, feedback, start or Corrections())


def accuracy(corrections: Corrections, domain: str | None = None, seed: int | None = None) -> float:
    return corrected(corrections, "a", domain, EXPECTED, seed).accuracy


feedbacks = st.builds(
    Feedback,
    option=st.sampled_from(["a", "b"]),
    predicted=st.floats(0, 1),
    observed=st.floats(0, 1),
    expected_j=st.floats(1e-6, 1e6),
    energy_j=st.floats(1e-6, 1e6),
    domain=st.sampled_from([None, "law", "math"]),
    trust=st.floats(0.01, 1),
)
many = st.lists(feedbacks, max_size=30)
domains = st.sampled_from([None, "law", "math", "new"])
seeds = st.none() | st.integers(-(2**70), 2**70)


@given(many, domains, seeds, st.floats(0, 1), st.floats(0, 1), st.floats(1, 9))
@settings(max_examples=80, deadline=None)
def test_corrections_stay_within_their_bounds(
    found: list[Feedback], domain: str | None, seed: int | None, predicted: float, most: float, factor: float
) -> None:
    corrections = learnt(found, Corrections(most_accuracy=most, most_factor=factor))
    before = Estimate(predicted, EXPECTED.energy_j)
    after = corrected(corrections, "a", domain, before, seed)
    assert 0 <= after.accuracy <= 1
    assert abs(after.accuracy - predicted) <= most + 1e-9
    for new, old in zip(
        (after.energy_j.mean, after.energy_j.p50, after.energy_j.p95),
        (before.energy_j.mean, before.energy_j.p50, before.energy_j.p95),
        strict=True,
    ):
        assert old / factor * (1 - 1e-9) <= new <= old * factor * (1 + 1e-9)


@given(many, st.randoms(use_true_random=False), domains)
@settings(max_examples=60, deadline=None)
def test_the_order_of_feedback_does_not_matter_to_the_corrections(
    found: list[Feedback], shuffle: random.Random, domain: str | None
) -> None:
    other = found.copy()
    shuffle.shuffle(other)
    one, two = (corrected(learnt(way), "a", domain, EXPECTED) for way in (found, other))
    assert one.accuracy == pytest.approx(two.accuracy, abs=1e-9)
    assert one.energy_j.mean == pytest.approx(two.energy_j.mean)


def test_without_feedback_an_estimate_stays_as_it_is() -> None:
    assert corrected(Corrections(), "a", "law", EXPECTED) is EXPECTED
    other = learnt([Feedback("b", 0.5, 1, 10, 20)])
    assert corrected(other, "a", "law", EXPECTED) is EXPECTED
    bound = Corrections(most_accuracy=0.0, most_factor=1.0)
    assert corrected(learnt([Feedback("a", 0.1, 1, 10, 20)], bound), "a", None, EXPECTED, 3) is EXPECTED


@given(st.floats(-0.19, 0.19), st.sampled_from([None, "law"]))
@settings(max_examples=30, deadline=None)
def test_a_constant_bias_is_learnt(bias: float, domain: str | None) -> None:
    one = Feedback("a", 0.5, 0.5 + bias, domain=domain)
    few, some = learnt([one] * 50), learnt([one] * 600)
    assert abs(accuracy(few, domain) - 0.6 - bias) <= 0.7 * abs(bias) + 1e-9
    assert accuracy(some, domain) == pytest.approx(0.6 + bias, abs=0.12 * abs(bias) + 1e-9)


def test_a_bias_of_one_domain_stays_there_for_the_most_part() -> None:
    found = learnt([Feedback("a", 0.5, 0.35 if d == "law" else 0.5, domain=d) for d in ("law", "x", "y", "z") * 400])
    assert accuracy(found, "law") == pytest.approx(0.45, abs=0.015)
    assert accuracy(found, "x") == pytest.approx(0.6, abs=0.01)
    assert 0.57 < accuracy(found, "never seen") < 0.6


def test_few_feedbacks_move_little_and_those_of_less_trust_less() -> None:
    one, thumb = learnt([Feedback("a", 0.6, 0)]), learnt([Feedback("a", 0.6, 0, trust=0.25)])
    assert 0.59 < accuracy(one) < accuracy(thumb) < 0.6
    assert accuracy(learnt([Feedback("a", 0.6, 0, trust=0.25)] * 4)) == pytest.approx(accuracy(one))


def test_the_offsets_are_those_of_bayesian_linear_regression() -> None:
    rng = np.random.default_rng(0)
    names: list[str | None] = [None, "law", "math", "bio"]
    which, weights, residuals = rng.integers(0, 4, 40), rng.uniform(0.1, 1, 40), rng.normal(0.1, 0.4, 40)
    offsets = Offsets(OF_ACCURACY)
    for i, weight, residual in zip(which, weights, residuals, strict=True):
        offsets = offsets.told(names[i], float(weight), float(residual))
    rows = np.eye(4)[which]
    rows[:, 0] = 1.0  # the level is everyone's; the domain that is not known has nothing more
    prior = np.diag([OF_ACCURACY.level**-2] + [OF_ACCURACY.domain**-2] * 3)
    noise = weights / OF_ACCURACY.noise**2
    covariance = np.linalg.inv(prior + rows.T @ (rows * noise[:, None]))
    mean = covariance @ rows.T @ (noise * residuals)
    for i, name in enumerate(names):
        at = np.eye(4)[i]
        at[0] = 1.0
        assert offsets.at(name) == pytest.approx((at @ mean, at @ covariance @ at))
    assert offsets.at("new") == pytest.approx((mean[0], covariance[0, 0] + OF_ACCURACY.domain**2))


def test_joules_are_corrected_by_a_factor_that_noise_and_outliers_leave_alone() -> None:
    rng = random.Random(0)
    found = learnt(Feedback.on("a", EXPECTED, energy_j=15 * math.exp(rng.gauss(0, 0.5))) for _ in range(3000))
    after = corrected(found, "a", None, EXPECTED)
    assert after.energy_j.mean / 12 == pytest.approx(1.5, rel=0.03)
    assert after.energy_j.p95 / 30 == pytest.approx(after.energy_j.mean / 12)
    assert (after.accuracy, after.total_s) == (EXPECTED.accuracy, EXPECTED.total_s)
    stalled = learnt([Feedback.on("a", EXPECTED, energy_j=10.0)] * 20 + [Feedback.on("a", EXPECTED, energy_j=1e9)])
    assert 1 < corrected(stalled, "a", None, EXPECTED).energy_j.p50 / 10 < 1.1


def test_feedback_on_an_estimate_is_of_its_accuracy_and_its_median_joules() -> None:
    assert Feedback.on("a", EXPECTED, True, 9.0, "law") == Feedback("a", 0.6, 1, 10.0, 9.0, "law")
    assert Feedback.on("a", EXPECTED, 0.25, trust=0.5) == Feedback("a", 0.6, 0.25, trust=0.5)
    assert Feedback.on("a", EXPECTED, energy_j=9.0) == Feedback("a", None, None, 10.0, 9.0)


@given(many, domains)
@settings(max_examples=30, deadline=None)
def test_reset_forgets_one_option_or_all(found: list[Feedback], domain: str | None) -> None:
    both = [Feedback("a", 0.5, 1), Feedback("b", 0.5, 0), *found]
    corrections = learnt(both)
    one = reset(corrections, "a")
    assert corrected(one, "a", domain, EXPECTED) is EXPECTED
    assert one.options["b"] == corrections.options["b"]
    assert reset(corrections) == Corrections()
    with pytest.raises(UserError, match="no corrections of a; there are of b"):
        reset(one, "a")


def test_draws_spread_as_what_is_not_known_and_repeat_by_their_seed() -> None:
    few, some = (learnt([Feedback("a", 0.6, 0.6)] * n) for n in (1, 200))
    for corrections, level in ((few, 1), (some, 200)):
        drawn = [accuracy(corrections, seed=seed) - 0.6 for seed in range(2000)]
        assert statistics.mean(drawn) == pytest.approx(0, abs=0.01)
        assert statistics.stdev(drawn) == pytest.approx((0.05**-2 + level / 0.45**2) ** -0.5, rel=0.1)
        assert accuracy(corrections, seed=7) - 0.6 == drawn[7]
    twins = {corrected(Corrections(), name, None, EXPECTED, 5).accuracy for name in ("a", "b", "c")}
    assert len(twins) == 3


GOAL = Goal(answer_value=1.0, kwh_price=3.6e6 * 0.1 / 50)  # 50 J are worth 10 points
OPTIONS = (Option("small", "s"), Option("large", "l"))
SUBJECTS = ("law", "math", "bio", "art")


def predicted(query: Query, option: Option, load: Load) -> Estimate:
    joules = 10.0 if option.name == "small" else 60.0
    right = 0.80 if (option.name, query.domain) == ("small", "law") else 0.85
    return Estimate(right, Quantiles(joules, joules, joules))


def truth(option: str, domain: str) -> float:
    """Of law the small model knows 15 points less than is predicted."""
    return 0.65 if (option, domain) == ("small", "law") else 0.85


def test_choices_regain_most_of_what_a_prediction_off_by_15_points_in_one_domain_loses() -> None:
    def lost(correct: bool, start: int) -> float:
        rng, corrections, total = random.Random(start), Corrections(), 0.0
        for _ in range(2000):
            query = Query(100, rng.choice(SUBJECTS))
            taken = choose(query, OPTIONS, corrected_estimator(corrections, predicted), State(), GOAL).option
            worth = {name: truth(name, str(query.domain)) - dear for name, dear in (("small", 0.0), ("large", 0.1))}
            total += max(worth.values()) - worth[taken]
            right = rng.random() < truth(taken, str(query.domain))
            if correct:
                expected = predicted(query, Option(taken, ""), Load())
                corrections = update(corrections, Feedback.on(taken, expected, right, domain=query.domain))
        return total

    without, with_feedback = (statistics.mean(lost(correct, start) for start in range(4)) for correct in (False, True))
    assert without == pytest.approx(50, rel=0.1)  # a tenth for each question on law
    assert with_feedback < 0.4 * without


def test_thompson_finds_a_good_option_that_was_underrated_where_the_mean_does_not() -> None:
    def told(query: Query, option: Option, load: Load) -> Estimate:
        return Estimate({"liked": 0.70, "underrated": 0.60}[option.name], Quantiles(1, 1, 1))

    right = {"liked": 0.70, "underrated": 0.85}
    options = tuple(Option(name, "m") for name in right)

    def late(explore: bool, start: int) -> float:
        rng, corrections, taken = random.Random(start), Corrections(), []
        for i in range(1000):
            estimator = corrected_estimator(corrections, told, start * 1000 + i if explore else None)
            name = choose(Query(1), options, estimator, State(), Goal(most_j=9)).option
            expected = told(Query(1), Option(name, "m"), Load())
            corrections = update(corrections, Feedback.on(name, expected, rng.random() < right[name]))
            taken.append(name == "underrated")
        return statistics.mean(taken[-100:])

    drawn, mean = ([late(explore, start) for start in range(5)] for explore in (True, False))
    assert statistics.mean(drawn) > 0.8
    assert statistics.mean(mean) < 0.5


def first_alarm(
    seed: int,
    feedbacks: int,
    truth: Callable[[float, int], float],
    domains: tuple[str | None, ...] = SUBJECTS,
) -> Alarm | None:
    rng, corrections = random.Random(seed), Corrections()
    for i in range(feedbacks):
        p = rng.uniform(0.3, 0.95)
        right = float(rng.random() < truth(p, i))
        corrections = update(corrections, Feedback("a", p, right, domain=rng.choice(domains)))
        if (alarm := corrections.options["a"].alarm) is not None:
            return alarm
    return None


@pytest.mark.parametrize(("bias", "domains"), [(0.0, SUBJECTS), (-0.15, (None,))])
def test_where_nothing_changes_at_most_5_percent_give_an_alarm_within_1000(
    bias: float, domains: tuple[str | None, ...]
) -> None:
    alarms = [first_alarm(seed, 1000, lambda p, i: p + bias, domains) for seed in range(60)]
    assert sum(alarm is not None for alarm in alarms) <= 3


@pytest.mark.parametrize("change", [-0.2, 0.2])
def test_a_change_of_20_points_gives_an_alarm_after_about_100(change: float) -> None:
    def right(p: float, i: int) -> float:
        return p + change * (i >= 400) if change < 0 else p - change * (i < 400)

    alarms = [first_alarm(seed, 800, right) for seed in range(40)]
    found = [alarm for alarm in alarms if alarm is not None and alarm.at > 400]
    assert len(found) >= 36
    assert statistics.median(alarm.at - 400 for alarm in found) <= 125
    assert statistics.median(alarm.since for alarm in found) == pytest.approx(400, abs=25)
    assert statistics.mean(alarm.change for alarm in found) == pytest.approx(change, abs=0.08)


def test_drift_is_told_by_option() -> None:
    steady = [Feedback("b", 0.5, i % 2) for i in range(300)]
    worse = [Feedback("a", 0.5, i % 2) for i in range(300)] + [Feedback("a", 0.5, 0)] * 40
    assert drift(learnt(steady)) == []
    found = learnt(steady + worse)
    (told,) = drift(found)
    assert told.startswith("a: right ")
    assert "points less often from feedback 30" in told
    assert drift(reset(found, "a")) == []
    assert drift(learnt([Feedback("a", 0.9, 0)] * LEARN_FIRST)) == []  # a router that is wrong is no change


@given(many)
@settings(max_examples=30, deadline=None)
def test_a_file_gives_back_what_was_learnt(tmp_path_factory: pytest.TempPathFactory, found: list[Feedback]) -> None:
    path = tmp_path_factory.mktemp("corrections") / "corrections.json"
    corrections = learnt(found, Corrections(most_accuracy=0.1, most_factor=3.0))
    save_corrections(corrections, path)
    assert load_corrections(path) == corrections


def drifted() -> Corrections:
    """With all that a file can hold."""
    one = [Feedback("a", 0.5, i % 2, 10, 11, "law") for i in range(300)] + [Feedback("a", 0.5, 0)] * 40
    return learnt(
        [*one, Feedback("ü=\n", 0.5, 1), *[Feedback("c", 0.5, i > LEARN_FIRST) for i in range(LEARN_FIRST + 3)]]
    )


def test_a_file_gives_back_alarms_and_what_speaks_for_a_change_and_a_new_one_takes_its_place(tmp_path: Path) -> None:
    path, corrections = tmp_path / "corrections.json", drifted()
    assert corrections.options["a"].alarm is not None
    assert corrections.options["c"].better is not None
    save_corrections(Corrections(), path)
    save_corrections(corrections, path)
    assert load_corrections(path) == corrections
    assert [file.name for file in tmp_path.iterdir()] == ["corrections.json"]
    more = Feedback("c", 0.5, 1)
    assert update(load_corrections(path), more) == update(corrections, more)


def test_a_file_that_cannot_be_written_or_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        save_corrections(Corrections(), tmp_path / "none" / "corrections.json")
    with pytest.raises(UserError, match="cannot be read"):
        load_corrections(tmp_path / "none.json")


def _set(**parts: object) -> Callable[[str], str]:
    return lambda text: json.dumps(json.loads(text) | parts)


def _with_weight(text: str, weight: object) -> str:
    whole = json.loads(text)
    whole["options"]["a"]["accuracy"][0]["weight"] = weight
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: text[: len(text) // 2], "truncated"),
        (lambda text: "", "truncated"),
        (lambda text: "[]", "no file of corrections"),
        (lambda text: "\x00\ud800", "truncated, damaged"),
        (_set(schema_name="joulewise-router"), "schema_name"),
        (_set(version=VERSION + 1, options=3), f"version {VERSION + 1}, and this reads {VERSION}: remove it"),
        (_set(more=1), "more: "),
        (_set(most_factor=0.5), "most_factor: "),
        (lambda text: _with_weight(text, float("nan")), "options.a.accuracy.0.weight"),
        (lambda text: _with_weight(text, 0), "options.a.accuracy.0.weight"),
        (lambda text: _with_weight(text, "1"), "options.a.accuracy.0.weight"),
    ],
)
def test_a_damaged_file_is_told(tmp_path: Path, damage: Callable[[str], str], told: str) -> None:
    path = tmp_path / "corrections.json"
    save_corrections(drifted(), path)
    path.write_bytes(damage(path.read_text(encoding="utf-8")).encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match=told):
        load_corrections(path)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({}, "tells nothing"),
        ({"predicted": 0.5}, "predicted and observed belong together"),
        ({"observed": 1}, "predicted and observed belong together"),
        ({"energy_j": 1}, "expected_j and energy_j belong together"),
        ({"predicted": 0.5, "observed": 1.5}, "from 0 to 1"),
        ({"predicted": float("nan"), "observed": 1}, "from 0 to 1"),
        ({"predicted": 0.5, "observed": 1, "trust": 0}, "trust is from 0.01 to 1"),
        ({"expected_j": 0, "energy_j": 1}, "joules are above 0"),
        ({"expected_j": 1, "energy_j": math.inf}, "joules are above 0"),
    ],
)
def test_feedback_that_cannot_be_is_refused(parts: dict[str, float], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Feedback("a", **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("bounds", [{"most_accuracy": -0.1}, {"most_accuracy": 1.1}, {"most_factor": 0.9}])
def test_bounds_that_cannot_be_are_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(UserError, match="most_accuracy"):
        Corrections(**bounds)  # type: ignore[arg-type]


def test_joules_have_a_prior_of_their_own() -> None:
    assert Corrections().options.get("a") is None
    found = learnt([Feedback("a", 0.5, 1, 10, 20)]).options["a"]
    assert (found.accuracy.prior, found.joules.prior) == (OF_ACCURACY, OF_JOULES)


def test_numpy_alone_is_loaded() -> None:
    heavy = "('torch', 'scipy', 'transformers', 'matplotlib', 'aiohttp')"
    code = f"import sys, joulewise.routing.correction; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")

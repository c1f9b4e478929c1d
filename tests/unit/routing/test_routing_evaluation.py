from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joulewise.errors import UserError
from joulewise.report.routing_evaluation import describe_evaluation, evaluation_json
from joulewise.routing.evaluation import Evaluation, evaluate
from joulewise.routing.fitting import fit_router
from joulewise.routing.guarantee import Certificate, certify
from joulewise.routing.past_answers import Past, PastAnswer
from load_benchmark import load_benchmark
from planted_outcomes import planted

pytest.importorskip("scipy", reason="learning needs the extra routing")

JOULES = {"small": 2.0, "large": 20.0}


def past(n: int, seed: int, joules: bool = True) -> Past:
    """Answers whose truth is known: of four fields the large option is better in two."""
    found = planted(n, seed, named=True)
    return Past(
        tuple(
            PastAnswer(
                option, option, f"{seed} {query}", score, domain,
                prompt_tokens=20.0, output_tokens=10.0, energy_j=JOULES[option] if joules else None, total_s=1.0,
            )
            for query, scores, domain in zip(found.queries, found.correct, found.domains, strict=True)
            for option, score in zip(found.options, scores.tolist(), strict=True)
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Evaluation:
    return evaluate(fit_router(past(800, 1)), past(600, 2))


def test_fixed_options_are_what_they_are(found: Evaluation) -> None:
    small, large = sorted(found.fixed, key=lambda one: one.energy_j or 0.0)
    truth = {option: np.mean([a.score for a in past(600, 2).answers if a.option == option]) for option in JOULES}
    assert (small.accuracy.value, large.accuracy.value) == pytest.approx((truth["small"], truth["large"]))
    assert (small.energy_j, large.energy_j) == pytest.approx((2.0, 20.0))
    assert (found.best, found.cheapest, found.measured) == ("large", "small", 1.0)
    assert small.dominated_by is large.dominated_by is None


def test_a_router_that_knows_the_fields_is_as_right_for_fewer_joules(found: Evaluation) -> None:
    # The large option is needed in two of four fields: about 11 of 20 J, and more where a field is hard to tell.
    assert found.same_accuracy is not None
    assert 0.4 < found.same_accuracy < 0.8
    assert found.aiq is not None
    assert found.aiq_fixed is not None
    assert found.aiq_oracle is not None
    assert found.aiq_fixed + 0.02 < found.aiq < found.aiq_oracle
    assert found.pair is not None
    assert found.pair.apgr.value is not None
    assert found.pair.apgr.value > 0.65
    assert found.points[0].energy_j == pytest.approx(2.0)
    assert [p.energy_j for p in found.points] == sorted(p.energy_j for p in found.points)
    assert found.oracle.accuracy >= max(one.accuracy.value or 0.0 for one in found.fixed)


def test_floors_save_and_keep(found: Evaluation) -> None:
    assert [floor.within for floor in found.floors] == [0.01, 0.02, 0.05, 0.1]
    for floor in found.floors:
        assert floor.saved.value is not None
        assert 0.1 < floor.saved.value < 0.9
        assert floor.verdict in ("kept", "cannot tell")
    assert found.certificate is not None
    assert found.certificate.labels == 600


def test_predictions_are_calibrated_and_joules_expected(found: Evaluation) -> None:
    assert {c.option for c in found.calibrations} == set(JOULES)
    for calibration in found.calibrations:
        assert calibration.error is not None
        assert calibration.error < 0.1
        assert sum(count for *_, count in calibration.table) == 600
    assert all(e.ratio == pytest.approx(1.0, rel=0.05) for e in found.expectations)


def test_it_can_be_read(found: Evaluation) -> None:
    told = describe_evaluation(found)
    assert max(map(len, told.splitlines())) <= 140
    for words in ("600 questions that the router did not learn from", "as accurate as large at", "APGR 0.", "Brier"):
        assert words in told
    assert json.loads(json.dumps(evaluation_json(found), allow_nan=False))["queries"] == 600


def test_questions_that_were_learnt_from_are_left_out() -> None:
    learnt, other = past(300, 1), past(100, 2)
    router = fit_router(learnt)
    found = evaluate(router, learnt.joined(other))
    assert (found.queries, found.seen, found.also_seen) == (100, 300, False)
    assert "left out: 300 that it learnt from" in describe_evaluation(found)
    both = evaluate(router, learnt.joined(other), also_seen=True)
    assert (both.queries, both.seen) == (400, 300)
    assert "figures flatter it" in describe_evaluation(both)
    with pytest.raises(UserError, match="the router learnt from all of the 300 questions with a score"):
        evaluate(router, learnt)


def test_without_joules_only_accuracy_is_told() -> None:
    found = evaluate(fit_router(past(300, 1, joules=False)), past(100, 2, joules=False))
    assert found.measured is None
    assert (found.points, found.aiq, found.same_accuracy) == ((), None, None)
    assert found.pair is not None
    assert (found.floors, found.certificate) == ((), None)
    told = describe_evaluation(found)
    assert "joules: not known, so only accuracy is told" in told
    assert "nan" not in told.lower()
    json.dumps(evaluation_json(found), allow_nan=False)


def test_joules_that_were_not_drawn_are_those_expected() -> None:
    bare = replace(past(100, 2), answers=tuple(replace(a, energy_j=None) for a in past(100, 2).answers))
    found = evaluate(fit_router(past(300, 1)), bare)
    assert found.measured == 0.0
    assert {round(one.energy_j or 0.0) for one in found.fixed} == {2, 20}


def test_absolute_floors_are_held_against_the_answers() -> None:
    found = evaluate(fit_router(past(800, 1)), past(600, 2), leasts=[0.75, 0.99])
    low, high = found.absolute
    assert (low.verdict, high.verdict) == ("kept", "never reached")
    # The small option reaches it in two of four fields, so half of the large one's joules are saved, more or less.
    assert 0.3 < (low.saved.value or 0.0) < 0.6
    assert low.reached > 500
    told = describe_evaluation(found)
    assert "75.0%: cannot prove with" in told or "75.0%: proven; where it is reached fewer are right" in told
    assert "99.0%: no option is expected to reach it on any question" in told
    assert max(map(len, describe_evaluation(found, 80).splitlines())) <= 80
    assert json.loads(json.dumps(evaluation_json(found), allow_nan=False))["absolute"][0]["least"] == 0.75
    bare = evaluate(fit_router(past(300, 1, joules=False)), past(100, 2, joules=False), leasts=[0.5])
    assert bare.absolute == ()


def test_a_pair_is_as_it_is_named(found: Evaluation) -> None:
    router, data = fit_router(past(800, 1)), past(600, 2)
    assert (found.weak, found.strong) == ("small", "large")
    same = evaluate(router, data, pair=("small", "large"))
    assert same.pair == found.pair
    turned = evaluate(router, data, pair=("large", "small"))
    assert turned.pair is None
    assert "large and small: no gap of accuracy" in describe_evaluation(turned)
    with pytest.raises(UserError, match="the pair's option huge has no scored answers here; there are large, small"):
        evaluate(router, data, pair=("small", "huge"))
    with pytest.raises(UserError, match="both give the same answers"):
        evaluate(router, data, pair=("small", "small"))


def test_contradictory_answers_are_told() -> None:
    data = past(100, 2)
    turned = replace(
        data, answers=(*data.answers, replace(data.answers[0], score=1.0 - (data.answers[0].score or 0.0)))
    )
    found = evaluate(fit_router(past(300, 1)), turned)
    assert found.contradictory == 1
    assert "1 pair of question and option with both right and wrong answers" in describe_evaluation(found)
    assert "both right and wrong" not in describe_evaluation(evaluate(fit_router(past(300, 1)), data))


def test_options_on_one_side_only_are_told() -> None:
    learnt, other = past(300, 1), past(100, 2)
    strange = replace(other, answers=tuple(replace(a, option="huge") for a in other.answers if a.option == "large"))
    found = evaluate(fit_router(learnt), other.joined(strange))
    assert found.unknown == ("huge",)
    only = replace(other, answers=tuple(a for a in other.answers if a.option == "small"))
    found = evaluate(fit_router(learnt), only)
    assert (found.missing, found.pair, found.floors) == (("large",), None, ())
    assert describe_evaluation(found)
    with pytest.raises(UserError, match="they are of huge, and it knows"):
        evaluate(fit_router(learnt), strange)
    with pytest.raises(UserError, match="there are no scored answers"):
        evaluate(fit_router(learnt), Past(()))


def test_one_class_alone() -> None:
    right = replace(past(100, 2), answers=tuple(replace(a, score=1.0) for a in past(100, 2).answers))
    found = evaluate(fit_router(past(300, 1)), right)
    assert found.pair is None
    assert found.best == "small"  # as right, for fewer joules
    assert found.same_accuracy == pytest.approx(1.0)
    assert describe_evaluation(found)


def test_on_routellms_outcomes(shared_data: Path) -> None:
    outcomes = load_benchmark("routing").routellm(shared_data, "gsm8k")
    answers = [
        PastAnswer(option, option, query, score, domain, energy_j=joules, prompt_tokens=50.0, output_tokens=100.0)
        for query, scores, domain in zip(outcomes.queries, outcomes.correct, outcomes.domains, strict=True)
        for option, score, joules in zip(outcomes.options, scores.tolist(), (30.0, 200.0), strict=True)
    ]
    half = len(answers) // 4 * 2
    found = evaluate(fit_router(Past(tuple(answers[:half]))), Past(tuple(answers[half:])))
    assert found.queries == pytest.approx(len(answers) / 4, abs=3)
    assert found.pair is not None
    assert found.pair.apgr.value is not None
    assert 0.5 < found.pair.apgr.value < 0.75


def test_a_router_that_knows_no_joules_does_not_choose_by_those_that_were_drawn() -> None:
    rng = np.random.default_rng(0)
    lucky = replace(
        past(400, 2), answers=tuple(replace(a, energy_j=float(rng.exponential(100.0))) for a in past(400, 2).answers)
    )
    found = evaluate(fit_router(past(300, 1, joules=False)), lucky)
    assert not found.chosen_by_joules
    assert (found.points, found.floors, found.aiq, found.same_accuracy) == ((), (), None, None)
    assert "cannot choose by them" in describe_evaluation(found)


def test_a_certificate_is_of_answers_in_random_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []

    def kept(losses: np.ndarray, settings: list[str], margin: float) -> Certificate:
        seen.append(losses)
        return certify(losses, settings, margin=margin)

    monkeypatch.setattr("joulewise.routing.evaluation.certify", kept)
    router, other = fit_router(past(800, 1)), past(600, 2)
    by_field = replace(other, answers=tuple(sorted(other.answers, key=lambda a: (a.domain or "", a.query or ""))))
    found = evaluate(router, by_field)
    (losses,) = seen
    assert losses.mean(axis=0) == pytest.approx([floor.loss.value for floor in found.floors])
    # The first of four fields alone loses nothing: in the answers' order it would come first and certify all.
    first = np.abs(losses[:150]).sum(axis=0)
    assert (first > 0).sum() >= 3


def test_one_question_keeps_no_floor() -> None:
    one = replace(past(100, 2), answers=past(100, 2).answers[:2])
    found = evaluate(fit_router(past(300, 1)), one)
    assert {floor.verdict for floor in found.floors} == {"cannot tell"}
    assert "1 question that" in describe_evaluation(found)
    assert "1 label " in describe_evaluation(found) or "1 label)" in describe_evaluation(found)


def test_modelled_joules_are_told() -> None:
    modelled = replace(past(50, 2), answers=tuple(replace(a, provenance="modelled") for a in past(50, 2).answers))
    assert "some of them modelled" in describe_evaluation(evaluate(fit_router(past(300, 1)), modelled))

from __future__ import annotations

from pathlib import Path

import pytest

from joulewise.errors import UserError
from joulewise.plan import load_plan
from joulewise.routing.answer_joules import AnswerJoules
from joulewise.routing.energy import PublishedCurve
from joulewise.routing.fitting import fit_router
from joulewise.routing.past_answers import Past, PastAnswer, from_file, plan_ways
from joulewise.routing.policy import Goal, Load

pytest.importorskip("scipy", reason="learning needs the extra routing")

PLAN = """
name: options
engines: [{kind: native, model: default, name: m}]
decodings: [vanilla, {kind: prompt_lookup, tokens: 3}]
reasonings: [direct, {kind: vote, samples: 3, batched: true}, {kind: budget, tokens: 64, probes: [16]}]
tasks: [{name: starter-maths, max_new_tokens: 40}, starter-choice]
exclude: [{reasoning: "[!d]*", decoding: "p*"}]
"""


def answer(i: int, option: str = "m/vanilla/direct", **more: object) -> PastAnswer:
    known: dict[str, object] = {
        "query": f"Question {i} of how many apples?", "score": float(i % 2), "prompt_tokens": 20.0 + i % 5,
        "output_tokens": 10.0 + i % 3, "energy_j": 10.0 + i % 3, "total_s": 1.0 + i % 3 / 10, "first_token_s": 0.1,
    }  # fmt: skip
    return PastAnswer(option, option.rpartition("/")[0], **(known | more))  # type: ignore[arg-type]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path / "plan.yaml"


def test_a_plans_cells_and_probes_are_options(plan: Path) -> None:
    ways = plan_ways(load_plan(plan), {"starter-choice": 16}, {"engines": [{"label": "m", "context_length": 8192}]})
    assert sorted(ways) == [
        "m/prompt-lookup-3/direct",
        "m/vanilla/budget-16",
        "m/vanilla/budget-64",
        "m/vanilla/direct",
        "m/vanilla/vote-3-batched",
    ]
    assert ways["m/vanilla/budget-16"].reasoning["tokens"] == 16
    assert ways["m/vanilla/budget-16"].option.output_budget == 16
    assert ways["m/vanilla/budget-64"].reasoning["probes"] == ()
    assert ways["m/vanilla/direct"].max_new_tokens == 40
    assert ways["m/vanilla/vote-3-batched"].side_by_side
    assert ways["m/prompt-lookup-3/direct"].answers_as == ways["m/vanilla/direct"].answers_as
    assert {way.option.context_limit for way in ways.values()} == {8192}


def test_votes_multiply_and_seconds_follow_the_batch(plan: Path) -> None:
    ways = plan_ways(load_plan(plan), {})
    vote = "m/vanilla/vote-3-batched"
    past = Past(
        tuple(answer(i) for i in range(30)) + tuple(answer(i, vote, samples=3, energy_j=24.0) for i in range(30)), ways
    )
    router = fit_router(past)
    query = router.query("How many apples?")
    expected = {n: router.estimator("How many apples?")(query, router.learnt[n].option, Load()) for n in router.learnt}
    assert expected["m/vanilla/direct"].energy_j.mean == pytest.approx(11.0, rel=0.05)
    assert expected[vote].energy_j.mean == pytest.approx(24.0, rel=0.05)
    direct_s, vote_s = expected["m/vanilla/direct"].total_s, expected[vote].total_s
    assert direct_s is not None
    assert vote_s is not None
    assert vote_s.mean > direct_s.mean  # three at a time, each a third of the batch's seconds


def test_lossless_decodings_share_their_labels(plan: Path) -> None:
    ways = plan_ways(load_plan(plan), {})
    past = Past(
        (*(answer(i) for i in range(30)), *(answer(i, "m/prompt-lookup-3/direct", score=None) for i in range(5))), ways
    )
    router = fit_router(past)
    assert router.performance.options == ("m/direct",)
    assert sorted(router.learnt) == ["m/prompt-lookup-3/direct", "m/vanilla/direct"]


def test_published_joules_go_before_past_answers() -> None:
    past = Past(tuple(answer(i) for i in range(30)))
    found = fit_router(past).learnt["m/vanilla/direct"].energy
    assert found is not None
    assert isinstance(found.curve, AnswerJoules)
    curve = PublishedCurve("m", "gpu", "table", (1.0,), (2.0,), (5.0, 50.0))
    router = fit_router(past, published={"m/vanilla": curve})
    assert router.learnt["m/vanilla/direct"].energy is not None
    assert router.learnt["m/vanilla/direct"].provenance == "published"
    choice = router.choose("How many?", Goal(within=0.1))
    assert choice.estimate.energy_j.mean == pytest.approx(22.0, rel=0.05)
    with pytest.raises(UserError, match="no option or server is called so"):
        fit_router(past, published={"n": curve})


def test_what_was_learnt_from_is_known_again() -> None:
    router = fit_router(Past(tuple(answer(i) for i in range(30))))
    assert router.saw("Question 7  of how many\napples?")
    assert not router.saw("Question 77 of how many apples?")


def test_one_class_only_is_learnt() -> None:
    router = fit_router(Past(tuple(answer(i, score=1.0) for i in range(30))))
    assert router.choose("How many?", Goal(within=0.1)).estimate.accuracy > 0.9


def test_nothing_scored_is_nothing_to_learn() -> None:
    with pytest.raises(UserError, match="There are no outcomes"):
        fit_router(Past(tuple(answer(i, score=None) for i in range(3))))


def test_a_file_tells_what_an_answer_took(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"query": "q", "option": "m/vanilla/direct", "correct": true, "energy_j": 3}\n')
    (found,) = from_file(tmp_path / "a.jsonl").answers
    assert (found.server, found.energy_j, found.output_tokens) == ("m/vanilla", 3.0, None)

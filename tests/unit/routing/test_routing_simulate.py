from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.energy.carbon import grid
from joulewise.errors import UserError
from joulewise.routing.energy import OptionEnergy, PublishedCurve, coefficients
from joulewise.routing.fitting import fit_router
from joulewise.routing.latency import FACTORS, Latency, expected_seconds
from joulewise.routing.lengths import fit_lengths
from joulewise.routing.past_answers import Past, PastAnswer
from joulewise.routing.policy import Goal, Load
from joulewise.routing.router import Router
from joulewise.routing.simulate import BLIND, COST_ONLY, JOULEWISE, ORACLE, Fleet, simulate
from joulewise.routing.simulated import Simulated, compared
from joulewise.routing.simulated_fleet import Luck, Server, carbon_over_time, job_of
from joulewise.traffic.arrivals import Arrival, Poisson
from planted_outcomes import planted

pytest.importorskip("scipy", reason="learning needs the extra routing")

FLAT = Latency((0.1, 0.001, 0.0005), (0.01, 0.002, 1e-6), (1.0,) * FACTORS, (1.0,) * FACTORS,
               (1.0, 64.0), (1.0, 9e3), (1.0, 9e3), 100.0, 50.0, 99)  # fmt: skip
SPREAD = replace(FLAT, total_factors=tuple(0.5 + i / FACTORS for i in range(FACTORS)))
SHARED = PublishedCurve("m", "gpu", "table", (1.0, 8.0, 64.0), (2.0, 0.9, 0.3), (5.0, 50.0))
CHEAP = replace(SHARED, token_j=(0.2, 0.09, 0.03))
LEVEL = replace(SHARED, token_j=(1.0, 1.0, 1.0))
OUTCOMES = planted(120, named=True)
GOAL = Goal(within=0.05)


def made() -> Router:
    answers = [
        PastAnswer(
            option, option, query, score, domain, prompt_tokens=30.0 + i % 11, output_tokens=5.0 + (7 * i) % 23,
            energy_j=2.0 + i % 7, first_token_s=0.1, total_s=1.0,
        )
        for i, (query, scores, domain) in enumerate(
            zip(OUTCOMES.queries, OUTCOMES.correct, OUTCOMES.domains, strict=True)
        )
        for option, score in zip(OUTCOMES.options, scores.tolist(), strict=True)
    ]  # fmt: skip
    router = fit_router(Past(tuple(answers)))
    learnt = {}
    for i, (name, known) in enumerate(sorted(router.learnt.items())):
        assert known.energy is not None
        curve = SHARED if i else CHEAP
        learnt[name] = replace(known, latency=SPREAD, energy=replace(known.energy, curve=curve), provenance="published")
    return replace(router, learnt=learnt, routing_j=0.01)


ROUTER = made()
NAMES = sorted(ROUTER.learnt)


def poisson(rate: float, seconds: float = 60.0, seed: int = 0) -> list[Arrival]:
    return list(Poisson(rate=rate, seed=seed).arrivals(seconds))


def by_name(found: Sequence[Simulated]) -> dict[str, Simulated]:
    return {one.name: one for one in found}


def with_curve(curve: PublishedCurve) -> Router:
    learnt = {n: replace(k, energy=replace(k.energy, curve=curve)) for n, k in ROUTER.learnt.items() if k.energy}
    return replace(ROUTER, learnt=learnt)


@settings(max_examples=40, deadline=None)
@given(
    gaps=st.lists(st.floats(0.0, 2.0), min_size=1, max_size=25),
    slots=st.integers(1, 6),
    votes=st.sampled_from([1, 3]),
    at_once=st.booleans(),
    seed=st.integers(0, 99),
)
def test_no_joule_and_no_request_is_lost(gaps: list[float], slots: int, votes: int, at_once: bool, seed: int) -> None:
    energy = OptionEnergy(fit_lengths([50, 60, 70], [20, 40, 90]), SHARED, votes=votes, at_once=at_once)
    draws = np.random.default_rng(seed).random((len(gaps), 4)).tolist()
    server, ended, now_s = Server(slots, lambda s: 400.0), [], 0.0
    jobs = []
    for number, (gap, luck) in enumerate(zip(gaps, draws, strict=True)):
        now_s += gap
        while server.ends_s <= now_s:
            server.advance(server.ends_s)
            ended.append(server.end_one())
        server.advance(now_s)
        jobs.append(job_of(number, "a", now_s, 60.0, None, energy, SPREAD, Luck(*luck)))
        server.take(jobs[-1])
        assert len(server.running) <= slots
    while server.running:
        server.advance(server.ends_s)
        ended.append(server.end_one())
    assert sorted(job.number for job in ended) == list(range(len(gaps)))
    assert not server.waiting
    assert math.fsum(job.energy_j for job in jobs) == pytest.approx(server.energy_j, rel=1e-9)
    begun = [job.began_s for job in jobs]
    assert begun == sorted(begun)  # first come, first served
    for job in jobs:
        assert job.arrived_s <= job.began_s <= job.first_token_s <= job.ended_s
        least, most = job.joules(slots * job.samples), job.joules(job.samples)
        assert least * (1 - 1e-6) <= job.energy_j <= most * (1 + 1e-6)
        assert job.carbon_g == pytest.approx(job.energy_j * 400.0 / 3.6e6, rel=1e-9)


@pytest.mark.parametrize("votes", [1, 3])
def test_alone_a_request_takes_the_seconds_and_joules_that_were_learnt(votes: int) -> None:
    lengths = fit_lengths([50], [40])
    energy = OptionEnergy(lengths, SHARED, votes=votes)
    job = job_of(0, "a", 0.0, 50.0, None, energy, FLAT, Luck(0.4, 0.4, 0.4, 0.4))
    server = Server(1)
    server.take(job)
    server.advance(server.ends_s)
    server.end_one()
    told = expected_seconds(FLAT, lengths, 50.0, Load(), votes=votes)
    assert told.first_token_s is not None
    assert job.ended_s == pytest.approx(told.total_s.mean, rel=1e-9)
    assert job.first_token_s == pytest.approx(told.first_token_s.mean, rel=1e-9)
    fixed, token, *_ = coefficients(energy, 1.0)
    assert job.energy_j == pytest.approx(fixed + 40 * token, rel=1e-9)


def test_total_is_requests_plus_rest() -> None:
    watts = {ROUTER.learnt[name].option.model: 50.0 for name in NAMES}
    found = simulate(ROUTER, poisson(2.0), GOAL, Fleet(slots=4, idle_w=watts), OUTCOMES, [JOULEWISE, NAMES[1]])
    one = by_name(found.routers)[NAMES[1]]
    assert one.energy_j == pytest.approx(one.energy_by_request_j.sum())
    assert one.idle_j is not None
    unused = len(watts) - 1
    assert unused * 50.0 * found.duration_s <= one.idle_j <= (unused + 1) * 50.0 * found.duration_s
    assert all(sum(r.shares.values()) == pytest.approx(1.0) for r in found.routers)
    without = simulate(ROUTER, poisson(2.0), GOAL, Fleet(), OUTCOMES, [NAMES[1]])
    assert without.routers[0].idle_j is None
    assert any("at rest" in note for note in without.notes)


def test_all_routers_answer_all_requests_the_same_way_again() -> None:
    arrivals = poisson(3.0)
    goal = replace(GOAL, most_total_s=20.0, most_first_token_s=5.0)
    first, again = (simulate(ROUTER, arrivals, goal, Fleet(slots=4), OUTCOMES, seed=3) for _ in range(2))
    assert [one.name for one in first.routers] == [JOULEWISE, BLIND, COST_ONLY, ORACLE, *NAMES]
    for one, other in zip(first.routers, again.routers, strict=True):
        assert one.requests == len(arrivals)
        np.testing.assert_array_equal(one.total_by_request_s, other.total_by_request_s)
        np.testing.assert_array_equal(one.energy_by_request_j, other.energy_by_request_j)
        assert one.total_missed == (one.total_by_request_s > 20.0).mean()
    different = simulate(ROUTER, arrivals, goal, Fleet(slots=4), OUTCOMES, seed=4)
    assert not np.array_equal(different.routers[0].total_by_request_s, first.routers[0].total_by_request_s)
    found = by_name(first.routers)
    assert found[ORACLE].accuracy >= max(found[name].accuracy for name in (JOULEWISE, BLIND, *NAMES))
    assert found[COST_ONLY].shares[NAMES[0]] == 1.0  # the cheap one
    assert found[first.baseline].against is None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_twice_the_rate_never_waits_less(seed: int) -> None:
    waits = []
    for rate in (0.5, 1.0, 2.0, 4.0):
        found = simulate(
            ROUTER, poisson(rate, 200.0, seed), GOAL, Fleet(slots=2), routers=[NAMES[1]], baseline=NAMES[1]
        )
        waits.append(found.routers[0].waited_s)
    assert waits == sorted(waits)
    assert waits[-1] > waits[0]


def test_without_influence_of_load_to_see_it_changes_nothing() -> None:
    found = by_name(simulate(with_curve(LEVEL), poisson(3.0), GOAL, Fleet(slots=2), OUTCOMES).routers)
    np.testing.assert_array_equal(found[JOULEWISE].energy_by_request_j, found[BLIND].energy_by_request_j)
    assert found[JOULEWISE].shares == found[BLIND].shares


def test_seen_load_matters_where_seconds_are_limited() -> None:
    goal = Goal(within=0.5, most_total_s=2.0)
    found = by_name(simulate(with_curve(SHARED), poisson(4.0), goal, Fleet(slots=2), OUTCOMES).routers)
    assert found[JOULEWISE].total_s.p95 < found[BLIND].total_s.p95
    old = simulate(with_curve(SHARED), poisson(4.0), goal, Fleet(slots=2, state_age_s=29.0), OUTCOMES)
    assert by_name(old.routers)[JOULEWISE].total_s.p95 > found[JOULEWISE].total_s.p95


def test_without_outcomes_accuracies_are_predictions_and_said_so() -> None:
    found = simulate(ROUTER, poisson(5.0), GOAL, questions=OUTCOMES.queries[:20])
    assert not found.observed
    assert any("not observed" in note for note in found.notes)
    assert ORACLE not in by_name(found.routers)


def test_prompts_come_from_the_trace() -> None:
    short, long = ([Arrival(0.0, tokens, 7)] for tokens in (10, 4000))
    a, b = (simulate(ROUTER, one, GOAL, routers=[NAMES[0]], baseline=NAMES[0]).routers[0] for one in (short, long))
    assert b.total_s.p50 > a.total_s.p50 + 1.0


def test_carbon_follows_the_hours(tmp_path: Path) -> None:
    file = tmp_path / "grid.csv"
    with file.open("w", newline="") as lines:
        csv.writer(lines).writerows(
            [["time", "g_per_kwh"], ["2026-01-01T00:00:00Z", 100], ["2026-01-01T01:00:00Z", 300]]
        )
    carbon = carbon_over_time(grid(str(file)), datetime(2026, 1, 1, tzinfo=UTC))
    assert carbon(10.0) == 100.0
    assert carbon(3700.0) == 300.0
    found = simulate(ROUTER, [Arrival(0.0, 50)], GOAL, Fleet(carbon=carbon), routers=[NAMES[0]], baseline=NAMES[0])
    one = found.routers[0]
    assert one.carbon_g == pytest.approx(one.energy_j * 100.0 / 3.6e6)


def test_the_paired_difference_finds_what_is_there() -> None:
    base, due = np.full(400, 10.0), list(np.linspace(0.0, 100.0, 400))
    right = np.ones(400)
    lost = right.copy()
    lost[::10] = 0.0
    found = compared(base, base / 4, right, lost, due)
    assert found.saved == pytest.approx(0.75)
    assert found.saved_interval == pytest.approx((0.75, 0.75))
    assert found.lost == pytest.approx(0.1)
    assert found.lost_interval[0] <= 0.1 <= found.lost_interval[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arrivals": []}, "No request arrives"),
        ({"routers": ["nobody"]}, "nobody"),
        ({"questions": ()}, "no questions"),
        ({"questions": replace(OUTCOMES, options=("x", *OUTCOMES.options[1:]))}, "say nothing of"),
        ({"questions": replace(OUTCOMES, correct=OUTCOMES.correct * math.nan)}, "No question has"),
        (
            {"router": replace(ROUTER, learnt={n: replace(k, latency=None) for n, k in ROUTER.learnt.items()})},
            "seconds",
        ),
        ({"router": replace(ROUTER, learnt={n: replace(k, energy=None) for n, k in ROUTER.learnt.items()})}, "joules"),
    ],
)
def test_what_cannot_be_simulated_is_told(change: dict[str, object], said: str) -> None:
    given: dict[str, object] = {"router": ROUTER, "arrivals": poisson(1.0), "goal": GOAL} | change
    with pytest.raises(UserError, match=said):
        simulate(**given)  # type: ignore[arg-type]


def test_fleets_that_cannot_be_are_told() -> None:
    with pytest.raises(UserError, match="slots 0"):
        Fleet(slots=0)
    with pytest.raises(UserError, match="at rest"):
        Fleet(idle_w={"a": -1.0})

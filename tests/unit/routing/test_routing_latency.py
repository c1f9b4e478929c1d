from __future__ import annotations

import heapq
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from joulewise.errors import UserError
from joulewise.ledger import load
from joulewise.routing.latency import FACTORS, OWN_SHARE, Latency, Timing, expected_seconds, fit_latency
from joulewise.routing.lengths import Lengths, fit_lengths
from joulewise.routing.policy import Load

LEDGERS = Path(__file__).parents[3] / "results" / "h200"
START, TOKEN = (0.02, 3e-5, 2e-5), (0.005, 2e-4, 2e-8)


def first_s(prompt: float, running: float) -> float:
    return START[0] + prompt * (START[1] + START[2] * (running - 1))


def total_s(prompt: float, output: float, running: float) -> float:
    further = max(output - 1, 0)
    own = TOKEN[1] + TOKEN[2] * (prompt + further / 2)
    return first_s(prompt, running) + further * (TOKEN[0] + running * own)


def requests(count: int, loads: tuple[int, ...] = (1, 4, 16), spread: float = 0.0, seed: int = 0) -> list[Timing]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        p, o, r = int(rng.integers(20, 4000)), int(rng.integers(1, 900)), int(rng.choice(loads))
        off = float(rng.lognormal(0, spread))
        found.append(Timing(p, o, r, off * first_s(p, r), off * total_s(p, o, r)))
    return found


def always(tokens: float) -> Lengths:
    return fit_lengths([100.0], [tokens])


def exact(first: bool = True) -> Latency:
    one = (1.0,) * FACTORS
    return Latency(START, TOKEN, one if first else None, one, (1, 64), (10, 4000), (1, 1000), 1000, 200, 100)


def test_what_requests_took_is_found_again() -> None:
    found = fit_latency(requests(300))
    assert found.start == pytest.approx(START, rel=1e-3)
    assert found.token == pytest.approx(TOKEN, rel=1e-3)
    seconds = expected_seconds(found, always(300), 1000, Load(8))
    assert seconds.first_token_s is not None
    assert seconds.first_token_s.p95 == pytest.approx(first_s(1000, 8), rel=1e-3)
    assert seconds.total_s.mean == pytest.approx(total_s(1000, 300, 8), rel=1e-3)
    assert seconds.warnings == ()


def test_without_times_of_first_tokens_the_whole_is_learnt_alone() -> None:
    found = fit_latency([replace(one, first_token_s=None) for one in requests(300)])
    seconds = expected_seconds(found, always(300), 1000, Load(8))
    assert seconds.first_token_s is None
    assert seconds.total_s.mean == pytest.approx(total_s(1000, 300, 8), rel=1e-3)


def test_first_tokens_of_some_do_for_all() -> None:
    some = [one if i % 3 else replace(one, first_token_s=None) for i, one in enumerate(requests(300))]
    found = fit_latency(some)
    assert found.start == pytest.approx(START, rel=1e-3)
    assert found.token == pytest.approx(TOKEN, rel=1e-3)


@pytest.mark.parametrize("spread", [0.05, 0.3])
def test_percentiles_hold_for_new_requests(spread: float) -> None:
    learnt, new = requests(400, spread=spread), requests(1500, spread=spread, seed=1)
    found = fit_latency(learnt)
    below = {0.5: 0, 0.95: 0}
    for one in new:
        seconds = expected_seconds(found, always(one.output_tokens), one.prompt_tokens, Load(one.running)).total_s
        below[0.5] += one.total_s <= seconds.p50
        below[0.95] += one.total_s <= seconds.p95
    assert below[0.5] / len(new) == pytest.approx(0.5, abs=0.06)
    assert below[0.95] / len(new) == pytest.approx(0.95, abs=0.02)


def test_the_lengths_of_answers_are_in_the_percentiles() -> None:
    rng = np.random.default_rng(0)
    outputs = rng.lognormal(5, 0.6, 2000)
    seconds = expected_seconds(exact(), fit_lengths([100.0] * 2000, outputs.tolist()), 500, Load(4))
    took = np.array([total_s(500, o, 4) for o in outputs])
    assert seconds.total_s.mean == pytest.approx(took.mean(), rel=0.02)
    assert seconds.total_s.p50 == pytest.approx(np.quantile(took, 0.5), rel=0.02)
    assert seconds.total_s.p95 == pytest.approx(np.quantile(took, 0.95), rel=0.05)
    capped = expected_seconds(
        exact(), fit_lengths([100.0] * 2000, outputs.tolist()), 500, Load(4), most_output_tokens=50
    )
    assert capped.total_s.p95 == pytest.approx(total_s(500, 50, 4))


def test_a_first_request_that_warms_up_does_not_carry_the_rest() -> None:
    slow = Timing(80, 8, 1, 20.0, 21.0)
    found = fit_latency([slow, *requests(60)])
    seconds = expected_seconds(found, always(300), 1000, Load(4))
    assert seconds.total_s.p50 == pytest.approx(total_s(1000, 300, 4), rel=0.03)


def test_one_load_tells_others_by_the_stated_assumption() -> None:
    found = fit_latency(requests(200, loads=(4,)))
    same = expected_seconds(found, always(300), 1000, Load(4))
    assert same.total_s.mean == pytest.approx(total_s(1000, 300, 4), rel=1e-3)
    assert same.warnings == ()
    assert found.token[1] == pytest.approx(OWN_SHARE * found.token[0])
    more = expected_seconds(found, always(300), 1000, Load(8))
    assert more.total_s.mean > same.total_s.mean
    assert "8 running requests: seconds were learnt at 4" in more.warnings[0]
    assert "1.4%" in more.warnings[0]


def test_few_requests_are_told() -> None:
    few = fit_latency(requests(60)[:19])
    assert "learnt from 19 requests: the 95th" in expected_seconds(few, always(50), 1000, Load(4)).warnings[0]


@pytest.mark.parametrize(
    ("prompt", "output", "running", "told"),
    [
        (5000, 100, 4, "5,000 prompt tokens: seconds were learnt at 10 to 4,000"),
        (100, 1500, 4, "the longest answers, 1,500 tokens: seconds were learnt up to 1,000"),
        (100, 100, 65, "65 running requests: seconds were learnt at 1 to 64, so they are a guess"),
    ],
)
def test_what_was_not_learnt_is_told(prompt: float, output: float, running: float, told: str) -> None:
    (found,) = expected_seconds(exact(), always(output), prompt, Load(running)).warnings
    assert found.startswith(told)


@pytest.mark.parametrize(("slots", "queued"), [(1, 5), (4, 1), (4, 12)])
def test_waiting_is_as_long_as_in_a_simulated_queue(slots: int, queued: int) -> None:
    usual = total_s(1000, 200, slots)
    rng = np.random.default_rng(0)
    waited = []
    for _ in range(4000):
        ends = rng.exponential(usual, slots).tolist()
        heapq.heapify(ends)
        for _ in range(queued):
            heapq.heapreplace(ends, ends[0] + rng.exponential(usual))
        waited.append(ends[0])
    found = expected_seconds(exact(), always(1), 100, Load(slots + 1, queued))
    for seconds in (found.first_token_s, found.total_s):
        assert seconds is not None
        own = first_s(100, slots + 1)
        assert seconds.mean - own == pytest.approx(np.mean(waited), rel=0.04)
        assert seconds.p50 - own == pytest.approx(np.quantile(waited, 0.5), rel=0.05)
        assert seconds.p95 - own == pytest.approx(np.quantile(waited, 0.95), rel=0.06)


def test_votes_at_the_same_time_end_with_the_longest() -> None:
    rng = np.random.default_rng(0)
    lengths = fit_lengths([100.0] * 4000, rng.uniform(100, 900, 4000).tolist())
    longest = rng.uniform(100, 900, (4000, 5)).max(axis=1)
    took = [total_s(500, o, 8) for o in longest]
    found = expected_seconds(exact(), lengths, 500, Load(4), votes=5).total_s
    assert found.mean == pytest.approx(np.mean(took), rel=0.02)
    assert found.p50 == pytest.approx(np.quantile(took, 0.5), rel=0.02)
    assert found.p95 == pytest.approx(np.quantile(took, 0.95), rel=0.02)


def test_votes_one_after_the_other_take_their_sum_at_the_load_of_one() -> None:
    found = expected_seconds(exact(), always(200), 500, Load(4), votes=3, sequential_votes=True)
    assert found.total_s.mean == pytest.approx(3 * total_s(500, 200, 4))
    assert found.first_token_s is not None
    assert found.first_token_s.mean == pytest.approx(first_s(500, 4))


def ledger_timings(name: str) -> dict[str, Timing]:
    """Vanilla's requests of a run on one H200, by Trial, each of one sample."""
    found = {}
    for trial in load(LEDGERS / name).arrow.to_pylist():
        if trial["decoding"] == "vanilla":
            n = trial["generation_count"]
            total = trial["duration_s"] / n * (trial["running"] or 1)
            found[f"{trial['question_id']}|{trial['sequence']}"] = Timing(
                trial["prompt_tokens"] / n,
                trial["output_tokens"] / n,
                trial["running"] or 1,
                trial["prefill_s"] / n,
                total,
            )
    return found


@pytest.mark.parametrize(
    ("run", "count", "off", "off_at_p90", "first_off", "below_p50", "below_p95"),
    [
        ("sweep_8b", 32, 0.037, 0.260, 0.153, 0.62, 0.94),
        ("real_tasks", 257, 0.178, 0.516, 0.444, 0.50, 0.95),
        ("real_tasks_transformers", 131, 0.171, 0.464, 0.245, 0.46, 0.98),
    ],
)
def test_seconds_of_the_other_half_of_a_ledger(
    run: str, count: int, off: float, off_at_p90: float, first_off: float, below_p50: float, below_p95: float
) -> None:
    """Given how long an answer is: docs/routing.md has these figures."""
    timings = ledger_timings(run)
    assert len(timings) == count
    questions = sorted({name.split("|")[0] for name in timings})
    np.random.default_rng(0).shuffle(questions)
    first_half = set(questions[::2])
    errors, first_errors, p50, p95 = [], [], [], []
    for half in (True, False):
        learnt = fit_latency(one for name, one in timings.items() if (name.split("|")[0] in first_half) == half)
        for name, one in timings.items():
            if (name.split("|")[0] in first_half) != half:
                expected = expected_seconds(learnt, always(one.output_tokens), one.prompt_tokens, Load(one.running))
                assert expected.first_token_s is not None
                assert one.first_token_s is not None
                first_errors.append(abs(expected.first_token_s.p50 / one.first_token_s - 1))
                errors.append(abs(expected.total_s.p50 / one.total_s - 1))
                p50.append(one.total_s <= expected.total_s.p50)
                p95.append(one.total_s <= expected.total_s.p95)
    assert np.median(errors) == pytest.approx(off, abs=0.001)
    assert np.quantile(errors, 0.9) == pytest.approx(off_at_p90, abs=0.001)
    assert np.median(first_errors) == pytest.approx(first_off, abs=0.001)
    assert np.mean(p50) == pytest.approx(below_p50, abs=0.006)
    assert np.mean(p95) == pytest.approx(below_p95, abs=0.006)


counts = st.integers(1, 12)
tokens = st.floats(0, 5000)


@given(tokens, tokens, st.floats(1, 100), st.floats(0, 50), counts, st.booleans())
@settings(max_examples=60, deadline=None)
def test_more_of_anything_never_takes_less(
    p: float, o: float, running: float, queued: float, votes: int, in_turn: bool
) -> None:
    def total(p: float, o: float, running: float, queued: float, votes: int) -> tuple[float, float, float]:
        found = expected_seconds(exact(), always(o), p, Load(running, queued), votes, sequential_votes=in_turn)
        assert found.first_token_s is not None
        assert found.total_s.p50 <= found.total_s.p95 * (1 + 1e-12)
        return found.first_token_s.mean, found.total_s.mean, found.total_s.p95

    base = np.array(total(p, o, running, queued, votes))
    for more in ((p + 50, o, running, queued, votes), (p, o + 50, running, queued, votes),
                 (p, o, running, queued + 1, votes), (p, o, running, queued, votes + 1)):  # fmt: skip
        assert (np.array(total(*more)) >= base * (1 - 1e-9)).all()
    assert (np.array(total(p, o, running + 1, 0, votes)) >= np.array(total(p, o, running, 0, votes)) * (1 - 1e-9)).all()


@given(
    st.lists(
        st.tuples(tokens, tokens, st.floats(1, 64), st.floats(0, 1), st.floats(1e-3, 100)), min_size=1, max_size=12
    ),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_timings_give_finite_seconds(found: list[tuple[float, ...]], timed: bool) -> None:
    latency = fit_latency(Timing(p, o, r, share * s if timed else None, s) for p, o, r, share, s in found)
    seconds = expected_seconds(latency, always(500), 800, Load(3, 2), votes=2).total_s
    assert all(math.isfinite(x) and x >= 0 for x in (seconds.mean, seconds.p50, seconds.p95))


@pytest.mark.parametrize("first", [True, False])
def test_it_comes_back_from_json(first: bool) -> None:
    latency = exact(first)
    again = TypeAdapter(Latency).validate_python(json.loads(json.dumps(latency.as_json())))
    assert again == latency
    assert expected_seconds(again, always(9), 9, Load()) == expected_seconds(latency, always(9), 9, Load())


def test_no_timings_are_refused() -> None:
    with pytest.raises(UserError, match="no timed requests"):
        fit_latency([])


@pytest.mark.parametrize(
    "wrong",
    [
        {"total_s": 0.0, "first_token_s": None},
        {"total_s": math.nan},
        {"first_token_s": 3.0},
        {"running": 0.5},
        {"prompt_tokens": -1},
        {"output_tokens": math.inf},
    ],
)
def test_a_timing_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    fine = Timing(10, 10, 1, 0.5, 2.0)
    with pytest.raises(UserError, match="Timing 2"):
        fit_latency([fine, replace(fine, **wrong)])


@pytest.mark.parametrize(
    ("prompt", "load", "votes"), [(-1, Load(), 1), (1, Load(0.5), 1), (1, Load(1, -1), 1), (1, Load(), 0)]
)
def test_what_cannot_be_asked_is_refused(prompt: float, load: Load, votes: int) -> None:
    with pytest.raises(UserError, match="at least"):
        expected_seconds(exact(), always(5), prompt, load, votes)


@pytest.mark.parametrize("wrong", [{"start": (math.nan, 0, 0)}, {"token": (-1, 0, 0)}, {"total_factors": (1.0,)}])
def test_a_damaged_one_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="Latency"):
        replace(exact(), **wrong)

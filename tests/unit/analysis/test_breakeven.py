"""The break-even: planted costs come back exactly, and tau lies above tau* exactly where something is saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from joulewise.analysis.breakeven import (
    ASSUMED_PREFILL,
    NEAR_NOTHING,
    NO_FIRST_TOKEN,
    NO_PAIR,
    NO_SAVING,
    UNBOUNDED_PREFILL,
    BreakEven,
    BreakEvens,
    break_evens,
)
from joulewise.analysis.cells import Cell, split
from joulewise.analysis.net import NOT_MEASURED
from synthetic_table import part, row, table

ROUNDS = (40, 50, 60, 45, 55, 52)
TAU = 2.5


def trials(
    *,
    tau: float = TAU,
    step: float = 0.02,
    of_round: float = 0.04,
    prefill: float = 0.1,
    extra: float = 0.0,
    step_w: float = 300.0,
    round_w: float = 400.0,
    extra_w: float = 400.0,
    recorded: bool = True,
    prefill_edges_j: float = 0.0,
    provenance: str = "measured",
    offset_w: float = 0.0,
    tell_extra: bool = True,
    rounds: Sequence[int] = ROUNDS,
) -> list[dict[str, Any]]:
    """Vanilla and coga-5, one question for each of ``rounds``: seconds as given, joules by the power of each part."""
    rows = []
    for i, count in enumerate(rounds):
        tokens = round(count * tau)
        prefill_s = prefill * (1 + 0.1 * i)
        plain_s, rounds_s = tokens * step, count * of_round
        for decoding, parts in (
            ("vanilla", [(prefill_s, 600.0), (plain_s, step_w)]),
            ("coga-5", [(prefill_s, 600.0), (rounds_s, round_w), (extra, extra_w)]),
        ):
            seconds, joules = sum(s for s, _ in parts), sum(s * w for s, w in parts)
            rows.append(
                row(
                    decoding,
                    f"q{i}",
                    energy=[part("gpu", joules, provenance, offset_j=offset_w * seconds)],
                    duration_s=seconds,
                    output_tokens=tokens + 1,
                    generation_count=1,
                    rounds=count if decoding != "vanilla" else 0,
                    drafted_tokens=5 * count,
                    accepted_tokens=tokens - count,
                    prefill_s=prefill_s,
                    gpu_prefill_j=prefill_s * 600.0 if recorded else None,
                    gpu_prefill_edges_j=prefill_edges_j if recorded else None,
                    phase_draft_prefill_s=extra if tell_extra and decoding != "vanilla" else None,
                )
            )
    return rows


def cells(rows: Sequence[dict[str, Any]]) -> tuple[Cell, Cell]:
    vanilla, method = split(table(rows))
    return vanilla, method


def found_in(rows: Sequence[dict[str, Any]], environment: dict[str, Any] | None = None) -> BreakEvens:
    return break_evens(*cells(rows), "gpu", environment or {})


def time_of(**planted: Any) -> BreakEven:
    return found_in(trials(**planted)).time


def energy_of(environment: dict[str, Any] | None = None, net: bool = False, **planted: Any) -> BreakEven:
    found = found_in(trials(**planted), environment)
    return found.net if net else found.gross


seconds = st.floats(1e-4, 1.0)
watts = st.floats(50.0, 700.0)


@settings(max_examples=60, deadline=None)
@given(step=seconds, of_round=seconds, prefill=seconds, step_w=watts, round_w=watts)
def test_planted_costs_come_back_exactly(
    step: float, of_round: float, prefill: float, step_w: float, round_w: float
) -> None:
    planted = {"step": step, "of_round": of_round, "prefill": prefill, "step_w": step_w, "round_w": round_w}
    time, energy = time_of(**planted), energy_of(**planted)
    assert time.length.value == energy.length.value == pytest.approx(TAU, rel=0.01)
    assert (time.step.value, time.round.value) == pytest.approx((step, of_round), rel=1e-6)
    assert (energy.step.value, energy.round.value) == pytest.approx((step * step_w, of_round * round_w), rel=1e-6)
    assert time.needed.value == pytest.approx(of_round / step, rel=1e-6)
    assert energy.needed.value == pytest.approx(of_round * round_w / (step * step_w), rel=1e-6)
    # The two thresholds lie as far apart as the powers.
    assert time.needed.value is not None
    assert energy.power.value == pytest.approx(energy.needed.value / time.needed.value, rel=1e-6)
    assert energy.power.value == pytest.approx(round_w / step_w, rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(step=seconds, of_round=seconds, extra=st.just(0.0) | seconds, step_w=watts, round_w=watts, extra_w=watts)
def test_tau_lies_above_the_threshold_exactly_where_something_is_saved(**planted: float) -> None:
    for found in (time_of(**planted), energy_of(**planted)):
        saved, measured = found.saved_per_token.value, found.measured.value
        assert saved is not None
        assert measured is not None
        assume(abs(measured) > 1e-9)
        assert (saved > 0) == (measured > 0)
        if found.needed.value is None:
            assert (found.needed.reason, found.needed.unbounded) == (NO_SAVING, True)
            assert saved < 0
        else:
            assert found.length.value is not None
            assert (found.length.value > found.needed.value) == (saved > 0)
        assert found.saving.value == pytest.approx(measured, rel=1e-6, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(step=seconds, of_round=seconds, extra=st.floats(1e-4, 0.2))
def test_the_draft_s_prefill_is_taken_off_where_it_is_told(step: float, of_round: float, extra: float) -> None:
    tokens = sum(round(n * TAU) for n in ROUNDS)
    left = step - extra * len(ROUNDS) / tokens
    assume(abs(left) > 1e-6)
    found = time_of(step=step, of_round=of_round, extra=extra)
    assert found.round.value == pytest.approx(of_round, rel=1e-6)
    if left > 0.0:
        assert found.needed.value == pytest.approx(of_round / left, rel=1e-6)
    else:
        assert (found.needed.value, found.needed.reason) == (None, NO_SAVING)
    untold = time_of(step=step, of_round=of_round, extra=extra, tell_extra=False)
    assert untold.round.value == pytest.approx(of_round + extra * len(ROUNDS) / sum(ROUNDS), rel=1e-6)
    assert untold.saved_per_token.value == pytest.approx(found.saved_per_token.value, rel=1e-6, abs=1e-12)


def test_the_paradox_faster_and_yet_more_energy() -> None:
    time, energy = time_of(of_round=0.045), energy_of(of_round=0.045, step_w=300.0, round_w=400.0)
    assert (time.verdict, energy.verdict) == ("saves", "costs")
    assert time.needed.value == pytest.approx(2.25)
    assert energy.needed.value == pytest.approx(3.0)


def test_intervals_hold_the_figures_and_widen_with_the_sensor_s_offset() -> None:
    planted = {"of_round": 0.045, "prefill": 0.5}
    sure, offset = (energy_of(offset_w=w, **planted) for w in (0.0, 40.0))
    for found in (sure, offset):
        for quantity in (found.needed, found.round, found.step, found.power, found.saving):
            assert quantity.lower is not None
            assert quantity.upper is not None
            assert quantity.value is not None
            assert quantity.lower <= quantity.value <= quantity.upper
    assert sure.needed.upper is not None
    assert offset.needed.upper is not None
    assert offset.needed.upper > sure.needed.upper + 0.01
    assert sure.verdict == "costs"


def test_net_joules_take_idle_power_off_every_term() -> None:
    idle = {"engine": "e", "component": "gpu", "power_w": 100.0, "independent_w": 0.0, "duration_s": 5.0}
    environment = {"idle": [idle | {"when": when, "provenance": "measured"} for when in ("before", "after")]}
    found = energy_of(environment, net=True, step_w=300.0, round_w=400.0)
    assert found.step.value == pytest.approx(0.02 * 200.0)
    assert found.round.value == pytest.approx(0.04 * 300.0)
    assert found.needed.value == pytest.approx(3.0)
    assert energy_of(net=True).needed.reason == NOT_MEASURED
    below = energy_of(environment, net=True, round_w=90.0)
    assert below.needed.reason == "a round drew no more than idling"
    assert below.verdict is None


SOURCE = {"component": "gpu", "max_power_w": 700.0}


@settings(max_examples=40, deadline=None)
@given(of_round=seconds, prefill=st.floats(0.01, 0.3), round_w=watts)
def test_a_prefill_that_was_not_recorded_widens_the_interval_around_the_truth(
    of_round: float, prefill: float, round_w: float
) -> None:
    planted = {"of_round": of_round, "prefill": prefill, "round_w": round_w}
    truth, found = energy_of(**planted), energy_of({"sources": [SOURCE]}, recorded=False, **planted)
    assert found.note == ASSUMED_PREFILL
    assert truth.note is None
    for known, told in ((truth.round, found.round), (truth.step, found.step)):
        assert told.lower is not None
        assert told.upper is not None
        assert known.value is not None
        assert told.lower - 1e-9 <= known.value <= told.upper + 1e-9
    assert truth.needed.value is not None
    assert found.needed.reason in (None, NEAR_NOTHING)
    assert (found.needed.lower or 0.0) <= truth.needed.value * (1 + 1e-9)
    assert found.needed.upper is None or truth.needed.value <= found.needed.upper * (1 + 1e-9)
    # Whether something is saved does not hang on it.
    assert found.measured.value == pytest.approx(truth.measured.value)


def test_what_a_prefill_s_ends_leave_open_is_not_averaged_out() -> None:
    sure, open_ended = (energy_of(prefill_edges_j=edges_j) for edges_j in (0.0, 10.0))
    assert open_ended.note is None
    assert open_ended.step.value == sure.step.value
    # 1.96 x 10 J an answer, over its plain steps.
    moved = 1.959963984540054 * 10.0 * len(ROUNDS) / sum(round(n * TAU) for n in ROUNDS)
    assert sure.step.value is not None
    assert open_ended.step.lower is not None
    assert open_ended.step.upper is not None
    assert open_ended.step.lower <= sure.step.value - moved + 1e-9
    assert open_ended.step.upper >= sure.step.value + moved - 1e-9


def test_the_chain_of_the_measured_baselines() -> None:
    """8B, 1B draft: five forwards of 1.98 ms and 0.604 J, one of 8.34 ms and 3.17 J; a step 7.16 ms and 2.89 J."""
    step_s, round_s = 7.16e-3, 5 * 1.98e-3 + 8.34e-3
    planted = {"step": step_s, "of_round": round_s, "step_w": 2.89 / step_s, "round_w": (5 * 0.604 + 3.17) / round_s}
    assert time_of(**planted).needed.value == pytest.approx(2.55, abs=0.005)
    assert energy_of(**planted).needed.value == pytest.approx(2.14, abs=0.005)


def test_where_nothing_bounds_the_prefill_energy_is_unknown_and_time_is_not() -> None:
    for environment in ({}, {"sources": [SOURCE, SOURCE | {"max_power_w": None}]}):
        found = energy_of(environment, recorded=False)
        assert (found.needed.reason, found.verdict, found.saving.value) == (UNBOUNDED_PREFILL, None, None)
    assert time_of(recorded=False).verdict == "saves"


def test_modelled_joules_carry_no_verdict() -> None:
    found = energy_of(provenance="modelled")
    assert (found.verdict, found.needed.provenance) == (None, "modelled")
    assert found.needed.value == pytest.approx(0.04 * 400 / (0.02 * 300))


def test_five_questions_give_an_interval_and_four_do_not() -> None:
    assert time_of(rounds=ROUNDS[:5]).verdict == "saves"
    few = time_of(rounds=ROUNDS[:4])
    assert (few.needed.lower, few.verdict) == (None, "cannot tell")
    assert few.needed.value == pytest.approx(2.0)


def test_what_cannot_be_formed_says_why() -> None:
    untold = trials()
    for one in untold:
        one["prefill_s"] = None
    told = found_in(untold)
    assert {told.time.needed.reason, told.gross.needed.reason, told.net.needed.reason} == {NO_FIRST_TOKEN}
    strangers = trials()
    for one in strangers[::2]:
        one["question_id"] += "x"
    assert found_in(strangers).time.needed.reason == NO_PAIR
    short = trials()
    for one in short:
        one["output_tokens"] = 1
    assert found_in(short).time.needed.reason == "there were no plain steps after the first token"
    no_cpu = break_evens(*cells(trials()), "cpu", {})
    assert no_cpu.gross.needed.reason == "no CPU was metered here"
    assert no_cpu.time.verdict == "saves"


def test_joules_that_some_trials_lack_leave_all_seconds_in() -> None:
    rows = trials()
    for name in ("gpu_energy_j", "total_energy_j"):
        rows[0][name] = None
    found = found_in(rows)
    assert (found.time.needed.n_questions, found.gross.needed.n_questions) == (6, 5)
    assert found.gross.needed.value == pytest.approx(0.04 * 400 / (0.02 * 300))


@given(scale=st.floats(0.01, 100.0))
@settings(max_examples=20, deadline=None)
def test_the_threshold_has_no_unit(scale: float) -> None:
    one, other = energy_of(), energy_of(step_w=300.0 * scale, round_w=400.0 * scale)
    assert other.needed.value == pytest.approx(one.needed.value)

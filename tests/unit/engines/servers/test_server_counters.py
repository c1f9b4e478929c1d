"""Counters of three servers in one meaning, checked against usage, and void where they cannot be ours."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.decoding import CoGA, Decoding, Eagle3, PromptLookup, Vanilla
from joulewise.engines.engine import Tally
from joulewise.engines.servers import SERVERS, open_recipe
from joulewise.engines.servers.counters import (
    CACHED,
    MISFIT,
    OTHERS,
    RESET,
    SPECULATES,
    UNTOLD,
    Asked,
    Counters,
    Drafted,
    Reset,
    by_position,
    difference,
    parse_exposition,
    reckon,
    total,
)

LLAMACPP = """\
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 52
llamacpp:prompt_tokens_cached_total 0
llamacpp:n_decode_total 23
llamacpp:spec_decode_num_draft_tokens_total 35
llamacpp:spec_decode_num_accepted_tokens_total 29
llamacpp:spec_decode_num_drafts_total 6
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 6
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 5
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="10"} 1
"""
"""As llama.cpp's own server told it here (the wheel xllamacpp 2026.10.11549), some lines left out."""

VLLM = """\
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 1.0
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 0.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 50.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 200.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 46.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 16.0
vllm:spec_decode_num_accepted_tokens_created{engine="0",model_name="m"} 1.7e+09
"""
"""In the form that the reference gives for vLLM 0.20.2; not recorded here."""

SGLANG = """\
sglang:num_requests_total{model_name="m",is_streaming="true"} 4.0
sglang:generation_tokens_total{model_name="m"} 100.0
sglang:cached_tokens_total{model_name="m"} 0.0
sglang:spec_verify_calls_total{model_name="m"} 50.0
sglang:spec_accept_length{model_name="m"} 7.5
"""
"""In the form that the reference gives for SGLang 0.5.23; not recorded here."""


def counters(kind: str, text: str, decoding: Decoding) -> Counters:
    found = open_recipe(kind).counters(lambda path: (200, text) if path == "/metrics" else (404, ""), decoding)
    assert found is not None
    return found


def test_llamacpp_s_counters() -> None:
    found = counters("llamacpp", LLAMACPP, PromptLookup())
    assert found == Counters(None, 52, 0, 6, 35, 29, None, (6, 5, 0, 0, 0, 0, 0, 0, 0, 0, 1))


@pytest.mark.parametrize("suffix", ["_total", ""])
def test_vllm_s_counters_with_and_without_their_suffix(suffix: str) -> None:
    found = counters("vllm", VLLM.replace("_total{", f"{suffix}{{"), CoGA(tokens=4))
    assert found == Counters(4, 100, 0, 50, 200, 46, None, (30, 16))


def test_vllm_without_speculation_has_no_such_counters() -> None:
    text = "".join(line for line in VLLM.splitlines(keepends=True) if "spec_decode" not in line)
    assert counters("vllm", text, Vanilla()) == Counters(requests=4, output_tokens=100, cached_tokens=0)


def test_sglang_s_gauges_are_not_its_counters() -> None:
    """Of 100 tokens 4 came with the prefills and 50 were the bonus of a round; the root is not counted."""
    found = counters("sglang", SGLANG, CoGA(tokens=3))
    assert found == Counters(4, 100, 0, 50, 50 * 3, 46, 50)


def test_sglang_s_tree_counts_nodes_without_the_root() -> None:
    assert counters("sglang", SGLANG, Eagle3(nodes=60)).drafted == 50 * 59
    assert counters("sglang", SGLANG, Eagle3(top_k=1, depth=3, nodes=60)).drafted == 50 * 4


@pytest.mark.parametrize("kind", list(SERVERS))
def test_a_server_without_metrics_tells_nothing(kind: str) -> None:
    assert open_recipe(kind).counters(lambda _: (404, ""), CoGA()) is None
    assert open_recipe(kind).drafted({}) is None


@pytest.mark.parametrize(
    ("kind", "extra", "told"),
    [
        ("llamacpp", {"timings": {"predicted_n": 40, "draft_n": 35, "draft_n_accepted": 29}}, Drafted(35, 29)),
        ("llamacpp", {"timings": {"predicted_n": 12}}, Drafted(0, 0)),
        (
            "vllm",
            {"metrics": {"speculative_decoding": {"num_draft_tokens": 12, "num_accepted_draft_tokens": 5}}},
            Drafted(12, 5),
        ),
        ("vllm", {"metrics": {"time_to_first_token_ms": 3.0}}, None),
        (
            "sglang",
            {
                "sglext": {
                    "spec_tokens_details": {
                        "spec_verify_ct": 4,
                        "spec_num_proposed_drafts": 12,
                        "spec_num_correct_drafts": 5,
                    }
                }
            },
            Drafted(12, 5, 4),
        ),
        ("sglang", {"sglext": {"spec_tokens_details": {"spec_verify_ct": 4}}}, None),
    ],
)
def test_what_answers_tell_of_themselves(kind: str, extra: dict[str, object], told: Drafted | None) -> None:
    assert open_recipe(kind).drafted(extra) == told


def test_an_exposition_is_read_and_the_rest_passed_over() -> None:
    metrics = parse_exposition('# HELP a b\na{x="1,}",y="\\"q"} 2\na 3 1700000000\n\nnonsense\nb{} NaNsense\nc +Inf\n')
    assert metrics["a"] == [({"x": "1,}", "y": '\\"q'}, 2.0), ({}, 3.0)]
    assert total(metrics, "a") == 5
    assert total(metrics, "b") is None
    assert by_position(metrics, "a") == ()


Z = Counters(0, 0, 0, 0, 0, 0)


def after(requests: int, output: int, drafts: int, drafted: int, accepted: int) -> Counters:
    return Counters(requests, output, 0, drafts, drafted, accepted, None, (drafts, accepted - drafts))


def test_a_trial_by_the_running_totals() -> None:
    """10 tokens: the first, then 6 rounds that accepted 3 tokens, 2 of them without a draft."""
    found = reckon(Z, after(1, 10, 4, 16, 5), [Asked(10)], 4)
    assert found.tally == Tally(rounds=4, drafted=16, accepted=5, drafts=4, per_position=(4, 1))
    assert (found.known, found.shared, found.note, found.fault) == (True, False, None, None)
    longer = reckon(Z, after(1, 12, 4, 16, 5), [Asked(12)], 4)
    assert longer.tally is not None
    assert longer.tally.rounds == 6


def test_answers_go_before_totals_which_only_add_to_them() -> None:
    own = [Asked(10, 0, Drafted(16, 5)), Asked(5, 0, Drafted(8, 2))]
    agree = reckon(Z, after(2, 15, 6, 24, 7), own, 4).tally
    assert agree == Tally(rounds=6, drafted=24, accepted=7, drafts=6, per_position=(6, 1))
    differ = reckon(Z, after(2, 15, 6, 20, 7), own, 4).tally
    assert differ == Tally(rounds=6, drafted=24, accepted=7)


def test_rounds_that_an_answer_tells_are_not_derived() -> None:
    found = reckon(None, None, [Asked(10, None, Drafted(12, 5, 5))], 3)
    assert found.tally == Tally(rounds=5, drafted=12, accepted=5)


@pytest.mark.parametrize("others", [after(2, 10, 4, 16, 5), after(1, 30, 4, 16, 5)])
def test_others_make_totals_void_and_say_so(others: Counters) -> None:
    found = reckon(Z, others, [Asked(10)], 4)
    assert (found.tally, found.known, found.shared, found.note) == (None, False, True, OTHERS)
    own = reckon(Z, others, [Asked(10, 0, Drafted(16, 5))], 4)
    assert own.tally == Tally(rounds=4, drafted=16, accepted=5)
    assert own.shared


def test_vanilla_is_shared_too() -> None:
    found = reckon(Z, Counters(3, 30, 0), [Asked(10)], 0)
    assert (found.tally, found.known, found.shared, found.note) == (None, True, True, OTHERS)


def test_tokens_past_the_end_are_nobody_else_s() -> None:
    """A server may count what a round accepted past the end of an answer."""
    assert not reckon(Z, after(1, 13, 4, 16, 5), [Asked(10)], 4).shared
    assert reckon(Z, after(1, 15, 4, 16, 5), [Asked(10)], 4).shared


def test_counters_that_were_reset_tell_nothing() -> None:
    found = reckon(after(9, 90, 40, 160, 50), after(1, 10, 4, 16, 5), [Asked(10)], 4)
    assert (found.tally, found.known, found.note) == (None, False, RESET)
    plain = reckon(Counters(9, 90), Counters(1, 10), [Asked(10)], 0)
    assert (plain.known, plain.note, plain.fault) == (True, RESET, None)


def test_a_series_that_vanished_is_a_reset() -> None:
    with pytest.raises(Reset):
        difference(Counters(per_position=(3, 2)), Counters(per_position=(3,)))


def test_series_that_appear_late_count_from_0() -> None:
    found = difference(Counters(output_tokens=5), Counters(output_tokens=15, drafted=8, per_position=(2, 1)))
    assert found == Counters(output_tokens=10, drafted=8, per_position=(2, 1))


def test_counters_that_do_not_fit_the_usage_are_not_believed() -> None:
    found = reckon(Z, after(1, 10, 4, 40, 30), [Asked(10)], 4)
    assert (found.tally, found.known, found.note) == (None, False, MISFIT)


def test_what_nobody_tells_is_unknown() -> None:
    found = reckon(None, None, [Asked(10)], 4)
    assert (found.tally, found.known, found.note) == (None, False, UNTOLD)
    assert reckon(None, None, [Asked(10)], 0).known


def test_a_server_that_drafts_is_no_vanilla() -> None:
    assert reckon(Z, after(1, 10, 4, 16, 5), [Asked(10)], 0).fault == SPECULATES
    assert reckon(None, None, [Asked(10, 0, Drafted(16, 5))], 0).fault == SPECULATES
    assert reckon(Z, after(1, 10, 0, 0, 0), [Asked(10, 0, Drafted(0, 0))], 0).fault is None


@pytest.mark.parametrize(("asked", "counted"), [(Asked(10, 7), Z), (Asked(10), Counters(1, 10, 7))])
def test_prompts_from_the_cache_are_told(asked: Asked, counted: Counters) -> None:
    assert reckon(Z, counted, [asked], 0).note == CACHED


rounds_of_answers = st.lists(
    st.lists(st.integers(0, 4).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), max_size=12), min_size=1
)


@given(rounds_of_answers, st.integers(0, 1000), st.booleans())
def test_rounds_come_out_as_they_went_in(
    answers: Sequence[Sequence[tuple[int, int]]], offset: int, by_answer: bool
) -> None:
    """Whatever the rounds of however many answers were: totals before and after give them back."""
    flat = [one for answer in answers for one in answer]
    drafted, accepted = sum(d for d, _ in flat), sum(a for _, a in flat)
    asked = [
        Asked(
            1 + sum(a + 1 for _, a in answer),
            0,
            Drafted(sum(d for d, _ in answer), sum(a for _, a in answer)) if by_answer else None,
        )
        for answer in answers
    ]
    output = sum(one.output_tokens for one in asked)
    positions = tuple(sum(a > i for _, a in flat) for i in range(4))
    drafts = sum(d > 0 for d, _ in flat)
    before = Counters(*[offset] * 6, None, (offset,) * 4)
    later = Counters(
        offset + len(answers),
        offset + output,
        offset,
        offset + drafts,
        offset + drafted,
        offset + accepted,
        None,
        tuple(offset + p for p in positions),
    )
    found = reckon(before, later, asked, 4)
    assert found.tally == Tally(len(flat), drafted, accepted, drafts, positions)
    assert found.known
    assert not found.shared
    # What is told per position sums to what was accepted.
    assert sum(positions) == accepted

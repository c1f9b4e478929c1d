"""A Request as servers take it."""

from __future__ import annotations

from typing import Any

import pytest

from joulewise.engines.endpoint_request import body_of, generation_of
from joulewise.engines.engine import Cut, Message, Request, Sampling
from joulewise.engines.openai_api.answer import Answer, Chunks
from joulewise.engines.servers import SERVERS, open_recipe
from joulewise.errors import UserError

ASKED = (Message("system", "be brief"), Message("user", "hello"))
BEGUN = (*ASKED, Message("assistant", "The answer is"))


def test_greedy_says_no_more_than_it_must() -> None:
    body = body_of(Request(ASKED, 7, seed=3), open_recipe("vllm"), "chat")
    assert body == {
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
        "max_tokens": 7,
        "temperature": 0.0,
        "seed": 3,
    }


@pytest.mark.parametrize(("kind", "top_k"), [("llamacpp", 0), ("vllm", -1), ("sglang", -1), ("running", None)])
def test_sampling_leaves_no_rule_to_the_server(kind: str, top_k: int | None) -> None:
    """A server's own default, such as llama.cpp's 40 likeliest tokens, would be no sample of the model."""
    body = body_of(Request(ASKED, 7, sampling=Sampling(0.7, 0.9)), open_recipe(kind), "chat")
    assert (body["temperature"], body["top_p"], body.get("top_k")) == (0.7, 0.9, top_k)
    told = body_of(Request(ASKED, 7, sampling=Sampling(0.7, 0.9, 20)), open_recipe(kind), "chat")
    assert told["top_k"] == 20


def test_no_prompt_from_the_cache() -> None:
    assert body_of(Request(ASKED, 7), open_recipe("llamacpp"), "chat")["cache_prompt"] is False


def test_plain_completions_join_the_contents() -> None:
    assert body_of(Request(ASKED, 7), open_recipe("vllm"), "completions")["prompt"] == "be brief\n\nhello"


@pytest.mark.parametrize("kind", list(SERVERS))
def test_going_on_past_the_end_token(kind: str) -> None:
    request = Request(ASKED, 7, ignore_eos=True)
    if kind != "running":
        assert body_of(request, open_recipe(kind), "chat")["ignore_eos"] is True
        return
    with pytest.raises(UserError, match="needs a server that can go on past the end token"):
        body_of(request, open_recipe(kind), "chat")


@pytest.mark.parametrize("kind", list(SERVERS))
def test_going_on_with_what_the_model_has_begun(kind: str) -> None:
    request = Request(BEGUN, 7)
    if kind == "running":
        with pytest.raises(UserError, match="nobody knows how to ask for that"):
            body_of(request, open_recipe(kind), "chat")
        return
    body = body_of(request, open_recipe(kind), "chat")
    assert body["messages"][-1] == {"role": "assistant", "content": "The answer is"}
    assert body.get("continue_final_message") is (None if kind == "llamacpp" else True)


@pytest.mark.parametrize("thinking", [True, False, None])
def test_the_switch_of_a_model_s_own_thinking(thinking: bool | None) -> None:
    body = body_of(Request(ASKED, 7, thinking=thinking), open_recipe("sglang"), "chat")
    assert body.get("chat_template_kwargs") == (None if thinking is None else {"enable_thinking": thinking})


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("llamacpp", {"timings_per_token": True}),
        ("vllm", {"stream_options": {"continuous_usage_stats": True}}),
        ("sglang", {"stream_options": {"continuous_usage_stats": True}}),
        ("running", {}),
    ],
)
def test_the_tokens_of_each_piece_are_asked_for_where_an_answer_is_cut(kind: str, said: dict[str, object]) -> None:
    plain = body_of(Request(ASKED, 7), open_recipe(kind), "chat")
    assert body_of(Request(ASKED, 7, cuts=(4,)), open_recipe(kind), "chat") == {**plain, **said}
    assert not said.keys() & plain.keys()


def cut(cuts: tuple[int, ...], pieces: list[tuple[str, int]], output: int, **more: Any) -> list[Cut]:
    """Of an answer in pieces with their text and tokens, which come one a second."""
    texts, tokens = [text for text, _ in pieces], tuple(n for _, n in pieces)
    thoughts = more.pop("thoughts", 0)
    chunks = Chunks(
        tuple(map(float, range(len(pieces)))),
        tuple(map(len, texts)),
        tokens if more.pop("counted", True) else (),
        tuple(i < thoughts for i in range(len(pieces))),
    )
    told = {"text": "".join(texts[thoughts:]), "reasoning": "".join(texts[:thoughts]), "chunks": chunks, **more}
    return list(generation_of(Request(ASKED, 9, cuts=cuts), Answer(finish_reason="length", **told), 5, output).cuts)


ROUNDS = [("a", 1), ("b", 1), ("cd", 2), ("efg", 3)]


def test_an_answer_is_cut_where_its_pieces_tell() -> None:
    # Six tokens end inside the last piece, which came at once; seven are all there are.
    assert cut((1, 2, 4, 6, 7, 8), ROUNDS, 7) == [
        Cut(1, "a", 0.0), Cut(2, "ab", 1.0), Cut(4, "abcd", 2.0), Cut(6, None, 3.0),
    ]  # fmt: skip


def test_an_end_token_in_no_piece_is_no_text() -> None:
    assert cut((7,), ROUNDS, 8) == [Cut(7, "abcdefg", 3.0)]
    assert cut((8,), ROUNDS, 9) == [Cut(8, None, None)]


def test_a_round_that_is_counted_at_its_first_piece_is_cut_behind_its_last() -> None:
    assert cut((3, 4), [("a", 1), ("b", 3), ("c", 0), ("d", 0), ("e", 1)], 5) == [
        Cut(3, None, 1.0), Cut(4, "abcd", 1.0),
    ]  # fmt: skip


def test_a_character_in_several_tokens_is_not_cut() -> None:
    assert cut((1, 2, 3), [("a", 1), ("", 1), ("\N{PARTY POPPER}", 1), ("b", 1)], 4) == [
        Cut(1, "a", 0.0), Cut(2, None, 1.0), Cut(3, "a\N{PARTY POPPER}", 2.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "more", [{"counted": False}, {"output": 6}, {"chunks": Chunks(), "streamed": False}], ids=["none", "more", "whole"]
)
def test_without_counts_of_this_answer_nothing_is_told(more: dict[str, Any]) -> None:
    assert cut((2,), ROUNDS, more.pop("output", 7), **more) == [Cut(2, None, None)]


def test_thoughts_that_come_apart_are_cut_as_the_model_wrote_them() -> None:
    assert cut((1, 2, 4), ROUNDS, 7, thoughts=2) == [
        Cut(1, "<think>\na", 0.0), Cut(2, "<think>\nab", 1.0), Cut(4, "<think>\nab\n</think>\n\ncd", 2.0),
    ]  # fmt: skip


def test_pieces_with_more_than_the_text_tell_no_text() -> None:
    assert cut((2,), ROUNDS, 7, text="abcd") == [Cut(2, None, 1.0)]

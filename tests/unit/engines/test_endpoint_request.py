"""A Request as servers take it."""

from __future__ import annotations

import pytest

from joulewise.engines.endpoint_request import body_of
from joulewise.engines.engine import Message, Request, Sampling
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


def test_what_an_answer_was_after_so_many_tokens_is_not_told() -> None:
    with pytest.raises(UserError, match="leave `probes` out of the budget"):
        body_of(Request(ASKED, 7, cuts=(4,)), open_recipe("vllm"), "chat")

"""An answer is put together from its payloads exactly, by the fast way and by the slow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_server import DONE, chunk, event, finish, piece, role, usage
from joulewise.engines.openai_api.answer import Answer, Assembly, ErrorInStream, Garbage, Usage

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(['"', "\\", '","x":"', "\u2028"]))


def assembled(*events: bytes) -> Answer:
    assembly = Assembly()
    for number, one in enumerate(events):
        assembly.take(one.removeprefix(b"data: ").rstrip(b"\n"), float(number))
    return assembly.answer(streamed=True, sent_s=0.0, connected_s=None, headers_s=None, end_s=1.0, retries=())


@given(texts=TEXTS, key=st.sampled_from(["content", "reasoning_content", "reasoning"]))
def test_text_and_times_of_a_chat(texts: list[str], key: str) -> None:
    answer = assembled(role(), *(chunk({key: text}) for text in texts), finish("stop"), DONE)
    said = answer.text if key == "content" else answer.reasoning
    assert said == "".join(texts)
    assert (answer.text, answer.reasoning).count("") >= 1
    kept = [(float(n), len(text)) for n, text in enumerate(texts, 1) if text]
    assert list(zip(answer.chunks.times_s, answer.chunks.characters, strict=True)) == kept
    assert set(answer.chunks.reasoning) <= {key != "content"}
    assert answer.finish_reason == "stop"


@given(
    texts=TEXTS,
    ids=st.lists(st.sampled_from(["a", "b"])),
    spaces=st.booleans(),
    ascii_only=st.booleans(),
)
def test_plain_completions_whatever_else_their_chunks_hold(
    texts: list[str], ids: list[str], spaces: bool, ascii_only: bool
) -> None:
    separators = (", ", ": ") if spaces else (",", ":")
    events = [
        json.dumps(
            {"id": (ids or ["a"])[n % len(ids or "a")], "choices": [{"index": 0, "text": text}], "note": '"text":"'},
            separators=separators,
            ensure_ascii=ascii_only,
        ).encode()
        for n, text in enumerate(texts)
    ]
    assert assembled(*events).text == "".join(texts)


def test_the_first_token_is_not_the_role() -> None:
    assert assembled(role(), role(), piece("a"), piece("b")).first_token_s == 2.0
    assert assembled(role()).first_token_s is None


def test_thoughts_are_told_apart() -> None:
    answer = assembled(chunk({"reasoning_content": "hm"}), chunk({"reasoning_content": "."}), piece("a"), piece("b"))
    assert (answer.text, answer.reasoning) == ("ab", "hm.")
    assert answer.chunks.reasoning == (True, True, False, False)


def test_usage_with_its_details() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 1}}
    assert assembled(piece("a"), usage(5, 2, **details)).usage == Usage(5, 2, 3, 1)
    assert assembled(piece("a"), usage(5, 2, prompt_tokens_details=None)).usage == Usage(5, 2, None, None)


@pytest.mark.parametrize(
    "counts", [{}, {"prompt_tokens": "5"}, {"prompt_tokens": 5, "completion_tokens": -1}, [], None]
)
def test_usage_that_is_none_is_not_made_up(counts: Any) -> None:
    assert assembled(piece("a"), event({"choices": [], "usage": counts})).usage is None


def test_tokens_by_chunk_from_a_running_usage() -> None:
    def so_far(tokens: int) -> dict[str, Any]:
        return {"usage": {"prompt_tokens": 9, "completion_tokens": tokens}}

    answer = assembled(
        chunk({"role": "assistant"}, **so_far(0)),
        piece("ab", **so_far(3)),
        piece("", **so_far(4)),
        piece("c", **so_far(5)),
        chunk({}, "stop", **so_far(6)),
        usage(9, 6),
    )
    assert answer.chunks.tokens == (3, 1, 1, 1)
    assert answer.chunks.characters == (2, 0, 1, 0)
    assert answer.chunks.times_s == (1.0, 2.0, 3.0, 4.0)


def test_tokens_by_chunk_from_token_ids_and_from_timings() -> None:
    answer = assembled(piece("a", choice={"token_ids": [5, 6]}), piece("b", choice={"token_ids": [7]}))
    assert (answer.chunks.tokens, answer.token_ids) == ((2, 1), (5, 6, 7))
    answer = assembled(*(piece("a", timings={"predicted_n": n}) for n in (1, 4)))
    assert answer.chunks.tokens == (1, 3)


def test_a_total_at_the_end_tells_nothing_of_the_chunks() -> None:
    answer = assembled(piece("a"), chunk({}, "stop", timings={"predicted_n": 7, "draft_n": 4}), usage(1, 7))
    assert answer.chunks.tokens == ()
    assert len(answer.chunks) == 1
    assert answer.extra["timings"] == {"predicted_n": 7, "draft_n": 4}


def test_a_tools_arguments_are_output_but_no_text() -> None:
    call = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}
    answer = assembled(chunk(call), chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1"}}]}))
    assert (answer.text, answer.chunks.characters) == ("", (3, 1))


def test_halves_of_a_character_in_two_chunks() -> None:
    halves = [b'{"choices":[{"delta":{"content":"' + half + b'"}}]}' for half in (rb"\ud83d", rb"\ude00", rb"\ud83d")]
    assert assembled(*halves).text == "😀\ufffd"


@pytest.mark.parametrize(
    "payload",
    [
        b"x", b"[]", b"1", b"{}", b"[" * 100_000, b'{"choices":1}', b'{"choices":[1]}', b'{"choices":[{"delta":1}]}',
        b'{"choices":[{"delta":{"content":"\xff"}}]}',
    ],
)  # fmt: skip
def test_garbage_is_told(payload: bytes) -> None:
    with pytest.raises(Garbage):
        assembled(payload)
    with pytest.raises(Garbage):
        assembled(piece("a"), payload)


@pytest.mark.parametrize(
    ("payload", "words", "status"),
    [
        ({"error": {"message": "no memory", "code": 500}}, "no memory", 500),
        ({"error": {"message": "no memory", "code": "server_error"}}, "no memory", None),
        ({"error": "no memory"}, "no memory", None),
        ({"object": "error", "message": "no memory", "code": "503"}, "no memory", 503),
    ],
)
def test_errors_within_a_stream(payload: dict[str, Any], words: str, status: int | None) -> None:
    with pytest.raises(ErrorInStream, match=words) as caught:
        assembled(piece("a"), event(payload))
    assert caught.value.status == status

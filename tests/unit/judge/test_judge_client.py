"""One question to a judge, over real sockets of this machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from joulewise.errors import UserError
from joulewise.judge.client import Judge, JudgeDown, JudgeRefuses
from local_judge import Answer, fails, local_judge, says

KEY = "sk-secret-12345"
ASKED = [{"role": "user", "content": "Grade it."}]


def test_a_reply_with_its_tokens_and_time() -> None:
    with local_judge(lambda _: says("Fine. [[7]]")) as server:
        reply = Judge(server.url, "big", KEY).ask(ASKED)
    assert (reply.text, reply.prompt_tokens, reply.output_tokens, reply.cut_off) == ("Fine. [[7]]", 100, 10, False)
    assert reply.duration_s > 0.0
    assert server.keys == [f"Bearer {KEY}"]
    assert server.requests == [{"model": "big", "messages": ASKED, "temperature": 0.0, "max_tokens": 2048}]


def test_without_a_key_none_is_sent_and_the_whole_address_may_be_given() -> None:
    with local_judge(lambda _: says("[[7]]")) as server:
        Judge(f"{server.url}/chat/completions/", "big").ask(ASKED)
    assert server.keys == [None]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not JSON",
        b"[]",
        b"null",
        b"{}",
        b'{"choices": []}',
        b'{"choices": "abc"}',
        b'{"choices": [{"message": "abc"}]}',
        b'{"choices": [{"message"',
        b"[" * 100_000,
        b"\xff\xfe",
        f"<html>{KEY}</html>".encode(),
    ],
)
def test_what_is_no_chat_is_told_as_that(body: bytes) -> None:
    with local_judge(lambda _: (200, {}, body)) as server, pytest.raises(JudgeDown, match="not as a chat") as caught:
        Judge(server.url, "big", KEY).ask(ASKED)
    assert str(caught.value).endswith("check --url")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices": [{"message": {}}]}',
        b'{"choices": [{"message": {"content": null}}]}',
        b'{"choices": [{"message": {"content": ["a"]}}], "usage": {"prompt_tokens": "many"}}',
    ],
)
def test_a_chat_that_says_nothing_is_a_reply_without_text(body: bytes) -> None:
    with local_judge(lambda _: (200, {}, body)) as server:
        reply = Judge(server.url, "big").ask(ASKED)
    assert (reply.text, reply.prompt_tokens, reply.output_tokens) == ("", None, None)


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (fails(500, "out of memory"), JudgeDown, "HTTP 500 out of memory"),
        (fails(429, "slow down", Retry_After="7"), JudgeDown, "HTTP 429 slow down"),
        (fails(400, "too long"), JudgeRefuses, "HTTP 400 too long"),
        (fails(302, "", Location="http://127.0.0.1:9/v1"), UserError, "HTTP 302 .*; check --url"),
        (
            fails(401, f"Incorrect API key: {KEY}"),
            UserError,
            r"HTTP 401 Incorrect API key: \*\*\*; check --url, --model",
        ),
        (fails(404, "no such model"), UserError, "HTTP 404 no such model"),
        (fails(501, "<!DOCTYPE HTML>\n<p>POST"), UserError, "HTTP 501 a web page; check --url"),
        (fails(502, "<html>"), JudgeDown, "HTTP 502 a web page$"),
    ],
)
def test_a_judge_that_does_not_answer(answer: Answer, kind: type[Exception], message: str) -> None:
    with local_judge(lambda _: answer) as server, pytest.raises(kind, match=message) as caught:
        Judge(server.url, "big", KEY).ask(ASKED)
    assert KEY not in str(caught.value)
    assert len(server.requests) == 1, "a redirect is not followed: it would carry the key elsewhere"
    if isinstance(caught.value, JudgeDown):
        assert caught.value.retry_after_s == (7.0 if "429" in message else None)


def test_a_server_that_is_not_there() -> None:
    with local_judge(lambda _: says("[[7]]")) as server:
        pass
    with pytest.raises(JudgeDown, match="cannot be reached"):
        Judge(server.url, "big").ask(ASKED)


def test_a_reply_that_was_cut_off() -> None:
    def answer(_: dict[str, Any]) -> Answer:
        return 200, {}, json.dumps({"choices": [{"message": {"content": "Well"}, "finish_reason": "length"}]}).encode()

    with local_judge(answer) as server:
        assert Judge(server.url, "big").ask(ASKED).cut_off


@pytest.mark.parametrize("url", ["", "localhost:8000", "file:///etc/passwd", "http://", "http://x:y/v1", "ftp://a/v1"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UserError, match="--url"):
        Judge(url, "big")


def test_secrets_do_not_go_into_addresses_or_messages() -> None:
    with pytest.raises(UserError, match="leave names, passwords") as caught:
        Judge("http://me:secret@host/v1", "big")
    assert "secret" not in str(caught.value)
    with pytest.raises(UserError, match="the judge's key holds") as caught:
        Judge("http://host/v1", "big", "sk\nsecret")
    assert "secret" not in str(caught.value)
    assert KEY not in repr(Judge("http://host/v1", "big", KEY))

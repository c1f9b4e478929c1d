"""One request over real sockets of this machine, to a server that does what it should and what it should not."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fake_server import (
    DONE,
    Do,
    Drop,
    FakeServer,
    Pause,
    Reply,
    Until,
    event,
    fails,
    finish,
    piece,
    role,
    usage,
    whole,
)
from joulewise.engines.openai_api.answer import Answer, Retry, Usage
from joulewise.engines.openai_api.client import Endpoint, Patience, ask, list_models, open_session
from joulewise.engines.openai_api.errors import (
    BrokenStream,
    EndpointError,
    KeyRefused,
    ModelMissing,
    NotAnAnswer,
    Overloaded,
    Refused,
    ServerFault,
    Stalled,
    TlsFault,
    TooLongForModel,
    Unreachable,
    WrongAddress,
)
from joulewise.errors import ContextLengthError, EnvironmentFault, UserError

KEY = "sk-secret-12345"
CHAT = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 3}
GOOD = (role(), piece("a"), piece("b"), finish("stop"), usage(4, 3), DONE)
HTML = Reply([b"<html>Welcome, %s</html>" % KEY.encode()], headers={"Content-Type": "text/html"})


def asked(
    url: str, body: dict[str, Any] = CHAT, patience: Patience | None = None, hears: Callable[[Retry], None] = print
) -> Answer:
    async def one() -> Answer:
        async with open_session(connect_s=5.0) as session:
            return await ask(session, Endpoint(url, "fake", KEY), body, patience, hears)

    return asyncio.run(one())


def fault(reply: Reply, kind: type[EndpointError], patience: Patience | None = None) -> EndpointError:
    with FakeServer(lambda _: reply) as server, pytest.raises(kind) as caught:
        asked(server.url, patience=patience)
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def test_an_answer_with_its_times_and_counts() -> None:
    with FakeServer(lambda _: Reply(GOOD)) as server:
        before_s = time.monotonic()
        answer = asked(server.url)
        after_s = time.monotonic()
    assert (answer.text, answer.finish_reason, answer.usage, answer.streamed) == ("ab", "stop", Usage(4, 3), True)
    assert answer.connected_s is not None
    assert answer.headers_s is not None
    assert answer.first_token_s is not None
    assert answer.last_token_s is not None
    times = [answer.sent_s, answer.connected_s, answer.headers_s, answer.first_token_s, answer.last_token_s]
    assert [before_s, *times, answer.end_s, after_s] == sorted([before_s, *times, answer.end_s, after_s])


def test_what_is_asked() -> None:
    with FakeServer(lambda _: Reply(GOOD)) as server:
        asked(server.url, {**CHAT, "ignore_eos": True, "stream_options": {"continuous_usage_stats": True}})
        asked(server.url + "/", {"prompt": "Hi \ud83d"})
        asked(server.url, {**CHAT, "stream_options": None})
    first, second, third = server.asked
    assert first.path == "/v1/chat/completions"
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.json == {
        **CHAT,
        "ignore_eos": True,
        "model": "fake",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    assert (second.path, second.json["prompt"]) == ("/v1/completions", "Hi ?")
    assert "stream_options" not in third.json


def test_the_first_token_is_timed_when_it_comes() -> None:
    released_s: list[float] = []
    go = threading.Event()

    def release(_: Retry | None = None) -> None:
        released_s.append(time.monotonic())
        go.set()

    steps = (role(), Do(lambda: threading.Timer(0.05, release).start()), Until(go), *GOOD[1:])
    with FakeServer(lambda _: Reply(steps)) as server:
        answer = asked(server.url)
    assert answer.first_token_s is not None
    assert answer.headers_s is not None
    assert answer.headers_s < released_s[0] < answer.first_token_s


def test_an_answer_that_is_not_streamed() -> None:
    with FakeServer(lambda _: whole("Hello.", 5, 2)) as server:
        answer = asked(server.url)
    assert (answer.text, answer.usage, answer.streamed) == ("Hello.", Usage(5, 2), False)
    assert answer.first_token_s is None


@pytest.mark.parametrize(
    "steps",
    [
        (role(), piece("ab"), finish("stop")),  # no [DONE]
        (role(), piece("ab"), finish("stop").rstrip()),  # nor a blank line
        (role(), piece("ab"), DONE),  # no reason
        (b": ping\n\n", piece("ab").replace(b"\n", b"\r\n"), DONE),
        (piece("a")[:40], piece("a")[40:] + piece("b") + DONE),
        (*(bytes([byte]) for byte in piece("ab")), DONE),
        (piece("ab"), DONE, b"what follows is not read"),
    ],
)
def test_streams_that_are_whole_all_the_same(steps: tuple[bytes, ...]) -> None:
    with FakeServer(lambda _: Reply(steps)) as server:
        answer = asked(server.url)
    assert (answer.text, answer.usage) == ("ab", None)


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (fails(401, f"Incorrect key {KEY}"), KeyRefused, "HTTP 401 .*the key is refused"),
        (fails(403), KeyRefused, "HTTP 403"),
        (fails(404, "no such model"), WrongAddress, "HTTP 404 .*the server has no chat/completions"),
        (fails(302, Location="http://127.0.0.1:1/v1"), WrongAddress, "HTTP 302 .*check url"),
        (fails(400, "max_tokens: too big"), Refused, "HTTP 400 .*too big"),
        (fails(400, "This model's maximum context length is 8 tokens"), TooLongForModel, "do not fit"),
        (fails(400, "long", code="context_length_exceeded"), TooLongForModel, "do not fit"),
        (fails(500, "out of memory"), ServerFault, "HTTP 500 .out of memory"),
        (fails(503, "busy"), Overloaded, "HTTP 503 .busy.*; send fewer"),
        (fails(429, "slow down", Retry_After="7"), Overloaded, "HTTP 429 .*asks to wait 7 s"),
        (HTML, NotAnAnswer, "not as a completion .*a web page"),
        (Reply(()), NotAnAnswer, "nothing"),
        (Reply([b"SSH-2.0-OpenSSH_9\r\n"], raw=True), NotAnAnswer, "no HTTP"),
        (Reply([b'{"choices"'], headers={"Content-Type": "application/json"}), NotAnAnswer, "no JSON"),
        (Reply([event({"error": {"message": "no memory", "code": 500}})]), ServerFault, "0 chunks of text: no memory"),
        (Reply([event({"error": {"message": "full", "code": 503}})]), Overloaded, "503 .full"),
        (Reply([], raw=True), BrokenStream, "0 chunks"),
        (Reply([b"data: " + b"x" * 5_000_000]), NotAnAnswer, "an event without an end"),
    ],
)  # fmt: skip
def test_faults_before_any_text(reply: Reply, kind: type[EndpointError], words: str) -> None:
    error = fault(reply, kind)
    assert type(error) is kind
    assert re.search(words, str(error))


def test_which_faults_end_a_run_and_which_a_trial() -> None:
    assert issubclass(KeyRefused, UserError)
    assert issubclass(ModelMissing, UserError)
    assert issubclass(TooLongForModel, ContextLengthError)
    assert not any(issubclass(kind, UserError) for kind in (Overloaded, ServerFault, BrokenStream, Stalled))


@pytest.mark.parametrize(
    ("after", "kind", "words"),
    [
        ((Drop(),), BrokenStream, "broke off after 1 chunk of text"),
        ((), BrokenStream, "without a reason"),
        ((piece("b")[:30],), NotAnAnswer, "no JSON"),
        ((b"data: {nonsense}\n\n",), NotAnAnswer, "nonsense"),
        ((event({"error": {"message": "no memory"}}), DONE), ServerFault, "after 1 chunk of text: no memory"),
    ],
)
def test_what_came_before_a_fault_is_kept(after: tuple[Any, ...], kind: type[EndpointError], words: str) -> None:
    error = fault(Reply((role(), piece("a"), *after)), kind)
    assert words in str(error)
    assert error.partial is not None
    assert (error.partial.text, len(error.partial.chunks)) == ("a", 1)
    assert error.partial.finish_reason is None


def test_a_model_that_is_not_there_is_named_with_those_that_are() -> None:
    with FakeServer(lambda _: fails(404, "no such model"), models=("big", "small")) as server:
        with pytest.raises(ModelMissing, match="no model fake; the server lists big, small"):
            asked(server.url)
        with pytest.raises(WrongAddress, match="usually ends in /v1"):
            asked(server.origin)


def test_stalls() -> None:
    never = Until(threading.Event())
    error = fault(Reply((role(), piece("a"), never)), Stalled, Patience(idle_s=0.1))
    assert "nothing for 0.1 s, after 1 chunk of text" in str(error)
    assert error.partial is not None
    assert error.partial.text == "a"
    for reply in (Reply(GOOD, before=[never]), Reply([b": ping\n\n", never])):
        assert "not begun to answer within 0.1 s" in str(fault(reply, Stalled, Patience(first_s=0.1)))


def test_patience_is_from_event_to_event() -> None:
    steps = [step for _ in range(8) for step in (Pause(0.1), piece("a"))]
    with FakeServer(lambda _: Reply([*steps, DONE])) as server:
        assert len(asked(server.url, patience=Patience(first_s=0.6, idle_s=0.6)).text) == 8


def test_a_request_that_is_turned_away_is_sent_again_and_that_is_told() -> None:
    replies = iter([fails(429, Retry_After="0"), fails(503, Retry_After="Thu, 01 Jan 2026 00:00:00 GMT"), Reply(GOOD)])
    heard: list[Retry] = []
    with FakeServer(lambda _: next(replies)) as server:
        answer = asked(server.url, patience=Patience(retries=2), hears=heard.append)
    assert answer.text == "ab"
    assert answer.retries == tuple(heard)
    assert [(r.status, r.waited_s) for r in heard] == [(429, 0.0), (503, 0.0)]
    assert heard[0].sent_s < heard[1].sent_s < answer.sent_s


def test_retries_end() -> None:
    with FakeServer(lambda _: fails(429, "slow down", Retry_After="1000")) as server:
        with pytest.raises(Overloaded, match="after 3 tries; send fewer") as caught:
            asked(server.url, patience=Patience(retries=2, longest_wait_s=0.01))
        assert len(server.asked) == 3
    assert [r.waited_s for r in caught.value.retries] == [0.01, 0.01]


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match="cannot be reached \\(Connection refused\\)"):
        asked(f"http://127.0.0.1:{port}/v1")


def test_tls_on_one_side_only() -> None:
    with FakeServer(lambda _: Reply(GOOD)) as server, pytest.raises(EndpointError, match="no secure connection"):
        asked(server.url.replace("http:", "https:"))


def test_a_certificate_that_nobody_trusts(repository: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(repository / "tests" / "data" / "localhost.pem")
    with FakeServer(lambda _: Reply(GOOD), tls=tls) as server, pytest.raises(TlsFault, match="SSL_CERT_FILE") as caught:
        asked(server.url)
    assert isinstance(caught.value, EnvironmentFault)
    assert not server.asked


def test_tls_in_a_session_of_ones_own(repository: Path) -> None:
    file = repository / "tests" / "data" / "localhost.pem"
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)

    async def twice(url: str) -> list[Answer]:
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(file)))  # keeps its connections
        async with aiohttp.ClientSession(connector=connector) as session:
            return [await ask(session, Endpoint(url, "fake"), CHAT) for _ in range(2)]

    with FakeServer(lambda _: Reply((*GOOD[:2], Pause(0.02), *GOOD[2:])), tls=tls) as server:
        answers = asyncio.run(twice(server.url))
    assert [(a.text, a.usage, len(a.chunks)) for a in answers] == [("ab", Usage(4, 3), 2)] * 2
    assert [a.connected_s for a in answers] == [None, None]


def test_models_and_what_is_none() -> None:
    async def listed(url: str) -> list[str]:
        async with open_session() as session:
            return list(await list_models(session, Endpoint(url, "fake")))

    with FakeServer(lambda _: HTML, models=("a", "b")) as server:
        assert asyncio.run(listed(server.url)) == ["a", "b"]
        with pytest.raises(WrongAddress, match="check url"):
            asyncio.run(listed(server.origin))
        server.reply = lambda _: HTML  # type: ignore[method-assign]
        with pytest.raises(NotAnAnswer, match="lists no models"):
            asyncio.run(listed(server.url))


@pytest.mark.parametrize(
    ("url", "key"),
    [("localhost:8000", None), ("ftp://a/v1", None), ("http://", None), ("http://a:x/v1", None), ("http://u:p@a", None),
     ("http://a/v1?k=1", None), ("http://a/v1", "two halves"), ("http://a/v1", "a\nb")],
)  # fmt: skip
def test_addresses_and_keys_that_cannot_be(url: str, key: str | None) -> None:
    with pytest.raises(UserError) as caught:
        Endpoint(url, "m", key)
    assert "halves" not in str(caught.value)
    assert "p@" not in str(caught.value)


def test_a_key_is_not_shown() -> None:
    assert KEY not in repr(Endpoint("http://a/v1", "m", KEY))

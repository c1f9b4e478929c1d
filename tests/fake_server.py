"""An OpenAI-compatible server that does what a script says: late, stalling, dying, wrong, or exact to the token.

In a test it runs in a thread of its own::

    with FakeServer(lambda asked: Reply(steps=[piece("a"), piece("b"), finish("stop"), usage(3, 2), DONE])) as server:
        ...  # server.url, server.asked, server.counters

Alone it is a process (``python tests/fake_server.py``) that answers each request with ``max_tokens`` pieces at a steady
pace; each piece is the monotonic time at which it was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MODEL = "fake"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        whole: dict[str, Any] = json.loads(self.body)
        return whole


@dataclass(frozen=True)
class Pause:
    """Seconds from the step before, whenever that was carried out: no drift."""

    seconds: float


@dataclass(frozen=True)
class Until:
    """Wait for the test."""

    event: threading.Event


@dataclass(frozen=True)
class Do:
    """Call something: tell the test, count."""

    action: Callable[[], Any]


class Drop:
    """Reset the connection."""


Step = bytes | Pause | Until | Do | Drop


@dataclass(frozen=True)
class Reply:
    """What is answered.

    Args:
        steps: bytes are written at once, each as a chunk of its own.
        raw: the steps are all there is on the wire: no status, no headers, no framing; then the connection closes.
        before: steps before the headers.
    """

    steps: Iterable[Step] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream"})
    raw: bool = False
    before: Iterable[Step] = ()


Script = Callable[[Asked], Reply]


def event(payload: Mapping[str, Any]) -> bytes:
    """One server-sent event, as compact as vLLM's."""
    return b"data: " + json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def chunk(delta: Mapping[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
    """A chunk of a chat."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **more.pop("choice", {})}
    whole = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}
    return event({**whole, **more})


def role() -> bytes:
    """The first chunk of a chat, which has no output."""
    return chunk({"role": "assistant", "content": ""})


def piece(text: str, **more: Any) -> bytes:
    """A chunk with output."""
    return chunk({"content": text}, **more)


def finish(reason: str) -> bytes:
    """The chunk that ends the output."""
    return chunk({}, reason)


def usage(prompt: int, output: int, **more: Any) -> bytes:
    """The chunk with the counts."""
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, **more}
    return event(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL, "choices": [], "usage": counts}
    )


def whole(text: str, prompt: int = 1, output: int = 1, reason: str = "stop") -> Reply:
    """A server that does not stream."""
    body = {
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": output},
    }
    return Reply([json.dumps(body).encode()], headers={"Content-Type": "application/json"})


def fails(status: int, message: str = "no", code: Any = None, **headers: str) -> Reply:
    """An error, in the API's form."""
    body = json.dumps({"error": {"message": message, "type": "error", "code": code}}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply([body], status, {"Content-Type": "application/json", **named})


class FakeServer:
    """Answers on a free port of this machine until the end of its ``with``.

    Args:
        script: what to answer a completion with; called in the server's thread.
        models: the names that it lists.
        health: what ``/health`` answers.

    ``asked`` holds the requests for completions; ``counters`` is what ``/metrics`` tells, under vLLM's names.
    """

    def __init__(
        self,
        script: Script,
        *,
        models: tuple[str, ...] = (MODEL,),
        health: Callable[[], Reply] = lambda: Reply([b"{}"], headers={"Content-Type": "application/json"}),
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.script, self.models, self.health = script, models, health
        self.asked: list[Asked] = []
        self.running = 0
        self.over = False
        self.counters: dict[str, float] = {
            "vllm:prompt_tokens_total": 0.0,
            "vllm:generation_tokens_total": 0.0,
            "vllm:request_success_total": 0.0,
        }
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._socket = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._thread = threading.Thread(target=self.serve, daemon=True)
        self._ready = threading.Event()

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def url(self) -> str:
        """The base of the API."""
        return f"{self.origin}/v1"

    def __enter__(self) -> FakeServer:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def serve(self) -> None:
        """Answer until stopped."""
        made = self._loop.create_server(lambda: _Connection(self), sock=self._socket, backlog=4096, ssl=self._tls)
        self._loop.run_until_complete(made)
        self._ready.set()
        self._loop.run_forever()
        self.over = True
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._socket.close()
        self._loop.close()

    def reply(self, asked: Asked) -> Reply:
        """To any request."""
        if asked.path == "/metrics":
            counters = {**self.counters, "vllm:num_requests_running": self.running}
            text = "".join(f"{name} {value}\n" for name, value in counters.items())
            return Reply([text.encode()], headers={"Content-Type": "text/plain"})
        if asked.path == "/health":
            return self.health()
        if asked.path == "/v1/models":
            listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
            return Reply([json.dumps(listed).encode()], headers={"Content-Type": "application/json"})
        if asked.path not in ("/v1/chat/completions", "/v1/completions"):
            return fails(404, "Not Found")
        self.asked.append(asked)
        return self.script(asked)

    def count(self, prompt: int, output: int) -> None:
        """One request is done."""
        self.counters["vllm:prompt_tokens_total"] += prompt
        self.counters["vllm:generation_tokens_total"] += output
        self.counters["vllm:request_success_total"] += 1


class _Connection(asyncio.Protocol):
    """Callbacks rather than tasks: twenty thousand pieces a second are to fit on one core."""

    def __init__(self, server: FakeServer) -> None:
        self.server, self.loop = server, asyncio.get_running_loop()
        self.data = b""
        self.busy = False
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        self.gone = True
        self._over()

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, rest = self.data.partition(b"\r\n\r\n")
        if data.startswith(b"\x16"):  # someone speaks TLS
            self.transport.close()
        if not found or self.busy:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self.data = rest[length:]
        method, path, _ = first.split(" ")
        self._begin(self.server.reply(Asked(method, path, headers, rest[:length])), headers)

    def _begin(self, reply: Reply, headers: Mapping[str, str]) -> None:
        self.busy = True
        self.server.running += 1
        self.close = reply.raw or headers.get("connection", "").lower() == "close"
        lines = [f"HTTP/1.1 {reply.status} said", *(f"{name}: {value}" for name, value in reply.headers.items())]
        head = "\r\n".join([*lines, "Transfer-Encoding: chunked", "", ""]).encode()
        self.steps = self._framed(reply, head)
        self.due = self.loop.time()
        self._go()

    def _framed(self, reply: Reply, head: bytes) -> Iterator[Step]:
        yield from reply.before
        if reply.raw:
            yield from reply.steps
            return
        yield head
        for step in reply.steps:
            yield b"%x\r\n%b\r\n" % (len(step), step) if isinstance(step, bytes) else step
        yield b"0\r\n\r\n"

    def _go(self) -> None:
        for step in self.steps:
            if self.gone:
                return
            if isinstance(step, bytes):
                self.transport.write(step)
            elif isinstance(step, Pause):
                self.due += step.seconds
                self.loop.call_at(self.due, self._go)
                return
            elif isinstance(step, Until):
                waited = self.loop.run_in_executor(None, self._wait, step.event)
                waited.add_done_callback(lambda _: self._go())
                return
            elif isinstance(step, Do):
                step.action()
            else:  # with nothing to linger for, closing resets
                raw: socket.socket = self.transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.transport.abort()
                return
        self._over()
        if self.close:
            self.transport.close()

    def _wait(self, event: threading.Event) -> None:
        while not event.wait(0.05) and not self.server.over:
            pass

    def _over(self) -> None:
        if self.busy:
            self.busy = False
            self.server.running -= 1


def steady(first_s: float, between_s: float, server: Callable[[], FakeServer], in_step: bool = False) -> Script:
    """Answers each request with ``max_tokens`` pieces at a steady pace; each is the time at which it was sent.

    Prompt tokens are the words of the last message. With ``in_step`` all streams send at the same moments, as they do
    where a server computes them in one batch.
    """
    before, _, after = piece("@").partition(b"@")

    def script(asked: Asked) -> Reply:
        body = asked.json
        prompt, output = len(body["messages"][-1]["content"].split()), int(body["max_tokens"])

        def steps() -> Iterator[Step]:
            yield role()
            wait_s = first_s
            if in_step:
                wait_s += between_s - (time.monotonic() + first_s) % between_s
            for number in range(output):
                yield Pause(between_s if number else wait_s)
                yield b"%b %.6f%b" % (before, time.monotonic(), after)
            server().count(prompt, output)
            yield finish("length") + usage(prompt, output) + DONE

        return Reply(steps())

    return script


def main() -> None:
    """Serve until standard input ends; the address is the first line of the output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=float, default=0.05, metavar="S", help="from a request to its first piece")
    parser.add_argument("--between", type=float, default=0.1, metavar="S", help="from a piece to the next")
    parser.add_argument("--in-step", action="store_true", help="all streams send at the same moments")
    arguments = parser.parse_args()
    server = FakeServer(steady(arguments.first, arguments.between, lambda: server, arguments.in_step))
    with server:
        print(server.url, flush=True)
        gc.collect()
        gc.freeze()
        sys.stdin.read()


if __name__ == "__main__":
    main()

"""A judge on this machine: a small HTTP server that answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""


def says(text: str, **more: Any) -> Answer:
    """A whole chat completion."""
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    body = {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}], "usage": usage}
    return 200, {}, json.dumps(body | more).encode()


def fails(status: int, text: str = "", **headers: str) -> Answer:
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, text.encode()


class LocalJudge:
    """What was asked, and where.

    Attributes:
        requests: the bodies.
        keys: the headers that carry a key, None where there is none.
        url: the base of the address.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def prompts(self) -> list[str]:
        """The user's messages."""
        return [request["messages"][-1]["content"] for request in self.requests]


@contextmanager
def local_judge(answer: Callable[[dict[str, Any]], Answer]) -> Iterator[LocalJudge]:
    """A judge that answers each request's body with ``answer``'s status, headers and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/chat/completions"
            judge.requests.append(body)
            judge.keys.append(self.headers.get("Authorization"))
            status, headers, data = answer(body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        judge = LocalJudge(f"http://127.0.0.1:{server.server_port}/v1")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield judge
        finally:
            server.shutdown()
            thread.join()

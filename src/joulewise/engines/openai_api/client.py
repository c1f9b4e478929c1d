"""One request to an OpenAI-compatible server, streamed, with the time of every chunk."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from joulewise.address import check_address, server_of, words_of
from joulewise.engines.openai_api.answer import Answer, Assembly, ErrorInStream, Garbage, Retry
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
from joulewise.engines.openai_api.events import TooLong
from joulewise.engines.openai_api.reading import StreamReader

MOST_BYTES = 2**24
"""Of an answer that is not streamed, and of a list of models."""

TURNED_AWAY = (429, 503)

_TLS_ERRORS = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError, ssl.SSLError)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model behind an address.

    Args:
        url: the base of its address, such as ``http://localhost:8000/v1``.
        model: its name there.
        key: sent as a bearer token; never shown or written.

    Raises:
        UserError: an address or key that cannot be one.
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_address(self.url, self.key, named="url", whose="the server's")

    def address(self, path: str) -> str:
        """Of one of its paths, such as ``chat/completions``."""
        return f"{self.url.rstrip('/')}/{path}"

    @property
    def server(self) -> str:
        """Scheme, host and port: what a record may tell of the address."""
        return server_of(self.url)

    @property
    def headers(self) -> dict[str, str]:
        """Of every request."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def told(self, words: str) -> str:
        """A server's words on one short line, the key taken out; a page for browsers is only named."""
        return words_of(words, self.key)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds.

    Args:
        first_s: from sending to the first event of the answer; comments that only keep a connection alive are none.
        idle_s: from one event to the next; up to an eighth more may pass before it is noticed.
        retries: how often a request that is turned away (429, 503) is sent again.
        longest_wait_s: before a retry, however long the server asks for. Where it does not ask, half a second, doubled
            at each further retry.
    """

    first_s: float = 600.0
    idle_s: float = 60.0
    retries: int = 0
    longest_wait_s: float = 60.0


@asynccontextmanager
async def open_session(connect_s: float = 10.0) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for any number of requests at once.

    Every request has a connection of its own. Kept connections would let some requests pay for the set-up and others
    not; and servers close them when they like (llama.cpp after every stream), which loses the request that meets it.

    Args:
        connect_s: how long a connection may take, in seconds.
    """
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(_connected)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    waits = aiohttp.ClientTimeout(total=None, sock_connect=connect_s)
    headers = {"User-Agent": "joulewise", "Accept-Encoding": "identity"}  # compression would hold chunks back
    async with aiohttp.ClientSession(
        connector=connector, timeout=waits, headers=headers, trace_configs=[trace]
    ) as session:
        yield session


async def _connected(_: aiohttp.ClientSession, context: Any, __: aiohttp.TraceConnectionCreateEndParams) -> None:
    call = context.trace_request_ctx
    if isinstance(call, _Call):
        call.connected_s = time.monotonic()


async def ask(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    body: Mapping[str, Any],
    patience: Patience | None = None,
    on_retry: Callable[[Retry], None] = lambda _: None,
) -> Answer:
    """Send one request and read its answer to the end.

    Args:
        session: see ``open_session``.
        body: the request, with ``messages`` (chat) or ``prompt`` (plain completion) and whatever else the server takes.
            ``model``, ``stream`` and ``stream_options.include_usage`` are added; other ``stream_options`` are kept
            (vLLM and SGLang tell tokens chunk by chunk with ``continuous_usage_stats``), and ``stream_options: None``
            leaves them out, for servers that refuse them.
        patience: how long to wait for what.
        on_retry: hears of each retry, before its wait.

    Raises:
        EndpointError: one of its kinds, with what had come by then.
    """
    patience = patience or Patience()
    retries: tuple[Retry, ...] = ()
    path = "chat/completions" if "messages" in body else "completions"
    sent = {"model": endpoint.model, **body, "stream": True}
    options = body.get("stream_options", {})
    if options is None:
        del sent["stream_options"]
    else:
        sent["stream_options"] = {"include_usage": True, **options}
    data = json.dumps(sent, ensure_ascii=False).encode("utf-8", "replace")
    while True:
        call = _Call(session, endpoint, path, patience, retries)
        try:
            return await call.made(data)
        except _TurnedAway as turned:
            wait_s = min(
                patience.longest_wait_s, turned.asked_s if turned.asked_s is not None else 0.5 * 2 ** len(retries)
            )
            if len(retries) >= patience.retries:
                asks = "" if turned.asked_s is None else f" and asks to wait {turned.asked_s:g} s"
                tries = "" if not retries else f" after {len(retries) + 1} tries"
                raise Overloaded(
                    f"{endpoint.server} turns the request away with HTTP {turned.status} ({turned.words}){asks}{tries};"
                    " send fewer at once, or allow more retries",
                    retries=retries,
                ) from None
            retries = (*retries, Retry(turned.status, call.sent_s, wait_s))
            on_retry(retries[-1])
            await asyncio.sleep(wait_s)


async def list_models(
    session: aiohttp.ClientSession, endpoint: Endpoint, patience: Patience | None = None
) -> dict[str, Mapping[str, Any]]:
    """The models that the server lists, by name, with what else it says of each (such as ``max_model_len``).

    Raises:
        EndpointError: one of its kinds.
    """
    call = _Call(session, endpoint, "models", patience or Patience(), ())
    try:
        return await call.models()
    except _TurnedAway as turned:
        raise Overloaded(f"{endpoint.server} lists no models: HTTP {turned.status} ({turned.words})") from None


class _TurnedAway(Exception):
    def __init__(self, status: int, words: str, asked_s: float | None) -> None:
        super().__init__(words)
        self.status, self.words, self.asked_s = status, words, asked_s


class _Call:
    """One try of one request."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoint: Endpoint,
        path: str,
        patience: Patience,
        retries: tuple[Retry, ...],
    ) -> None:
        self.session, self.endpoint, self.path = session, endpoint, path
        self.patience, self.retries = patience, retries
        self.sent_s = 0.0
        self.connected_s: float | None = None
        self.headers_s: float | None = None
        self.assembly = Assembly()
        self.streamed = True

    async def made(self, data: bytes) -> Answer:
        address = self.endpoint.address(self.path)
        headers = {**self.endpoint.headers, "Content-Type": "application/json", "Accept": "text/event-stream"}
        self.sent_s = time.monotonic()
        try:
            async with asyncio.timeout(self.patience.first_s) as limit:
                async with self.session.post(
                    address, data=data, headers=headers, allow_redirects=False, trace_request_ctx=self
                ) as response:
                    self.headers_s = time.monotonic()
                    if response.status != 200:
                        raise await self._turned_down(response)
                    end_s = await self._read(response, limit)
        except (OSError, aiohttp.ClientError) as error:
            raise self._lost(error) from None
        return self._answer(end_s)

    async def models(self) -> dict[str, Mapping[str, Any]]:
        address = self.endpoint.address(self.path)
        try:
            async with (
                asyncio.timeout(self.patience.idle_s),
                self.session.get(address, headers=self.endpoint.headers, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise await self._turned_down(response)
                body = await _body(response)
        except (OSError, aiohttp.ClientError) as error:
            raise self._lost(error) from None
        try:
            return {str(entry["id"]): entry for entry in json.loads(body)["data"]}
        except (ValueError, RecursionError, LookupError, TypeError):
            said = self.endpoint.told(body[:200].decode(errors="replace"))
            raise NotAnAnswer(f"{address} answers, but lists no models ({said}); check url") from None

    async def _read(self, response: aiohttp.ClientResponse, limit: asyncio.Timeout) -> float:
        """Reads to the end of the answer; gives its time."""
        assembly, content, connection = self.assembly, response.content, response.connection
        start = b""
        try:
            start = await content.readany()
            if start.lstrip().startswith(b"{"):
                self.streamed = False
                body = start + await _body(response)
                time_s = time.monotonic()
                assembly.take_whole(body)
            else:
                time_s = await StreamReader(content, assembly, limit, self.patience.idle_s).read(start, connection)
        except (Garbage, TooLong) as error:
            raise self._garbage(str(error) or "an event without an end") from None
        except ErrorInStream as error:
            raise self._reported(error) from None
        if not assembly.events:
            raise self._garbage(start[:200].decode(errors="replace") or "nothing")
        if not assembly.done and assembly.finish_reason is None:
            raise self._cut_off("the stream ends without a reason or [DONE]")
        return time_s

    def _answer(self, end_s: float) -> Answer:
        return self.assembly.answer(
            streamed=self.streamed,
            sent_s=self.sent_s,
            connected_s=self.connected_s,
            headers_s=self.headers_s,
            end_s=end_s,
            retries=self.retries,
        )

    @property
    def _partial(self) -> Answer | None:
        return self._answer(time.monotonic()) if self.assembly.events else None

    @property
    def _so_far(self) -> str:
        count = len(self._partial.chunks) if self._partial else 0
        return f"after {count} chunk{'' if count == 1 else 's'} of text"

    def _cut_off(self, why: str) -> EndpointError:
        return BrokenStream(
            f"{self.endpoint.server} broke off {self._so_far} ({why}); see the server's log",
            self._partial,
            self.retries,
        )

    def _too_slow(self) -> EndpointError:
        server, waits = self.endpoint.server, self.patience
        if self.headers_s is not None and self.assembly.events:
            message = f"{server} has sent nothing for {waits.idle_s:g} s, {self._so_far}; see its log, or wait longer"
        else:
            message = f"{server} has not begun to answer within {waits.first_s:g} s; see its log, or wait longer"
        return Stalled(message, self._partial, self.retries)

    def _lost(self, error: Exception) -> EndpointError:
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ServerTimeoutError):
            return self._too_slow()
        server = self.endpoint.server
        said = self.endpoint.told(str(error) or type(error).__name__)
        # A server that speaks no TLS closes the connection when it is greeted in it.
        closed = isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionResetError)
        if isinstance(error, _TLS_ERRORS) or (closed and server.startswith("https:")):
            said = "it is closed at once" if closed else said
            return TlsFault(
                f"{server}: no secure connection ({said}); check http or https in url, or trust the server's "
                "certificate with SSL_CERT_FILE",
                retries=self.retries,
            )
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ServerTimeoutError):
            reason = _reason(error.os_error) if isinstance(error, aiohttp.ClientConnectorError) else "no answer in time"
            return Unreachable(
                f"{server} cannot be reached ({reason or said}); is the server up, and url right?", None, self.retries
            )
        if isinstance(error, aiohttp.InvalidURL):
            return WrongAddress(
                f"{self.endpoint.url} is no address of a server; give one like http://localhost:8000/v1"
            )
        if self.headers_s is None and isinstance(error, aiohttp.ClientResponseError):
            return NotAnAnswer(f"{server} speaks no HTTP ({said}); check url", None, self.retries)
        return self._cut_off(said)

    def _garbage(self, what: str) -> EndpointError:
        return NotAnAnswer(
            f"{self.endpoint.address(self.path)} answers, but not as a completion does ({self.endpoint.told(what)}); "
            "check url and the server's log",
            self._partial,
            self.retries,
        )

    def _reported(self, error: ErrorInStream) -> EndpointError:
        if not self.assembly.has_output and error.status in TURNED_AWAY:
            said = self.endpoint.told(error.words)
            return Overloaded(
                f"{self.endpoint.server} turns the request away with {error.status} ({said}); send fewer at once",
                self._partial,
                self.retries,
            )
        return ServerFault(
            f"{self.endpoint.server} reports an error {self._so_far}: {self.endpoint.told(error.words)}; see its log",
            self._partial,
            self.retries,
        )

    async def _turned_down(self, response: aiohttp.ClientResponse) -> Exception:
        """The error that a status other than 200 means."""
        status, endpoint = response.status, self.endpoint
        said = (await _body(response, 2_000)).decode(errors="replace")
        words = endpoint.told(_message(said) or str(response.reason))
        answers = f"{endpoint.address(self.path)} answers HTTP {status} ({words})"
        if status in TURNED_AWAY:
            return _TurnedAway(status, words, _seconds(response.headers.get("Retry-After")))
        if status in (401, 403):
            which = "the key is refused" if endpoint.key else "the server wants a key, and none is set"
            return KeyRefused(f"{answers}: {which}", retries=self.retries)
        if status == 404 and self.path != "models":
            return await self._not_found(answers)
        if 300 <= status < 400 or status in (404, 405, 501):
            return WrongAddress(f"{answers}; check url", retries=self.retries)
        if status == 400 and any(sign in said for sign in _TOO_LONG):
            return TooLongForModel(f"{answers}: the prompt and its output do not fit the model", retries=self.retries)
        if status >= 500:
            return ServerFault(f"{answers}; see its log", retries=self.retries)
        return Refused(answers, retries=self.retries)

    async def _not_found(self, answers: str) -> EndpointError:
        try:
            there = await list_models(self.session, self.endpoint, self.patience)
        except EndpointError:
            return WrongAddress(f"{answers}; check url, which usually ends in /v1", retries=self.retries)
        if self.endpoint.model in there:
            return WrongAddress(f"{answers}: the server has no {self.path}", retries=self.retries)
        names = ", ".join(sorted(there)[:10]) or "none"
        return ModelMissing(
            f"{answers}: no model {self.endpoint.model}; the server lists {names}", retries=self.retries
        )


_TOO_LONG = (
    "context_length_exceeded",
    "maximum context length",
    "exceed_context_size",
    "longer than the model's context",
)


def _message(said: str) -> str:
    """The message of an error object, or the words as they are."""
    try:
        whole = json.loads(said)
        error = whole.get("error", whole)
        message = error if isinstance(error, str) else error.get("message")
    except (ValueError, RecursionError, AttributeError):
        return said
    return message if isinstance(message, str) else said


def _seconds(text: str | None) -> float | None:
    """Of a Retry-After header: seconds, or a date."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _reason(error: OSError) -> str | None:
    """In the system's words; asyncio puts its own in their place."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror


async def _body(response: aiohttp.ClientResponse, most: int = MOST_BYTES) -> bytes:
    """The body, or as much of it as may be."""
    parts: list[bytes] = []
    while sum(map(len, parts)) < most and (data := await response.content.readany()):
        parts.append(data)
    return b"".join(parts)

"""What a server said to one request, put together from the payloads of its stream. Pure."""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

DONE = b"[DONE]"

OWN_FIELDS = frozenset({"id", "object", "created", "model", "choices", "usage", "error"})
"""Fields of a chunk that every server has; what a server adds beside them is kept as ``Answer.extra``."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counts them.

    Args:
        prompt_tokens: of the prompt, cached ones included.
        output_tokens: produced, those of the reasoning included.
        cached_tokens: of the prompt, taken from the server's prefix cache; None where it does not say.
        reasoning_tokens: of the output; None where it does not say.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks that carried output, in order; parallel tuples, one entry a chunk.

    Args:
        times_s: monotonic seconds at which it was read. Chunks that came in one piece have one time.
        characters: of text in it, reasoning included.
        tokens: tokens in it, where the server tells them chunk by chunk (``token_ids``, a running usage, or
            llama.cpp's running ``timings``); else empty.
        reasoning: whether it belongs to the model's thoughts rather than its answer.
    """

    times_s: tuple[float, ...] = ()
    characters: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    reasoning: tuple[bool, ...] = ()

    def __len__(self) -> int:
        return len(self.times_s)


@dataclass(frozen=True, slots=True)
class Retry:
    """A try that the server turned away.

    Args:
        status: its HTTP status (429 or 503).
        sent_s: when it was sent, monotonic seconds.
        waited_s: how long was waited before the next try, in seconds.
    """

    status: int
    sent_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back of one request, or of as much of it as came.

    Args:
        text: the answer; a tool's arguments are not in it.
        reasoning: the model's thoughts, where the server sends them apart (``reasoning_content``, or ``reasoning``).
        chunks: when what came; empty where the server sent all at once.
        usage: the server's counts; None where it sent none.
        finish_reason: as the server says it (``stop``, ``length``, ...); None where it did not.
        token_ids: of the output, where the server sends them; else None.
        model: which one answered, as the server names it.
        extra: what the server adds to the API's fields (such as llama.cpp's ``timings`` or vLLM's ``metrics``), the
            latest of each.
        streamed: False where the server sent the whole answer at once: its first token's time is unknown then.
        sent_s: when the try that was answered began, monotonic seconds, before its connection was made.
        connected_s: when its connection was there; None where the session does not tell (see ``open_session``).
        headers_s: when the answer's headers were there; None where they never came.
        end_s: when the stream ended: its last event, or where it broke off.
        retries: the tries before that one, in order.
    """

    text: str = ""
    reasoning: str = ""
    chunks: Chunks = field(default_factory=Chunks)
    usage: Usage | None = None
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    model: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    streamed: bool = True
    sent_s: float = 0.0
    connected_s: float | None = None
    headers_s: float | None = None
    end_s: float = 0.0
    retries: tuple[Retry, ...] = ()

    @property
    def first_token_s(self) -> float | None:
        """When the first chunk with output was read, thoughts included; the chunk that names the role has none."""
        return self.chunks.times_s[0] if self.chunks.times_s else None

    @property
    def last_token_s(self) -> float | None:
        """When the last chunk with output was read."""
        return self.chunks.times_s[-1] if self.chunks.times_s else None


class Garbage(ValueError):
    """A payload that is no chunk of a completion; the message says what it is."""


class ErrorInStream(Exception):
    """The server reports an error within the stream.

    Args:
        status: the HTTP status that it would have, where it tells one.
        words: what it says.
    """

    def __init__(self, words: str, status: int | None) -> None:
        super().__init__(words)
        self.words = words
        self.status = status


class Assembly:
    """Puts an answer together while it comes. Memory: the text, and 17 bytes a chunk (25 where tokens are told)."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.done = False
        self.events = 0
        self._text, self._reasoning = StringIO(), StringIO()
        self._times, self._characters = array("d"), array("L")
        self._tokens, self._thoughts = array("L"), array("b")
        self._token_ids: list[int] = []
        self._told = 0
        self._tokens_told = False
        self._model: str | None = None
        self._extra: dict[str, Any] = {}
        self._before, self._after, self._same_text = b"", b"", self._text
        self._text_at, self._text_end, self._around = 0, 0, sys.maxsize

    @property
    def has_output(self) -> bool:
        """Whether a chunk with output has come."""
        return bool(self._times)

    def take(self, payload: bytes, time_s: float) -> None:
        """One event's payload, read at that time.

        Raises:
            Garbage: it is no chunk.
            ErrorInStream: it is the server's report of an error.
        """
        self.events += 1
        # Chunks of one stream differ in their piece of text alone, so what lies around it is compared, not parsed. A
        # piece without quotes and backslashes is its own JSON, and ends where it seems to.
        if len(payload) > self._around and payload.startswith(self._before) and payload.endswith(self._after):
            piece = payload[self._text_at : self._text_end]
            if _QUOTE not in piece and _BACKSLASH not in piece:
                try:
                    text = piece.decode()
                except UnicodeDecodeError:
                    raise Garbage("not UTF-8") from None
                self._same_text.write(text)
                self._times.append(time_s)
                self._characters.append(len(text))
                self._thoughts.append(self._same_text is self._reasoning)
                return
        if payload == DONE:
            self.done = True
            return
        self._parsed(payload, time_s)

    def take_whole(self, body: bytes) -> None:
        """The answer of a server that does not stream.

        Raises:
            Garbage, ErrorInStream: as ``take``.
        """
        self.events += 1
        whole = _object(body)
        choice = self._common(whole)
        if choice is None:
            raise Garbage("an object without choices")
        message = choice.get("message", choice)
        if not isinstance(message, Mapping):
            raise Garbage("a choice without a message")
        self._text.write(_words(message.get("content")) or _words(message.get("text")))
        self._reasoning.write(_words(message.get("reasoning_content")) or _words(message.get("reasoning")))
        self._token_ids += _ids(choice.get("token_ids"))
        self.done = True

    def answer(
        self,
        *,
        streamed: bool,
        sent_s: float,
        connected_s: float | None,
        headers_s: float | None,
        end_s: float,
        retries: tuple[Retry, ...],
    ) -> Answer:
        """All that has come so far."""
        return Answer(
            text=_joined(self._text.getvalue()),
            reasoning=_joined(self._reasoning.getvalue()),
            chunks=Chunks(
                tuple(self._times),
                tuple(self._characters),
                tuple(self._tokens),
                tuple(map(bool, self._thoughts)),
            ),
            usage=self.usage,
            finish_reason=self.finish_reason,
            token_ids=tuple(self._token_ids) if self._token_ids else None,
            model=self._model,
            extra=self._extra,
            streamed=streamed,
            sent_s=sent_s,
            connected_s=connected_s,
            headers_s=headers_s,
            end_s=end_s,
            retries=retries,
        )

    def _parsed(self, payload: bytes, time_s: float) -> None:
        chunk = _object(payload)
        choice = self._common(chunk)
        if choice is None:
            if "choices" not in chunk and not chunk.keys() & {"usage", "timings"}:
                raise Garbage("an object without choices")
            return
        delta = choice.get("delta", choice)
        if not isinstance(delta, Mapping):
            raise Garbage("a choice without a delta")
        text = _words(delta.get("content")) or _words(delta.get("text"))
        thought = _words(delta.get("reasoning_content")) or _words(delta.get("reasoning"))
        ids = _ids(choice.get("token_ids"))
        told = self._running_total(chunk, ids)
        called = _tool_characters(delta.get("tool_calls"))
        if text or thought or called or told > self._told:
            self._text.write(text)
            self._reasoning.write(thought)
            self._token_ids += ids
            self._times.append(time_s)
            self._characters.append(len(text) + len(thought) + called)
            self._thoughts.append(bool(thought) and not text)
            if self._tokens_told:
                self._tokens.append(max(0, told - self._told))
                self._told = max(told, self._told)
        if bool(text) != bool(thought) and not (called or ids or told or self.finish_reason):
            self._learn(payload, text or thought, self._text if text else self._reasoning)

    def _common(self, chunk: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Takes what chunks and whole answers have in common; gives the first choice, if there is one."""
        if chunk.get("error") or chunk.get("object") == "error":
            raise _reported(chunk)
        if isinstance(model := chunk.get("model"), str):
            self._model = model
        self.usage = _usage(chunk.get("usage")) or self.usage
        for name in chunk.keys() - OWN_FIELDS:
            if chunk[name] is not None:
                self._extra[name] = chunk[name]
        choices = chunk.get("choices")
        if not choices:
            return None
        if not isinstance(choices, list) or not isinstance(choices[0], Mapping):
            raise Garbage("choices that are no list of objects")
        choice: Mapping[str, Any] = choices[0]
        if isinstance(reason := choice.get("finish_reason"), str):
            self.finish_reason = reason
        return choice

    def _running_total(self, chunk: Mapping[str, Any], ids: list[int]) -> int:
        """Output tokens so far, where this chunk tells them; else 0."""
        total = 0
        timings = chunk.get("timings")
        if ids:
            total = self._told + len(ids)
        elif (usage := _usage(chunk.get("usage"))) is not None:
            total = usage.output_tokens
        elif isinstance(timings, Mapping):
            total = _count(timings.get("predicted_n")) or 0
        # A total that only ends a stream tells nothing of the chunks before it.
        self._tokens_told = self._tokens_told or (total > 0 and not self._times)
        return total if self._tokens_told else 0

    def _learn(self, payload: bytes, text: str, place: StringIO) -> None:
        """Remember what lies around this piece of text, if it is clear which part of the payload it is."""
        raw, places = text.encode("utf-8", "surrogatepass"), list(_TEXT.finditer(payload))
        if len(places) != 1 or not payload.startswith(raw + b'"', places[0].end()):
            self._around = sys.maxsize  # nothing is as long
            return
        self._text_at = places[0].end()
        self._before, self._after = payload[: self._text_at], payload[self._text_at + len(raw) :]
        self._text_end, self._around = -len(self._after), len(self._before) + len(self._after)
        self._same_text = place


_QUOTE, _BACKSLASH = b'"\\'  # numbers: a search for one is many times as fast as for a byte string

_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning)": ?"')


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        whole = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise Garbage(f"no JSON ({data[:80].decode(errors='replace')!r})") from None
    if not isinstance(whole, Mapping):
        raise Garbage(f"JSON, but no object ({data[:80].decode(errors='replace')!r})")
    return whole


def _words(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _ids(value: Any) -> list[int]:
    return [i for i in value if isinstance(i, int)] if isinstance(value, list) else []


def _tool_characters(calls: Any) -> int:
    """Characters of the arguments in a piece of tool calls."""
    if not isinstance(calls, list):
        return 0
    functions = (call.get("function") for call in calls if isinstance(call, Mapping))
    return sum(len(_words(f.get("name"))) + len(_words(f.get("arguments"))) for f in functions if isinstance(f, dict))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, Mapping):
        return None
    prompt, output = _count(value.get("prompt_tokens")), _count(value.get("completion_tokens"))
    if prompt is None or output is None:
        return None
    of_prompt, of_output = value.get("prompt_tokens_details"), value.get("completion_tokens_details")
    return Usage(
        prompt,
        output,
        _count(of_prompt.get("cached_tokens")) if isinstance(of_prompt, Mapping) else None,
        _count(of_output.get("reasoning_tokens")) if isinstance(of_output, Mapping) else None,
    )


def _reported(chunk: Mapping[str, Any]) -> ErrorInStream:
    said = chunk["error"] if chunk.get("error") else chunk
    if not isinstance(said, Mapping):
        return ErrorInStream(str(said), None)
    codes = (str(said.get("code")), str(said.get("status")))
    status = next((int(code) for code in codes if code.isdecimal()), None)
    return ErrorInStream(_words(said.get("message")) or json.dumps(said, default=str)[:200], status)


def _joined(text: str) -> str:
    """Puts halves of a character that came as two escapes in two chunks together; a half that stays alone becomes �."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text

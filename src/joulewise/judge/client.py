"""One question to a model behind an OpenAI-compatible address. Standard library only."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joulewise.address import check_address, server_of, words_of
from joulewise.errors import UserError

MOST_BYTES = 10_000_000
"""A longer reply is none of a chat."""
LONGEST_WAIT_S = 60.0
"""However long the server asks to wait."""


class JudgeDown(Exception):
    """The judge cannot be reached, is overloaded, broken or no chat at all: worth another try later."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class JudgeRefuses(Exception):
    """The judge answers, but not this request."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    Args:
        text: of the message; empty where there is none.
        prompt_tokens, output_tokens: as the judge counts them; None where it does not say.
        cut_off: whether the reply ended at its token limit.
        duration_s: from the request to the whole reply, in seconds.
    """

    text: str
    prompt_tokens: int | None
    output_tokens: int | None
    cut_off: bool
    duration_s: float


@dataclass(frozen=True, slots=True)
class Judge:
    """A model that grades.

    Args:
        url: the base of its address, such as ``http://localhost:8000/v1``.
        model: its name there.
        key: sent as a bearer token; never shown or written.
        timeout_s: so long one reply may take.
        max_tokens: of a reply.
        tries: how often a request is made where the judge is down or its reply holds no grade.
        sleep: waits between tries; seconds.

    Raises:
        UserError: an address or key that cannot be one.
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0
    max_tokens: int = 2048
    tries: int = 3
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        check_address(self.url, self.key, named="--url", whose="the judge's")

    @property
    def address(self) -> str:
        """Where requests go."""
        return f"{self.url.rstrip('/').removesuffix('/chat/completions')}/chat/completions"

    @property
    def server(self) -> str:
        """Scheme, host and port: what a record may tell of the address."""
        return server_of(self.url)

    def ask(self, messages: list[dict[str, str]]) -> Reply:
        """One request, greedily; no second try.

        Raises:
            JudgeDown, JudgeRefuses: with the reason, without the key.
            UserError: the judge knows neither key nor model, or is elsewhere, so that no request will do.
        """
        body = {"model": self.model, "messages": messages, "temperature": 0.0, "max_tokens": self.max_tokens}
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "joulewise"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(self.address, json.dumps(body).encode(), headers, method="POST")
        start_s = time.monotonic()
        try:
            with _OPENER.open(request, timeout=self.timeout_s) as response:
                data = response.read(MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise JudgeDown(f"cannot be reached ({self._told(str(reason) or type(error).__name__)})") from None
        reply = _reply(data, time.monotonic() - start_s)
        if reply is None:
            raise JudgeDown(
                f"answers, but not as a chat does ({self._told(data[:200].decode(errors='replace'))}); check --url"
            )
        return reply

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        try:
            said = error.read(2_000).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            said = ""
        what = f"HTTP {error.code} {self._told(said or str(error.reason))}".strip()
        if 300 <= error.code < 400 or error.code in (401, 403, 404, 405, 501):
            return UserError(f"{self.address} answers {what}; check --url, --model and the key")
        if error.code in (408, 425, 429) or error.code >= 500:
            return JudgeDown(f"answers {what}", _seconds(error.headers.get("Retry-After")))
        return JudgeRefuses(f"the judge answers {what}")

    def _told(self, text: str) -> str:
        return words_of(text, self.key)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _reply(data: bytes, duration_s: float) -> Reply | None:
    """What a chat says; None where these bytes are of none."""
    whole: Any = None
    try:
        whole = json.loads(data) if len(data) <= MOST_BYTES else None
        choice = whole["choices"][0]
        text = choice["message"].get("content")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    usage = whole.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    return Reply(
        text if isinstance(text, str) else "",
        _count(counts.get("prompt_tokens")),
        _count(counts.get("completion_tokens")),
        choice.get("finish_reason") == "length",
        duration_s,
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _seconds(text: str | None) -> float | None:
    return min(float(text), LONGEST_WAIT_S) if text is not None and text.isdecimal() else None

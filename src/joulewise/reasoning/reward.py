"""Reward: a model behind an address that says how good an answer is. Standard library only."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from joulewise.engines.engine import Message
from joulewise.errors import ChoiceError, UserError
from joulewise.yaml_file import VARIABLE

_MOST_BYTES = 1_000_000
_NUMBER = re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d+)?(?![\w.]*\d)")

_RATE = """\
Below are a conversation and an answer to it. How good and how right is the answer, from 0 (useless or wrong) to 100 \
(certainly right)? Reply with the number alone.

[Conversation]
{conversation}

[Answer]
{answer}

[End]"""


class RewardSpec(BaseModel):
    """Where answers are rated.

    With ``model``: an OpenAI-compatible chat model, which is asked for a number from 0 to 100. Without: a reward
    model's own address, which is sent ``{"messages": [{"role": ..., "content": ...}, ...], "answer": ...}`` by POST and
    replies ``{"score": number}``.

    Args:
        url: the whole address, or with ``model`` the base of it, such as ``http://localhost:8000/v1``.
        model: its name there.
        key_env: the environment variable that holds the key; none is sent if left out.
        timeout_s: so long one reply may take.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    model: str | None = None
    key_env: str | None = Field(None, pattern=VARIABLE)
    timeout_s: float = Field(60.0, gt=0.0, allow_inf_nan=False)

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("is no address of a server; give one like http://localhost:8000/v1")
        if parts.username is not None or parts.query:
            raise ValueError("leave names, passwords and queries out of the address; a key goes in the environment")
        return url

    @property
    def where(self) -> str:
        """Whose rating it is, for people."""
        return urlsplit(self.url).netloc + (f" ({self.model})" if self.model else "")

    def fault(self) -> str | None:
        """What is wrong with the key, as the end of a sentence; None if nothing."""
        key = None if self.key_env is None else os.environ.get(self.key_env, "")
        if key is None or (key and key.isascii() and key.isprintable() and " " not in key):
            return None
        return f"the environment variable {self.key_env} holds no key" + (" that can be one" if key else "")

    def rate(self, messages: Sequence[Message], answer: str) -> float | None:
        """What an answer is worth; None where what is said of it is no number.

        Args:
            messages: what was asked.
            answer: the answer.

        Raises:
            ChoiceError: the server is down, refuses this answer, or replies in another form than who rates.
            UserError: a ``fault`` of the key, or a server that knows neither key nor model, or is elsewhere.
        """
        if fault := self.fault():
            raise UserError(f"{fault}: set it, for {self.where}")
        said = [{"role": m.role, "content": m.content} for m in messages]
        if self.model is None:
            score = self._field(self._post(self.url, {"messages": said, "answer": answer}), "score")
            return float(score) if isinstance(score, int | float) and math.isfinite(score) else None
        conversation = "\n\n".join(f"{m.role}: {m.content}" for m in messages)
        asked = {"role": "user", "content": _RATE.format(conversation=conversation, answer=answer)}
        body = {"model": self.model, "messages": [asked], "temperature": 0.0, "max_tokens": 16}
        address = f"{self.url.rstrip('/').removesuffix('/chat/completions')}/chat/completions"
        text = self._field(self._post(address, body), "choices", 0, "message", "content")
        numbers = _NUMBER.findall(text) if isinstance(text, str) else []
        return float(numbers[-1]) if numbers and float(numbers[-1]) <= 100.0 else None

    def _post(self, address: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json", "User-Agent": "joulewise"}
        if self.key_env is not None:
            headers["Authorization"] = f"Bearer {os.environ[self.key_env]}"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers, method="POST")
        try:
            with _OPENER.open(request, timeout=self.timeout_s) as response:
                return json.loads(response.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            if 300 <= error.code < 400 or error.code in (401, 403, 404):
                raise UserError(f"{address} answers HTTP {error.code}: check the reward's url, model and key") from None
            raise ChoiceError(f"{self.where} answers HTTP {error.code}: no sample could be chosen") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ChoiceError(f"{self.where} cannot be reached ({reason}): no sample could be chosen") from None
        except (ValueError, RecursionError):
            raise self._no_rater() from None

    def _field(self, reply: Any, *way: str | int) -> Any:
        """What lies at the end of a way into a reply."""
        try:
            for step in way:
                reply = reply[step]
        except (LookupError, TypeError):
            raise self._no_rater() from None
        return reply

    def _no_rater(self) -> ChoiceError:
        return ChoiceError(
            f"{self.where} answers, but not as who rates does: check the reward's url, and give its model if it is a "
            "chat model's; no sample could be chosen"
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)

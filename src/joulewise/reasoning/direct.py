"""Direct: ask once, take what comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from joulewise.engines.engine import Message, Request
from joulewise.reasoning.reasoning import Answer, Ask, Reasoning


class Direct(Reasoning):
    """One Request with the task's prompt as it stands (zero-shot)."""

    kind: Literal["direct"] = "direct"

    def answer(self, messages: tuple[Message, ...], template: Request, ask: Ask) -> Answer:
        request = replace(template, messages=messages)
        generation = ask(request)
        return Answer(generation.text, (request,), (generation,))

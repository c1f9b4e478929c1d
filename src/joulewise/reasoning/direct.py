"""Direct: ask once, take what comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from joulewise.engines.engine import Generation, Message, Request
from joulewise.reasoning.reasoning import Answer, Ask, Reasoning


class Direct(Reasoning):
    """One Request a turn, with the task's prompt as it stands (zero-shot)."""

    kind: Literal["direct"] = "direct"

    def answer(self, turns: tuple[tuple[Message, ...], ...], template: Request, ask: Ask) -> Answer:
        requests: list[Request] = []
        generations: list[Generation] = []
        said: tuple[Message, ...] = ()
        for turn in turns:
            requests.append(replace(template, messages=said + turn))
            generations.append(ask(requests[-1]))
            said = (*requests[-1].messages, Message("assistant", generations[-1].text))
        return Answer(generations[-1].text, tuple(requests), tuple(generations))

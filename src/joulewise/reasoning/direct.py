"""Direct: ask once, take what comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from joulewise.engines.engine import Generation, Message, Request
from joulewise.reasoning.reasoning import Answer, Asked, Thinking, Thought, Turn, without_thinking


class Direct(Thought):
    """One Request a turn, with the task's prompt as it stands (zero-shot); a model's own thinking is switched off."""

    kind: Literal["direct"] = "direct"

    def settings(self, template: Request) -> Request:
        return replace(template, thinking=False)

    def think(self, asked: Asked, template: Request) -> Thinking:
        return converse(asked.turns, template)


def converse(turns: tuple[Turn, ...], template: Request) -> Thinking:
    """One Request a turn, each after the model's own answers to those before.

    A ``<think>`` block is no part of an answer, neither of one that is scored nor of one that a later turn follows.
    """
    requests: list[Request] = []
    generations: list[Generation] = []
    said: Turn = ()
    answer = ""
    for turn in turns:
        requests.append(replace(template, messages=said + turn))
        generations.append((yield requests[-1]))
        answer = without_thinking(generations[-1])
        said = (*requests[-1].messages, Message("assistant", answer))
    return Answer(answer, tuple(requests), tuple(generations))

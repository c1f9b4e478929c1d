"""Chain of thought: steps first, then the answer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Literal

from pydantic import Field

from joulewise.engines.engine import Request
from joulewise.reasoning.direct import converse
from joulewise.reasoning.reasoning import Asked, Thinking, Thought, stated_whole


class Stepwise(Thought):
    """What asks for steps by the task's prompt for them.

    Args:
        thinking: the model's own ``<think>`` block. Left out: switched on where the model's chat template has a switch
            for it. ``true``: the same, and models without a switch are refused. ``false``: switched off.
    """

    thinking: bool | None = None

    @property
    @abstractmethod
    def steps_tokens(self) -> int:
        """At most so many output tokens for the steps, unless every output is as long as the plan says."""

    @property
    def needs_thinking(self) -> bool:
        return self.thinking is True

    def refuses(self, asked: Asked) -> str | None:
        return "it has no prompt that asks for steps" if asked.stepwise is None else None

    def settings(self, template: Request) -> Request:
        template = replace(template, thinking=self.thinking is not False)
        return template if template.ignore_eos else replace(template, max_new_tokens=self.steps_tokens)


class Cot(Stepwise):
    """The task's question with "Let's think step by step" and a form for the answer at the end.

    The words are those of zero-shot chain of thought (Kojima et al., 2022, arXiv 2205.11916, section 3). They ask a
    second time for the answer alone; here it is part of the one text, and an answer counts only where the text states
    it: a number or letter among the steps is none.

    Args:
        max_new_tokens: at most so many output tokens, in place of the task's budget, which fits a direct answer.
        thinking: the model's own ``<think>`` block. Left out: switched on where the model's chat template has a switch
            for it. ``true``: the same, and models without a switch are refused. ``false``: switched off.
    """

    kind: Literal["cot"] = "cot"
    max_new_tokens: int = Field(256, ge=1)

    @property
    def label(self) -> str:
        return f"cot-{self.max_new_tokens}" + label_of_thinking(self.thinking)

    @property
    def steps_tokens(self) -> int:
        return self.max_new_tokens

    def think(self, asked: Asked, template: Request) -> Thinking:
        assert asked.stepwise is not None
        answer = yield from converse((asked.stepwise,), template)
        return replace(answer, text=stated_whole(asked, answer.text, answer.generations[-1].finish_reason))


def label_of_thinking(thinking: bool | None) -> str:
    """What a label says of a model's own thinking."""
    return {None: "", True: "-thinking", False: "-no-thinking"}[thinking]

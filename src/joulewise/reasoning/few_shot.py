"""Few-shot: answered questions first, then the one that is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from joulewise.engines.engine import Request
from joulewise.reasoning.direct import converse
from joulewise.reasoning.reasoning import Asked, Thinking, Thought


class FewShot(Thought):
    """Questions of the same task with their answers, as earlier turns of the conversation, before the one asked.

    A model's own thinking is switched off.

    Args:
        examples: how many; always the task's first ones, never a question that is asked.
    """

    kind: Literal["few_shot"] = "few_shot"
    examples: int = Field(5, ge=1)

    @property
    def label(self) -> str:
        return f"few-shot-{self.examples}"

    def refuses(self, asked: Asked) -> str | None:
        there = len(asked.examples())
        if there >= self.examples:
            return None
        return f"it has {there or 'no'} example{'s' * (there != 1)} to show" + (
            f", and {self.examples} are asked for" if there else ""
        )

    def settings(self, template: Request) -> Request:
        return replace(template, thinking=False)

    def think(self, asked: Asked, template: Request) -> Thinking:
        shown = tuple(message for example in asked.examples()[: self.examples] for message in example)
        first, *rest = asked.turns
        return converse((shown + first, *rest), template)

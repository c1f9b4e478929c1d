"""Reasoning: turns a question into one or several Requests and their Generations into one answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from joulewise.engines.engine import Generation, Message, Request

Ask = Callable[[Request], Generation]
"""Runs one Request in the cell's engine and decoding."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reasoning made of a question.

    Args:
        text: the text that is scored, that of the last turn.
        requests: the requests it made, in order.
        generations: their results, in the same order.
    """

    text: str
    requests: tuple[Request, ...]
    generations: tuple[Generation, ...]


class Reasoning(BaseModel, ABC):
    """Base of all reasonings: a frozen spec that can answer.

    Subclasses have a literal ``kind`` and implement ``answer``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str

    @property
    def label(self) -> str:
        """Short unique name within a grid."""
        return self.kind

    @abstractmethod
    def answer(self, turns: tuple[tuple[Message, ...], ...], template: Request, ask: Ask) -> Answer:
        """Answer one question.

        Args:
            turns: what the user says, turn by turn (``Task.turns``); a later turn follows the answer to the one before.
            template: a Request with the cell's token budget, stop rule, sampling and seed, its messages empty.
            ask: runs one Request.
        """

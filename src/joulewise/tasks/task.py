"""Task: questions, a prompt for each, a scorer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from joulewise.engines.engine import Message
from joulewise.reasoning.reasoning import Asked


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a task.

    Args:
        question_id: unique within the task and stable between versions.
        text: what is asked (the article, the problem, the question with its choices), without the task's instructions.
        reference: what the scorer compares with (a number as text, a letter, a summary); never shown to the model.
        category: a subject or kind for tables; None if the task has none.
        extra: what else the task's prompt or scorer needs (choices and the like).
    """

    question_id: str
    text: str
    reference: str
    category: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """What an answer is worth.

    Args:
        value: between 0 and 1; None where nothing scores the answer (``metric`` is then ``unscored``).
        correct: right or wrong where the task has such a notion, else None (a summary).
        extracted: what was taken from the text as the answer; None if nothing could be (then it is wrong).
        metric: such as ``exact_match``, ``letter_match``, ``rouge_l``.
        note: how the answer failed, in a few words, where the scorer can say so ("timed out").
    """

    value: float | None
    correct: bool | None
    extracted: str | None
    metric: str
    note: str | None = None


class Task(Protocol):
    """Questions, a prompt for each, a scorer."""

    @property
    def name(self) -> str:
        """Registry name, such as ``gsm8k``."""
        ...

    @property
    def third_party(self) -> bool:
        """True where the questions are others' work: ledgers then keep ids and hashes only, no texts."""
        ...

    @property
    def source(self) -> str:
        """Where questions and prompt come from, with the licence, for reports."""
        ...

    @property
    def metric(self) -> str:
        """The scorer's name, as in ``Score.metric``."""
        ...

    @property
    def max_new_tokens(self) -> int:
        """A budget that fits the task, used where the plan names none."""
        ...

    def questions(self) -> Sequence[Question]:
        """All questions, in a stable order."""
        ...

    def turns(self, question: Question) -> tuple[tuple[Message, ...], ...]:
        """What the user says, turn by turn: the messages that each turn adds. Most tasks have one turn."""
        ...

    def asked(self, question: Question) -> Asked:
        """What a reasoning may see of a question: its turns, and what the task has for other ways of answering."""
        ...

    def score(self, question: Question, text: str) -> Score:
        """Score the model's text, that of the last turn. Never raises for anything a model may write."""
        ...


def question_hash(task: Task, question: Question) -> str:
    """SHA-256 (16 hex digits) of prompt, reference and extras: shows that two runs asked the same in the same words."""
    said = [[(m.role, m.content) for m in turn] for turn in task.turns(question)]
    return _short_hash([said, question.reference, dict(question.extra)])


def prompt_hash(messages: Sequence[Message]) -> str:
    """SHA-256 (16 hex digits) of what a model is asked."""
    return _short_hash([(m.role, m.content) for m in messages])


def _short_hash(value: Any) -> str:
    whole = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]

"""The plain kind of task: a list of questions, one user message for each, one scorer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joulewise.engines.engine import Message
from joulewise.tasks.scorers import Scorer
from joulewise.tasks.task import Question, Score


@dataclass(frozen=True, slots=True)
class PromptTask:
    """A ``Task`` made of values.

    Args:
        name, third_party, source, max_new_tokens: as in ``Task``.
        items: the questions, in a stable order.
        prompt: the user message for a question.
        scorer: scores the model's text against ``Question.reference``.

    Raises:
        EnvironmentFault: a package that the scorer needs is not installed, or there is no sandbox for code.
    """

    name: str
    third_party: bool
    source: str
    max_new_tokens: int
    items: tuple[Question, ...]
    prompt: Callable[[Question], str]
    scorer: Scorer

    def __post_init__(self) -> None:
        self.scorer.check_installed(self.name)

    @property
    def metric(self) -> str:
        """The scorer's name."""
        return self.scorer.metric

    def questions(self) -> Sequence[Question]:
        """All questions, in a stable order."""
        return self.items

    def turns(self, question: Question) -> tuple[tuple[Message, ...], ...]:
        """One turn of one user message."""
        return ((Message("user", self.prompt(question)),),)

    def score(self, question: Question, text: str) -> Score:
        """Score the model's text."""
        return self.scorer.score(question, text)

"""The plain kind of task: a list of questions, one user message for each, one scorer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from joulewise.engines.engine import Message
from joulewise.reasoning.reasoning import Asked, Turn
from joulewise.tasks.scorers import Scorer
from joulewise.tasks.task import Question, Score

Example = tuple[Question, str]
"""A question and an answer to it, in the form that the task's prompt asks for."""


@dataclass(frozen=True, slots=True)
class PromptTask:
    """A ``Task`` made of values.

    Args:
        name, third_party, source, max_new_tokens: as in ``Task``.
        items: the questions, in a stable order.
        prompt: the user message for a question.
        scorer: scores the model's text against ``Question.reference``.
        stepwise: the user message that asks for steps before the answer; None where the task has none.
        examples: questions that are not asked, with their answers as text, to be shown before a question.
        continuations: the answers that are compared by their likelihood; empty where an answer is generated.

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
    stepwise: Callable[[Question], str | None] = lambda question: None
    examples: Callable[[Question], Sequence[Example]] = lambda question: ()
    continuations: tuple[str, ...] = ()

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

    def asked(self, question: Question) -> Asked:
        """With steps where the task has a prompt for them and its scorer finds a stated answer in a text."""
        scorer = self.scorer
        if self.continuations:  # nothing is written, so there are neither steps nor votes
            return Asked(self.turns(question), examples=lambda: self._shown(question), continuations=self.continuations)
        rate = scorer.by_examples
        asked = Asked(
            self.turns(question),
            examples=lambda: self._shown(question),
            extract=scorer.extract,
            same=scorer.same,
            by_examples=None if rate is None else partial(rate, question),
            oracle=lambda text: self.score(question, text).value,
        )
        steps = self.stepwise(question)
        if steps is None or scorer.stated is None:
            return asked
        return replace(asked, stepwise=(Message("user", steps),), stated=scorer.stated)

    def _shown(self, question: Question) -> tuple[Turn, ...]:
        pairs = self.examples(question)
        return tuple((Message("user", self.prompt(shown)), Message("assistant", answer)) for shown, answer in pairs)

    def score(self, question: Question, text: str) -> Score:
        """Score the model's text."""
        return self.scorer.score(question, text)

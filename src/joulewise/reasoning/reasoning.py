"""Reasoning: turns a question into one or several Requests and their Generations into one answer."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict

from joulewise.engines.engine import FinishReason, Generation, Message, Request

Turn = tuple[Message, ...]


class Ask(Protocol):
    """Runs Requests in the cell's engine and decoding."""

    def __call__(self, request: Request) -> Generation:
        """One Request."""
        ...

    def together(self, requests: Sequence[Request]) -> tuple[Generation, ...]:
        """Several Requests side by side; only for reasonings that say so (``Reasoning.together``)."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as a reasoning sees it: never its reference.

    Args:
        turns: what the user says, turn by turn (``Task.turns``); a later turn follows the answer to the one before.
        stepwise: the turn that asks for steps before the answer; None where the task has no such prompt.
        examples: gives answered questions of the task that are not asked, each as what the user says and what is
            answered; a function, as reading them takes time.
        stated: the answer that a text with steps states, as a text to be scored; empty where it states none.
        extract: the answer that a text gives, as the task's scorer finds it; None where it finds none. None itself for
            tasks whose texts hold no such answer.
        same: whether two such answers are equal.
        continuations: the answers that there are, where none is generated: the most likely one is taken, by one
            forward (``ComparingEngine``). Empty for most tasks.
        by_examples: what a text is worth by the examples that the question itself shows, from 0 to 1; None where it
            shows none. None itself for tasks without such examples.
        oracle: what the task's scorer gives a text, by the reference: for ``best_of`` by ``oracle``, and nothing else.
    """

    turns: tuple[Turn, ...]
    stepwise: Turn | None = None
    examples: Callable[[], Sequence[Turn]] = tuple
    stated: Callable[[str], str] = lambda text: text
    extract: Callable[[str], str | None] | None = None
    same: Callable[[str, str], bool] = operator.eq
    continuations: tuple[str, ...] = ()
    by_examples: Callable[[str], float | None] | None = None
    oracle: Callable[[str], float | None] | None = None


@dataclass(frozen=True, slots=True)
class Probed:
    """What a thought would have answered, had it been cut off.

    Args:
        text: the text that is scored.
        closing: what the answer was got by, where the thought so far had not stated it.
        time_s: when the thought had so many tokens, monotonic seconds; None where that is not known.
    """

    text: str
    closing: Generation | None
    time_s: float | None


@dataclass(frozen=True, slots=True)
class Probe:
    """How to find that out, when all is measured.

    Args:
        tokens: after so many.
        reasoning: the label of the reasoning that would have cut it off there.
        run: finds it out, by requests of its own: the first function is for those that only repeat what the Trial had,
            the second for what the answer is got by, whose joules count.
    """

    tokens: int
    reasoning: str
    run: Callable[[Callable[[Request], Generation], Callable[[Request], Generation]], Probed]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reasoning made of a question.

    Args:
        text: the text that is scored, that of the last turn.
        requests: the requests it made, in order.
        generations: their results, in the same order.
        votes: what was extracted from each sample, where they were counted; None for a sample without an answer.
        ratings: what each sample was rated, where the best one was taken; None for a sample without a rating.
        note: what a reader must know of how the answer came about.
        probes: for what would have been answered earlier.
    """

    text: str
    requests: tuple[Request, ...]
    generations: tuple[Generation, ...]
    votes: tuple[str | None, ...] | None = None
    ratings: tuple[float | None, ...] | None = None
    note: str | None = None
    probes: tuple[Probe, ...] = ()


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

    @property
    def probed(self) -> tuple[str, ...]:
        """The labels of the reasonings whose answers it finds out along the way."""
        return ()

    def refuses(self, asked: Asked) -> str | None:
        """Why it cannot answer such a question, one clause about the task; None if it can."""
        return None

    def settings(self, template: Request) -> Request:
        """The plan's token budget and sampling as this reasoning changes them."""
        return template

    def most_tokens(self, template: Request) -> tuple[int, ...]:
        """The token limits of all requests that there may be to answer a turn, by a template with its ``settings``."""
        return (template.max_new_tokens,)

    @property
    def needs_thinking(self) -> bool:
        """Whether it goes only with models whose own thinking can be switched on."""
        return False

    @property
    def goes_on(self) -> bool:
        """Whether it may have the model go on with an answer that it has begun."""
        return False

    @property
    def together(self) -> int:
        """How many requests it asks side by side; 0: it asks one after the other."""
        return 0

    @abstractmethod
    def asks_first(self, asked: Asked, template: Request) -> Turn:
        """The messages of the first Request for a question: what a changed prompt or example shows in."""

    @abstractmethod
    def answer(self, asked: Asked, template: Request, ask: Ask) -> Answer:
        """Answer one question.

        Args:
            asked: the question; one that ``refuses`` takes.
            template: a Request with the cell's ``settings``, stop rule and seed, its messages empty.
            ask: runs Requests.
        """


Thinking: TypeAlias = Generator[Request, Generation, Answer]
"""Yields each Request, is sent its Generation, and returns the answer."""


class Thought(Reasoning):
    """A reasoning that asks one request after the other, each by what came back before.

    Subclasses implement ``think``.
    """

    @abstractmethod
    def think(self, asked: Asked, template: Request) -> Thinking:
        """Answer one question; arguments as for ``answer``. At least one Request is yielded."""

    def asks_first(self, asked: Asked, template: Request) -> Turn:
        """The messages of the first Request."""
        return next(self.think(asked, template)).messages

    def answer(self, asked: Asked, template: Request, ask: Ask) -> Answer:
        """Answer one question."""
        return side_by_side([self.think(asked, template)], lambda requests: (ask(requests[0]),))[0]


def side_by_side(
    thoughts: Sequence[Thinking], together: Callable[[Sequence[Request]], tuple[Generation, ...]]
) -> tuple[Answer, ...]:
    """Several thoughts in step: all that ask for something ask at once.

    Args:
        thoughts: not begun.
        together: runs Requests side by side.

    Returns:
        One answer for each thought.
    """
    answers: dict[int, Answer] = {}
    asking = {i: next(thought) for i, thought in enumerate(thoughts)}
    while asking:
        made = together(tuple(asking.values()))
        for i, generation in zip(tuple(asking), made, strict=True):
            try:
                asking[i] = thoughts[i].send(generation)
            except StopIteration as end:
                answers[i] = end.value
                del asking[i]
    return tuple(answers[i] for i in range(len(thoughts)))


def stated_whole(asked: Asked, text: str, finish_reason: FinishReason) -> str:
    """The answer that a text states; empty where it is a number whose last digits a token limit may have cut off."""
    stated = asked.stated(text)
    cut_off = finish_reason == "length" and text[-1:].isdigit() and asked.stated(f"{text}0") != stated
    return "" if cut_off else stated


def still_thinking(generation: Generation) -> bool:
    """Whether a model's own ``<think>`` block was not closed."""
    return (generation.thinking_open or "<think>" in generation.text) and "</think>" not in generation.text


def without_thinking(generation: Generation) -> str:
    """What a model says after its own ``<think>`` block; nothing where the block was not closed."""
    text = generation.text
    if "</think>" in text:
        return text.rpartition("</think>")[2].lstrip()
    return "" if still_thinking(generation) else text

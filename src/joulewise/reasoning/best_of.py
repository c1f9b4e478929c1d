"""Best of: several samples, and the one that is rated highest, by something that never sees the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import model_validator

from joulewise.engines.engine import Request
from joulewise.reasoning.reasoning import Answer, Ask, Asked
from joulewise.reasoning.reward import RewardSpec
from joulewise.reasoning.sampled import Sampled


class BestOf(Sampled):
    """The sample that is rated highest; of equal ones the first. One without a rating loses to every rating.

    Sample i of a question has the same seed as in a vote.

    Args:
        samples: so many.
        of: how each sample is thought out.
        temperature: of the samples, in place of the plan's.
        batched: draw all samples side by side, in one batch.
        by: who rates. ``likelihood``: the model itself, by the mean log-probability of the tokens that it wrote.
            ``examples``: the examples that the question shows, run with the sample's code. ``reward``: a model behind
            an address. ``oracle``: the task's scorer, which knows the answer: a bound for all others, no way to answer.
        reward: the address, for ``by: reward``.
    """

    kind: Literal["best_of"] = "best_of"
    by: Literal["likelihood", "examples", "reward", "oracle"] = "likelihood"
    reward: RewardSpec | None = None

    @model_validator(mode="after")
    def _rated(self) -> BestOf:
        if (self.reward is None) == (self.by == "reward"):
            raise ValueError("'by: reward' needs 'reward', the address of who rates, and nothing else may have it")
        return self

    @property
    def label(self) -> str:
        return self.label_of(f"best-of-{self.samples}-{self.by}")

    def refuses(self, asked: Asked) -> str | None:
        if self.by == "examples" and asked.by_examples is None:
            return "its questions show no examples that code could be run on"
        if self.by == "oracle" and asked.oracle is None:
            return "nothing scores its answers before they are given"
        if self.reward is not None and (fault := self.reward.fault()):
            return fault
        if asked.continuations:
            return "its answers are compared, not sampled"
        return super().refuses(asked)

    def settings(self, template: Request) -> Request:
        return replace(super().settings(template), log_probability=self.by == "likelihood")

    def answer(self, asked: Asked, template: Request, ask: Ask) -> Answer:
        answers = tuple(self.draw(asked, template, ask))
        ratings = tuple(self._rate(asked, answer) for answer in answers)
        chosen = first_best(ratings)
        return Answer(
            answers[chosen].text,
            tuple(request for answer in answers for request in answer.requests),
            tuple(generation for answer in answers for generation in answer.generations),
            ratings=ratings,
            note=self._note(ratings),
        )

    def _rate(self, asked: Asked, answer: Answer) -> float | None:
        if self.reward is not None:
            messages = answer.requests[-1].messages
            begun = messages[-1].role == "assistant"  # the close of a budget, which is not asked
            return self.reward.rate(messages[:-1] if begun else messages, answer.text)
        if self.by == "examples":
            assert asked.by_examples is not None
            return asked.by_examples(answer.text)
        if self.by == "oracle":
            assert asked.oracle is not None
            return asked.oracle(answer.text)
        return mean_log_probability(answer)

    def _note(self, ratings: Sequence[float | None]) -> str | None:
        said = [f"the joules of {self.reward.where}, which chose, are unknown"] if self.reward is not None else []
        if self.by == "oracle":
            said.append("chosen by who knows the answer")
        if all(rating is None for rating in ratings):
            said.append("no sample has a rating, so it is the first")
        return "; ".join(said) or None


def mean_log_probability(answer: Answer) -> float | None:
    """Over all output tokens of an answer; None where the engine does not tell it."""
    tokens = sum(generation.output_tokens for generation in answer.generations)
    known = [g.log_probability for g in answer.generations if g.log_probability is not None]
    return sum(known) / tokens if tokens and len(known) == len(answer.generations) else None


def first_best(ratings: Sequence[float | None]) -> int:
    """The place of the highest rating, the first of equal ones; 0 where there is none."""
    best = max((rating for rating in ratings if rating is not None), default=None)
    return 0 if best is None else ratings.index(best)

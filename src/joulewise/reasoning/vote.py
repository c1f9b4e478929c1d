"""Vote: several samples, and the answer that most of them give."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from joulewise.engines.engine import Request
from joulewise.reasoning.budget import Budget
from joulewise.reasoning.cot import Cot
from joulewise.reasoning.direct import Direct
from joulewise.reasoning.few_shot import FewShot
from joulewise.reasoning.reasoning import Answer, Ask, Asked, Reasoning


def _by_name(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


class Vote(Reasoning):
    """Self-consistency: the answer that most of several samples give (Wang et al., 2023, arXiv 2203.11171, section 2).

    A sample in which no answer is found has no vote. Of answers with equally many votes the one that had so many first
    wins. Sample i of a question has the same seed in every vote: the samples of a vote are the first ones of a larger
    vote with the same ``of`` and ``temperature``.

    Args:
        samples: at most so many.
        of: how each sample is thought out.
        temperature: of the samples, in place of the plan's.
        early_stop: take no further sample once those to come could not change the winner.
    """

    kind: Literal["vote"] = "vote"
    samples: int = Field(3, ge=1)
    of: Annotated[
        Direct | FewShot | Cot | Budget,
        Field(discriminator="kind"),
        BeforeValidator(
            _by_name,
            json_schema_input_type=Direct | FewShot | Cot | Budget | Literal["direct", "few_shot", "cot", "budget"],
        ),
    ] = Direct()
    temperature: float = Field(0.7, gt=0.0, allow_inf_nan=False)
    early_stop: bool = True

    @property
    def label(self) -> str:
        parts = [f"vote-{self.samples}"]
        if not isinstance(self.of, Direct):
            parts.append(self.of.label)
        if self.temperature != 0.7:
            parts.append(f"t{self.temperature:g}")
        if not self.early_stop:
            parts.append("all")
        return "-".join(parts)

    def refuses(self, asked: Asked) -> str | None:
        if asked.extract is None:
            return "no answer is extracted from its texts that votes could be counted of"
        return self.of.refuses(asked)

    def settings(self, template: Request) -> Request:
        return self.of.settings(replace(template, sampling=replace(template.sampling, temperature=self.temperature)))

    def most_tokens(self, template: Request) -> tuple[int, ...]:
        return self.of.most_tokens(template) * self.samples

    def answer(self, asked: Asked, template: Request, ask: Ask) -> Answer:
        assert asked.extract is not None
        answers: list[Answer] = []
        found: list[str | None] = []
        votes: list[int | None] = []
        for i in range(self.samples):
            if self.early_stop and settled(votes, self.samples):
                break
            answers.append(self.of.answer(asked, replace(template, seed=_seed(template.seed, i)), ask))
            found.append(asked.extract(answers[-1].text))
            votes.append(_first_equal(found, asked.same))
        elected = winner(votes)
        return Answer(
            answers[elected or 0].text,
            tuple(request for answer in answers for request in answer.requests),
            tuple(generation for answer in answers for generation in answer.generations),
            tuple(found),
        )


def winner(votes: Sequence[int | None]) -> int | None:
    """Whom most votes name; of several, whom so many named first. None where there is no vote.

    Args:
        votes: in order; None is no vote.
    """
    counts: Counter[int] = Counter()
    best: int | None = None
    for vote in votes:
        if vote is not None:
            counts[vote] += 1
            if best is None or counts[vote] > counts[best]:
                best = vote
    return best


def settled(votes: Sequence[int | None], most: int) -> bool:
    """Whether ``winner`` will be the same however the votes to come fall.

    Args:
        votes: those so far, in order.
        most: how many there will be in all.
    """
    best = winner(votes)
    if best is None:
        return len(votes) >= most
    # A rival that draws level came later, and loses.
    rival = max((count for name, count in Counter(votes).items() if name not in (None, best)), default=0)
    return rival + most - len(votes) <= votes.count(best)


def _first_equal(found: Sequence[str | None], same: Callable[[str, str], bool]) -> int | None:
    """The number of the first answer that equals the last one; None where the last one is none."""
    last = found[-1]
    if last is None:
        return None
    return next(i for i, answer in enumerate(found) if answer is not None and (answer == last or same(answer, last)))


def _seed(seed: int, sample: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{sample}".encode()).digest()[:4], "big")

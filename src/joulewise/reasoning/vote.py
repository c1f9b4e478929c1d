"""Vote: several samples, and the answer that most of them give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from joulewise.engines.engine import Request
from joulewise.reasoning.reasoning import Answer, Ask, Asked
from joulewise.reasoning.sampled import Sampled


class Vote(Sampled):
    """Self-consistency: the answer that most of several samples give (Wang et al., 2023, arXiv 2203.11171, section 2).

    A sample in which no answer is found has no vote. Of answers with equally many votes the one that had so many first
    wins. Sample i of a question has the same seed in every vote: the samples of a vote are the first ones of a larger
    vote with the same ``of`` and ``temperature``.

    Args:
        samples: at most so many.
        of: how each sample is thought out.
        temperature: of the samples, in place of the plan's.
        batched: draw all samples side by side, in one batch.
        early_stop: take no further sample once those to come could not change the winner; without effect where
            ``batched``.
    """

    kind: Literal["vote"] = "vote"
    early_stop: bool = True

    @property
    def label(self) -> str:
        label = self.label_of(f"vote-{self.samples}")
        return label if self.early_stop or self.batched else f"{label}-all"

    def refuses(self, asked: Asked) -> str | None:
        if asked.extract is None:
            return "no answer is extracted from its texts that votes could be counted of"
        return super().refuses(asked)

    def answer(self, asked: Asked, template: Request, ask: Ask) -> Answer:
        assert asked.extract is not None
        answers: list[Answer] = []
        found: list[str | None] = []
        votes: list[int | None] = []
        for answer in self.draw(asked, template, ask):
            answers.append(answer)
            found.append(asked.extract(answer.text))
            votes.append(_first_equal(found, asked.same))
            if self.early_stop and not self.batched and settled(votes, self.samples):
                break
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

"""Which cells of a task give the most accuracy for their joules, and how sure is that? Pareto's frontier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulewise.analysis.cells import CellKey
from joulewise.analysis.intervals import MIN_QUESTIONS, Floats
from joulewise.analysis.side_by_side import Sample
from joulewise.analysis.worth import Group

SURE = 0.95
"""What holds in so large a share of bootstrap samples is said without a doubt."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Place:
    """One cell and the frontier.

    Args:
        key: which cell.
        optimal: whether no other cell is at least as accurate for at most its joules and better in one of the two.
        frequency: the share of bootstrap samples of the questions in which that is so; None with too few questions.
    """

    key: CellKey
    optimal: bool
    frequency: float | None


@dataclass(frozen=True, slots=True)
class Dominance:
    """A cell that another beats: at least as accurate, for fewer joules or as many.

    Args:
        loser, winner: the cell, and the cheapest of those that beat it in ``SURE`` of the bootstrap samples; where none
            does, the one that does most often.
        quality_difference: the winner's accuracy less the loser's.
        energy_ratio: the winner's joules per answer over the loser's.
        frequency: the share of bootstrap samples in which the winner beats it; None with too few questions.
        level: what the groups below are; None where the task has none.
        ahead, even, behind: in how many groups the winner is more, as, or less accurate; those with too few questions
            are in none of them.
    """

    loser: CellKey
    winner: CellKey
    quality_difference: float
    energy_ratio: float
    frequency: float | None
    level: str | None
    ahead: int
    even: int
    behind: int


@dataclass(frozen=True, slots=True)
class Reach:
    """The cheapest cell that reaches an accuracy.

    Args:
        target: the accuracy, as a share.
        key: the cell; None where none reaches it.
        frequency: the share of bootstrap samples in which it reaches the target; None with too few questions.
        cheapest: the share in which it is the cheapest that does.
    """

    target: float
    key: CellKey | None
    frequency: float | None
    cheapest: float | None


def pareto(quality: Floats, energy_j: Floats) -> Flags:
    """Which cells no other cell dominates.

    Args:
        quality, energy_j: shape ``(..., k)``, more and less is better.
    """
    found = np.ones(quality.shape, dtype=np.bool_)
    for i in range(quality.shape[-1]):
        q, e = quality[..., i : i + 1], energy_j[..., i : i + 1]
        better = (quality >= q) & (energy_j <= e) & ((quality > q) | (energy_j < e))
        found[..., i] = ~better.any(axis=-1)
    return found


def frontier(sample: Sample) -> tuple[Place, ...]:
    """Every cell's place; quality and joules must be known."""
    optimal = pareto(*_means(sample))
    again = pareto(*_again(sample)).mean(axis=0) if sample.n >= MIN_QUESTIONS else None
    return tuple(
        Place(key, bool(optimal[i]), None if again is None else float(again[i]))
        for i, key in enumerate(sample.board.keys)
    )


def dominances(sample: Sample, groups: Sequence[Group]) -> tuple[Dominance, ...]:
    """Every cell that another beats, and the cheapest of those that do so surely; else the one that does most surely.

    Args:
        sample: the whole task.
        groups: of one level, for the counts.
    """
    (quality, energy_j), found = _means(sample), []
    for i in range(len(quality)):
        beats = (
            (quality >= quality[i]) & (energy_j <= energy_j[i]) & ((quality > quality[i]) | (energy_j < energy_j[i]))
        )
        if beats.any():
            often = _beats_again(sample, i)
            ranked = sorted(
                np.flatnonzero(beats), key=lambda j: (-min(float(often[j]), SURE), energy_j[j], -quality[j])
            )
            found.append(_dominance(sample, int(ranked[0]), i, float(often[ranked[0]]), groups))
    return tuple(found)


def cheapest_reaching(sample: Sample, target: float) -> Reach:
    """The cell with the fewest joules per answer among those at least as accurate as ``target``, a share."""
    quality, energy_j = _means(sample)
    reaching = np.flatnonzero(quality >= target)
    if not len(reaching):
        return Reach(target, None, None, None)
    best = int(reaching[np.argmin(energy_j[reaching])])
    key = sample.board.keys[best]
    if sample.n < MIN_QUESTIONS:
        return Reach(target, key, None, None)
    again, joules = _again(sample)
    reached = again >= target
    first = np.where(reached, joules, np.inf).argmin(axis=1) == best
    return Reach(target, key, float(reached[:, best].mean()), float((first & reached[:, best]).mean()))


def _means(sample: Sample) -> tuple[Floats, Floats]:
    """Accuracy and joules per answer of every cell."""
    return sample.columns["quality"].sum(axis=0) / sample.n, sample.columns["energy_j"].sum(axis=0) / sample.n


def _again(sample: Sample) -> tuple[Floats, Floats]:
    """The same over bootstrap samples of the questions, a row each."""
    return sample.again["quality"] / sample.n, sample.again["energy_j"] / sample.n


def _beats_again(sample: Sample, loser: int) -> Floats:
    """How often each cell is at least as accurate as the loser for at most its joules; 0 with too few questions."""
    if sample.n < MIN_QUESTIONS:
        return np.zeros(len(sample.board.keys))
    quality, energy_j = _again(sample)
    beats = (quality >= quality[:, [loser]]) & (energy_j <= energy_j[:, [loser]])
    return np.asarray(beats.mean(axis=0), dtype=np.float64)


def _dominance(sample: Sample, winner: int, loser: int, often: float, groups: Sequence[Group]) -> Dominance:
    quality, energy_j = _means(sample)
    moved = [
        (group.cells[winner].quality.value or 0.0) - (group.cells[loser].quality.value or 0.0)
        for group in groups
        if not group.too_few
    ]
    return Dominance(
        sample.board.keys[loser],
        sample.board.keys[winner],
        float(quality[winner] - quality[loser]),
        float(energy_j[winner] / energy_j[loser]) if energy_j[loser] else 1.0,
        often if sample.n >= MIN_QUESTIONS else None,
        groups[0].level if groups else None,
        sum(m > 0.0 for m in moved),
        sum(m == 0.0 for m in moved),
        sum(m < 0.0 for m in moved),
    )

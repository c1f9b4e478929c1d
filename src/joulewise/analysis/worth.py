"""What a cell's answers are worth over some questions of a task: accuracy, and joules in every unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulewise.analysis.cells import CellKey, exact_sum, nothing_to_divide
from joulewise.analysis.contrast import Against, contrast
from joulewise.analysis.intervals import (
    MIN_QUESTIONS,
    TOO_FEW,
    Quantity,
    percentile_interval,
    positive_quantity,
    unknown_quantity,
    wilson,
)
from joulewise.analysis.per_token import NO_RIGHT_OR_WRONG, correct_per_kj, none_correct
from joulewise.analysis.side_by_side import ACCURACY, Board, Sample
from joulewise.tasks.mmlu_subjects import CATEGORIES, SUBCATEGORIES

WHOLE = "task"
"""The level of a whole task."""


@dataclass(frozen=True, slots=True)
class Worth:
    """One cell over a group of questions.

    Args:
        key: which cell.
        quality: share of right answers with Wilson's interval, or the mean score with the bootstrap's.
        energy_per_answer_j, energy_per_token_j, energy_per_output_token_j: the second over prompt and output tokens
            (arXiv 2603.20224).
        energy_per_correct_answer_j, correct_answers_per_kj: unknown where answers are not right or wrong.
        against: the cell against its baseline; None for a baseline, and where there is none.
    """

    key: CellKey
    quality: Quantity
    energy_per_answer_j: Quantity
    energy_per_token_j: Quantity
    energy_per_output_token_j: Quantity
    energy_per_correct_answer_j: Quantity
    correct_answers_per_kj: Quantity
    against: Against | None


@dataclass(frozen=True, slots=True)
class Group:
    """Some questions of a task: all of them, or those of one subject, subcategory or category.

    Args:
        level: ``WHOLE``, ``subject``, ``subcategory`` or ``category``.
        name: the group's.
        questions: how many that all cells answered.
        too_few: fewer than ``MIN_QUESTIONS``: shown, but in no verdict, count or ranking.
        cells: what each cell comes to.
    """

    level: str
    name: str
    questions: int
    too_few: bool
    cells: tuple[Worth, ...]


def levels(categories: Sequence[str | None]) -> dict[str, list[str]]:
    """The groups that each question is in, by level, from fine to coarse; none where all are in one.

    Args:
        categories: each question's. MMLU's subjects have subcategories and categories above them.
    """
    names = [category or "no category" for category in categories]
    found = {"category": names}
    if names and set(names) <= set(CATEGORIES):
        found = {
            "subject": names,
            "subcategory": [SUBCATEGORIES[name] for name in names],
            "category": [CATEGORIES[name] for name in names],
        }
    return {level: groups for level, groups in found.items() if len(set(groups)) > 1}


def grouped(board: Board, names: Sequence[str]) -> dict[str, Sample]:
    """The questions of every group, by its name.

    Args:
        board: all questions.
        names: each question's group.
    """
    of = np.array(names)
    return {name: Sample(board, np.flatnonzero(of == name)) for name in sorted(set(names))}


def worths(sample: Sample, baselines: Sequence[int | None]) -> tuple[Worth, ...]:
    """Every cell of a board over a sample of its questions.

    Args:
        sample: which questions.
        baselines: the column of each cell's baseline; None for none.
    """
    return tuple(_worth(sample, i, baseline) for i, baseline in enumerate(baselines))


def group(level: str, name: str, sample: Sample, baselines: Sequence[int | None]) -> Group:
    """A group with its cells; arguments as in ``Group`` and for ``worths``."""
    return Group(level, name, sample.n, sample.n < MIN_QUESTIONS, worths(sample, baselines))


def quality(sample: Sample, i: int) -> Quantity:
    """How good the answers of cell ``i`` are."""
    found, n, trials = sample.columns["quality"][:, i], sample.n, int(sample.trials[i])
    if sample.board.measure is None:
        return unknown_quantity("nothing judges the answers", n, trials)
    value = exact_sum(found) / n
    if sample.board.measure == ACCURACY:
        return Quantity(value, *wilson(value * n, n), n, trials, "measured")
    if n < MIN_QUESTIONS:
        return Quantity(value, None, None, n, trials, "measured", TOO_FEW)
    low, high = percentile_interval(sample.again["quality"][:, i] / n, n)
    return Quantity(value, max(0.0, min(low, value)), min(1.0, max(high, value)), n, trials, "measured")


def _worth(sample: Sample, i: int, baseline: int | None) -> Worth:
    good = quality(sample, i)
    per_answer = _joules_per(sample, i, None)
    if sample.board.measure != ACCURACY:
        per_correct = unknown_quantity(NO_RIGHT_OR_WRONG)
    elif good.value:
        per_correct = _joules_per(sample, i, "quality")
    else:
        per_correct = none_correct(per_answer, good)
    return Worth(
        sample.board.keys[i],
        good,
        per_answer,
        _joules_per(sample, i, "tokens"),
        _joules_per(sample, i, "output_tokens"),
        per_correct,
        correct_per_kj(per_correct),
        None if baseline in (None, i) else contrast(sample, baseline, i),
    )


def _joules_per(sample: Sample, i: int, below: str | None) -> Quantity:
    """Sum of joules over that of another column; None is answers."""
    board, n, trials = sample.board, sample.n, int(sample.trials[i])
    energy_j = sample.columns["energy_j"][:, i]
    if np.isnan(energy_j).any():
        return unknown_quantity("the joules are not known", n, trials)
    over = exact_sum(energy_j)
    under = float(n) if below is None else exact_sum(sample.columns[below][:, i])
    for name, total in ((f"{board.component}_energy_j", over), (below or "", under)):
        if total <= 0.0:
            return unknown_quantity(nothing_to_divide(name), n, trials)
    with np.errstate(divide="ignore", invalid="ignore"):
        again = sample.again["energy_j"][:, i] / (n if below is None else sample.again[below][:, i])
    return positive_quantity(
        over / under,
        again[~np.isnan(again)],
        n_questions=n,
        n_trials=trials,
        provenance=board.provenances[i],
        common=float(sample.errors_j[:, :, i].sum()) / over,
    )

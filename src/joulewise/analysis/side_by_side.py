"""All cells of one task side by side: what each made of the same questions, question by question.

A question is one unit with all its repeats: its accuracy and its joules are means over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from joulewise.analysis.cells import Cell, CellKey, Integers, parts_of
from joulewise.analysis.intervals import Floats, joint_provenance, resample
from joulewise.counted import counted
from joulewise.energy.reading import ComponentName, Provenance

ACCURACY = "accuracy"
"""What is measured where answers are right or wrong; else it is the scorer's own measure."""

ENOUGH = 0.5
"""A cell that has fewer than this share of the questions of the fullest cell is left out, not the others' questions."""

_NUMBERS = ("quality", "energy_j", "tokens", "output_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class Board:
    """Cells (columns) on the questions (rows) that all of them answered.

    Args:
        keys: which cells, ``k`` of them.
        component: whose joules.
        measure: ``ACCURACY``, a score's name, or None where nothing judges the answers.
        categories: each question's, ``n`` of them.
        quality: share of right answers, or mean score, shape ``(n, k)``; nan where nothing judges.
        energy_j: joules per answer, shape ``(n, k)``; nan where they are known in no cell.
        tokens, output_tokens: per answer, shape ``(n, k)``; the first with the prompt's.
        errors_j: the meter's common errors per answer, one layer for each part's gain and offset.
        trials: Trials behind each, shape ``(n, k)``.
        provenances: of each cell's joules.
        tried: questions that any cell tried.
        unjudged: questions with an answer that has no verdict though others have one; such answers are left out.
        left_out: cells that are not here, and why.
    """

    keys: tuple[CellKey, ...]
    component: ComponentName
    measure: str | None
    categories: tuple[str | None, ...]
    quality: Floats
    energy_j: Floats
    tokens: Floats
    output_tokens: Floats
    errors_j: Floats
    trials: Integers
    provenances: tuple[Provenance, ...]
    tried: int
    unjudged: int
    left_out: tuple[tuple[CellKey, str], ...]

    @property
    def measured(self) -> bool:
        """Whether every cell's joules are: else no verdict on energy is given."""
        return bool(self.keys) and set(self.provenances) == {"measured"}

    @property
    def one_answer(self) -> bool:
        """Whether each question has one right or wrong answer in each cell."""
        return self.measure == ACCURACY and bool((self.trials == 1).all())


class Sample:
    """Some questions of a board, and what its cells come to over them.

    Args:
        board: all of them.
        rows: which questions.
    """

    def __init__(self, board: Board, rows: npt.NDArray[np.intp]) -> None:
        self.board = board
        self.n = len(rows)
        self.columns = {name: getattr(board, name)[rows] for name in _NUMBERS}
        self.errors_j: Floats = board.errors_j[:, rows]
        self.trials = board.trials[rows].sum(axis=0)

    @cached_property
    def again(self) -> dict[str, Floats]:
        """Sums over bootstrap samples of the questions, shape ``(replicates, k)``; all cells see the same samples."""
        sums = resample(np.column_stack(list(self.columns.values())))
        return dict(zip(self.columns, np.hsplit(sums, len(self.columns)), strict=True))


def side_by_side(cells: Sequence[Cell], component: ComponentName) -> Board:
    """The cells of one run and task on their common questions.

    A Trial counts where it succeeded and its verdict and joules are known, as far as they are known in any cell.

    Args:
        cells: from one ``split``.
        component: whose joules.
    """
    judged = [name for name in ("correct", "score") if any(not np.isnan(cell.numbers(name)).all() for cell in cells)]
    quality = judged[0] if judged else None
    energy = f"{component}_energy_j"
    needed = [quality] if quality else []
    if any(not np.isnan(cell.numbers(energy)).all() for cell in cells):
        needed.append(energy)
    parts = parts_of(component, lambda name: {p for cell in cells for p in cell.provenances(name)})
    found: list[tuple[Cell, Integers, Floats, Integers, Provenance]] = []
    left_out = []
    for cell in cells:
        keep = np.ones(cell.rows.num_rows, dtype=np.bool_)
        for name in needed:
            keep &= ~np.isnan(cell.numbers(name))
        if keep.any():
            kinds = {p for p, kept in zip(cell.texts(f"{component}_provenance"), keep, strict=True) if kept}
            found.append((cell, *_by_question(cell, keep, quality, energy, parts), joint_provenance(kinds)))
        else:
            left_out.append((cell.key, _why_not(cell, quality)))
    most = max((len(questions) for _, questions, *_ in found), default=0)
    for cell, questions, *_ in found:
        if len(questions) < ENOUGH * most:
            left_out.append((cell.key, f"only {len(questions):,} of {counted(most, 'question')} answered"))
    kept = [one for one in found if len(one[1]) >= ENOUGH * most]
    common = kept[0][1] if kept else np.empty(0, dtype=np.int64)
    for _, questions, *_ in kept[1:]:
        common = np.intersect1d(common, questions)
    layers = len(_NUMBERS) + 2 * len(parts)
    values, trials = np.empty((layers, len(common), len(kept))), np.empty((len(common), len(kept)), dtype=np.int64)
    for i, (_, questions, means, counts, _) in enumerate(kept):
        rows = np.searchsorted(questions, common)
        values[:, :, i], trials[:, i] = means[rows].T, counts[rows]
    return Board(
        tuple(cell.key for cell, *_ in kept),
        component,
        ACCURACY if quality == "correct" else _metric(cells) if quality else None,
        _categories(kept[0][0], common) if kept else (),
        values[0],
        values[1],
        values[2],
        values[3],
        values[len(_NUMBERS) :],
        trials,
        tuple(provenance for *_, provenance in kept),
        len({unit for cell in cells for unit in cell.all_units()}),
        _unjudged([cell for cell, *_ in kept], quality),
        tuple(left_out),
    )


def _by_question(
    cell: Cell, keep: npt.NDArray[np.bool_], quality: str | None, energy: str, parts: Sequence[str]
) -> tuple[Integers, Floats, Integers]:
    """The questions that a cell answered (rising), its means over their Trials (a row a question), and how many."""
    output = cell.numbers("output_tokens")
    columns = [
        cell.numbers(quality) if quality else np.full(len(keep), np.nan),
        cell.numbers(energy),
        cell.numbers("prompt_tokens") + output,
        output,
    ]
    for part in parts:
        there = cell.provenances(part) != {None}
        columns += [cell.numbers(f"{part}_{e}_j") if there else np.zeros(len(keep)) for e in ("gain", "offset")]
    questions, codes, counts = np.unique(cell.questions[keep], return_inverse=True, return_counts=True)
    sums = [np.bincount(codes, column[keep], len(questions)) for column in columns]
    return questions, np.column_stack(sums) / counts[:, None], counts


def _why_not(cell: Cell, quality: str | None) -> str:
    if not cell.rows.num_rows:
        return "no Trial succeeded"
    if quality and np.isnan(cell.numbers(quality)).all():
        return "none of its answers is judged"
    return "its joules could not be read"


def _metric(cells: Sequence[Cell]) -> str:
    return ", ".join(sorted({m for cell in cells for m in cell.texts("metric") if m is not None})) or "score"


def _categories(cell: Cell, common: Integers) -> tuple[str | None, ...]:
    found = dict(zip(cell.questions.tolist(), cell.texts("category"), strict=True))
    return tuple(found[question] for question in common.tolist())


def _unjudged(cells: Sequence[Cell], quality: str | None) -> int:
    if quality is None:
        return 0
    return len({q for cell in cells for q in cell.questions[np.isnan(cell.numbers(quality))].tolist()})

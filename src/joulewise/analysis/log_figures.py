"""Several cells' joules (or seconds) per output token on the same questions, as logarithms that can be combined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulewise.analysis.cells import Cell, CellKey, parts_of, why_no_energy
from joulewise.analysis.intervals import (
    MIN_QUESTIONS,
    Floats,
    Quantity,
    joint_provenance,
    positive_quantity,
    resample,
    unknown_quantity,
)
from joulewise.analysis.log_ratio import add_up, jackknife_se
from joulewise.analysis.side_by_side import ENOUGH
from joulewise.counted import counted
from joulewise.energy.reading import ComponentName, Provenance

_NOTHING = 1e-9
"""A coefficient below this is 0 up to rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class LogFigures:
    """ln of each cell's joules or seconds per output token, over the questions that all of them answered.

    A question counts once in every cell, with the mean of its repeats.

    Args:
        keys: which cells, ``k`` of them.
        logs: shape ``(k,)``.
        again: over bootstrap samples of the questions, the same for all cells, shape ``(replicates, k)``; empty where
            there are too few questions.
        pulls: leaving out one question at a time, less the mean of that, shape ``(n, k)``.
        errors: the meter's common errors, relative to the joules, shape ``(layers, k)``; none for seconds.
        n, trials: questions, and Trials behind the cell with the fewest.
        provenances: of each cell's joules or seconds.
        left_out: cells that are not here, and why.
    """

    keys: tuple[CellKey, ...]
    logs: Floats
    again: Floats
    pulls: Floats
    errors: Floats
    n: int
    trials: int
    provenances: tuple[Provenance, ...]
    left_out: tuple[tuple[CellKey, str], ...]

    def factor(self, weights: Floats) -> Quantity:
        """``exp`` of a combination of the logarithms, with its interval.

        Args:
            weights: shape ``(k,)``, of sum 0: what is alike in all cells cancels.
        """
        used = [provenance for provenance, w in zip(self.provenances, weights, strict=True) if abs(w) > _NOTHING]
        provenance = joint_provenance(used or self.provenances)
        value, common = float(np.exp(self.logs @ weights)), self._common(weights)
        if self.n < MIN_QUESTIONS:
            again = np.empty(0)
        else:
            again = np.exp(self.again @ weights)
            again = again[~np.isnan(again)]
        return positive_quantity(
            value, again, n_questions=self.n, n_trials=self.trials, provenance=provenance, common=common
        )

    def p_above(self, weights: Floats) -> float | None:
        """The chance of so large a combination if the truth were 0 or less; None where that is not known.

        By the jackknife and Student's t, which reach further into the tails than bootstrap samples do.
        """
        common = self._common(weights)
        if self.n < MIN_QUESTIONS or not math.isfinite(common) or not np.isfinite(self.pulls).all():
            return None
        uncertainty = add_up([(jackknife_se(self.pulls @ weights), self.n - 1)], common, 0.0)
        return uncertainty.p_above(float(self.logs @ weights), 0.0)

    def _common(self, weights: Floats) -> float:
        return float(np.abs(self.errors @ weights).sum())


def log_figures(cells: Sequence[Cell], component: ComponentName | None) -> LogFigures:
    """The figures of cells.

    Args:
        cells: from one ``split``.
        component: whose joules; None for seconds.
    """
    above = "duration_s" if component is None else f"{component}_energy_j"
    parts = (
        [] if component is None else parts_of(component, lambda name: {p for c in cells for p in c.provenances(name)})
    )
    names = [above, "output_tokens", *(f"{part}_{error}_j" for part in parts for error in ("gain", "offset"))]
    found: list[tuple[Cell, np.ndarray, Floats, np.ndarray, Provenance]] = []
    left_out: list[tuple[CellKey, str]] = []
    for cell in cells:
        keep = ~np.isnan(cell.numbers(above))
        if not cell.rows.num_rows:
            left_out.append((cell.key, _why_failed(cell)))
        elif component is not None and not keep.any():
            left_out.append((cell.key, why_no_energy(component, cell.provenances(component))))
        else:
            columns = [np.nan_to_num(cell.numbers(name)) if name != above else cell.numbers(name) for name in names]
            questions, codes, counts = np.unique(cell.questions[keep], return_inverse=True, return_counts=True)
            sums = [np.bincount(codes, column[keep], len(questions)) for column in columns]
            kinds = (
                {"measured"}
                if component is None
                else {p for p, kept in zip(cell.texts(f"{component}_provenance"), keep, strict=True) if kept}
            )
            found.append((cell, questions, np.column_stack(sums) / counts[:, None], counts, joint_provenance(kinds)))
    most = max((len(questions) for _, questions, *_ in found), default=0)
    kept = []
    for one in found:
        if len(one[1]) < ENOUGH * most:
            left_out.append((one[0].key, f"only {len(one[1]):,} of {counted(most, 'question')} answered"))
        elif (one[2][:, :2].sum(axis=0) <= 0.0).any():
            left_out.append((one[0].key, "the meter read 0 J, or no tokens were put out"))
        else:
            kept.append(one)
    common = kept[0][1] if kept else np.empty(0, dtype=np.int64)
    for _, questions, *_ in kept[1:]:
        common = np.intersect1d(common, questions)
    if not len(common):
        left_out += [(cell.key, "it has no answered question in common with the others") for cell, *_ in kept]
        kept = []
    rows = [np.searchsorted(questions, common) for _, questions, *_ in kept]
    values = np.array([means[r].T for (_, _, means, _, _), r in zip(kept, rows, strict=True)])  # (k, names, n)
    values = values.reshape(len(kept), len(names), len(common))
    sums_of = values.sum(axis=2)
    n = len(common)
    again = (
        resample(values.reshape(-1, n).T).reshape(-1, *values.shape[:2])
        if n >= MIN_QUESTIONS
        else np.empty((0, *sums_of.shape))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        without = sums_of[:, :, None] - values
        left = (np.log(without[:, 0]) - np.log(without[:, 1])).T if n > 1 else np.zeros((n, len(kept)))
        return LogFigures(
            tuple(cell.key for cell, *_ in kept),
            np.log(sums_of[:, 0]) - np.log(sums_of[:, 1]),
            np.log(again[:, :, 0]) - np.log(again[:, :, 1]),
            left - left.mean(axis=0) if n else left,
            (sums_of[:, 2:] / sums_of[:, :1]).T,
            n,
            min((int(counts[r].sum()) for (_, _, _, counts, _), r in zip(kept, rows, strict=True)), default=0),
            tuple(provenance for *_, provenance in kept),
            tuple(left_out),
        )


def unknown_factor(figures: LogFigures, reason: str) -> Quantity:
    """A factor that these figures cannot tell."""
    return unknown_quantity(reason, figures.n, figures.trials)


def _why_failed(cell: Cell) -> str:
    errors = [error for error in cell.failed["error"].to_pylist() if error]
    return f"no Trial succeeded ({errors[0]})" if errors else "no Trial succeeded"

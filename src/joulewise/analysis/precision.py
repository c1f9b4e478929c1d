"""How well is what was run measured? The interval of a cell's joules per output token, over its very questions.

This is not the interval of the tables. Those ask what other questions of the kind would cost, which repeats cannot
tell, and carry the sensor's gain, which nothing but an external meter can narrow. This one shrinks with repeats, and a
plan's ``target`` asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulewise.analysis.cells import Cell, CellKey, dense, exact_sum, split
from joulewise.analysis.student import quantile
from joulewise.energy.reading import Z95, ComponentName
from joulewise.records import Trial
from joulewise.table import RunTable, rows_to_arrow


@dataclass(frozen=True, slots=True)
class Precision:
    """What a cell's repeats have come to.

    Args:
        key: which cell.
        component: whose joules: the total where it is measured, else the GPU where that is, else the total.
        relative_half_width: half of the 95 % interval over the joules per output token; None where these are unknown.
        repeats: how often its questions were asked.
        duration_s: seconds of its Trials.
    """

    key: CellKey
    component: ComponentName
    relative_half_width: float | None
    repeats: int
    duration_s: float


def precision(cell: Cell) -> Precision:
    """The precision of one cell.

    A Trial's joules differ from the cell's joules per token times its tokens. How much this difference scatters from
    repeat to repeat of a question is seen (Student's t); how much it must from the window's edges and sampling is
    stated (normal). The wider of the two counts; with one repeat there is only the latter.
    """
    measured = [name for name in _COMPONENTS if cell.provenances(name) == {"measured"}]
    component: ComponentName = measured[0] if measured else "total"
    repeats = cell.numbers("repeat")
    energy_j = cell.numbers(f"{component}_energy_j")
    known = ~np.isnan(energy_j)
    energy_j, tokens = energy_j[known], cell.numbers("output_tokens")[known]
    total_j, total_tokens = exact_sum(energy_j), exact_sum(tokens)
    half: float | None = None
    if total_j > 0.0 and total_tokens > 0.0:
        stated_j = math.sqrt(exact_sum(cell.numbers(f"{component}_independent_j")[known] ** 2))
        off_j = energy_j - total_j / total_tokens * tokens
        codes, n = dense(cell.questions[known])
        counts = np.bincount(codes, minlength=n)
        means = np.bincount(codes, off_j, n) / counts
        squares = np.bincount(codes, (off_j - means[codes]) ** 2, n)
        again = counts > 1
        half = Z95 * stated_j
        if again.any():
            seen = exact_sum((counts * squares / np.maximum(counts - 1, 1))[again])
            half = max(half, quantile(0.025, int((counts - 1).sum())) * math.sqrt(seen))
        half /= total_j
    return Precision(
        cell.key,
        component,
        half if half is None or math.isfinite(half) else None,
        int(repeats.max()) + 1 if len(repeats) else 0,
        exact_sum(cell.numbers("duration_s")),
    )


_COMPONENTS: tuple[ComponentName, ...] = ("total", "gpu")


def precision_of(trials: Sequence[Trial]) -> Precision:
    """The same from the Trials of one cell."""
    (cell,) = split(RunTable(rows_to_arrow("run", enumerate(trials))))
    return precision(cell)

"""What does it cost? Joules per token, per output token, per answer and per correct answer, with accuracy and speed.

Energy per token is that of arXiv 2603.20224: joules over prompt *and* output tokens. Each figure is a ratio of sums
over the cell's Trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joulewise.analysis.cells import Cell, CellKey, nothing_to_divide, sum_by_unit, unit_codes, why_no_energy
from joulewise.analysis.intervals import (
    MIN_QUESTIONS,
    TOO_FEW,
    Floats,
    Quantity,
    joint_provenance,
    percentile_interval,
    positive_quantity,
    resample,
    unknown_quantity,
    wilson,
)
from joulewise.energy.reading import ComponentName, Provenance

COMPONENTS: tuple[ComponentName, ...] = ("gpu", "cpu", "dram", "total")
"""The order in which components are shown."""

WH_PER_1000_TOKENS = 1000 / 3600
"""Joules per token into watt-hours per 1,000 tokens, the base unit of arXiv 2602.09113."""

KWH_PER_MILLION_TOKENS = 1_000_000 / 3_600_000
"""Joules per token into kilowatt-hours per million tokens (the same number, as it happens)."""


NO_RIGHT_OR_WRONG = "the task has no right and wrong answers"


@dataclass(frozen=True, slots=True)
class ComponentCost:
    """What one component drew in one cell.

    Args:
        component: ``gpu``, ``cpu``, ``dram`` or ``total``.
        energy_per_token_j: over prompt and output tokens (arXiv 2603.20224).
        energy_per_output_token_j: over output tokens.
        energy_per_answer_j: over Trials.
        energy_per_correct_answer_j: over correct Trials; with none correct it is unbounded and has a lower end only:
            that of the energy per answer over the upper end of the accuracy.
        energy_per_1000_output_tokens_wh, energy_per_million_output_tokens_kwh: the second in other units.
        price_per_1000_output_tokens: in the currency of the price given; None where none was given.
    """

    component: ComponentName
    energy_per_token_j: Quantity
    energy_per_output_token_j: Quantity
    energy_per_answer_j: Quantity
    energy_per_correct_answer_j: Quantity
    energy_per_1000_output_tokens_wh: Quantity
    energy_per_million_output_tokens_kwh: Quantity
    price_per_1000_output_tokens: Quantity | None


@dataclass(frozen=True, slots=True)
class CellCost:
    """What one cell cost, how fast it was, and what its answers were worth.

    Args:
        key: which cell.
        prompt_tokens, output_tokens: sums over the ok Trials.
        accuracy: share of correct answers; unknown where the task has no right and wrong.
        score: mean score, and ``metric`` its name.
        time_per_output_token_s: seconds of the Trials' windows (prefill included) per output token.
        output_tokens_per_second: its inverse.
        components: one entry per component, in the order of ``COMPONENTS``.
    """

    key: CellKey
    prompt_tokens: int
    output_tokens: int
    accuracy: Quantity
    score: Quantity
    metric: str | None
    time_per_output_token_s: Quantity
    output_tokens_per_second: Quantity
    components: tuple[ComponentCost, ...]

    def component(self, name: ComponentName) -> ComponentCost:
        """The entry of one component."""
        return next(c for c in self.components if c.component == name)


def costs(cells: Iterable[Cell], price_per_kwh: float | None = None) -> tuple[CellCost, ...]:
    """The cost of every cell.

    Args:
        cells: from ``split``.
        price_per_kwh: price of a kilowatt-hour, in any currency; None leaves prices out.
    """
    return tuple(cell_cost(cell, price_per_kwh) for cell in cells)


def cell_cost(cell: Cell, price_per_kwh: float | None = None) -> CellCost:
    """The cost of one cell; arguments as for ``costs``."""
    everything = _Sample(cell, np.ones(cell.rows.num_rows, dtype=np.bool_))
    metrics = sorted({m for m in cell.texts("metric") if m is not None})
    accuracy = _accuracy(cell)
    return CellCost(
        cell.key,
        int(cell.numbers("prompt_tokens").sum()),
        int(cell.numbers("output_tokens").sum()),
        accuracy,
        _score(cell),
        ", ".join(metrics) or None,
        everything.ratio("duration_s", "output_tokens", "measured"),
        everything.ratio("output_tokens", "duration_s", "measured"),
        tuple(_component(cell, name, accuracy, price_per_kwh) for name in COMPONENTS),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """Some of a cell's ok Trials."""

    cell: Cell
    keep: npt.NDArray[np.bool_]

    def column(self, name: str) -> Floats:
        """A numeric column; ``prompt_and_output_tokens`` and ``answers`` are made from the others."""
        if name == "prompt_and_output_tokens":
            return self.column("prompt_tokens") + self.column("output_tokens")
        if name == "answers":
            return np.ones(int(self.keep.sum()))
        return self.cell.numbers(name)[self.keep]

    def units(self) -> tuple[npt.NDArray[np.intp], int]:
        """A number for each Trial's question, and how many questions there are."""
        return unit_codes([unit for unit, kept in zip(self.cell.units(), self.keep, strict=True) if kept])

    def ratio(self, above: str, below: str, provenance: Provenance, common: float = 0.0) -> Quantity:
        """Sum of ``above`` over sum of ``below``, with its interval."""
        columns = self.column(above), self.column(below)
        codes, n = self.units()
        if not n:
            return unknown_quantity("no Trial succeeded")
        over, under = (math.fsum(column) for column in columns)
        for name, total in ((above, over), (below, under)):
            if total <= 0.0:
                return unknown_quantity(nothing_to_divide(name), n, len(codes))
        again = resample(sum_by_unit(codes, n, *columns))
        with np.errstate(divide="ignore", invalid="ignore"):
            replicates = again[:, 0] / again[:, 1]
        return positive_quantity(
            over / under,
            replicates[~np.isnan(replicates)],
            n_questions=n,
            n_trials=len(codes),
            provenance=provenance,
            common=common,
        )


def _component(cell: Cell, name: ComponentName, accuracy: Quantity, price_per_kwh: float | None) -> ComponentCost:
    energy = f"{name}_energy_j"
    known = ~np.isnan(cell.numbers(energy))
    sample = _Sample(cell, known)
    if known.any():
        kinds = [kind for kind, kept in zip(cell.texts(f"{name}_provenance"), known, strict=True) if kept]
        provenance, common = joint_provenance(kinds), _common(sample, name)
        per_token, per_output_token, per_answer = (
            sample.ratio(energy, below, provenance, common)
            for below in ("prompt_and_output_tokens", "output_tokens", "answers")
        )
        per_correct = _per_correct(cell, name, known, accuracy, provenance)
    else:
        reason = why_no_energy(name, cell.provenances(name)) if cell.rows.num_rows else "no Trial succeeded"
        per_token = per_output_token = per_answer = per_correct = unknown_quantity(reason)
    return ComponentCost(
        name,
        per_token,
        per_output_token,
        per_answer,
        per_correct,
        per_output_token.scaled(WH_PER_1000_TOKENS),
        per_output_token.scaled(KWH_PER_MILLION_TOKENS),
        None if price_per_kwh is None else per_output_token.scaled(WH_PER_1000_TOKENS / 1000 * price_per_kwh),
    )


def _common(sample: _Sample, component: ComponentName) -> float:
    """The meter's common standard uncertainty of a sum of joules, relative: gain and offset added linearly."""
    energy = math.fsum(sample.column(f"{component}_energy_j"))
    errors = math.fsum(sample.column(f"{component}_gain_j")) + math.fsum(sample.column(f"{component}_offset_j"))
    return errors / energy if energy > 0.0 else math.nan


def _per_correct(
    cell: Cell, component: ComponentName, known: npt.NDArray[np.bool_], accuracy: Quantity, provenance: Provenance
) -> Quantity:
    energy = f"{component}_energy_j"
    judged = _Sample(cell, known & ~np.isnan(cell.numbers("correct")))
    if not judged.keep.any():
        return unknown_quantity(NO_RIGHT_OR_WRONG)
    common = _common(judged, component)
    if judged.column("correct").any():
        return judged.ratio(energy, "correct", provenance, common)
    per_answer = judged.ratio(energy, "answers", provenance, common)
    if per_answer.value is None:
        return per_answer
    lower = None if per_answer.lower is None or not accuracy.upper else per_answer.lower / accuracy.upper
    reason = "no answer is correct"
    return replace(per_answer, value=None, lower=lower, upper=None, unbounded=True, reason=reason)


def _accuracy(cell: Cell) -> Quantity:
    """Wilson's interval over questions; a question's repeats count as one answer that may be partly right."""
    correct = cell.numbers("correct")
    sample = _Sample(cell, ~np.isnan(correct))
    if not sample.keep.any():
        return unknown_quantity(NO_RIGHT_OR_WRONG if len(correct) else "no Trial succeeded")
    value = float(correct[sample.keep].mean())
    codes, n = sample.units()
    lower, upper = wilson(value * n, n)
    return Quantity(value, lower, upper, n, len(codes), "measured")


def _score(cell: Cell) -> Quantity:
    """Mean score over Trials; bootstrap over questions on the linear scale, cut to 0 and 1."""
    score = cell.numbers("score")
    sample = _Sample(cell, ~np.isnan(score))
    if not sample.keep.any():
        return unknown_quantity("nothing was scored" if len(score) else "no Trial succeeded")
    score = score[sample.keep]
    codes, n = sample.units()
    value = float(score.mean())
    if n < MIN_QUESTIONS:
        return Quantity(value, None, None, n, len(codes), "measured", TOO_FEW)
    again = resample(sum_by_unit(codes, n, score, np.ones(len(score))))
    low, high = percentile_interval(again[:, 0] / again[:, 1], n)
    return Quantity(value, max(0.0, min(low, value)), min(1.0, max(high, value)), n, len(codes), "measured")

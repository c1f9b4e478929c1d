"""What does it cost? Joules per token, per output token, per answer and per correct answer, with accuracy and speed.

Energy per token is that of arXiv 2603.20224: joules over prompt *and* output tokens. Each figure is a ratio of sums
over the cell's Trials.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from joulewise.analysis.cells import (
    Cell,
    CellKey,
    dense,
    exact_sum,
    nothing_to_divide,
    parts_of,
    sum_by_unit,
    why_no_energy,
)
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
from joulewise.analysis.net import NOT_MEASURED, Idle, NetCost, common_j, idle_powers, net_quantity, sum_idle
from joulewise.energy.reading import ComponentName, Provenance

COMPONENTS: tuple[ComponentName, ...] = ("gpu", "cpu", "dram", "total")
"""The order in which components are shown."""

WH_PER_1000_TOKENS = 1000 / 3600
"""Joules per token into watt-hours per 1,000 tokens, the base unit of arXiv 2602.09113."""

KWH_PER_MILLION_TOKENS = 1_000_000 / 3_600_000
"""Joules per token into kilowatt-hours per million tokens (the same number, as it happens)."""


NO_RIGHT_OR_WRONG = "the task has no right and wrong answers"
NONE_CORRECT = "no answer is correct"


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
        correct_answers_per_kj: its inverse, over a kilojoule.
        energy_per_1000_output_tokens_wh, energy_per_million_output_tokens_kwh: the second in other units.
        price_per_1000_output_tokens: in the currency of the price given; None where none was given.
        net: the same less what idling would have drawn; all the others are gross.
    """

    component: ComponentName
    energy_per_token_j: Quantity
    energy_per_output_token_j: Quantity
    energy_per_answer_j: Quantity
    energy_per_correct_answer_j: Quantity
    correct_answers_per_kj: Quantity
    energy_per_1000_output_tokens_wh: Quantity
    energy_per_million_output_tokens_kwh: Quantity
    price_per_1000_output_tokens: Quantity | None
    net: NetCost


@dataclass(frozen=True, slots=True)
class CellCost:
    """What one cell cost, how fast it was, and what its answers were worth.

    Args:
        key: which cell.
        prompt_tokens, output_tokens: sums over the ok Trials.
        requests_per_answer: mean over the ok Trials: turns, and the samples of a vote; None without any.
        accuracy: share of correct answers; unknown where the task has no right and wrong.
        score: mean score, and ``metric`` its name.
        unscored: ok Trials whose answer nothing scores; they are not wrong.
        score_notes: how answers failed, where the scorer can say so, and how many did, the most frequent first.
        time_per_output_token_s: seconds of the Trials' windows (prefill included) per output token.
        output_tokens_per_second: its inverse.
        components: one entry per component, in the order of ``COMPONENTS``.
    """

    key: CellKey
    prompt_tokens: int
    output_tokens: int
    requests_per_answer: float | None
    accuracy: Quantity
    score: Quantity
    metric: str | None
    unscored: int
    score_notes: tuple[tuple[str, int], ...]
    time_per_output_token_s: Quantity
    output_tokens_per_second: Quantity
    components: tuple[ComponentCost, ...]

    def component(self, name: ComponentName) -> ComponentCost:
        """The entry of one component."""
        return next(c for c in self.components if c.component == name)


Environments: TypeAlias = Mapping[str, Mapping[str, Any]]


def costs(
    cells: Iterable[Cell], price_per_kwh: float | None = None, environments: Environments = MappingProxyType({})
) -> tuple[CellCost, ...]:
    """The cost of every cell.

    Args:
        cells: from ``split``.
        price_per_kwh: price of a kilowatt-hour, in any currency; None leaves prices out.
        environments: as in ``RunTable``: they tell the idle power, without which net joules are unknown.
    """
    return tuple(cell_cost(cell, price_per_kwh, environments) for cell in cells)


def cell_cost(
    cell: Cell, price_per_kwh: float | None = None, environments: Environments = MappingProxyType({})
) -> CellCost:
    """The cost of one cell; arguments as for ``costs``."""
    idle = idle_powers(environments.get(cell.key.run, {}), cell.key.engine)
    samples: dict[bytes, _Sample] = {}

    def sample(keep: npt.NDArray[np.bool_]) -> _Sample:
        """One for the same Trials, so that they are resampled once."""
        return samples.setdefault(keep.tobytes(), _Sample(cell, keep))

    everything = sample(np.ones(cell.rows.num_rows, dtype=np.bool_))
    metrics = sorted(m for m in cell.rows["metric"].unique().to_pylist() if m is not None)
    notes = Counter(note for note in cell.texts("score_note") if note)
    accuracy = _accuracy(cell, sample)
    return CellCost(
        cell.key,
        int(cell.numbers("prompt_tokens").sum()),
        int(cell.numbers("output_tokens").sum()),
        pc.mean(cell.rows["generation_count"]).as_py(),
        accuracy,
        _score(cell, sample),
        ", ".join(metrics) or None,
        cell.rows["score"].null_count,
        tuple(sorted(notes.items(), key=lambda item: (-item[1], item[0]))),
        everything.ratio("duration_s", "output_tokens", "measured"),
        everything.ratio("output_tokens", "duration_s", "measured"),
        tuple(_component(cell, name, accuracy, price_per_kwh, idle, sample) for name in COMPONENTS),
    )


_RESAMPLED = (
    "duration_s",
    "output_tokens",
    "prompt_and_output_tokens",
    "answers",
    "score",
    "correct",
    *(f"{component}_energy_j" for component in COMPONENTS),
)


class _Sample:
    """Some of a cell's ok Trials.

    Args:
        cell: the cell.
        keep: which of its Trials, shape ``(Trials,)``.
    """

    def __init__(self, cell: Cell, keep: npt.NDArray[np.bool_]) -> None:
        self.cell = cell
        self.keep = keep
        self.codes, self.n = dense(cell.questions[keep])

    def column(self, name: str) -> Floats:
        """A numeric column; ``prompt_and_output_tokens`` and ``answers`` are made from the others."""
        if name == "prompt_and_output_tokens":
            return self.column("prompt_tokens") + self.column("output_tokens")
        if name == "answers":
            return np.ones(len(self.codes))
        return self.cell.numbers(name)[self.keep]

    def provenances(self, component: ComponentName) -> list[str | None]:
        """All provenances of a component's joules."""
        found: list[str | None] = (
            self.cell.rows[f"{component}_provenance"].filter(pa.array(self.keep)).unique().to_pylist()
        )
        return found

    @cached_property
    def again(self) -> dict[str, Floats]:
        """Sums over bootstrap samples of the questions of the columns in ``_RESAMPLED`` that are known throughout."""
        columns = {name: self.column(name) for name in _RESAMPLED}
        known = {name: column for name, column in columns.items() if not np.isnan(column).any()}
        return dict(zip(known, resample(sum_by_unit(self.codes, self.n, *known.values())).T, strict=True))

    def ratio(self, above: str, below: str, provenance: Provenance, common: float = 0.0) -> Quantity:
        """Sum of ``above`` over sum of ``below``, with its interval."""
        if not self.n:
            return unknown_quantity("no Trial succeeded")
        over, under = exact_sum(self.column(above)), exact_sum(self.column(below))
        for name, total in ((above, over), (below, under)):
            if total <= 0.0:
                return unknown_quantity(nothing_to_divide(name), self.n, len(self.codes))
        with np.errstate(divide="ignore", invalid="ignore"):
            replicates = self.again[above] / self.again[below]
        return positive_quantity(
            over / under,
            replicates[~np.isnan(replicates)],
            n_questions=self.n,
            n_trials=len(self.codes),
            provenance=provenance,
            common=common,
        )


_MakeSample: TypeAlias = Callable[[npt.NDArray[np.bool_]], _Sample]


def _component(
    cell: Cell,
    name: ComponentName,
    accuracy: Quantity,
    price_per_kwh: float | None,
    idle: Mapping[str, Idle],
    make_sample: _MakeSample,
) -> ComponentCost:
    energy = f"{name}_energy_j"
    known = ~np.isnan(cell.numbers(energy))
    sample = make_sample(known)
    if known.any():
        provenance, common = joint_provenance(sample.provenances(name)), _common(sample, name)
        per_token, per_output_token, per_answer = (
            sample.ratio(energy, below, provenance, common)
            for below in ("prompt_and_output_tokens", "output_tokens", "answers")
        )
        per_correct = _per_correct(cell, name, known, accuracy, provenance, make_sample)
        net = _net(sample, name, idle)
    else:
        reason = why_no_energy(name, cell.provenances(name)) if cell.rows.num_rows else "no Trial succeeded"
        per_token = per_output_token = per_answer = per_correct = unknown_quantity(reason)
        net = NetCost(None, per_answer, per_answer)
    return ComponentCost(
        name,
        per_token,
        per_output_token,
        per_answer,
        per_correct,
        correct_per_kj(per_correct),
        per_output_token.scaled(WH_PER_1000_TOKENS),
        per_output_token.scaled(KWH_PER_MILLION_TOKENS),
        None if price_per_kwh is None else per_output_token.scaled(WH_PER_1000_TOKENS / 1000 * price_per_kwh),
        net,
    )


def _net(sample: _Sample, component: ComponentName, idle: Mapping[str, Idle]) -> NetCost:
    parts = parts_of(component, sample.cell.provenances)
    if not all(part in idle for part in parts):
        missing = unknown_quantity(NOT_MEASURED, sample.n, len(sample.codes))
        return NetCost(None, missing, missing)
    taken = sum_idle([idle[part] for part in parts])
    duration_s = exact_sum(sample.column("duration_s"))
    energy_j, gain_j = (
        {part: exact_sum(sample.column(f"{part}_{name}_j")) for part in parts} for name in ("energy", "gain")
    )
    common = common_j(parts, energy_j, gain_j, idle, duration_s)
    net_j = exact_sum(sample.column(f"{component}_energy_j")) - taken.power_w * duration_s
    again_j = sample.again[f"{component}_energy_j"] - taken.power_w * sample.again["duration_s"]
    provenances = (*sample.provenances(component), taken.provenance)

    def over(below: str) -> Quantity:
        under = exact_sum(sample.column(below))
        if under <= 0.0:
            return unknown_quantity(nothing_to_divide(below), sample.n, len(sample.codes))
        with np.errstate(divide="ignore", invalid="ignore"):
            replicates = again_j / sample.again[below]
        return net_quantity(
            net_j / under,
            replicates,
            common=common / under,
            n_questions=sample.n,
            n_trials=len(sample.codes),
            provenances=provenances,
        )

    return NetCost(taken, over("output_tokens"), over("answers"))


def _common(sample: _Sample, component: ComponentName) -> float:
    """The meter's common standard uncertainty of a sum of joules, relative: gain and offset added linearly."""
    energy = exact_sum(sample.column(f"{component}_energy_j"))
    errors = exact_sum(sample.column(f"{component}_gain_j")) + exact_sum(sample.column(f"{component}_offset_j"))
    return errors / energy if energy > 0.0 else math.nan


def _per_correct(
    cell: Cell,
    component: ComponentName,
    known: npt.NDArray[np.bool_],
    accuracy: Quantity,
    provenance: Provenance,
    make_sample: _MakeSample,
) -> Quantity:
    energy = f"{component}_energy_j"
    judged = make_sample(known & ~np.isnan(cell.numbers("correct")))
    if not judged.keep.any():
        return unknown_quantity(NO_RIGHT_OR_WRONG)
    common = _common(judged, component)
    if judged.column("correct").any():
        return judged.ratio(energy, "correct", provenance, common)
    per_answer = judged.ratio(energy, "answers", provenance, common)
    return none_correct(per_answer, accuracy)


def none_correct(per_answer: Quantity, accuracy: Quantity) -> Quantity:
    """Joules per correct answer where there is none: unbounded, with a lower end.

    Args:
        per_answer: joules per answer.
        accuracy: the share of correct answers, 0, with its interval.
    """
    if per_answer.value is None:
        return per_answer
    lower = None if per_answer.lower is None or not accuracy.upper else per_answer.lower / accuracy.upper
    return replace(per_answer, value=None, lower=lower, upper=None, unbounded=True, reason=NONE_CORRECT)


def correct_per_kj(per_correct: Quantity) -> Quantity:
    """Correct answers per kilojoule: 1,000 over the joules per correct answer, and 0 where no answer is correct."""
    if per_correct.value is None and not per_correct.unbounded:
        return per_correct
    return replace(
        per_correct,
        value=0.0 if per_correct.value is None else 1000.0 / per_correct.value,
        lower=0.0 if per_correct.unbounded else None if per_correct.upper is None else 1000.0 / per_correct.upper,
        upper=None if per_correct.lower is None else 1000.0 / per_correct.lower,
        unbounded=False,
    )


def _accuracy(cell: Cell, make_sample: _MakeSample) -> Quantity:
    """Wilson's interval over questions; a question's repeats count as one answer that may be partly right."""
    correct = cell.numbers("correct")
    sample = make_sample(~np.isnan(correct))
    if not sample.n:
        return unknown_quantity(NO_RIGHT_OR_WRONG if len(correct) else "no Trial succeeded")
    value = float(correct[sample.keep].mean())
    lower, upper = wilson(value * sample.n, sample.n)
    return Quantity(value, lower, upper, sample.n, len(sample.codes), "measured")


def _score(cell: Cell, make_sample: _MakeSample) -> Quantity:
    """Mean score over Trials; bootstrap over questions on the linear scale, cut to 0 and 1."""
    score = cell.numbers("score")
    sample = make_sample(~np.isnan(score))
    n, n_trials = sample.n, len(sample.codes)
    if not n:
        return unknown_quantity("nothing was scored" if len(score) else "no Trial succeeded")
    value = float(score[sample.keep].mean())
    if n < MIN_QUESTIONS:
        return Quantity(value, None, None, n, n_trials, "measured", TOO_FEW)
    low, high = percentile_interval(sample.again["score"] / sample.again["answers"], n)
    return Quantity(value, max(0.0, min(low, value)), min(1.0, max(high, value)), n, n_trials, "measured")

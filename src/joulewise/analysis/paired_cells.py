"""Trials of two sides, paired by cell, question (id and hash) and repeat: what a comparison is made of."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from joulewise.analysis.cells import (
    Cell,
    Unit,
    nothing_to_divide,
    parts_of,
    split,
    sum_by_unit,
    unit_codes,
    why_no_energy,
)
from joulewise.analysis.intervals import Floats, Quantity, joint_provenance, unknown_quantity
from joulewise.analysis.log_ratio import LogRatio, log_ratio
from joulewise.analysis.net import idle_readings
from joulewise.energy.reading import Z95, ComponentName, Provenance
from joulewise.table import RunTable

MIN_CORRECT = 5
"""With fewer correct answers on a side, joules per correct answer hang on a single answer."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that is compared: sum of joules or seconds over the sum of ``below``; less is better."""

    name: str
    energy: bool
    below: str
    unit: str
    words: str


METRICS = {
    m.name: m
    for m in (
        Metric("energy_per_output_token_j", True, "output_tokens", "J", "joules per output token"),
        Metric("energy_per_token_j", True, "prompt_and_output_tokens", "J", "joules per token (prompt and output)"),
        Metric("energy_per_answer_j", True, "answers", "J", "joules per answer"),
        Metric("energy_per_correct_answer_j", True, "correct", "J", "joules per correct answer"),
        Metric("duration_per_output_token_s", False, "output_tokens", "s", "seconds per output token"),
        Metric("duration_per_answer_s", False, "answers", "s", "seconds per answer"),
    )
}
"""By name."""

CellName: TypeAlias = tuple[str, str, str, str]
"""Engine, reasoning, task, decoding: by label, as models may differ under ``allow_different``."""

_Side: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PairedCell:
    """One cell on both sides, over the questions and repeats that every run of either side answered.

    Args:
        engine, reasoning, task, decoding: which.
        base, new: the figure on either side; None where it cannot be formed.
        ratio: NEW / BASE; None where it cannot be formed.
        runs: the logarithm of the figure in each run, by side.
        provenance: of the joules or seconds.
        reason: why there is no ratio, no interval, or no verdict.
        common: the meter's common standard uncertainty of the ratio, relative; 0 for times.
        drift: the most that drift of the idle power between the sides may have done, relative.
        units: the questions, in the order of ``ratio.pulls``.
        trials: pairs.
        outputs_changed, accuracy_base, accuracy_new, lost, gained, only_base, only_new, no_figure: as in
            ``compare.Change``.
    """

    engine: str
    reasoning: str
    task: str
    decoding: str
    base: float | None
    new: float | None
    ratio: LogRatio | None
    runs: tuple[tuple[float, ...], tuple[float, ...]]
    provenance: Provenance
    reason: str | None
    common: float
    drift: float
    units: tuple[Unit, ...]
    trials: int
    outputs_changed: int | None
    accuracy_base: float | None
    accuracy_new: float | None
    lost: int
    gained: int
    only_base: int
    only_new: int
    no_figure: int

    @property
    def questions(self) -> int:
        """How many questions are paired."""
        return len(self.units)

    @property
    def judged(self) -> bool:
        """Whether a verdict can be given: measured, and with an interval."""
        return self.reason is None and self.ratio is not None and self.ratio.questions_se is not None

    def quantity(self) -> Quantity:
        """The ratio, yet without its interval."""
        if self.ratio is None:
            return unknown_quantity(self.reason or "unknown", self.questions, self.trials)
        value = math.exp(self.ratio.value)
        return Quantity(
            value, None, None, self.questions, self.trials, self.provenance, self.reason, common=self.common
        )


def choose_component(base: RunTable, new: RunTable) -> ComponentName:
    """The GPU where it alone is measured on both sides, else the total: the component that a report shows first."""

    def measured(component: str) -> bool:
        kinds = [kind for t in (base, new) for kind in t.arrow[f"{component}_provenance"].unique().to_pylist()]
        return joint_provenance(k for k in kinds if k is not None) == "measured"

    return "gpu" if measured("gpu") and not measured("total") else "total"


def pair_cells(
    base: RunTable, new: RunTable, metric: Metric, component: ComponentName | None, alike: bool, *, both_greedy: bool
) -> tuple[list[PairedCell], list[tuple[str, str]]]:
    """Every cell that both sides have, and the names of those that one lacks, with the side that lacks it.

    Args:
        base, new: the sides.
        metric: what is compared.
        component: whose joules; None for times.
        alike: whether all runs were on the same cards.
        both_greedy: whether equal outputs are to be expected.
    """
    sides = [_by_name(base), _by_name(new)]
    pairs, lacking = [], []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        cells = [side.get(name) for side in sides]
        if cells[0] and cells[1]:
            pair = _Pair(tuple(cells[0]), tuple(cells[1]), metric.below, component)
            drift = 0.0 if component is None else _drift(pair, (base, new), name[0], component)
            blind = component is not None and not alike and _gain_unknown((base, new), component)
            pairs.append(_paired(name, pair, alike, drift, blind, both_greedy))
        else:
            lacking.append(("/".join((name[0], name[3], name[1], name[2])), "NEW" if cells[0] else "BASE"))
    return pairs, lacking


def _by_name(table: RunTable) -> dict[CellName, list[Cell]]:
    found: dict[CellName, list[Cell]] = defaultdict(list)
    for cell in split(RunTable(table.arrow)):
        found[cell.key.engine, cell.key.reasoning, cell.key.task, cell.key.decoding].append(cell)
    return dict(found)


class _Pair:
    """Rows of the same question and repeat in every run of two sides, with known joules and tokens."""

    def __init__(self, base: _Side, new: _Side, below: str, component: ComponentName | None) -> None:
        self.sides = (base, new)
        self.above = "duration_s" if component is None else f"{component}_energy_j"
        self.below = below
        self.component = component
        places = [[self._places(cell) for cell in side] for side in self.sides]
        self.keys = sorted(set.intersection(*(set(there) for side in places for there in side)))
        self.rows = [[np.array([there[k] for k in self.keys], np.intp) for there in side] for side in places]
        self.codes, self.n = unit_codes([unit for unit, _ in self.keys])
        self.units = tuple(sorted({unit for unit, _ in self.keys}))

    def _places(self, cell: Cell) -> dict[tuple[Unit, int], int]:
        known = ~np.isnan(_column(cell, self.above)) & ~np.isnan(_column(cell, self.below))
        return {key: i for i, key in enumerate(_keys(cell)) if known[i]}

    def columns(self, name: str, side: int) -> list[Floats]:
        """A column in each run of a side, in the order of the pairs."""
        return [_column(c, name)[rows] for c, rows in zip(self.sides[side], self.rows[side], strict=True)]

    def total(self, name: str, side: int) -> float:
        """A column's sum in a run of a side, on average."""
        columns = self.columns(name, side)
        return math.fsum(math.fsum(column) for column in columns) / len(columns)

    def texts(self, name: str, side: int) -> list[npt.NDArray[Any]]:
        """A text column in each run of a side."""
        cells = zip(self.sides[side], self.rows[side], strict=True)
        return [np.array(cell.texts(name), dtype=object)[rows] for cell, rows in cells]

    def provenances(self, component: str) -> set[str | None]:
        """The provenances of a component's joules in all pairs."""
        return {kind for s in (0, 1) for column in self.texts(f"{component}_provenance", s) for kind in column}

    def sums(self, side: int) -> Floats:
        """By question, the sums of what is above and below the fraction: shape ``(questions, 2)``."""
        above, below = (np.mean(self.columns(name, side), axis=0) for name in (self.above, self.below))
        return sum_by_unit(self.codes, self.n, above, below)

    def logs(self, side: int) -> tuple[float, ...]:
        """The logarithm of the figure in each run."""
        runs = zip(self.columns(self.above, side), self.columns(self.below, side), strict=True)
        sums = [(math.fsum(above), math.fsum(below)) for above, below in runs]
        return tuple(math.log(a / b) if a > 0.0 and b > 0.0 else math.nan for a, b in sums)


def _keys(cell: Cell) -> list[tuple[Unit, int]]:
    """Question and repeat of each ok Trial."""
    return list(zip(cell.units(), cell.rows["repeat"].to_pylist(), strict=True))


def _column(cell: Cell, name: str) -> Floats:
    if name == "prompt_and_output_tokens":
        return cell.numbers("prompt_tokens") + cell.numbers("output_tokens")
    return np.ones(cell.rows.num_rows) if name == "answers" else cell.numbers(name)


def _paired(name: CellName, pair: _Pair, alike: bool, drift: float, blind: bool, both_greedy: bool) -> PairedCell:
    tried = [{unit for cell in side for unit in cell.all_units()} for side in pair.sides]
    answered = {unit for unit, _ in set.intersection(*(set(_keys(cell)) for side in pair.sides for cell in side))}
    accuracy, lost, gained = _accuracies(pair)
    whole = PairedCell(
        *name,
        None,
        None,
        None,
        ((), ()),
        "unknown",
        _why_nothing(pair),
        0.0,
        drift,
        pair.units,
        len(pair.keys),
        _outputs_changed(pair) if both_greedy else None,
        *accuracy,
        lost,
        gained,
        len(tried[0] - answered),
        len(tried[1] - answered),
        len(answered - set(pair.units)),
    )
    if whole.reason is not None:
        return whole
    base, new = pair.sums(0), pair.sums(1)
    figures = [float(side[:, 0].sum() / side[:, 1].sum()) for side in (base, new)]
    component = pair.component
    provenance = "measured" if component is None else joint_provenance(pair.provenances(component))
    common = 0.0 if component is None else _common(pair, component, alike)
    ratio = log_ratio(base, new)
    reason = ratio.reason
    if not math.isfinite(common):
        reason, ratio = "the ledger does not say how far the meter can be trusted", replace(ratio, questions_se=None)
    elif pair.below == "correct" and min(pair.total("correct", s) for s in (0, 1)) < MIN_CORRECT:
        reason, ratio = f"fewer than {MIN_CORRECT} correct answers", replace(ratio, questions_se=None)
    elif provenance != "measured":
        reason = "the joules are modelled, not measured: a model follows time; compare duration_per_output_token_s"
    elif blind:
        reason = "the runs were on different cards, and how far their sensors may differ is not known"
    return replace(
        whole,
        base=figures[0],
        new=figures[1],
        ratio=ratio,
        runs=(pair.logs(0), pair.logs(1)),
        provenance=provenance,
        reason=reason,
        common=common,
    )


def _why_nothing(pair: _Pair) -> str | None:
    """Why no ratio can be formed; None where one can."""
    if not pair.keys:
        component = pair.component
        cells = [cell for side in pair.sides for cell in side]
        for cell in cells:
            if component is not None and cell.rows.num_rows and np.isnan(cell.numbers(pair.above)).all():
                return why_no_energy(component, cell.provenances(component))
        if pair.below == "correct" and any(np.isnan(cell.numbers("correct")).all() for cell in cells):
            return "the task has no right and wrong answers"
        return "no question was answered on both sides"
    for name in (pair.above, pair.below):
        if any(column.sum() <= 0.0 for side in (0, 1) for column in pair.columns(name, side)):
            return "a run has no correct answer" if name == "correct" else nothing_to_divide(name)
    return None


def _common(pair: _Pair, component: ComponentName, alike: bool) -> float:
    """What the meters' common errors can do to ln(NEW / BASE): one standard uncertainty.

    On the same cards gain and offset are the same unknown numbers on both sides, and only the difference of their
    shares counts (as for a saving). On other cards each side errs by itself, with gain and offset in full.
    """
    energies = [pair.total(f"{component}_energy_j", side) for side in (0, 1)]
    terms = []
    for part in parts_of(component, pair.provenances):
        gains, offsets = (
            [pair.total(f"{part}_{error}_j", side) / energies[side] for side in (0, 1)] for error in ("gain", "offset")
        )
        if alike:
            terms += [abs(gains[0] - gains[1]), abs(offsets[0] - offsets[1])]
        else:
            terms.append(math.hypot(gains[0] + offsets[0], gains[1] + offsets[1]))
    return math.fsum(terms)


def _drift(pair: _Pair, tables: Sequence[RunTable], engine: str, component: ComponentName) -> float:
    """The change of idle power from side to side, beyond what its own measurement explains, over the whole time."""
    energies = [pair.total(pair.above, side) for side in (0, 1)]
    if not pair.keys or min(energies) <= 0.0:
        return 0.0
    seconds_per_joule = max(pair.total("duration_s", side) / energies[side] for side in (0, 1))
    moved_w = 0.0
    for part in parts_of(component, pair.provenances):
        sides = [_idle(table, engine, part) for table in tables]
        if sides[0] and sides[1]:
            (before, u_before), (after, u_after) = (
                (_mean([p for p, _ in s]), _of_mean([u for _, u in s])) for s in sides
            )
            moved_w += max(0.0, abs(after - before) - Z95 * math.hypot(u_before, u_after))
    return moved_w * seconds_per_joule


def _idle(table: RunTable, engine: str, component: str) -> list[tuple[float, float]]:
    """Measured idle power in each run and its standard uncertainty."""
    return [
        (reading.power_w, reading.standard_w)
        for environment in table.environments.values()
        for reading in idle_readings(environment, engine, component)
        if reading.provenance == "measured"
    ]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _of_mean(uncertainties: Sequence[float]) -> float:
    return math.hypot(*uncertainties) / len(uncertainties)


def _gain_unknown(tables: Iterable[RunTable], component: ComponentName) -> bool:
    parts = ("gpu", "cpu", "dram") if component == "total" else (component,)
    sources = (s for t in tables for e in t.environments.values() for part in parts for s in _sources(e, part))
    return any(s.get("provenance") == "measured" and s.get("gain") is None for s in sources)


def _sources(environment: Mapping[str, Any], component: str) -> list[Mapping[str, Any]]:
    return [s for s in environment.get("sources") or [] if s.get("component") == component]


def _outputs_changed(pair: _Pair) -> int | None:
    """Pairs of which no output on one side is among those of the other."""
    base, new = pair.texts("output_hash", 0), pair.texts("output_hash", 1)
    if any(None in set(column) for column in (*base, *new)):
        return None
    pairs = zip(zip(*base, strict=True), zip(*new, strict=True), strict=True)
    return sum(set(ours).isdisjoint(theirs) for ours, theirs in pairs)


def _accuracies(pair: _Pair) -> tuple[tuple[float | None, float | None], int, int]:
    """Share of correct answers on either side, and how many answers became wrong and right."""
    if not pair.keys:
        return (None, None), 0, 0
    base, new = (np.mean(pair.columns("correct", side), axis=0) for side in (0, 1))
    judged = ~np.isnan(base) & ~np.isnan(new)
    if not judged.any():
        return (None, None), 0, 0
    base, new = base[judged], new[judged]
    return (float(base.mean()), float(new.mean())), int((new < base).sum()), int((new > base).sum())

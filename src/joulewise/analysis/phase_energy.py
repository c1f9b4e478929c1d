"""What did each phase of the generations draw? Joules by phase, from seconds by phase and joules by Trial.

A phase lasts microseconds to milliseconds and a counter steps every tenth of a second, so no power can be integrated
over one. But Trials differ in how their seconds divide (prompts and outputs of other lengths, other decodings), and in
their joules. Over a run's Trials of one engine, model and reasoning each phase is taken to draw one power,

    E_i = sum over phases p of P_p t_ip,

and the P_p >= 0 follow by weighted least squares. The target's and a draft's forwards after the prompt are other work
in every family of decodings (a plain step reads one token, a tree sixty), so these have a power for each family.

What that is worth is told by the closure: every Trial's joules are foretold by powers that were fitted without its
question, and where a cell's sum misses the meter's by 1 % or more, its small rows are not resolvable.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulewise.analysis.cells import (
    Cell,
    CellKey,
    Components,
    Integers,
    dense,
    exact_sum,
    parts_of,
    sum_by_unit,
    why_no_energy,
)
from joulewise.analysis.explain import family
from joulewise.analysis.intervals import (
    MIN_QUESTIONS,
    TOO_FEW,
    Floats,
    Quantity,
    percentile_interval,
    resample,
    unknown_quantity,
)
from joulewise.analysis.least_squares import non_negative
from joulewise.analysis.net import idle_powers, sum_idle
from joulewise.analysis.phases import OVERHEAD
from joulewise.energy.reading import ComponentName
from joulewise.engines.engine import PHASES

OF_A_FAMILY = ("draft_prefill", "draft", "verify")
"""Phases that have a power for each family of decodings; vanilla is one, and its ``verify`` are plain steps."""

CLOSURE = 0.01
"""The closure error is to stay below this share of the measured joules, and smaller rows are not told. It is also the
least relative uncertainty that a Trial enters the fit with: the model is not trusted further."""

CLEAR = 10.0
"""Where it does not, only rows of at least this many times the closure error are told."""

TOLD_APART = 0.03
"""A phase whose seconds the others foretell to within this share of their size (r.m.s.) is not told apart."""

MODELLED = "its joules are modelled, not measured"
WIDE = "the 95 % interval is wider than the figure"
SMALL = "less than 1 % of the joules or seconds, which is how close their sum is held"
OPEN = "the closure error is 1 % or more, and the row not ten times that"
ACROSS = "a phase of it always varies with one that is not of it"
ELSEWHERE = "it always varies with a phase of other decodings"


@dataclass(frozen=True, slots=True)
class PhasePower:
    """What one phase draws, or several that cannot be told apart.

    Args:
        phases: names, such as ``prefill``, ``draft of coga``.
        seconds: spent in them.
        power_w: fitted, in watts; its interval is that of other questions, the sensor's gain and offset apart. None
            where it is not resolvable.
    """

    phases: tuple[str, ...]
    seconds: float
    power_w: Quantity


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase's joules in a cell, or those of several that cannot be told apart.

    Args:
        phases: of ``PHASES``, the longest first.
        share: of the cell's measured joules; None where it is not resolvable.
    """

    phases: tuple[str, ...]
    share: Quantity


@dataclass(frozen=True, slots=True)
class CellPhases:
    """A cell's joules by phase.

    Args:
        key: which cell.
        energy_j: measured, of the Trials that tell phases.
        rows: of the phases that have seconds; before unresolvable ones are left out they sum to 1 + ``closure``.
        overhead: share of ``OVERHEAD`` together.
        closure: sum of all rows over the measured joules, less 1.
        idle_share: what the same seconds at idle power draw, over the measured joules; None where idle power is not
            known.
    """

    key: CellKey
    energy_j: float
    rows: tuple[PhaseRow, ...]
    overhead: Quantity
    closure: Quantity
    idle_share: float | None


@dataclass(frozen=True, slots=True)
class PhaseEnergy:
    """Joules by phase of one run, engine, model and reasoning.

    Args:
        head: these.
        component: whose joules.
        powers: by phase, in the order of ``PHASES``; phases without seconds are not there.
        idle_w: idle power, weights resident; None where it is not known.
        cells: the cells with phases and joules.
        reason: why nothing can be told; None where something can be, and then ``powers`` and ``cells`` are not empty.
    """

    head: tuple[str, str, str, str]
    component: ComponentName
    powers: tuple[PhasePower, ...] = ()
    idle_w: float | None = None
    cells: tuple[CellPhases, ...] = ()
    reason: str | None = None


def phase_energies(
    cells: Iterable[Cell], components: Components, environments: Mapping[str, Mapping[str, Any]]
) -> tuple[PhaseEnergy, ...]:
    """One for each run, engine, model and reasoning whose engine tells phases apart.

    Args:
        cells: from ``split``.
        components: whose joules to tell.
        environments: as in ``RunTable``.
    """
    by_head: dict[tuple[str, str, str, str], list[Cell]] = {}
    for cell in cells:
        if (~np.isnan(cell.numbers(f"phase_{PHASES[0]}_s"))).any():
            by_head.setdefault(cell.key.head, []).append(cell)
    return tuple(
        _phase_energy(head, found, components[head], environments.get(head[0], {})) for head, found in by_head.items()
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A cell's Trials that tell both phases and joules.

    Args:
        key: which cell.
        seconds: by phase, shape ``(Trials, PHASES)``; what a window holds beyond its generations is the host's.
        energy_j: measured.
        standard_j: standard uncertainty, gain and offset apart.
        questions: numbers as in ``Cell``.
    """

    key: CellKey
    seconds: Floats
    energy_j: Floats
    standard_j: Floats
    questions: Integers


def _part(cell: Cell, component: ComponentName) -> _Part:
    seconds = np.column_stack([cell.numbers(f"phase_{phase}_s") for phase in PHASES])
    seconds[:, PHASES.index("host")] += np.maximum(cell.numbers("duration_s") - seconds.sum(axis=1), 0.0)
    energy_j, standard_j = cell.numbers(f"{component}_energy_j"), cell.numbers(f"{component}_independent_j")
    known = np.isfinite(seconds).all(axis=1) & (seconds.sum(axis=1) > 0.0) & np.isfinite(standard_j) & (energy_j > 0.0)
    return _Part(cell.key, seconds[known], energy_j[known], standard_j[known], cell.questions[known])


def _phase_energy(
    head: tuple[str, str, str, str], cells: Sequence[Cell], component: ComponentName, environment: Mapping[str, Any]
) -> PhaseEnergy:
    parts = [part for part in (_part(cell, component) for cell in cells) if len(part.energy_j)]
    kinds = {kind for cell in cells for kind in cell.provenances(component)}
    if "modelled" in kinds:
        return PhaseEnergy(head, component, reason=MODELLED)
    if not parts:
        return PhaseEnergy(head, component, reason=why_no_energy(component, kinds))
    energy_j = np.concatenate([part.energy_j for part in parts])
    standard_j = np.concatenate([part.standard_j for part in parts])
    weights = 1.0 / (standard_j**2 + (CLOSURE * energy_j) ** 2)
    codes, n = dense(np.concatenate([part.questions for part in parts]))
    groups, columns = _told_apart(parts, weights)
    k = len(groups)
    ends = np.cumsum([0, *(len(part.energy_j) for part in parts)])
    slices = [slice(start, end) for start, end in itertools.pairwise(ends.tolist())]
    most = max(int(columns[at].any(axis=0).sum()) for at in slices)
    units = n - most + 1  # what the powers of a cell leave free, and one
    if units < MIN_QUESTIONS:
        return PhaseEnergy(head, component, reason=f"{n} questions are too few to tell {most} phases apart")

    products = [weights * columns[:, i] * columns[:, j] for i in range(k) for j in range(k)]
    equations = sum_by_unit(codes, n, *products, *(weights * energy_j * column for column in columns.T))
    fitted = _solved(equations.sum(axis=0, keepdims=True), k)[0]
    foretold = _solved(equations.sum(axis=0) - equations, k)[codes] * columns  # by the other questions' powers
    sums = [sum_by_unit(codes[at], n, *columns[at].T, foretold[at].sum(axis=1), energy_j[at]) for at in slices]
    again = resample(np.hstack([equations, *sums]))
    again, *samples = np.split(again, k * (k + 1) + (k + 2) * np.arange(len(parts)), axis=1)
    powers = _solved(again, k)
    told = []
    for i, group in enumerate(groups):
        at = columns[:, i] > 0.0
        rows = _rows(columns[at], foretold[at], energy_j[at], units, codes[at])
        names = tuple(f"{phase} of {whose}" if whose else phase for phase, whose in group)
        told.append(PhasePower(names, exact_sum(columns[:, i]), rows.told([i], powers, float(fitted[i]))))
    idle_w = _idle_w(cells, component, environment)
    found = [
        _cell(part, groups, idle_w, _rows(columns[at], foretold[at], energy_j[at], units, codes[at]), powers, sample)
        for part, at, sample in zip(parts, slices, samples, strict=True)
    ]
    return PhaseEnergy(head, component, tuple(told), idle_w, tuple(found))


def _solved(equations: Floats, k: int) -> Floats:
    """Powers by normal equations, each row a Gram matrix and its right side: shape ``(rows, k)``."""
    return non_negative(equations[:, : k * k].reshape(-1, k, k), equations[:, k * k :])


_Column = tuple[str, str]
"""A phase and the family of decodings whose it is; empty where it is everyone's."""


def _told_apart(parts: Sequence[_Part], weights: Floats) -> tuple[list[list[_Column]], Floats]:
    """The phases that have seconds, those that always vary together in one group.

    A phase that the others foretell joins the one that it is most alike, until none is foretold.

    Args:
        parts: the cells.
        weights: of their Trials, one after the other.

    Returns:
        The groups, and the seconds in each, shape ``(Trials, groups)``.
    """
    seconds: dict[_Column, Floats] = {}
    for i, phase in enumerate(PHASES):
        for whose in dict.fromkeys(_whose(phase, part.key) for part in parts):
            mine = [part.seconds[:, i] * (_whose(phase, part.key) == whose) for part in parts]
            seconds[phase, whose] = np.concatenate(mine)
    groups = [[column] for column, spent in seconds.items() if spent.any()]
    while True:
        columns = np.column_stack([sum(seconds[column] for column in group) for group in groups])
        scaled = np.sqrt(weights)[:, None] * columns
        scaled /= np.linalg.norm(scaled, axis=0)
        alike = scaled.T @ scaled
        untold = 1.0 / np.diagonal(np.linalg.inv(alike + 1e-12 * np.eye(len(groups))))
        worst = int(np.argmin(untold))
        if len(groups) == 1 or untold[worst] >= TOLD_APART**2:
            return groups, columns
        alike[worst, worst] = -1.0
        partner = int(np.argmax(alike[worst]))
        together = groups[worst] + groups[partner]
        groups[min(worst, partner)] = sorted(together, key=list(seconds).index)
        del groups[max(worst, partner)]


def _whose(phase: str, key: CellKey) -> str:
    return family(key.decoding) if phase in OF_A_FAMILY else ""


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """What decides which rows of some Trials can be told.

    Args:
        shares: of the measured joules, shape ``(groups,)``.
        of_seconds: of the seconds, likewise.
        closure: the shares' sum less 1.
        units: that the intervals are taken from: questions, but no more than the fit left free.
        counts: questions and Trials.
    """

    shares: Floats
    of_seconds: Floats
    closure: float
    units: int
    counts: tuple[int, int]

    def told(self, groups: Sequence[int], replicates: Floats, value: float | None = None) -> Quantity:
        """A figure of some groups together; None, with the reason, where it is not resolvable.

        Args:
            groups: their numbers.
            replicates: the figure of every group over bootstrap samples, shape ``(replicates, groups)``.
            value: the figure; the share if left out.
        """
        share, of_seconds = float(self.shares[groups].sum()), float(self.of_seconds[groups].sum())
        if abs(self.closure) >= CLOSURE and share < CLEAR * abs(self.closure):
            return unknown_quantity(OPEN, *self.counts)
        if min(share, of_seconds) < CLOSURE:
            return unknown_quantity(SMALL, *self.counts)
        figure = share if value is None else value
        found = self.between(figure, replicates[:, groups].sum(axis=1))
        if found.lower is None or found.upper is None:
            return unknown_quantity(TOO_FEW, *self.counts)
        return unknown_quantity(WIDE, *self.counts) if found.upper - found.lower > figure else found

    def between(self, value: float, replicates: Floats) -> Quantity:
        """A figure with its interval."""
        if self.units < MIN_QUESTIONS:
            return Quantity(value, None, None, *self.counts, "measured", TOO_FEW)
        low, high = percentile_interval(replicates[~np.isnan(replicates)], self.units)
        return Quantity(value, min(low, value), max(high, value), *self.counts, "measured")


def _rows(columns: Floats, foretold: Floats, energy_j: Floats, units: int, codes: npt.NDArray[np.intp]) -> _Rows:
    """Of some Trials: seconds and foretold joules by group, joules measured, units of the fit, question numbers."""
    shares, n = foretold.sum(axis=0) / energy_j.sum(), len(np.unique(codes))
    of_seconds = columns.sum(axis=0) / columns.sum()
    return _Rows(shares, of_seconds, float(shares.sum()) - 1.0, min(n, units), (n, len(codes)))


def _cell(
    part: _Part, groups: Sequence[Sequence[_Column]], idle_w: float | None, rows: _Rows, powers: Floats, sample: Floats
) -> CellPhases:
    """One cell's figures.

    Args:
        part: its Trials.
        groups: of phases.
        idle_w: idle power.
        rows: their shares.
        powers: over bootstrap samples, shape ``(replicates, groups)``.
        sample: over the same, the cell's seconds by group, joules foretold and joules measured.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # a sample may hold no question of this cell
        replicates = powers * sample[:, :-2] / sample[:, [-1]]
        closures = sample[:, -2] / sample[:, -1] - 1.0
    spent = dict(zip(PHASES, part.seconds.sum(axis=0).tolist(), strict=True))
    energy_j = exact_sum(part.energy_j)
    found, inside, across = [], [], False
    for i, group in enumerate(groups):
        mine = [phase for phase, whose in group if whose == _whose(phase, part.key) and spent[phase] > 0.0]
        if mine:
            whole = len(mine) == len(group)  # else the power is not that of the cell's phases alone
            share = rows.told([i], replicates) if whole else unknown_quantity(ELSEWHERE, *rows.counts)
            found.append(PhaseRow(tuple(sorted(mine, key=lambda phase: -spent[phase])), share))
            if whole and set(mine) <= set(OVERHEAD):
                inside.append(i)
            elif set(mine) & set(OVERHEAD):
                across = True
    return CellPhases(
        part.key,
        energy_j,
        tuple(found),
        unknown_quantity(ACROSS, *rows.counts) if across else rows.told(inside, replicates),
        rows.between(rows.closure, closures),
        None if idle_w is None else idle_w * sum(spent.values()) / energy_j,
    )


def _idle_w(cells: Sequence[Cell], component: ComponentName, environment: Mapping[str, Any]) -> float | None:
    """Idle power of everything that the component's joules are the sum of; None unless all of it was measured."""
    kinds = {name: set().union(*(cell.provenances(name) for cell in cells)) for name in ("gpu", "cpu", "dram")}
    idle = idle_powers(environment, cells[0].key.engine)
    parts = parts_of(component, kinds.__getitem__)
    if not all(part in idle for part in parts):
        return None
    total = sum_idle([idle[part] for part in parts])
    return total.power_w if total.provenance == "measured" else None

"""Everything that a report says, as one value: terminal, page and JSON show this and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from joulewise import __version__
from joulewise.analysis.acceptance import Acceptance, acceptances
from joulewise.analysis.carbon import CellCarbon, carbon, intensities
from joulewise.analysis.card_settings import SettingTable, setting_tables
from joulewise.analysis.cells import Cell, CellKey, natural_order, split
from joulewise.analysis.claims import Claim, claims
from joulewise.analysis.explain import Best, Explanation, best, explanations
from joulewise.analysis.load_saving import UnderLoad, under_load
from joulewise.analysis.load_shares import with_request_spreads
from joulewise.analysis.lossless import Lossless, lossless
from joulewise.analysis.operating import NoCurve, OperatingCurve, operating_curves
from joulewise.analysis.pass_at_k import KS, PassAtK, passes
from joulewise.analysis.per_token import CellCost, costs
from joulewise.analysis.phase_energy import PhaseEnergy, phase_energies
from joulewise.analysis.phases import PhaseShares, phase_shares
from joulewise.analysis.platforms import TwoWay, two_way_tables
from joulewise.analysis.pollution_share import without_polluted as leave_out_polluted
from joulewise.analysis.precision import Precision, precision
from joulewise.analysis.savings import Saving, savings
from joulewise.analysis.tradeoffs import NO_WISHES, Tradeoff, Wishes, tradeoffs
from joulewise.energy.carbon import Grid
from joulewise.energy.reading import ComponentName
from joulewise.records import NET_POLICY
from joulewise.report.run_facts import RunFacts, run_facts
from joulewise.table import RunTable

FORMAT_VERSION = 1
"""Raised when a field of the JSON changes its meaning."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole report. Runs stand side by side; nothing is averaged over runs, models or tasks.

    Args:
        format_version: of the JSON.
        joulewise: version that made it.
        without_polluted: polluted Trials were left out of all figures but the counts in ``runs``.
        price_per_kwh, currency: as given; the price is None where none was.
        runs: what was run, in the order given.
        net_policy: what is taken off in the net joules of ``costs``.
        precision: how far the repeats of each cell have come.
        savings, costs, acceptance, lossless: the figures, one entry a cell.
        pass_at_k: likewise, where answers are programs that were sampled several times.
        carbon: likewise; empty where no grid was given.
        explanations: why a decoding pays or not, one entry for each that speculates beside vanilla.
        best: the cheapest of several sizes of a decoding.
        phases: where the seconds went, one entry for each cell whose engine tells them apart.
        phase_energy: where their joules went, one entry for each engine and reasoning of a run.
        tradeoffs: accuracy against joules, one entry for each task of a run with several models or reasonings.
        curves: joules over tokens and load, one entry for each engine of a run whose measured joules carry a curve.
        platforms: what platform and quantisation do, one entry for each task of a run that has several of either.
        under_load: servers under load, one entry for each task, engine and reasoning that was loaded.
        settings: what power limits and locked clocks do, one entry for each cell that ran at several.
        claims: what each run says of the papers' claims, one entry for each.
        warnings: what was noticed while reading.
    """

    format_version: int
    joulewise: str
    without_polluted: bool
    price_per_kwh: float | None
    currency: str
    runs: tuple[RunFacts, ...]
    net_policy: str
    precision: tuple[Precision, ...]
    savings: tuple[Saving, ...]
    costs: tuple[CellCost, ...]
    acceptance: tuple[Acceptance, ...]
    lossless: tuple[Lossless, ...]
    pass_at_k: tuple[PassAtK, ...]
    carbon: tuple[CellCarbon, ...]
    explanations: tuple[Explanation, ...]
    best: tuple[Best, ...]
    phases: tuple[PhaseShares, ...]
    phase_energy: tuple[PhaseEnergy, ...]
    tradeoffs: tuple[Tradeoff, ...]
    curves: tuple[OperatingCurve | NoCurve, ...]
    platforms: tuple[TwoWay, ...]
    under_load: tuple[UnderLoad, ...]
    settings: tuple[SettingTable, ...]
    claims: tuple[Claim, ...]
    warnings: tuple[str, ...]


def cells_of(table: RunTable, *, without_polluted: bool = False) -> tuple[Cell, ...]:
    """The cells that a report is about, by run as they were read; ``without_polluted`` leaves out polluted Trials.

    Stretches under load are none: they ask no question by itself (``under_load``).
    """
    arrow = table.arrow.filter(table.arrow["load"].is_null())
    if without_polluted:
        arrow = leave_out_polluted(arrow)
    places = {run: place for place, run in enumerate(_run_names(table))}
    return tuple(sorted(split(RunTable(arrow)), key=lambda cell: places[cell.key.run]))


def _run_names(table: RunTable) -> list[str]:
    """The runs in the order in which they were read."""
    others = sorted(table.arrow["run"].unique().to_pylist(), key=natural_order)
    return list(dict.fromkeys([*table.plans, *table.environments, *others]))


def summarise(
    table: RunTable,
    *,
    price_per_kwh: float | None = None,
    currency: str = "",
    without_polluted: bool = False,
    grid: Grid | None = None,
    wishes: Wishes = NO_WISHES,
    ks: Sequence[int] = KS,
    cells: Sequence[Cell] | None = None,
) -> Summary:
    """Summarise one run or several.

    Args:
        table: the Trials.
        price_per_kwh: price of a kilowatt-hour; None shows no prices.
        currency: its currency, for display.
        without_polluted: leave out Trials during which other processes used the CPU.
        grid: whose intensity to tell carbon by; None tells none.
        wishes: what to tell of accuracy against joules.
        ks: for which k to tell pass@k.
        cells: what ``cells_of`` gave, where it is at hand.
    """
    if cells is None:
        cells = cells_of(table, without_polluted=without_polluted)
    found = costs(cells, price_per_kwh, table.environments)
    heads = dict.fromkeys(cost.key.head for cost in found)
    components = {head: _component([cost for cost in found if cost.key.head == head]) for head in heads}
    saved, shares = savings(cells), phase_shares(cells, components)
    curves = operating_curves(cells, components, table.environments)
    return Summary(
        FORMAT_VERSION,
        __version__,
        without_polluted,
        price_per_kwh,
        currency,
        tuple(run_facts(name, table) for name in _run_names(table)),
        NET_POLICY,
        tuple(precision(cell) for cell in cells),
        saved,
        found,
        acceptances(cells),
        lossless(cells),
        passes(cells, ks),
        () if grid is None else carbon(found, intensities(table, grid)),
        explanations(cells, components, table.environments),
        best(cells, components),
        shares,
        phase_energies(cells, components, table.environments),
        tradeoffs(cells, components, wishes),
        curves,
        two_way_tables(table, cells, components, found),
        with_request_spreads(
            under_load(table, without_polluted=without_polluted), table, without_polluted=without_polluted
        ),
        setting_tables(table, cells, components),
        claims(table, cells, components, saved, found, shares, curves),
        tuple(table.warnings),
    )


def to_json(summary: Summary) -> dict[str, Any]:
    """The summary as plain data; what is not known is None, and no number is infinite."""
    return asdict(summary)


@dataclass(frozen=True, slots=True)
class Section:
    """The figures of one engine and reasoning in one run: what stands in one set of tables."""

    run: str
    engine: str
    model: str
    reasoning: str
    savings: tuple[Saving, ...]
    costs: tuple[CellCost, ...]
    acceptance: tuple[Acceptance, ...]
    lossless: tuple[Lossless, ...]
    pass_at_k: tuple[PassAtK, ...]
    carbon: tuple[CellCarbon, ...]
    explanations: tuple[Explanation, ...]
    best: tuple[Best, ...]
    phases: tuple[PhaseShares, ...]
    phase_energy: PhaseEnergy | None
    not_begun: tuple[CellKey, ...]

    @property
    def component(self) -> ComponentName:
        """The component to show first: the GPU where it alone is measured, else the total."""
        return _component(self.costs)


def _component(costs: Sequence[CellCost]) -> ComponentName:
    def measured(component: ComponentName) -> bool:
        return any(cost.component(component).energy_per_answer_j.provenance == "measured" for cost in costs)

    return "gpu" if measured("gpu") and not measured("total") else "total"


def sections(summary: Summary) -> tuple[Section, ...]:
    """The summary by run, engine, model and reasoning, in the order of its cells."""
    return tuple(
        Section(
            *head,
            tuple(x for x in summary.savings if x.key.head == head),
            tuple(x for x in summary.costs if x.key.head == head),
            tuple(x for x in summary.acceptance if x.key.head == head),
            tuple(x for x in summary.lossless if x.key.head == head),
            tuple(x for x in summary.pass_at_k if x.key.head == head),
            tuple(x for x in summary.carbon if x.key.head == head),
            tuple(x for x in summary.explanations if x.key.head == head),
            tuple(x for x in summary.best if x.head == head),
            tuple(x for x in summary.phases if x.key.head == head),
            next((x for x in summary.phase_energy if x.head == head), None),
            tuple(key for run in summary.runs for key in run.not_begun if key.head == head),
        )
        for head in dict.fromkeys(cost.key.head for cost in summary.costs)
    )

"""The tables of a report as words, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from joulewise.analysis.acceptance import HOW_COUNTED, Acceptance
from joulewise.analysis.cells import CellKey
from joulewise.analysis.intervals import Quantity
from joulewise.analysis.per_token import NO_RIGHT_OR_WRONG, CellCost
from joulewise.analysis.savings import Gamma
from joulewise.energy.carbon import SCOPE as CARBON_SCOPE
from joulewise.energy.reading import ComponentName
from joulewise.report.summary import Section, Summary
from joulewise.report.text import COMPONENT_NAMES, common_reason, dropped_notes, figure, interval, value, verdict

BARS = (
    "By round: how many rounds accepted 0, 1, 2 ... draft tokens. Past the end: tokens that were thrown away because "
    "the text was over."
)

NOT_SCORED = "not scored"

NO_INTERVAL = "no interval"

LOSSLESS = (
    "A near-tie is a first difference where the target's two best tokens lie as near to each other as its own rounding "
    "error; lower precision may decide it either way. Anything else that differs is a failure."
)


@dataclass(frozen=True, slots=True)
class Shown:
    """One figure in words.

    Args:
        main: the figure.
        detail: its interval, or that it has none.
        mark: a verdict, or ``modelled``.
        n: number of questions behind it; None where it is a plain count.
        bars: a histogram in place of a figure.
        why: why the figure or its interval is not known; it stands under the table.
    """

    main: str
    detail: str | None = None
    mark: str | None = None
    n: int | None = None
    bars: tuple[int, ...] = ()
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of the plan's grid. ``n``: questions behind every figure of the row that does not say otherwise."""

    key: CellKey
    n: int | None
    figures: tuple[Shown, ...]

    @property
    def task(self) -> str:
        """The cell's task."""
        return self.key.task

    @property
    def decoding(self) -> str:
        """The cell's decoding."""
        return self.key.decoding


@dataclass(frozen=True, slots=True)
class Grid:
    """One table.

    Args:
        title: what it shows.
        columns: headings of the figures (task, decoding and n apart).
        rows: by task and decoding.
        notes: what belongs under it.
        absolute: whether joules stand in it, and not only their ratios.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    absolute: bool = False

    @property
    def counts_questions(self) -> bool:
        """Whether its figures rest on samples of questions; else they are plain counts."""
        return any(row.n is not None for row in self.rows)


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    figures: tuple[Shown, ...]
    unknown: str | None = None


def grids(section: Section, summary: Summary) -> tuple[Grid, ...]:
    """The tables of a section, those without rows left out."""
    found = (
        _savings(section),
        _joules(section, section.component),
        _net(section, section.component),
        _answers(section, section.component, summary),
        _carbon(section, section.component),
        _acceptance(section),
        _lossless(section),
    )
    return tuple(grid for grid in found if grid.rows)


def component_grids(section: Section) -> tuple[Grid, ...]:
    """The joules of every component that is known, one table each."""
    names = [c.component for c in section.costs[0].components]
    return tuple(grid for grid in (_joules(section, name) for name in names) if grid.columns)


def _savings(section: Section) -> Grid:
    found = section.savings
    return _grid(
        "Savings against vanilla (above 1 saves)",
        [s.key for s in found],
        (
            _gammas("time γ_t", [s.time for s in found]),
            _gammas("GPU energy γ_GPU", [s.gpu for s in found]),
            _gammas("total energy γ_Total", [s.total for s in found]),
            _quantities("GPU power γ_t / γ_GPU", [s.power for s in found]),
        ),
        dropped_notes(found),
    )


def _joules(section: Section, component: ComponentName) -> Grid:
    found = [cost.component(component) for cost in section.costs]
    grid = _grid(
        f"Joules, {COMPONENT_NAMES[component]}",
        [cost.key for cost in section.costs],
        (
            _quantities("J per token (prompt + output)", [c.energy_per_token_j for c in found]),
            _quantities("J per output token", [c.energy_per_output_token_j for c in found]),
            _quantities("J per answer", [c.energy_per_answer_j for c in found]),
            _quantities("J per correct answer", [c.energy_per_correct_answer_j for c in found]),
        ),
    )
    return replace(grid, absolute=True)


def _net(section: Section, component: ComponentName) -> Grid:
    """Net joules; no rows where idle power was not measured."""
    found = [cost.component(component).net for cost in section.costs]
    idle = next((net.idle for net in found if net.idle is not None), None)
    if idle is None:
        return Grid("", (), ())
    name = COMPONENT_NAMES[component]
    drift = ""
    if idle.drift_w is not None:
        side = "more" if idle.drift_w >= 0.0 else "less"
        drift = f", {figure(abs(idle.drift_w))} W {side} after the Trials than before"
    notes = [
        f"Net: gross joules less idle power ({name} {figure(idle.power_w)} W{drift}) times seconds. Where an interval "
        "reaches below 0, the work cannot be told from idling."
    ]
    if idle.drift_w is None:
        notes.append("Idle power was not read both before and after the Trials, so its drift is not in the intervals.")
    grid = _grid(
        f"Net joules, {name}",
        [cost.key for cost in section.costs],
        (
            _quantities("net J per output token", [net.energy_per_output_token_j for net in found]),
            _quantities("net J per answer", [net.energy_per_answer_j for net in found]),
        ),
        notes,
    )
    return replace(grid, absolute=True)


def _answers(section: Section, component: ComponentName, summary: Summary) -> Grid:
    costs = section.costs
    parts = [cost.component(component) for cost in costs]
    columns = [
        _quality(costs),
        _quantities("output tokens/s", [c.output_tokens_per_second for c in costs]),
        _quantities(
            f"Wh per 1,000 output tokens, {COMPONENT_NAMES[component]}",
            [c.energy_per_1000_output_tokens_wh for c in parts],
        ),
    ]
    prices = [part.price_per_1000_output_tokens for part in parts if part.price_per_1000_output_tokens is not None]
    if prices:
        columns.append(_quantities(f"price per 1,000 output tokens{_currency(summary)}", prices))
    notes = ["Wh per 1,000 tokens are also kWh per million tokens."] if columns[2].unknown is None else []
    if any(f.main == NOT_SCORED for f in columns[0].figures):
        notes.append("Not scored: nothing judges these answers, so that the task tells energy and time only.")
    for cost in costs:
        told = "; ".join(f"{n:,} x {note}" for note, n in cost.score_notes[:5])
        if told:
            notes.append(f"{cost.key.task}, {cost.key.decoding}: answers that failed in a way of their own: {told}.")
    grid = _grid("Answers, speed and watt-hours", [cost.key for cost in costs], columns, notes)
    return replace(grid, absolute=True)


def _carbon(section: Section, component: ComponentName) -> Grid:
    found = [cell.component(component) for cell in section.carbon]
    name = COMPONENT_NAMES[component]
    grid = _grid(
        "Carbon, gCO2e",
        [cell.key for cell in section.carbon],
        (
            _quantities(f"gCO2e per answer, {name}", [c.carbon_per_answer_g for c in found]),
            _quantities(f"gCO2e per 1,000 output tokens, {name}", [c.carbon_per_1000_output_tokens_g for c in found]),
        ),
        [*(f"Grid: {told}." for told in dict.fromkeys(str(cell.intensity) for cell in section.carbon)), CARBON_SCOPE],
    )
    return replace(grid, absolute=True)


def _currency(summary: Summary) -> str:
    return f", {summary.currency}" if summary.currency else ""


def _quality(costs: Sequence[CellCost]) -> _Column:
    """Accuracy where the task knows right and wrong, else the mean score under its metric's name."""
    quantities = [c.score if c.accuracy.value is None else c.accuracy for c in costs]
    marks = [c.metric if c.accuracy.value is None and c.score.value is not None else None for c in costs]
    figures = [_shown(q, mark, 100.0) for q, mark in zip(quantities, marks, strict=True)]
    for i, cost in enumerate(costs):
        if quantities[i].value is None and cost.unscored:
            figures[i] = Shown(NOT_SCORED)
    return _Column("accuracy or score, %", tuple(figures))


def _acceptance(section: Section) -> Grid:
    found = section.acceptance
    return _grid(
        "Drafts",
        [a.key for a in found],
        (
            _quantities("tokens per round", [a.length for a in found]),
            _Column("drafted", tuple(Shown(f"{a.drafted:,}") for a in found)),
            _Column("accepted", tuple(Shown(f"{a.accepted:,}", _rate(a)) for a in found)),
            _Column("past the end", tuple(Shown(f"{a.wasted:,}") for a in found)),
            _Column("by round", tuple(Shown("", bars=a.histogram) for a in found)),
        ),
        (HOW_COUNTED, BARS),
    )


def _rate(acceptance: Acceptance) -> str:
    return "nothing was drafted" if acceptance.rate is None else f"{figure(100 * acceptance.rate)} %"


def _lossless(section: Section) -> Grid:
    found = section.lossless
    notes = dict.fromkeys(f"Remark of the check: {note}." for verdicts in found for note in verdicts.notes[:3])
    return _grid(
        "Same output as vanilla?",
        [verdicts.key for verdicts in found],
        (
            _Column("identical", tuple(Shown(f"{v.identical:,}") for v in found)),
            _Column("near-tie", tuple(Shown(f"{v.tie:,}") for v in found)),
            _Column(
                "different",
                tuple(Shown(f"{v.different:,}", mark="not lossless" if v.different else None) for v in found),
            ),
            _Column("not checked", tuple(Shown(f"{v.not_checked:,}") for v in found)),
        ),
        (LOSSLESS, *notes),
    )


def _quantities(heading: str, quantities: Sequence[Quantity], factor: float = 1.0) -> _Column:
    figures = tuple(_shown(q, "modelled" if q.provenance == "modelled" else None, factor) for q in quantities)
    return _Column(heading, figures, common_reason(quantities))


def _gammas(heading: str, gammas: Sequence[Gamma]) -> _Column:
    figures = tuple(_shown(g.ratio, None if g.ratio.value is None else verdict(g)) for g in gammas)
    return _Column(heading, figures, common_reason(g.ratio for g in gammas))


def _shown(quantity: Quantity, mark: str | None, factor: float = 1.0) -> Shown:
    if quantity.reason == NO_RIGHT_OR_WRONG:
        return Shown("–")
    detail, why = interval(quantity, factor), None
    if quantity.unbounded and quantity.value is None:
        detail = quantity.reason
    elif detail is None:
        detail, why = (None if quantity.value is None else NO_INTERVAL), quantity.reason
    return Shown(value(quantity, factor), detail, mark, quantity.n_questions or None, why=why)


def _grid(title: str, keys: Sequence[CellKey], columns: Iterable[_Column], notes: Iterable[str] = ()) -> Grid:
    """Lay columns out in rows; a column of nothing but unknowns becomes a note."""
    columns = tuple(columns)
    shown = [column for column in columns if column.unknown is None]
    rows = []
    for i, key in enumerate(keys):
        figures = [column.figures[i] for column in shown]
        n = max((f.n for f in figures if f.n is not None), default=None)
        rows.append(Row(key, n, tuple(_with_n(f, n) for f in figures)))
    unknown = tuple(
        f"{column.heading}: unknown ({column.unknown})." for column in columns if column.unknown is not None
    )
    return Grid(title, tuple(column.heading for column in shown), tuple(rows), (*unknown, *_whys(rows), *notes))


def _whys(rows: Iterable[Row]) -> list[str]:
    """Why figures or intervals are missing: every reason once, with its rows where there are several reasons."""
    missing: dict[str, dict[str, dict[str, None]]] = {}
    for row in rows:
        for f in row.figures:
            if f.why is not None:
                word = "Unknown" if f.detail is None else "No interval"
                missing.setdefault(word, {}).setdefault(f.why, {})[f"{row.task}, {row.decoding}"] = None
    notes = []
    for word, reasons in missing.items():
        for why, where in reasons.items():
            among = f" ({_few(tuple(where))})" if len(reasons) > 1 else ""
            notes.append(f"{word}{among}: {why}.")
    return notes


def _few(names: Sequence[str]) -> str:
    return "; ".join(names[:3]) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")


def _with_n(shown: Shown, n: int | None) -> Shown:
    """The figure with its number of questions, where that is not the row's."""
    if shown.n in (None, n):
        return shown
    return replace(shown, detail=f"{shown.detail}, n = {shown.n}" if shown.detail else f"n = {shown.n}")

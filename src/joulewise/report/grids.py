"""The tables of a report as words, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joulewise.analysis.acceptance import HOW_COUNTED, Acceptance
from joulewise.analysis.per_token import CellCost
from joulewise.analysis.savings import Gamma
from joulewise.energy.carbon import SCOPE as CARBON_SCOPE
from joulewise.energy.reading import ComponentName
from joulewise.report.grid import Column, Grid, Shown, in_words, lay_out, quantity_column
from joulewise.report.summary import Section, Summary
from joulewise.report.text import COMPONENT_NAMES, common_reason, dropped_notes, figure, verdict

BARS = (
    "By round: how many rounds accepted 0, 1, 2 ... draft tokens. Past the end: tokens that were thrown away because "
    "the text was over."
)

NOT_SCORED = "not scored"

PASS_AT_K = (
    "pass@k: 1 - C(n - c, k) / C(n, k) over a question's n samples (its repeats), of which c pass; the mean over "
    "questions. The joules per answer are those of one sample."
)

LOSSLESS = (
    "A near-tie is a first difference where the target's two best tokens lie as near to each other as its own rounding "
    "error; lower precision may decide it either way. Anything else that differs is a failure."
)


def grids(section: Section, summary: Summary) -> tuple[Grid, ...]:
    """The tables of a section, those without rows left out."""
    found = (
        _savings(section),
        _joules(section, section.component),
        _net(section, section.component),
        _answers(section, section.component, summary),
        _passes(section),
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
    return lay_out(
        "Savings against vanilla (above 1 saves)",
        [s.key for s in found],
        (
            _gammas("time γ_t", [s.time for s in found]),
            _gammas("GPU energy γ_GPU", [s.gpu for s in found]),
            _gammas("total energy γ_Total", [s.total for s in found]),
            quantity_column("GPU power γ_t / γ_GPU", [s.power for s in found]),
        ),
        dropped_notes(found),
    )


def _joules(section: Section, component: ComponentName) -> Grid:
    found = [cost.component(component) for cost in section.costs]
    grid = lay_out(
        f"Joules, {COMPONENT_NAMES[component]}",
        [cost.key for cost in section.costs],
        (
            quantity_column("J per token (prompt + output)", [c.energy_per_token_j for c in found]),
            quantity_column("J per output token", [c.energy_per_output_token_j for c in found]),
            quantity_column("J per answer", [c.energy_per_answer_j for c in found]),
            quantity_column("J per correct answer", [c.energy_per_correct_answer_j for c in found]),
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
    grid = lay_out(
        f"Net joules, {name}",
        [cost.key for cost in section.costs],
        (
            quantity_column("net J per output token", [net.energy_per_output_token_j for net in found]),
            quantity_column("net J per answer", [net.energy_per_answer_j for net in found]),
        ),
        notes,
    )
    return replace(grid, absolute=True)


def _answers(section: Section, component: ComponentName, summary: Summary) -> Grid:
    costs = section.costs
    parts = [cost.component(component) for cost in costs]
    columns = [
        _quality(costs),
        quantity_column("output tokens/s", [c.output_tokens_per_second for c in costs]),
        quantity_column(
            f"Wh per 1,000 output tokens, {COMPONENT_NAMES[component]}",
            [c.energy_per_1000_output_tokens_wh for c in parts],
        ),
    ]
    requests = [c.requests_per_answer for c in costs]
    if any(mean not in (None, 1.0) for mean in requests):
        columns.append(
            Column("requests per answer", tuple(Shown("unknown" if m is None else figure(m)) for m in requests))
        )
    prices = [part.price_per_1000_output_tokens for part in parts if part.price_per_1000_output_tokens is not None]
    if prices:
        columns.append(quantity_column(f"price per 1,000 output tokens{_currency(summary)}", prices))
    notes = ["Wh per 1,000 tokens are also kWh per million tokens."] if columns[2].unknown is None else []
    if any(f.main == NOT_SCORED for f in columns[0].figures):
        notes.append(
            "Not scored: nothing judges these answers, so that the task tells energy and time only "
            "(`joulewise judge` grades those of mt_bench)."
        )
    for cost in costs:
        told = "; ".join(f"{n:,} x {note}" for note, n in cost.score_notes[:5])
        if told:
            notes.append(f"{cost.key.task}, {cost.key.decoding}: answers that failed in a way of their own: {told}.")
    grid = lay_out("Answers, speed and watt-hours", [cost.key for cost in costs], columns, notes)
    return replace(grid, absolute=True)


def _carbon(section: Section, component: ComponentName) -> Grid:
    found = [cell.component(component) for cell in section.carbon]
    name = COMPONENT_NAMES[component]
    grid = lay_out(
        "Carbon, gCO2e",
        [cell.key for cell in section.carbon],
        (
            quantity_column(f"gCO2e per answer, {name}", [c.carbon_per_answer_g for c in found]),
            quantity_column(
                f"gCO2e per 1,000 output tokens, {name}", [c.carbon_per_1000_output_tokens_g for c in found]
            ),
        ),
        [*(f"Grid: {told}." for told in dict.fromkeys(str(cell.intensity) for cell in section.carbon)), CARBON_SCOPE],
    )
    return replace(grid, absolute=True)


def _currency(summary: Summary) -> str:
    return f", {summary.currency}" if summary.currency else ""


def _quality(costs: Sequence[CellCost]) -> Column:
    """Accuracy where the task knows right and wrong, else the mean score under its metric's name."""
    quantities = [c.score if c.accuracy.value is None else c.accuracy for c in costs]
    marks = [c.metric if c.accuracy.value is None and c.score.value is not None else None for c in costs]
    figures = [in_words(q, mark, 100.0) for q, mark in zip(quantities, marks, strict=True)]
    for i, cost in enumerate(costs):
        if quantities[i].value is None and cost.unscored:
            figures[i] = Shown(NOT_SCORED)
    return Column("accuracy or score, %", tuple(figures))


def _passes(section: Section) -> Grid:
    found = section.pass_at_k
    columns = (
        Column(f"pass@{ats[0][0]}, %", tuple(in_words(quantity, None, 100.0) for _, quantity in ats))
        for ats in zip(*(one.at for one in found), strict=True)
        if any(quantity.value is not None for _, quantity in ats)
    )
    return lay_out("Programs: does one of k samples pass?", [one.key for one in found], columns, (PASS_AT_K,))


def _acceptance(section: Section) -> Grid:
    found = section.acceptance
    return lay_out(
        "Drafts",
        [a.key for a in found],
        (
            quantity_column("tokens per round", [a.length for a in found]),
            Column("drafted", tuple(Shown(f"{a.drafted:,}") for a in found)),
            Column("accepted", tuple(Shown(f"{a.accepted:,}", _rate(a)) for a in found)),
            Column("past the end", tuple(Shown(f"{a.wasted:,}") for a in found)),
            Column("by round", tuple(Shown("" if a.histogram else "not told", bars=a.histogram) for a in found)),
        ),
        (HOW_COUNTED, BARS),
    )


def _rate(acceptance: Acceptance) -> str:
    return "nothing was drafted" if acceptance.rate is None else f"{figure(100 * acceptance.rate)} %"


def _lossless(section: Section) -> Grid:
    found = section.lossless
    notes = dict.fromkeys(f"Remark of the check: {note}." for verdicts in found for note in verdicts.notes[:3])
    return lay_out(
        "Same output as vanilla?",
        [verdicts.key for verdicts in found],
        (
            Column("identical", tuple(Shown(f"{v.identical:,}") for v in found)),
            Column("near-tie", tuple(Shown(f"{v.tie:,}") for v in found)),
            Column(
                "different",
                tuple(Shown(f"{v.different:,}", mark="not lossless" if v.different else None) for v in found),
            ),
            Column("not checked", tuple(Shown(f"{v.not_checked:,}") for v in found)),
        ),
        (LOSSLESS, *notes),
    )


def _gammas(heading: str, gammas: Sequence[Gamma]) -> Column:
    figures = tuple(in_words(g.ratio, None if g.ratio.value is None else verdict(g)) for g in gammas)
    return Column(heading, figures, common_reason(g.ratio for g in gammas))

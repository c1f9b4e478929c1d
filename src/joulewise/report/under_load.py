"""Servers under load in words: tables by load, what a decoding saves there, and where saving turns into loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from joulewise.analysis.cells import CellKey
from joulewise.analysis.load_crossing import Crossing
from joulewise.analysis.load_saving import LoadCost, LoadSaving, RequestSpread, UnderLoad
from joulewise.counted import counted
from joulewise.report.chart import FAINT, INK, MARKERS, PAPER, SERIES, draw, factor_ticks
from joulewise.report.grid import Column, Grid, Shown, in_words, lay_out, quantity_column
from joulewise.report.text import figure

TITLE = "Under load"

HOW_TO_READ = (
    "Figures are of the steady part of each stretch, ramp-up and drain left out; of several repeats, their mean, with "
    "a 95 % interval over the repeats. A saving is vanilla's joules per output token over the decoding's under the "
    "same load: above 1 the decoding saves."
)
LATE_S = 0.005

MOST_NAMED = 3
NEXT_TO_NOTHING = 0.01
BY_CURVE = (
    "By token share every token counts alike, one read as much as one made. `joulewise requests RUN --curve FILE` "
    "shares by the server's own operating curve instead, and `--csv FILE` writes one row a request."
)


def name(found: UnderLoad) -> str:
    """What a part is about."""
    return f"{found.task}: {found.model} ({found.engine}), {found.reasoning}"


def findings(found: UnderLoad) -> list[str]:
    """Of each decoding where its saving turns into loss, a sentence each; what a reader must know."""
    told = [sentence(decoding, one) for decoding, several in found.crossings.items() for one in several]
    failed = sum(cost.failed for cost in found.costs)
    if failed:
        told.append(f"{counted(failed, 'Trial')} failed, and {'is' if failed == 1 else 'are'} not in these figures.")
    late = [cost for cost in found.costs if cost.late_s is not None and cost.late_s > LATE_S]
    if late:
        worst = max(late, key=lambda cost: cost.late_s or 0.0)
        told.append(
            f"The load generator itself was late, at worst {1e3 * (worst.late_s or 0.0):.0f} ms at the 99th percentile "
            f"({worst.decoding}, {worst.load}); that is in the latencies."
        )
    if missing := [file for one in found.requests for file in one.missing]:
        stretches = sum(one.stretches for one in found.requests) + len(missing)
        named = ", ".join(missing[:MOST_NAMED]) + (", ..." if len(missing) > MOST_NAMED else "")
        told.append(
            "Stretches of which the joules of single requests are not told, as the file of their requests cannot be "
            f"read in the run folder: {len(missing)} of {stretches} ({named})."
        )
    return told


def sentence(decoding: str, one: Crossing) -> str:
    """Where a decoding's saving turns into loss."""
    unit = "requests in flight" if one.kind == "closed" else "requests a second"
    between = f"between {one.first:g} and {one.last:g} {unit}"
    if one.level is not None and one.lower is not None and one.upper is not None:
        below, above = ("saves", "costs") if one.saves_below else ("costs", "saves")
        return (
            f"{decoding} {below} energy up to {figure(one.level)} {unit} and {above} energy beyond: crossing between "
            f"{figure(one.lower)} and {figure(one.upper)}."
        )
    if one.shape == "cannot tell":
        return f"{decoding}: cannot tell whether saving turns into loss {between}: {one.reason}."
    does = "saves" if one.shape == "saves throughout" else "costs"
    return f"{decoding} {does} energy throughout: no crossing {between}."


def load_grids(several: Sequence[UnderLoad]) -> tuple[Grid, ...]:
    """Energy, latency, and savings by cell and load."""
    pairs = [(found, cost) for found in several for cost in found.costs]
    if not pairs:
        return ()
    costs = [cost for _, cost in pairs]
    keys = [_key(cost, cost.decoding) for cost in costs]
    names = [(_task(found, several), f"{cost.load} {cost.decoding}") for found, cost in pairs]
    component = costs[0].component
    energy = lay_out(
        f"Under load: {'GPU' if component == 'gpu' else 'total'} energy",
        keys,
        [
            quantity_column("J per token", [cost.energy_per_token_j for cost in costs]),
            quantity_column("W", [cost.power_w for cost in costs]),
            quantity_column("tokens/s", [cost.tokens_per_s for cost in costs]),
            _column("good/J", costs, lambda cost: _number(cost.good_per_j)),
        ],
        ["good/J: requests that met the plan's objective (`slo`; all, where it has none) per joule of all requests."],
        names,
    )
    requests = lay_out(
        "Under load: requests",
        keys,
        [
            _column("in flight", costs, lambda cost: _number(cost.in_flight)),
            _column("requests/s", costs, lambda cost: _number(cost.requests_per_s)),
            _column("good", costs, lambda cost: "unknown" if cost.good is None else f"{cost.good:.0%}"),
            _column("accepted", costs, lambda cost: "–" if cost.acceptance is None else f"{cost.acceptance:.0%}"),
        ],
        ["Accepted: of the draft tokens, over the whole stretch."],
        names,
    )
    latency = lay_out(
        "Under load: seconds at the 50th / 95th / 99th percentile",
        keys,
        [
            _column(heading, costs, lambda cost, name=name: _three(cost.percentiles_s[name]))  # type: ignore[misc]
            for heading, name in (
                ("first token", "to_first"),
                ("per token", "per_token"),
                ("between chunks", "between_chunks"),
                ("whole answer", "total"),
            )
        ],
        ["First token and whole answer count from when a request was due. –: too few requests to tell."],
        names,
    )
    return tuple(_of(grid) for grid in (energy, *_request_grid(several), requests, latency, *_saving_grid(several)))


def _request_grid(several: Sequence[UnderLoad]) -> list[Grid]:
    """What a request's joules were, and where all joules went; nothing where no file of requests could be read."""
    pairs = [(found, one) for found in several for one in found.requests if one.stretches]
    if not pairs:
        return []
    told = [one for _, one in pairs]
    notes = [
        "Requests: that lay in the steady part from start to end and came whole. Median and middle 80 % (–: too few to "
        "tell) are of them.",
        "Requests / idle / nobody: how the steady part's joules divide. To requests goes what those did in it that it "
        "cut, too; to nobody, what was drawn above idle power while no request ran.",
    ]
    if any(one.idle_j is None and one.whole_j is not None for one in told):
        notes.append("Idle –: idle power was not measured, so it is in the requests' joules.")
    if any(one.whole_j and one.idle_j and (one.requests_j or 0.0) < NEXT_TO_NOTHING * one.whole_j for one in told):
        notes.append(
            "Next to nothing is left to requests where idle power was read as high as power under load: other programs "
            "kept the machine busy."
        )
    notes.append(BY_CURVE)
    return [
        lay_out(
            "Under load: joules of a request, by token share",
            [_key(found.costs[0], one.decoding) for found, one in pairs],
            [
                Column("requests", tuple(Shown(f"{one.complete:,}") for one in told)),
                Column("median J", tuple(_median(one) for one in told)),
                Column("middle 80 %, J", tuple(_middle(one) for one in told)),
                Column("% requests / idle / nobody", tuple(_parts(one) for one in told)),
            ],
            notes,
            [(_task(found, several), f"{one.load} {one.decoding}") for found, one in pairs],
        )
    ]


def _median(one: RequestSpread) -> Shown:
    if one.median_j is None:
        why = "joules that are not known" if one.complete else "no request lay in the steady part from start to end"
        return Shown("unknown", why=why)
    return Shown(figure(one.median_j), mark="modelled" if one.provenance == "modelled" else None)


def _middle(one: RequestSpread) -> Shown:
    known = one.lower_j is not None and one.upper_j is not None
    return Shown(f"{figure(one.lower_j)} – {figure(one.upper_j)}" if known else "–")  # type: ignore[arg-type]


def _parts(one: RequestSpread) -> Shown:
    if not one.whole_j:
        return Shown("–")
    parts = (one.requests_j, one.idle_j, one.unattributed_j)
    return Shown(" / ".join("–" if part is None else f"{100.0 * part / one.whole_j:.0f}" for part in parts))


def _saving_grid(several: Sequence[UnderLoad]) -> list[Grid]:
    pairs = [(found, saving) for found in several for saving in found.savings]
    if not pairs:
        return []
    energy = Column(
        "energy",
        tuple(in_words(s.energy, "modelled" if s.energy.provenance == "modelled" else s.verdict) for _, s in pairs),
    )
    return [
        lay_out(
            "Under load: savings against vanilla at the same load (above 1 saves)",
            [_key(found.costs[0], saving.decoding) for found, saving in pairs],
            [energy, quantity_column("speed", [saving.speed for _, saving in pairs])],
            (),
            [(_task(found, several), f"{saving.load} {saving.decoding}") for found, saving in pairs],
        )
    ]


def _of(grid: Grid) -> Grid:
    return Grid(grid.title, grid.columns, grid.rows, grid.notes, grid.absolute, "load")


def _task(found: UnderLoad, several: Sequence[UnderLoad]) -> str:
    alone = len({(one.engine, one.reasoning) for one in several}) == 1
    return found.task if alone else f"{found.task} ({found.engine}, {found.reasoning})"


def _key(cost: LoadCost, decoding: str) -> CellKey:
    return CellKey(cost.run, cost.engine, cost.model, cost.reasoning, cost.task, decoding)


def _column(heading: str, costs: Iterable[LoadCost], told: Callable[[LoadCost], str]) -> Column:
    return Column(heading, tuple(Shown(told(cost)) for cost in costs))


def _number(value: float | None) -> str:
    return "unknown" if value is None else figure(value)


def _three(values: Sequence[float | None]) -> str:
    return " / ".join("–" if value is None else figure(value) for value in values)


def saving_chart(found: UnderLoad, kind: str, prefix: str) -> str | None:
    """Savings of energy against the load, with their intervals; None where no load has a figure.

    Args:
        found: what is shown.
        kind: ``closed`` or ``poisson``: loads of one kind share an axis.
        prefix: makes the ids of the SVG unique within the page.
    """
    kinds = {cost.load: cost.kind for cost in found.costs}
    lines: dict[str, list[LoadSaving]] = {}
    for saving in found.savings:
        if saving.level is not None and kinds.get(saving.load) == kind and saving.energy.value is not None:
            lines.setdefault(saving.decoding, []).append(saving)
    shown = [saving for line in lines.values() for saving in line]
    if not shown:
        return None
    levels = sorted({saving.level for saving in shown if saving.level is not None})
    values = [v for s in shown for v in (s.energy.value, s.energy.lower, s.energy.upper) if v]
    limit = min(10.0, max(1.25, *(1.1 * max(v, 1.0 / v) for v in values)))
    unit = "requests in flight" if kind == "closed" else "requests per second"

    def paint(axes: Any) -> None:
        axes.set_position((0.19, 0.13, 0.76, 0.82))
        ends = (levels[0] / 1.3, levels[-1] * 1.3)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=(1.0 / limit, limit))
        axes.axhline(1.0, color=FAINT, linewidth=1)
        for place, (decoding, line) in enumerate(lines.items()):
            colour = SERIES[place % len(SERIES)]
            xs, ys = [s.level for s in line], [s.energy.value for s in line]
            modelled = all(s.energy.provenance == "modelled" for s in line)
            for s in line:
                if s.energy.lower is not None and s.energy.upper is not None:
                    axes.vlines(s.level, max(s.energy.lower, 0.5 / limit), min(s.energy.upper, 2 * limit), color=colour)
            axes.plot(
                xs,
                ys,
                color=colour,
                marker=MARKERS[place % len(MARKERS)],
                markerfacecolor=PAPER if modelled else colour,
                linewidth=1.3,
                label=decoding,
            )
        axes.minorticks_off()
        axes.set_xticks(levels, [f"{level:,.6g}" for level in levels])
        ticks = factor_ticks(limit)
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.tick_params(which="both", colors=INK, length=3)
        axes.set_xlabel(unit, color=INK)
        axes.set_ylabel("saving of energy (above 1 saves)", color=INK)
        for spine in axes.spines.values():
            spine.set_color(FAINT)
        axes.legend(loc="best", frameon=False, labelcolor=INK, fontsize=9)

    told = [
        f"{decoding}: " + ", ".join(f"{s.load} {figure(s.energy.value or 0.0)}" for s in line)
        for decoding, line in lines.items()
    ]
    return draw(paint, prefix, f"{found.task}: saving against load", f"{'. '.join(told)}.")

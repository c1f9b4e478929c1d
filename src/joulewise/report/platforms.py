"""Platforms against quantisations in sentences and tables; ``docs/platforms.md`` says what stands behind them."""

from __future__ import annotations

from collections.abc import Sequence

from joulewise.analysis.cells import VANILLA, CellKey
from joulewise.analysis.intervals import Quantity
from joulewise.analysis.platforms import Effect, TwoWay, TwoWayCell
from joulewise.report.grid import Column, Grid, Shown, in_words, lay_out, quantity_column
from joulewise.report.text import COMPONENT_NAMES, figure, interval, listed, short_model, value

TITLE = "Platform and quantisation"

HOW_TO_READ = (
    "Every figure is a factor to the baseline's joules or seconds per output token, over the questions that all cells "
    "answered; below 1 it takes less. An effect is what a platform does on average over the quantisations, and a "
    "quantisation over the platforms; an interaction is a cell's factor over what the two effects alone would give. "
    "Engines ran one after another: what changed on the machine in between is in the effects, and in no interval."
)

ALIKE = 0.005
"""Lengths that differ by less than this share count as equal."""


def name(found: TwoWay, several: Sequence[TwoWay]) -> str:
    """Which table it is: the task, and what else differs among the run's."""
    parts = [short_model(found.model), found.reasoning, found.setting]
    others = [(short_model(t.model), t.reasoning, t.setting) for t in several]
    told = [part for part, all_ in zip(parts, zip(*others, strict=True), strict=True) if len(set(all_)) > 1 and part]
    return ", ".join([found.task, *told])


def findings(found: TwoWay) -> list[str]:
    """What platforms and quantisations do, the missing cells, and what stands against the comparison."""
    energy = "GPU joules" if found.component == "gpu" else "joules"
    told = [
        f"{side.capitalize()}, against {effects[0].name}: "
        + "; ".join(f"{effect.name} {_factors(effect, energy)}" for effect in effects[1:])
        + "."
        for side, effects in (("platform", found.platforms), ("quantisation", found.quantisations))
        if len(effects) > 1
    ]
    missing = [f"{_place(cell)}: {cell.missing}" for cell in found.cells if cell.missing is not None]
    if missing:
        told.append(f"Missing: {'; '.join(missing)}.")
    if found.others:
        told.append(f"Left out: {'; '.join(f'{engine}: {why}' for engine, why in found.others)}.")
    return [*told, *_lengths(found.cells)]


def _factors(effect: Effect, energy: str) -> str:
    if effect.energy.value is None and effect.time.value is None:
        return f"unknown ({effect.energy.reason})"
    return f"takes {_times(effect.energy)} the {energy} and {_times(effect.time)} the seconds"


def _times(quantity: Quantity) -> str:
    if quantity.value is None:
        return f"unknown times ({quantity.reason})"
    modelled = ", modelled" if quantity.provenance == "modelled" else ""
    ends = interval(quantity)
    return f"{value(quantity)} times" + (f" ({ends}{modelled})" if ends or modelled else "")


def _lengths(cells: Sequence[TwoWayCell]) -> list[str]:
    """Where cells were not given the same prompts, or did not give answers of one length: the factors hold it, too."""
    notes = []
    for what, way_out in (
        ("output_tokens", "a figure per output token holds that too; ask with `stop: {rule: fixed, tokens: N}`"),
        ("prompt_tokens", "the platforms put the questions into other templates, which the factors hold too"),
    ):
        known = {cell: n for cell in cells if (n := getattr(cell, what)) is not None}
        if known and max(known.values()) > (1 + ALIKE) * min(known.values()):
            least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
            notes.append(
                f"{what.partition('_')[0].capitalize()} tokens per answer differ ({figure(known[least])} in "
                f"{_place(least)}, {figure(known[most])} in {_place(most)}): {way_out}."
            )
    return notes


def platform_grids(several: Sequence[TwoWay]) -> tuple[Grid, ...]:
    """The tables of a run: effects, and every cell; those without rows left out."""
    if not several:
        return ()
    return tuple(grid for grid in (_effects(several), _cells(several), _interactions(several)) if grid.rows)


def _effects(several: Sequence[TwoWay]) -> Grid:
    keys, names, effects = [], [], []
    for found in several:
        for side, of_side in (("platform", found.platforms), ("quantisation", found.quantisations)):
            for effect in of_side if len(of_side) > 1 else ():
                keys.append(_key(found))
                names.append((name(found, several), f"{side} {effect.name}"))
                effects.append((effect, effect.name == of_side[0].name))
    columns = (
        Column(_energy(several), tuple(_factor(effect.energy, base) for effect, base in effects)),
        Column("seconds", tuple(_factor(effect.time, base) for effect, base in effects)),
    )
    grid = lay_out("Effects of platform and quantisation (below 1 takes less)", keys, columns, (HOW_TO_READ,), names)
    return Grid(grid.title, grid.columns, grid.rows, grid.notes, of="effect")


def _cells(several: Sequence[TwoWay]) -> Grid:
    rows = [(found, cell) for found in several for cell in found.cells]

    def column(heading: str, quantities: Sequence[Quantity]) -> Column:
        told = [
            Shown("–") if cell.missing is not None else _factor(q, (cell.platform, cell.quantisation) == found.baseline)
            for (found, cell), q in zip(rows, quantities, strict=True)
        ]
        return Column(heading, tuple(told))

    scores = quantity_column("accuracy or score, %", [cell.score for _, cell in rows], 100.0)
    columns = (
        column(_energy(several), [cell.energy for _, cell in rows]),
        column("seconds", [cell.time for _, cell in rows]),
        Column(
            scores.heading,
            tuple(Shown(f.main, f.detail) if f.main != "unknown" else Shown("–") for f in scores.figures),
        ),
    )
    return _named("Every platform in every quantisation", rows, columns, several)


def _interactions(several: Sequence[TwoWay]) -> Grid:
    rows = [(found, cell) for found in several for cell in found.cells if cell.missing is None]
    columns = (
        quantity_column(_energy(several), [cell.energy_interaction for _, cell in rows]),
        quantity_column("seconds", [cell.time_interaction for _, cell in rows]),
    )
    return _named("Interactions (1 where the effects alone tell a cell)", rows, columns, several)


def _named(
    title: str, rows: Sequence[tuple[TwoWay, TwoWayCell]], columns: Sequence[Column], several: Sequence[TwoWay]
) -> Grid:
    names = [(name(found, several), _place(cell)) for found, cell in rows]
    grid = lay_out(title, [_key(found) for found, _ in rows], columns, (), names)
    return Grid(grid.title, grid.columns, grid.rows, grid.notes, of="cell")


def _energy(several: Sequence[TwoWay]) -> str:
    return f"{listed(list(dict.fromkeys(COMPONENT_NAMES[found.component] for found in several)))} joules"


def _factor(quantity: Quantity, is_baseline: bool) -> Shown:
    if is_baseline and quantity.value is not None:
        return Shown("1", "baseline", n=quantity.n_questions or None)
    return in_words(quantity, "modelled" if quantity.provenance == "modelled" else None)


def _place(cell: TwoWayCell) -> str:
    return f"{cell.platform}, {cell.quantisation}"


def _key(found: TwoWay) -> CellKey:
    return CellKey(found.run, "", found.model, found.reasoning, found.task, VANILLA)

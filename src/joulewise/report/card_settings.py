"""Power limits and locked clocks as a table."""

from __future__ import annotations

from collections.abc import Sequence

from joulewise.analysis.card_settings import AtSetting, SettingTable
from joulewise.analysis.intervals import Quantity
from joulewise.report.grid import Column, Grid, Shown, in_words, lay_out
from joulewise.report.text import COMPONENT_NAMES, listed

HOW_TO_READ = (
    "Factors to the baseline's joules and seconds per output token, of the same cell and questions at another power "
    "limit or clock of the GPUs; below 1 it takes less. Savings of a decoding are told within one setting alone."
)


def setting_grids(several: Sequence[SettingTable]) -> tuple[Grid, ...]:
    """The table of a run's settings; empty where it has none.

    Args:
        several: of one run.
    """
    if not several:
        return ()
    rows = [(found, cell) for found in several for cell in found.cells]
    energies, times = (tuple(_factor(found, cell, name) for found, cell in rows) for name in ("energy", "time"))
    parts = [(found.engine, found.reasoning, found.decoding) for found, _ in rows]
    differs = [len(set(column)) > 1 for column in zip(*parts, strict=True)]
    names = [
        (
            ", ".join([found.task, *(part for part, one in zip(of, differs, strict=True) if one)]),
            cell.setting,
        )
        for (found, cell), of in zip(rows, parts, strict=True)
    ]
    joules = f"{listed(list(dict.fromkeys(COMPONENT_NAMES[found.component] for found in several)))} joules"
    columns = (Column(joules, energies), Column("seconds", times))
    title = "Power limits and clocks (below 1 takes less)"
    grid = lay_out(title, [cell.key for _, cell in rows], columns, (HOW_TO_READ,), names)
    return (Grid(grid.title, grid.columns, grid.rows, grid.notes, of="setting"),)


def _factor(found: SettingTable, cell: AtSetting, name: str) -> Shown:
    quantity: Quantity = getattr(cell, name)
    if cell.setting == found.baseline and quantity.value is not None:
        return Shown("1", "baseline", n=quantity.n_questions or None)
    return in_words(quantity, "modelled" if quantity.provenance == "modelled" else None)

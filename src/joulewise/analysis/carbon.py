"""How much carbon? gCO2e per answer and per 1,000 output tokens: a cell's joules times its grid's intensity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc

from joulewise.analysis.cells import CellKey
from joulewise.analysis.intervals import Quantity
from joulewise.analysis.per_token import CellCost
from joulewise.energy.carbon import Grid, Intensity
from joulewise.energy.reading import ComponentName
from joulewise.table import RunTable


@dataclass(frozen=True, slots=True)
class ComponentCarbon:
    """Grams of CO2 equivalent of one component; provenance and intervals are those of its joules."""

    component: ComponentName
    carbon_per_answer_g: Quantity
    carbon_per_1000_output_tokens_g: Quantity


@dataclass(frozen=True, slots=True)
class CellCarbon:
    """The carbon of one cell's joules, and the intensity that it was told by."""

    key: CellKey
    intensity: Intensity
    components: tuple[ComponentCarbon, ...]

    def component(self, name: ComponentName) -> ComponentCarbon:
        """The entry of one component."""
        return next(c for c in self.components if c.component == name)


def intensities(table: RunTable, grid: Grid) -> dict[str, Intensity]:
    """The grid's mean intensity over the time of each run that has Trials, by run."""
    found = {}
    for run in table.arrow["run"].unique().to_pylist():
        rows = table.arrow.filter(pc.equal(table.arrow["run"], run))
        ends = pc.min_max(rows["started_at"]).as_py()  # text that sorts as its times do
        last = rows["duration_s"].filter(pc.equal(rows["started_at"], ends["max"]))
        end = _moment(ends["max"]) + timedelta(seconds=pc.max(last).as_py())
        found[run] = grid(_moment(ends["min"]), end)
    return found


def carbon(costs: Iterable[CellCost], by_run: Mapping[str, Intensity]) -> tuple[CellCarbon, ...]:
    """The carbon of every cell.

    Args:
        costs: of the cells.
        by_run: what ``intensities`` gave.
    """
    return tuple(
        CellCarbon(
            cost.key,
            intensity,
            tuple(
                ComponentCarbon(
                    part.component,
                    part.energy_per_answer_j.scaled(intensity.g_per_j),
                    part.energy_per_output_token_j.scaled(1000 * intensity.g_per_j),
                )
                for part in cost.components
            ),
        )
        for cost in costs
        for intensity in [by_run[cost.key.run]]
    )


def _moment(iso: str) -> datetime:
    moment = datetime.fromisoformat(iso)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

"""One run and what was already found in it: what evidence on a claim is looked for in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joulewise.analysis.cells import Cell, CellKey, Components
from joulewise.analysis.operating import NoCurve, OperatingCurve
from joulewise.analysis.per_token import CellCost
from joulewise.analysis.phases import PhaseShares
from joulewise.analysis.savings import Gamma, Saving
from joulewise.energy.reading import ComponentName
from joulewise.table import RunTable


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """One run.

    Args:
        name: which of the table's.
        table: plans, environments and folders.
        cells: those with answers.
        components: whose joules to tell.
        savings, costs, shares: of these cells.
        curves: of its engines.
    """

    name: str
    table: RunTable
    cells: Sequence[Cell]
    components: Components
    savings: Sequence[Saving]
    costs: Sequence[CellCost]
    shares: Sequence[PhaseShares]
    curves: Sequence[OperatingCurve | NoCurve]

    def saved(self) -> Iterator[tuple[CellKey, Saving, Gamma]]:
        """Every decoding against vanilla, with the factor of the joules to tell."""
        for saving in self.savings:
            component: ComponentName = self.components[saving.key.head]
            yield saving.key, saving, saving.gpu if component == "gpu" else saving.total

    def engine(self, key: CellKey) -> Mapping[str, Any]:
        """What a cell's engine told of itself; nothing where it is not recorded."""
        engines = self.environment.get("engines") or ()
        return next((e for e in engines if isinstance(e, Mapping) and e.get("label") == key.engine), {})

    @property
    def environment(self) -> Mapping[str, Any]:
        """What the run was on."""
        return self.table.environments.get(self.name, {})

    def several(self, part: str) -> bool:
        """Whether cells differ in a part of their keys, so that it must be told."""
        return len({getattr(cell.key, part) for cell in self.cells}) > 1


def earnest(
    name: str,
    table: RunTable,
    cells: Iterable[Cell],
    components: Components,
    savings: Iterable[Saving],
    costs: Iterable[CellCost],
    shares: Iterable[PhaseShares],
    curves: Iterable[OperatingCurve | NoCurve],
) -> MeasuredRun:
    """A run without what was decoded by lot: nothing is learnt of that, as the plan says what is accepted."""

    def counts(key: CellKey) -> bool:
        return key.run == name and "-synthetic-" not in key.decoding

    return MeasuredRun(
        name,
        table,
        tuple(cell for cell in cells if counts(cell.key) and cell.rows.num_rows),
        components,
        tuple(saving for saving in savings if counts(saving.key)),
        tuple(cost for cost in costs if counts(cost.key)),
        tuple(one for one in shares if counts(one.key)),
        tuple(one for one in curves if one.run == name),
    )

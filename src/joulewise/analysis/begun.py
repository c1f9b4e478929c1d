"""Which cells of a run's plan have no Trial, because the run was stopped before they were begun."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc
from pydantic import ValidationError

from joulewise.analysis.cells import CellKey
from joulewise.plan import Plan
from joulewise.table import RunTable

GO_ON = "go on with the command of that run and --resume"
"""What to do about it."""

_NAMED = 4
"""At most so many cells are named."""


def not_begun(table: RunTable, run: str) -> tuple[CellKey, ...]:
    """The cells that a run's plan asks for and that have no Trial, failed ones included, in the plan's order.

    Args:
        table: the run's, polluted Trials in it.
        run: its name there. None of a run whose plan is not known.
    """
    try:
        plan = Plan.model_validate(table.plans.get(run))
    except ValidationError:
        return ()  # of another version, or made up for a test
    begun = set(table.arrow.filter(pc.equal(table.arrow["run"], run))["cell_id"].unique().to_pylist())
    return tuple(
        CellKey(run, cell.engine.label, cell.engine.model, cell.reasoning.label, cell.task_label, cell.decoding.label)
        for cell in plan.cells()
        if cell.cell_id not in begun
    )


def named(cells: Sequence[CellKey]) -> str:
    """Cells by name, the first few of many."""
    names = ["/".join((key.engine, key.decoding, key.reasoning, key.task)) for key in cells]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")

"""Where do the seconds of a generation go?

Shares of time are not shares of energy: of that the meter's timeline tells what was drawn up to the first token, and
``phase_energy`` estimates the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulewise.analysis.cells import Cell, CellKey, Components, dense, exact_sum, sum_by_unit
from joulewise.analysis.intervals import (
    Floats,
    Quantity,
    joint_provenance,
    positive_quantity,
    resample,
    unknown_quantity,
)
from joulewise.energy.reading import ComponentName, Provenance
from joulewise.engines.engine import PHASES

OVERHEAD = ("accept", "memory", "host")
"""What arXiv 2602.09113 blames: verification bookkeeping, memory movement, control flow."""

OVERHEAD_OF_THE_PAPER = (0.06, 0.10)
"""Its share there."""


@dataclass(frozen=True, slots=True)
class PhaseShares:
    """How a cell's seconds were spent.

    Args:
        key: which cell.
        seconds: by phase, over all Trials.
        shares: of the phases' sum, by phase.
        overhead: share of ``OVERHEAD`` together.
        closure: the phases' sum over the Trials' windows, less 1: what a window holds beyond its generations, and what
            the engine's clocks do not see.
        prefill_energy: share of the joules that were drawn up to the first token.
    """

    key: CellKey
    seconds: Mapping[str, float]
    shares: Mapping[str, float]
    overhead: Quantity
    closure: float
    prefill_energy: Quantity


def phase_shares(cells: Iterable[Cell], components: Components) -> tuple[PhaseShares, ...]:
    """Of every cell whose engine tells phases apart.

    Args:
        cells: from ``split``.
        components: whose joules to tell.
    """
    found = (_shares(cell, components[cell.key.head]) for cell in cells if cell.rows.num_rows)
    return tuple(shares for shares in found if shares is not None)


def _shares(cell: Cell, component: ComponentName) -> PhaseShares | None:
    columns = {phase: cell.numbers(f"phase_{phase}_s") for phase in PHASES}
    told = ~np.isnan(columns[PHASES[0]])
    seconds = {phase: exact_sum(column[told]) for phase, column in columns.items()}
    whole_s = sum(seconds.values())
    if whole_s <= 0.0:
        return None
    overhead = np.sum([columns[phase] for phase in OVERHEAD], axis=0)
    every = np.sum(list(columns.values()), axis=0)
    return PhaseShares(
        cell.key,
        seconds,
        {phase: part / whole_s for phase, part in seconds.items()},
        _share(cell, told, overhead, every, "measured"),
        whole_s / exact_sum(cell.numbers("duration_s")[told]) - 1.0,
        _prefill_energy(cell, component),
    )


def _prefill_energy(cell: Cell, component: ComponentName) -> Quantity:
    prefill, whole = cell.numbers(f"{component}_prefill_j"), cell.numbers(f"{component}_energy_j")
    known = ~np.isnan(prefill) & ~np.isnan(whole)
    if not known.any():
        return unknown_quantity("what the prefill drew was not recorded")
    return _share(cell, known, prefill, whole, joint_provenance(cell.provenances(component)))


def _share(cell: Cell, keep: npt.NDArray[np.bool_], part: Floats, whole: Floats, provenance: Provenance) -> Quantity:
    """Sum of ``part`` over sum of ``whole``, with its interval."""
    codes, n = dense(cell.questions[keep])
    above, below = exact_sum(part[keep]), exact_sum(whole[keep])
    if below <= 0.0 or above <= 0.0:
        return unknown_quantity("nothing was measured in it", n, len(codes))
    again = resample(sum_by_unit(codes, n, part[keep], whole[keep]))
    with np.errstate(divide="ignore", invalid="ignore"):
        replicates = again[:, 0] / again[:, 1]
    return positive_quantity(
        above / below,
        replicates[~np.isnan(replicates)],
        n_questions=n,
        n_trials=len(codes),
        provenance=provenance,
    )

"""Does a decoding save time and energy? The three factors of arXiv 2602.09113, with intervals and a verdict.

gamma_t, gamma_GPU^e and gamma_Total^e: vanilla's seconds or joules per output token over the decoding's, each a ratio
of sums over the same questions; above 1 is a saving. ``docs/statistics.md`` derives the intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from joulewise.analysis.cells import VANILLA, Cell, CellKey, exact_sum, nothing_to_divide, parts_of, why_no_energy
from joulewise.analysis.intervals import Quantity, joint_provenance, positive_quantity, unknown_quantity
from joulewise.analysis.pairs import Pairs
from joulewise.energy.reading import ComponentName, Provenance

Verdict = Literal["saves energy", "costs energy", "faster", "slower", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Gamma:
    """One saving factor.

    Args:
        ratio: the factor with its interval; above 1 is a saving.
        verdict: what the interval says; None for energy that is not measured (modelled joules follow time, so they can
            prove neither a saving nor a cost) and for what is unknown.
        dropped: questions of either cell that are not in it, for want of an ok Trial (with known joules) in both.
    """

    ratio: Quantity
    verdict: Verdict | None
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Saving:
    """One decoding against vanilla: same run, engine, model, reasoning and task.

    Args:
        key: the decoding's cell.
        time: gamma_t.
        gpu: gamma_GPU^e.
        total: gamma_Total^e.
        power: gamma_t / gamma_GPU^e, the mean GPU power of the decoding over vanilla's: why a faster decoding need not
            be a cheaper one.
    """

    key: CellKey
    time: Gamma
    gpu: Gamma
    total: Gamma
    power: Quantity


def savings(cells: Iterable[Cell]) -> tuple[Saving, ...]:
    """Every decoding against the vanilla cell of its group. Cells of different models or tasks are never pooled."""
    cells = tuple(cells)
    baselines = {cell.key.group: cell for cell in cells if cell.key.decoding == VANILLA}
    return tuple(saving(baselines.get(cell.key.group), cell) for cell in cells if cell.key.decoding != VANILLA)


def saving(vanilla: Cell | None, method: Cell) -> Saving:
    """One decoding against vanilla.

    Args:
        vanilla: None where the grid has no such cell; every figure is then unknown, with the reason.
        method: the decoding's cell.
    """
    if vanilla is None:
        return _nothing(method, "there is no vanilla Trial to compare with (not planned, not run yet, or left out)")
    if not vanilla.rows.num_rows:
        return _nothing(method, "no vanilla Trial succeeded")
    if not method.rows.num_rows:
        return _nothing(method, "no Trial of this decoding succeeded")
    pairs = Pairs.of(vanilla, method)
    return Saving(method.key, _time(pairs), _energy(pairs, "gpu"), _energy(pairs, "total"), _power(pairs))


def _nothing(method: Cell, reason: str) -> Saving:
    gamma = Gamma(unknown_quantity(reason), None, len(method.all_units()))
    return Saving(method.key, gamma, gamma, gamma, gamma.ratio)


def _time(pairs: Pairs) -> Gamma:
    if not pairs.n:
        return Gamma(
            unknown_quantity("vanilla and this decoding have no answered question in common"), None, pairs.dropped
        )
    ratio = _ratio(pairs, "duration_s", "output_tokens", "measured")
    return Gamma(ratio, _verdict(ratio, "faster", "slower"), pairs.dropped)


def _energy(pairs: Pairs, component: ComponentName) -> Gamma:
    known = pairs.with_known(f"{component}_energy_j")
    if not known.n:
        return Gamma(unknown_quantity(_why_unknown(pairs, component)), None, known.dropped)
    provenance = joint_provenance(known.provenances(component))
    ratio = _ratio(known, f"{component}_energy_j", "output_tokens", provenance, _common(known, component))
    verdict = _verdict(ratio, "saves energy", "costs energy") if ratio.provenance == "measured" else None
    return Gamma(ratio, verdict, known.dropped)


def _power(pairs: Pairs) -> Quantity:
    """gamma_t / gamma_GPU^e = (t_v / E_v) / (t_m / E_m) over the pairs with known GPU joules: the tokens cancel."""
    known = pairs.with_known("gpu_energy_j")
    if not known.n:
        return unknown_quantity(_why_unknown(pairs, "gpu"))
    provenance = joint_provenance(known.provenances("gpu"))
    return _ratio(known, "duration_s", "gpu_energy_j", provenance, _common(known, "gpu"))


def _ratio(pairs: Pairs, above: str, below: str, provenance: Provenance, common: float = 0.0) -> Quantity:
    """(sum of vanilla's ``above`` / sum of its ``below``) over the same of the method, with its interval."""
    columns = (*pairs.column(above), *pairs.column(below))
    above_v, above_m, below_v, below_m = (exact_sum(column) for column in columns)
    for name, total in ((above, min(above_v, above_m)), (below, min(below_v, below_m))):
        if total <= 0.0:
            return unknown_quantity(nothing_to_divide(name), pairs.n, len(pairs.codes))
    (again_v, again_m), (below_again_v, below_again_m) = pairs.again[above], pairs.again[below]
    with np.errstate(divide="ignore", invalid="ignore"):
        replicates = (again_v / below_again_v) / (again_m / below_again_m)
    return positive_quantity(
        (above_v / below_v) / (above_m / below_m),
        replicates[~np.isnan(replicates)],
        n_questions=pairs.n,
        n_trials=len(pairs.codes),
        provenance=provenance,
        common=common,
    )


def _common(pairs: Pairs, component: ComponentName) -> float:
    """What the meter's common errors can do to ln gamma: one standard uncertainty.

    With d ln gamma = dE_v / E_v - dE_m / E_m, and each part's gain and offset errors (g and o) the same in all Trials
    of both cells, a part moves it by g (share_v - share_m) + o (t_v / E_v - t_m / E_m), where the shares are of the
    joules E that gamma is about. For a component by itself both shares are 1 and its gain cancels. The terms are added
    linearly, as nothing is known of how the errors of different parts hang together.
    """
    energy_v, energy_m = (exact_sum(column) for column in pairs.column(f"{component}_energy_j"))
    if min(energy_v, energy_m) <= 0.0:
        return math.nan
    terms = []
    for part in parts_of(component, pairs.provenances):
        for error in ("gain", "offset"):
            error_v, error_m = (exact_sum(column) for column in pairs.column(f"{part}_{error}_j"))
            terms.append(abs(error_v / energy_v - error_m / energy_m))
    return math.fsum(terms)


def _verdict(ratio: Quantity, above: Verdict, below: Verdict) -> Verdict | None:
    if ratio.value is None:
        return None
    if ratio.lower is not None and ratio.lower > 1.0:
        return above
    if ratio.upper is not None and ratio.upper < 1.0:
        return below
    return "cannot tell"


def _why_unknown(pairs: Pairs, component: ComponentName) -> str:
    if not pairs.n:
        return "vanilla and this decoding have no answered question in common"
    return why_no_energy(component, pairs.provenances(component))

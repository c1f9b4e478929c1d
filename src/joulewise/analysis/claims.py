"""Do the two papers' claims hold in a run? Each confirmed, contradicted, or not to be told, by measured joules alone.

``docs/claims.md`` says by which rule each is decided; ``published`` has the papers' figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from joulewise.analysis.cells import Cell, Components
from joulewise.analysis.evidence import ClaimVerdict, Evidence, weighed
from joulewise.analysis.measured_run import MeasuredRun, earnest
from joulewise.analysis.operating import NoCurve, OperatingCurve
from joulewise.analysis.per_token import CellCost
from joulewise.analysis.phases import PhaseShares
from joulewise.analysis.published import CLAIMS, Published
from joulewise.analysis.savings import Saving
from joulewise.analysis.speculation_claims import (
    faster_yet_costlier,
    goes_with,
    heads_against_drafts,
    overhead,
    platform_or_quantisation,
    size_ratio,
    tasks,
)
from joulewise.analysis.thinking_claims import larger, steps, votes
from joulewise.analysis.token_claims import successive_tokens, utilisation
from joulewise.table import RunTable


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim in one run.

    Args:
        run: which.
        letter: from a to k.
        published: what is claimed.
        verdict: what the run says; None where it does not touch the claim.
        evidence: on what that rests, the clearest first.
        goes_with: of claim (d): what the energy saved goes with from task to task, its rank correlation, and over how
            many cells.
    """

    run: str
    letter: str
    published: Published
    verdict: ClaimVerdict | None
    evidence: tuple[Evidence, ...]
    goes_with: tuple[tuple[str, float, int], ...] = ()


Finder: TypeAlias = Callable[[MeasuredRun], Sequence[Evidence]]

FINDERS: Mapping[str, Finder] = {
    "a": faster_yet_costlier,
    "b": size_ratio,
    "c": heads_against_drafts,
    "d": tasks,
    "e": platform_or_quantisation,
    "f": overhead,
    "g": votes,
    "h": steps,
    "i": larger,
    "j": utilisation,
    "k": successive_tokens,
}
"""By letter: what finds the evidence in a run."""


def claims(
    table: RunTable,
    cells: Sequence[Cell],
    components: Components,
    savings: Sequence[Saving],
    costs: Sequence[CellCost],
    shares: Sequence[PhaseShares],
    curves: Sequence[OperatingCurve | NoCurve],
) -> tuple[Claim, ...]:
    """Every claim in every run.

    Args:
        table: the runs: their plans, environments and folders.
        cells: from one ``split``.
        components: whose joules to tell.
        savings, costs, shares, curves: of these cells.
    """
    found = []
    for name in dict.fromkeys(cell.key.run for cell in cells):
        run = earnest(name, table, cells, components, savings, costs, shares, curves)
        for letter, published in CLAIMS.items():
            verdict, evidence = weighed(FINDERS[letter](run), published.sort)
            beside = goes_with(run) if letter == "d" and evidence else ()
            found.append(Claim(name, letter, published, verdict if evidence else None, evidence, beside))
    return tuple(found)

"""How well does the draft guess? Acceptance length, acceptance rate, and the tokens that were drafted in vain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from joulewise.analysis.cells import Cell, CellKey, dense, sum_by_unit
from joulewise.analysis.intervals import Floats, Quantity, positive_quantity, resample

HOW_COUNTED = (
    "Acceptance length is the mean number of tokens that a round of speculation puts out: the accepted draft tokens "
    "plus one, the bonus token that the target adds itself. With the engine transformers the first round includes the "
    "prefill; with native the prefill is no round, and its token, the first, belongs to none. A round that the end of "
    "the text cuts short counts as if its bonus token had been kept. A server (endpoint) tells totals alone; its "
    "rounds are the output tokens less the first and the accepted ones, one too few where the end cut a round short."
)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How the drafts of one cell fared.

    Args:
        key: which cell.
        rounds: rounds of speculation, each one verification forward of the target.
        drafted: draft tokens proposed.
        accepted: of these, the ones that entered the output.
        rejected: the others.
        wasted: tokens thrown away past the end of the output.
        length: mean acceptance length, 1 + accepted / rounds.
        rate: accepted / drafted; None where nothing was drafted.
        histogram: number of rounds by how many draft tokens they accepted, from 0 on; empty where a server tells
            totals alone.
    """

    key: CellKey
    rounds: int
    drafted: int
    accepted: int
    rejected: int
    wasted: int
    length: Quantity
    rate: float | None
    histogram: tuple[int, ...]


def acceptances(cells: Iterable[Cell]) -> tuple[Acceptance, ...]:
    """The acceptance of every cell that speculated."""
    return tuple(a for a in (acceptance(cell) for cell in cells) if a is not None)


def acceptance(cell: Cell) -> Acceptance | None:
    """The acceptance of one cell; None where there were no rounds (plain decoding, or no Trial succeeded)."""
    rounds, accepted, drafted, wasted = (
        cell.numbers(name) for name in ("rounds", "accepted_tokens", "drafted_tokens", "wasted_tokens")
    )
    known = ~np.isnan(rounds)  # a server may not tell of a Trial what was drafted
    if not rounds[known].any():
        return None
    rounds, accepted, drafted, wasted = rounds[known], accepted[known], drafted[known], wasted[known]
    length = acceptance_length(rounds, accepted, *dense(cell.questions[known]))
    n_rounds, n_accepted, n_drafted, n_wasted = (int(c.sum()) for c in (rounds, accepted, drafted, wasted))
    counts = pc.list_flatten(cell.rows["accepted_per_round"]).to_numpy()
    return Acceptance(
        cell.key,
        n_rounds,
        n_drafted,
        n_accepted,
        n_drafted - n_accepted,
        n_wasted,
        length,
        n_accepted / n_drafted if n_drafted else None,
        tuple(int(count) for count in np.bincount(counts)) if len(counts) else (),
    )


def acceptance_length(rounds: Floats, accepted: Floats, codes: npt.NDArray[np.intp], n: int) -> Quantity:
    """The mean acceptance length, 1 + accepted / rounds, with its interval over questions.

    Args:
        rounds, accepted: of each Trial, shape ``(Trials,)``; at least one round in all.
        codes, n: each Trial's question, numbered from 0, and how many questions there are.
    """
    again = resample(sum_by_unit(codes, n, rounds, accepted))
    with np.errstate(divide="ignore", invalid="ignore"):
        replicates = 1.0 + again[:, 1] / again[:, 0]
    return positive_quantity(
        1.0 + float(accepted.sum() / rounds.sum()),
        replicates[~np.isnan(replicates)],
        n_questions=n,
        n_trials=len(codes),
        provenance="measured",
    )

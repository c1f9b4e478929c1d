"""Why a decoding pays or not: its break-even in every currency, what it would need, and which size of it is best."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc

from joulewise.analysis.breakeven import BreakEven, break_evens
from joulewise.analysis.cells import VANILLA, Cell, CellKey, Components, exact_sum
from joulewise.analysis.chain import acceptance_for, is_chain
from joulewise.analysis.savings import Gamma, Saving, saving
from joulewise.energy.reading import ComponentName

Currency = Literal["time", "energy"]
_CURRENCIES: tuple[Currency, ...] = ("time", "energy")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a decoding would need to break even in one currency, all else as it is.

    Args:
        acceptance: chance that a draft token is accepted where the one before it is; None where no chance is enough,
            and for drafts that are no chains.
        cheaper_round: share by which a round would have to cost less; None where it need not.
        cheaper_draft: share by which the draft's forwards alone would; None where it need not, where even a free draft
            is not enough, and where what the draft costs is not known by itself, as ever with joules.
    """

    acceptance: float | None = None
    cheaper_round: float | None = None
    cheaper_draft: float | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decoding against vanilla: same run, engine, model, reasoning and task.

    Args:
        key: the decoding's cell.
        component: whose joules.
        time, gross, net: where it breaks even in seconds, in joules, and in joules above idle power.
        drafted, rejected: draft tokens, and those that were not accepted. Their cost is part of every round's.
        rejected_share: the latter's share; None where nothing was drafted.
        acceptance: chance that a draft token is accepted where the one before it is, as the rounds tell it; None for
            drafts that are no chains.
        time_needs, energy_needs: what it would need to save time and (gross) joules.
    """

    key: CellKey
    component: ComponentName
    time: BreakEven
    gross: BreakEven
    net: BreakEven
    drafted: int
    rejected: int
    rejected_share: float | None
    acceptance: float | None
    time_needs: Needs
    energy_needs: Needs


def explanations(
    cells: Iterable[Cell],
    components: Components,
    environments: Mapping[str, Mapping[str, Any]],
) -> tuple[Explanation, ...]:
    """Every decoding that speculates against the vanilla cell of its group, where both have ok Trials.

    Args:
        cells: from ``split``.
        components: whose joules to tell.
        environments: as in ``RunTable``.
    """
    cells = [cell for cell in cells if cell.rows.num_rows]
    vanilla = {cell.key.group: cell for cell in cells if cell.key.decoding == VANILLA}
    return tuple(
        explain(vanilla[cell.key.group], cell, components[cell.key.head], environments.get(cell.key.run, {}))
        for cell in cells
        if cell.key.decoding != VANILLA and cell.key.group in vanilla and speculated(cell)
    )


def speculated(cell: Cell) -> bool:
    """Whether a cell had rounds of speculation, and tells of every Trial how many."""
    rounds = cell.numbers("rounds")
    return bool(rounds.any() and not np.isnan(rounds).any())


def explain(vanilla: Cell, method: Cell, component: ComponentName, environment: Mapping[str, Any]) -> Explanation:
    """One decoding against vanilla; arguments as for ``break_evens``."""
    found = break_evens(vanilla, method, component, environment)
    drafted, accepted, rounds = (
        int(exact_sum(method.numbers(name))) for name in ("drafted_tokens", "accepted_tokens", "rounds")
    )
    lengths = np.bincount(pc.list_flatten(method.rows["drafted_per_round"]).to_numpy())
    chain = lengths.tolist() if is_chain(method.key.decoding) and len(lengths) and drafted else None
    draft_s = exact_sum(method.numbers("phase_draft_s")) / rounds  # nan where a Trial does not tell
    return Explanation(
        method.key,
        component,
        found.time,
        found.gross,
        found.net,
        drafted,
        drafted - accepted,
        (drafted - accepted) / drafted if drafted else None,
        None if chain is None else acceptance_for(1.0 + accepted / rounds, chain),
        _needs(found.time, 1.0 + accepted / rounds, chain, draft_s),
        _needs(found.gross, 1.0 + accepted / rounds, chain, np.nan),
    )


def _needs(found: BreakEven, drafts_give: float, chain: Sequence[int] | None, draft: float) -> Needs:
    """What would have to change.

    Args:
        found: the break-even.
        drafts_give: accepted tokens of a round and one; what of it lies past the end of an answer, or is its first
            token, stays lost at any acceptance.
        chain: how many rounds drafted 0, 1, 2 ... tokens; None where drafts are no chains.
        draft: what a round's drafts cost; nan where that is not known.
    """
    if found.length.value is None or found.round.value is None or found.saved_per_token.value is None:
        return Needs()
    needed, acceptance = found.needed.value, None
    if needed is not None and chain is not None:
        acceptance = acceptance_for(needed + drafts_give - found.length.value, chain)
    too_much = -found.saved_per_token.value * found.length.value
    if too_much <= 0.0:
        return Needs(acceptance)
    return Needs(acceptance, too_much / found.round.value, too_much / draft if too_much <= draft else None)


@dataclass(frozen=True, slots=True)
class Best:
    """The cheapest of decodings that differ in their size alone, on the same task, prefill included.

    Args:
        head: run, engine, model and reasoning.
        task: the task.
        family: what they are all called, such as ``coga``.
        currency: seconds or joules per output token.
        decoding: the cheapest.
        as_good: those that cannot be told apart from it.
        others: those that cost more.
    """

    head: tuple[str, str, str, str]
    task: str
    family: str
    currency: Currency
    decoding: str
    as_good: tuple[str, ...]
    others: tuple[str, ...]


_SIZED = re.compile(r"(.+?)(-chain)?-(\d+(?:x\d+)*)(?![\d.])(.*)")


def family(decoding: str) -> str:
    """A decoding's label without its size: ``coga`` of ``coga-5``, ``eagle3`` of ``eagle3-60x5x10``."""
    sized = _SIZED.fullmatch(decoding)
    return decoding if sized is None else sized[1] + sized[4]


def best(cells: Iterable[Cell], components: Components) -> tuple[Best, ...]:
    """The best size of every family that has several, for seconds and for joules.

    Args:
        cells: from ``split``.
        components: whose joules to tell.
    """
    families: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        if cell.rows.num_rows:
            families.setdefault((*cell.key.group, family(cell.key.decoding)), []).append(cell)
    found = []
    for members in families.values():
        if len(members) > 1:
            component, against = components[members[0].key.head], lru_cache(saving)
            found += [_best(members, currency, component, against) for currency in _CURRENCIES]
    return tuple(one for one in found if one is not None)


def _best(
    cells: Sequence[Cell],
    currency: Currency,
    component: ComponentName,
    against: Callable[[Cell, Cell], Saving],
) -> Best | None:
    """None where joules are not measured in all cells. ``against`` holds a cell against a cheaper one."""
    column = "duration_s" if currency == "time" else f"{component}_energy_j"
    costs = [exact_sum(cell.numbers(column)) / exact_sum(cell.numbers("output_tokens")) for cell in cells]
    measured = currency == "time" or all(cell.provenances(component) == {"measured"} for cell in cells)
    if not measured or not np.isfinite(costs).all():
        return None
    cheapest = cells[int(np.argmin(costs))]
    others = [cell for cell in cells if cell is not cheapest]
    gammas = [_gamma(against(cheapest, cell), currency, component) for cell in others]
    costs_more = [gamma.verdict in ("slower", "costs energy") for gamma in gammas]
    return Best(
        cheapest.key.head,
        cheapest.key.task,
        family(cheapest.key.decoding),
        currency,
        cheapest.key.decoding,
        tuple(cell.key.decoding for cell, more in zip(others, costs_more, strict=True) if not more),
        tuple(cell.key.decoding for cell, more in zip(others, costs_more, strict=True) if more),
    )


def _gamma(found: Saving, currency: Currency, component: ComponentName) -> Gamma:
    return found.time if currency == "time" else found.gpu if component == "gpu" else found.total

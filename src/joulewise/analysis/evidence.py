"""What a run says for or against a claim, piece by piece, and the verdict that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from joulewise.analysis.contrast import clear, holm
from joulewise.analysis.intervals import Quantity
from joulewise.analysis.student import quantile, upper_tail

ClaimVerdict = Literal["confirmed", "contradicted", "cannot tell"]
Side = Literal["for", "against"]
Sort = Literal["rule", "existence"]

MODELLED = "the joules are modelled"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a piece of evidence.

    Args:
        words: what it is; ``{}`` stands for the value.
        quantity: its value and interval.
        unit: ``share`` is told in per cent, ``change`` too and with its sign, ``plain`` as it stands.
    """

    words: str
    quantity: Quantity
    unit: Literal["plain", "share", "change"] = "plain"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One comparison that bears on a claim.

    Args:
        where: which cells, in words.
        figures: what was measured.
        p_for: the chance of such figures if the claim did not hold here, at most; None where they decide nothing.
        p_against: the chance of such figures if it did.
        why: why they decide nothing, where that is not for their intervals.
        side: what they say among all evidence on the claim; None is neither.
    """

    where: str
    figures: tuple[Figure, ...]
    p_for: float | None
    p_against: float | None
    why: str | None = None
    side: Side | None = None


def weighed(found: Sequence[Evidence], sort: Sort) -> tuple[ClaimVerdict, tuple[Evidence, ...]]:
    """The verdict of a claim, and its evidence with sides, the clearest first.

    A side holds among all evidence of the claim (Holm's procedure over the two-sided chances), so that a claim on which
    a run can say nothing gets a verdict in about 5 % of runs, however many cells there are. A *rule* is contradicted by
    one clear exception, and confirmed by evidence for it without any. What is said to *exist* is confirmed by one clear
    case, and contradicted where every case is clearly none.

    Args:
        found: all evidence on the claim.
        sort: what is claimed.
    """
    tested = [one for one in found if one.p_for is not None and one.p_against is not None]
    chances = [min(1.0, 2.0 * min(one.p_for or 0.0, one.p_against or 0.0)) for one in tested]
    told: list[tuple[float, Evidence]] = [(2.0, one) for one in found if one.p_for is None or one.p_against is None]
    for one, chance in zip(tested, holm(chances), strict=True):
        side: Side = "for" if (one.p_for or 0.0) < (one.p_against or 0.0) else "against"
        told.append((chance, replace(one, side=side if clear(chance) else None)))
    evidence = tuple(one for _, one in sorted(told, key=lambda pair: pair[0]))
    sides = [one.side for one in evidence]
    verdict: ClaimVerdict = "cannot tell"
    if sort == "rule" and "against" in sides:
        verdict = "contradicted"
    elif "for" in sides:
        verdict = "confirmed"
    elif sides and set(sides) == {"against"}:
        verdict = "contradicted"
    return verdict, evidence


def above(quantity: Quantity, bound: float) -> float | None:
    """The chance of so high a figure if the truth were ``bound`` or less; None where its interval is not known.

    Read off its interval on the log scale with Student's t, so that it is below 2.5 % where the interval lies above.
    """
    ends = _log_ends(quantity)
    return None if ends is None else _tail(ends[1] - math.log(bound), ends[1] - ends[0], quantity.n_questions)


def below(quantity: Quantity, bound: float) -> float | None:
    """The chance of so low a figure if the truth were ``bound`` or more; as ``above``."""
    ends = _log_ends(quantity)
    return None if ends is None else _tail(math.log(bound) - ends[1], ends[2] - ends[1], quantity.n_questions)


def greater(one: Quantity, other: Quantity) -> float | None:
    """The chance of such figures if ``one`` were not the greater of two that vary by themselves.

    For cells with the same questions or the same baseline this is on the safe side: what moves both is counted twice.
    """
    a, b = _log_ends(one), _log_ends(other)
    if a is None or b is None:
        return None
    n = min(one.n_questions, other.n_questions)
    return _tail(a[1] - b[1], math.hypot(a[1] - a[0], b[2] - b[1]), n)


def larger_share(one: Quantity, other: Quantity) -> float | None:
    """As ``greater``, of shares, which may be 0: by their difference."""
    halves = []
    for share in (one, other):
        if share.value is None or share.lower is None or share.upper is None:
            return None
        halves.append(max(share.value - share.lower, share.upper - share.value))  # one end may be cut off at 0 or 1
    difference = (one.value or 0.0) - (other.value or 0.0)
    return _tail(difference, math.hypot(*halves), min(one.n_questions, other.n_questions))


def within(quantity: Quantity, low: float | None, high: float) -> tuple[float, float] | None:
    """The chances for and against a figure that lies between ``low`` (None: has no lower bound) and ``high``."""
    over, under = above(quantity, high), below(quantity, high)
    if over is None or under is None:
        return None
    if low is None:
        return under, over
    return max(under, above(quantity, low) or 0.0), min(over, below(quantity, low) or 0.0)


def both(first: tuple[float, float] | None, second: tuple[float, float] | None) -> tuple[float | None, float | None]:
    """Chances for and against a claim of two parts: for it where both are, against it where either is."""
    known = [part for part in (first, second) if part is not None]
    if not known:
        return None, None
    p_for = 1.0 if len(known) < 2 else max(part[0] for part in known)
    return p_for, min(1.0, len(known) * min(part[1] for part in known))


def as_ratio(change: Quantity) -> Quantity:
    """A relative change as the ratio that it is of."""
    ends = [None if end is None else end + 1.0 for end in (change.value, change.lower, change.upper)]
    return replace(change, value=ends[0], lower=ends[1], upper=ends[2])


def _log_ends(quantity: Quantity) -> tuple[float, float, float] | None:
    """Lower end, figure and upper end; None where one is missing or what it rests on was not measured."""
    ends = (quantity.lower, quantity.value, quantity.upper)
    if quantity.provenance != "measured" or quantity.n_questions < 2:
        return None
    known = [math.log(end) for end in ends if end is not None and end > 0.0]
    return (known[0], known[1], known[2]) if len(known) == 3 else None


def _tail(distance: float, half: float, n: int) -> float:
    if half <= 0.0:
        return 0.0 if distance > 1e-9 else 1.0
    return upper_tail(distance * _quantile(n - 1) / half, n - 1)


@cache
def _quantile(degrees: int) -> float:
    """Student's, of the 95 % interval."""
    return quantile(0.025, degrees)

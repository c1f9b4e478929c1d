"""At which load does saving turn into loss? The point where a decoding's saving is 1, with its interval. Pure.

Between measured loads the logarithm of the saving is taken to be straight over the logarithm of the load. The interval
of the load at which it is 0 is the set of all loads at which a test of "it is 0 here" does not reject: Fieller's
theorem for a line through two measured points (Fieller 1954, "Some problems in interval estimation"). It is given only
where the first and the last load are each known to save or to cost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from joulewise.analysis.intervals import Floats
from joulewise.analysis.student import quantile
from joulewise.energy.reading import Z95

PER_SEGMENT = 400
"""Loads between two measured ones that are tried for the interval."""

Shape = Literal["crosses", "saves throughout", "costs throughout", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where a decoding's saving turns into a loss, or the other way round, as the load grows.

    Args:
        shape: what the measured loads say.
        kind: ``closed`` (loads are requests in flight) or ``poisson`` (requests per second).
        first, last: the lowest and the highest load.
        level, lower, upper: the crossing and its 95 % interval; None where there is none.
        saves_below: whether it saves below the crossing; None where there is none.
        reason: why it cannot be told.
    """

    shape: Shape
    kind: str
    first: float
    last: float
    level: float | None = None
    lower: float | None = None
    upper: float | None = None
    saves_below: bool | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """ln of a saving at one load.

    Args:
        level: the load, above 0.
        value: the estimate; se: its standard error, over ``df`` + 1 repeats.
        common: standard uncertainty that all loads have in common.
    """

    level: float
    value: float
    se: float
    df: int
    common: float = 0.0


def crossing(levels: Sequence[Level], kind: str = "closed") -> Crossing:
    """Where the saving is 1; see the module for how.

    Args:
        levels: two or more, of different loads.
        kind: what the loads are.
    """
    levels = sorted(levels, key=lambda one: one.level)
    first, last = levels[0], levels[-1]
    signs = [_sign(one) for one in levels]
    none = Crossing("cannot tell", kind, first.level, last.level)
    if 0 in (signs[0], signs[-1]):
        which = " and ".join(
            f"{one.level:g}" for one, sign in zip((first, last), (signs[0], signs[-1]), strict=True) if not sign
        )
        return replace(none, reason=f"at {which} it is not known whether it saves or costs")
    turns = sum(a * b < 0 for a, b in itertools.pairwise(sign for sign in signs if sign))
    if signs[0] == signs[-1]:
        if turns:
            return replace(none, reason="it turns more than once between these loads")
        if 0 in signs:
            unknown = ", ".join(f"{one.level:g}" for one, sign in zip(levels, signs, strict=True) if not sign)
            return replace(none, reason=f"at {unknown} it is not known whether it saves or costs")
        return replace(none, shape="saves throughout" if signs[0] > 0 else "costs throughout")
    if turns > 1:
        return replace(none, reason="it turns more than once between these loads")
    logs, values, possible = _between(levels)
    crosses = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) <= 0)
    at = int(crosses[len(crosses) // 2])
    step = values[at] - values[at + 1]
    level = logs[at] + (logs[at + 1] - logs[at]) * (values[at] / step if step else 0.0)
    inside = np.flatnonzero(possible)
    # One step of the grid wider on each side than what was found on it.
    lower = logs[max(0, (inside[0] if len(inside) else at) - 1)]
    upper = logs[min(len(logs) - 1, (inside[-1] if len(inside) else at) + 1)]
    return replace(
        none,
        shape="crosses",
        level=math.exp(level),
        lower=math.exp(min(lower, level)),
        upper=math.exp(max(upper, level)),
        saves_below=signs[0] > 0,
    )


def _sign(one: Level) -> int:
    """1 where it is known to save, -1 where it is known to cost, else 0."""
    half = quantile(0.025, one.df) * one.se + Z95 * one.common
    return 0 if abs(one.value) <= half else 1 if one.value > 0.0 else -1


def _between(levels: Sequence[Level]) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """A grid of ln load, the saving's ln on it, and where that may be 0."""
    logs, values, possible = [], [], []
    for one, two in itertools.pairwise(levels):
        w = np.linspace(0.0, 1.0, PER_SEGMENT, endpoint=False)
        found = (1.0 - w) * one.value + w * two.value
        se = np.hypot((1.0 - w) * one.se, w * two.se)
        common = (1.0 - w) * one.common + w * two.common
        half = quantile(0.025, min(one.df, two.df)) * se + Z95 * common
        logs.append((1.0 - w) * math.log(one.level) + w * math.log(two.level))
        values.append(found)
        possible.append(np.abs(found) <= half)
    end = levels[-1]
    logs.append(np.array([math.log(end.level)]))
    values.append(np.array([end.value]))
    possible.append(np.array([_sign(end) == 0]))
    return np.concatenate(logs), np.concatenate(values), np.concatenate(possible)

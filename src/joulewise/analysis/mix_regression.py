"""What does a request of each kind cost in a batch? Told without any model of it, from windows with several mixes.

At one fixed concurrency the joules of a window are the sum over kinds of (requests completed) x (a request's joules).
Windows with different mixes of kinds tell these apart by regression. That is what a model of shares is judged by: its
mean joules of a kind against the kind's coefficient.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulewise.analysis.intervals import Floats
from joulewise.analysis.request_shares import BatchRequest
from joulewise.analysis.student import quantile
from joulewise.energy.attribution import Share
from joulewise.errors import UserError

_ROUNDS = 100
_WORST_CONDITION = 50.0
"""Of the counts, each kind's scaled to length 1. Beyond it windows do not tell kinds apart (two: 0.04 between their
directions)."""


@dataclass(frozen=True, slots=True)
class MixWindow:
    """One window.

    Args:
        energy_j: joules of the requests: with what the machine draws at rest, or above that, in all windows alike.
        done: requests completed, by kind (see ``completed``).
        independent_j: the window's own standard uncertainty.
    """

    energy_j: float
    done: Mapping[str, float]
    independent_j: float = 0.0


@dataclass(frozen=True, slots=True)
class KindCost:
    """Joules of one request of a kind.

    Args:
        kind: its name.
        energy_j: the coefficient.
        standard_j: its standard uncertainty from how windows scatter (or from the meter's own, where that is more).
        degrees: of freedom, of the former.
        common: the meter's common standard uncertainty, relative.
    """

    kind: str
    energy_j: float
    standard_j: float
    degrees: int
    common: float = 0.0

    @property
    def own_j(self) -> float:
        """Half of the 95 % interval without the meter's common part."""
        return quantile(0.025, self.degrees) * self.standard_j

    @property
    def interval_j(self) -> tuple[float, float]:
        """95 % interval."""
        half = math.hypot(self.own_j, quantile(0.025, math.inf) * self.common * self.energy_j)
        return self.energy_j - half, self.energy_j + half


@dataclass(frozen=True, slots=True)
class Miss:
    """How far a model's mean joules of a kind are from its coefficient.

    Args:
        kind: its name.
        mean_j: by the model.
        cost: by the regression.
    """

    kind: str
    mean_j: float
    cost: KindCost

    @property
    def relative(self) -> float:
        """Above 0 where the model tells too much."""
        return self.mean_j / self.cost.energy_j - 1.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval by the coefficient's; the meter's common error is in both and cancels."""
        low, high = self.cost.energy_j - self.cost.own_j, self.cost.energy_j + self.cost.own_j
        return self.mean_j / high - 1.0, (self.mean_j / low - 1.0 if low > 0.0 else math.inf)


def completed(
    requests: Sequence[BatchRequest], kinds: Mapping[str, str], start_s: float, end_s: float
) -> dict[str, float]:
    """Requests completed in a window, by kind; one that its ends cut counts by the share of its time inside.

    Where the work of a request is not even over its time, that is wrong at each end by a part of a request, and by the
    opposite at the other end: on average nothing.

    Args:
        kinds: of each request, by its name.
    """
    counts = dict.fromkeys(kinds.values(), 0.0)
    for r in requests:
        inside_s = min(end_s, r.end_s) - max(start_s, r.start_s)
        counts[kinds[r.name]] += max(0.0, inside_s) / (r.end_s - r.start_s)
    return counts


def kind_costs(windows: Sequence[MixWindow], common: float = 0.0) -> tuple[KindCost, ...]:
    """Joules of each kind of request, such that costs x counts sum to the joules of all windows.

    Least squares without an intercept, a window's variance in proportion to its fitted joules, iterated. With these
    weights (those of a Poisson mean) the residuals sum to 0.

    Args:
        windows: at one concurrency, with different mixes.
        common: the meter's common standard uncertainty, relative.

    Raises:
        UserError: fewer windows than kinds and one more, windows without joules, or mixes that do not differ.
    """
    kinds = sorted({kind for window in windows for kind in window.done})
    counts = np.array([[w.done.get(kind, 0.0) for kind in kinds] for w in windows]).reshape(len(windows), len(kinds))
    joules = np.array([w.energy_j for w in windows])
    degrees = len(windows) - len(kinds)
    if not kinds or degrees < 1:
        raise UserError(
            f"{len(windows)} windows do not tell {len(kinds)} kinds of requests apart: measure more windows, at least "
            f"{len(kinds) + 1}"
        )
    if not (joules > 0.0).all() or not (counts.sum(axis=1) > 0.0).all():
        raise UserError("a window without joules, or without any request, tells nothing: leave it out, or lengthen it")
    scale = np.linalg.norm(counts, axis=0)
    if not scale.all() or np.linalg.cond(counts / np.where(scale > 0.0, scale, 1.0)) > _WORST_CONDITION:
        raise UserError("the mixes do not differ, so kinds cannot be told apart: measure windows with other mixes")
    fitted = joules
    for _ in range(_ROUNDS):
        weighted = counts / fitted[:, None]
        inverse = np.linalg.inv(counts.T @ weighted)
        costs: Floats = inverse @ (weighted.T @ joules)
        before, fitted = fitted, np.maximum(counts @ costs, 1e-6 * joules)
        if np.abs(fitted / before - 1.0).max() < 1e-14:
            break
    seen = float(((joules - fitted) ** 2 / fitted).sum()) / degrees
    stated = float(np.mean([w.independent_j**2 for w in windows] / fitted))
    standard = np.sqrt(np.diag(inverse) * max(seen, stated))
    return tuple(
        KindCost(kind, float(cost), float(unsure), degrees, common)
        for kind, cost, unsure in zip(kinds, costs, standard, strict=True)
    )


def misses(
    costs: Sequence[KindCost],
    windows: Sequence[MixWindow],
    shares: Sequence[Sequence[Share]],
    kinds: Mapping[str, str],
) -> tuple[Miss, ...]:
    """A model's mean joules of a request of each kind, over all windows, beside the coefficients.

    Args:
        costs: of these windows.
        shares: the model's, of each window; rows that are no request's are passed over.
        kinds: of each request, by its name.
    """
    joules: dict[str, float] = defaultdict(float)
    for share in (share for window in shares for share in window if share.name in kinds):
        joules[kinds[share.name]] += share.energy_j or 0.0
    counts = {c.kind: math.fsum(w.done.get(c.kind, 0.0) for w in windows) for c in costs}
    return tuple(Miss(cost.kind, joules[cost.kind] / counts[cost.kind], cost) for cost in costs)

"""How good a router is: RouteLLM's frame of a weak and a strong model, and accuracy against cost for many options.

RouteLLM (arXiv 2406.18665, section 4): queries go to the strong model where the router's score is highest. PGR is the
share of the accuracy gap that is recovered, APGR its mean over the share of strong calls from 0 to 1, CPT(x %) the
least share at which PGR reaches x %. A curve may pass the strong model's accuracy and come back, so CPT is the *first*
crossing, over every query instead of ten bins. AIQ (RouterBench, arXiv 2403.12031) is the mean height of the
non-decreasing convex hull of accuracy over cost.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulewise.errors import UserError

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

REPLICATES = 500


@dataclass(frozen=True)
class Figure:
    """A figure with its 95 % interval from a bootstrap over queries; None: the curve never gets there."""

    value: float | None
    lower: float | None
    upper: float | None


@dataclass(frozen=True)
class PairResult:
    """One order of queries in RouteLLM's frame; CPT as a share of strong calls, from 0 to 1."""

    apgr: Figure
    cpt50: Figure
    cpt80: Figure


def recovered(scores: Floats, weak: Floats, strong: Floats, counts: Floats | None = None) -> tuple[Floats, Floats]:
    """Share of strong calls, and PGR there, for every number of calls; queries of equal score stay in their order.

    Args:
        scores: by query how much the strong model is wanted.
        weak, strong: by query how right each is, 0 to 1.
        counts: how often each query occurs (a bootstrap's replicate); None: once.

    Raises:
        UserError: the strong model is not better than the weak one, so there is no gap to recover.
    """
    times = np.ones(len(scores)) if counts is None else counts
    order = np.argsort(-scores, kind="stable")
    calls = np.concatenate([[0.0], np.cumsum(times[order])])
    gains = np.concatenate([[0.0], np.cumsum((times * (strong - weak))[order])])
    if gains[-1] <= 0:
        raise UserError(
            "The strong model is not better than the weak one on these queries: there is no gap to recover."
        )
    return calls / calls[-1], gains / gains[-1]


def apgr(scores: Floats, weak: Floats, strong: Floats) -> float:
    """Mean PGR over the share of strong calls (trapezoids)."""
    shares, gap = recovered(scores, weak, strong)
    return float(np.trapezoid(gap, shares))


def first_crossing(shares: Floats, gap: Floats, target: float) -> float:
    """The least share at which PGR reaches the target; NaN if it never does."""
    reached = np.flatnonzero(gap >= target - 1e-12)
    return float(shares[reached[0]]) if len(reached) else math.nan


def pair_result(
    scores: Floats, weak: Floats, strong: Floats, seed: int = 0, replicates: int = REPLICATES
) -> PairResult:
    """APGR, CPT(50) and CPT(80) with intervals."""
    rng = np.random.default_rng(seed)
    n = len(scores)
    order = np.argsort(-scores, kind="stable")
    ranks, low, high = -np.arange(n, dtype=float), weak[order], strong[order]
    found = []
    for i in range(replicates + 1):
        counts = np.ones(n) if i == 0 else np.bincount(rng.integers(0, n, n), minlength=n).astype(float)
        if i and float((counts * (high - low)).sum()) <= 0:
            continue  # in such a draw there is no gap: possible with few queries only
        shares, gap = recovered(ranks, low, high, counts)
        found.append([np.trapezoid(gap, shares), first_crossing(shares, gap, 0.5), first_crossing(shares, gap, 0.8)])
    return PairResult(*(_figure(np.array(column)) for column in zip(*found, strict=True)))


def _figure(values: Floats) -> Figure:
    drawn = values[1:][~np.isnan(values[1:])]
    if math.isnan(values[0]) or not len(drawn):
        return Figure(None, None, None)
    lower, upper = np.percentile(drawn, [2.5, 97.5])
    return Figure(float(values[0]), float(lower), float(upper))


def folds_by_hash(queries: Sequence[str], folds: int, seed: int = 0) -> Rows:
    """A fold for each query from the hash of its text, so that repeated queries are never on both sides of a split."""
    return np.array([_number(query, seed) % folds for query in queries], dtype=np.int64)


def draw_by_hash(queries: Sequence[str], n: int, seed: int) -> tuple[Rows, Rows]:
    """Positions of ``n`` queries to learn from and of the others to test on; no text is on both sides."""
    order = np.argsort(np.array([_number(query, seed) for query in queries], dtype=np.uint64), kind="stable")
    learnt = {queries[i] for i in order[:n]}
    return np.sort(order[:n]), np.array(
        sorted(i for i in order[n:].tolist() if queries[i] not in learnt), dtype=np.int64
    )


def folds_by_domain(domains: Sequence[str], folds: int, seed: int = 0) -> Rows:
    """A fold for each query such that every domain lies whole in one: what is tested on was never seen."""
    order = np.random.default_rng(seed).permutation(sorted(set(domains)))
    of = {name: i % folds for i, name in enumerate(order.tolist())}
    return np.array([of[name] for name in domains], dtype=np.int64)


def _number(query: str, seed: int) -> int:
    text = f"{seed}\0{' '.join(query.split())}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def cost_curve(accuracy: Floats, costs: Floats, correct: Floats, prices: Floats) -> tuple[Floats, Floats]:
    """Mean cost and mean accuracy of the choices at each price.

    Args:
        accuracy: ``(queries, options)`` as predicted; with ``correct`` itself it is the oracle.
        costs: by option, in any unit.
        correct: ``(queries, options)`` as observed.
        prices: accuracy given up for one unit of cost; the choice is the highest accuracy - price * cost.
    """
    spent, right = [], []
    for price in prices:
        chosen = np.argmax(accuracy - price * costs, axis=1)
        spent.append(costs[chosen].mean())
        right.append(correct[np.arange(len(correct)), chosen].mean())
    return np.array(spent), np.array(right)


def aiq(spent: Floats, right: Floats, lowest: float, highest: float) -> float:
    """Mean height of the non-decreasing convex hull of (cost, accuracy) between two costs."""
    points = sorted(zip(spent.tolist(), np.asarray(right).tolist(), strict=True))
    hull: list[tuple[float, float]] = []
    for x, y in points:
        if hull and y <= hull[-1][1]:
            continue
        if hull and x == hull[-1][0]:
            hull.pop()
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (x - hull[-2][0]) <= (y - hull[-2][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    grid = np.linspace(lowest, highest, 2001)
    heights = np.interp(grid, [x for x, _ in hull], [y for _, y in hull], left=0.0)
    return float(np.trapezoid(heights, grid) / (highest - lowest))

"""How much thinking is enough? The size of a budget or a vote beyond which another joule buys too little accuracy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from joulewise.analysis.cells import CellKey, exact_sum
from joulewise.analysis.contrast import quality_difference
from joulewise.analysis.frontier import SURE
from joulewise.analysis.intervals import (
    MIN_QUESTIONS,
    TOO_FEW,
    Quantity,
    joint_provenance,
    percentile_interval,
    unknown_quantity,
)
from joulewise.analysis.side_by_side import Sample
from joulewise.energy.reading import Z95

NONE_RIGHT = "no answer of any size is right"

_SIZED = re.compile(r"([a-z][a-z-]*?)-(\d+)(.*)")
_OF = re.compile(
    r"(?:-(?:likelihood|examples|reward|oracle))?-((?:few-shot|cot|budget)-\d+(?:-\d+)?(?:-(?:no-)?thinking)?)"
    r"(?:-t[\d.e+-]+)?(?:-all|-batched)?"
)


@dataclass(frozen=True, slots=True)
class Step:
    """From one size to the next.

    Args:
        smaller, larger: the reasonings.
        quality_difference: accuracy gained, as a share.
        energy_j: joules per answer more.
        points_per_kj: percentage points of accuracy that each further kilojoule an answer bought; None where the larger
            size drew no more.
    """

    smaller: str
    larger: str
    quality_difference: Quantity
    energy_j: Quantity
    points_per_kj: Quantity


@dataclass(frozen=True, slots=True)
class Advice:
    """The size to take for some questions.

    Args:
        level, name: as in ``Group``.
        questions: how many.
        best: the reasoning with the most accuracy less what its joules must buy; None where not told.
        frequency: the share of bootstrap samples in which it is the best.
        may_be: the sizes of which, together, one is the best in ``SURE`` of the samples; ``best`` alone where it is
            sure, and several where it cannot be told.
        why: why nothing is told.
    """

    level: str
    name: str
    questions: int
    best: str | None
    frequency: float | None
    may_be: tuple[str, ...]
    why: str | None = None


@dataclass(frozen=True, slots=True)
class BudgetCurve:
    """One way of thinking in several sizes: same engine, model and decoding.

    Args:
        keys: the cells, from the smallest; the first is the reasoning that it starts from, where that was run.
        sizes: tokens, samples or examples; 0 for that start.
        points_per_kj: what a kilojoule must buy to be worth it, in percentage points of accuracy.
        steps: from each size to the next, over the whole task.
        advice: for the whole task, and for every category.
    """

    keys: tuple[CellKey, ...]
    sizes: tuple[int, ...]
    points_per_kj: float
    steps: tuple[Step, ...]
    advice: tuple[Advice, ...]


def budget_curves(
    whole: Sample, groups: Mapping[tuple[str, str], Sample], points_per_kj: float
) -> tuple[BudgetCurve, ...]:
    """Every way of thinking of which a task has two sizes or more.

    Args:
        whole: all questions.
        groups: by level and name, the samples to advise on, the whole among them.
        points_per_kj: as in ``BudgetCurve``.
    """
    keys = whole.board.keys
    found: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for i, key in enumerate(keys):
        if sized := _SIZED.fullmatch(key.reasoning):
            found.setdefault((*_apart(key), sized[1], sized[3]), []).append((int(sized[2]), i))
    curves = []
    for (*apart, _, rest), points in found.items():
        if len(points) < 2:
            continue
        of = _OF.fullmatch(rest)
        start = (*apart, of[1] if of else "direct")
        points = [(0, i) for i, key in enumerate(keys) if (*_apart(key), key.reasoning) == start] + sorted(points)
        columns = [i for _, i in points]
        curves.append(
            BudgetCurve(
                tuple(keys[i] for i in columns),
                tuple(size for size, _ in points),
                points_per_kj,
                tuple(_step(whole, a, b) for a, b in pairwise(columns)),
                tuple(_advice(s, level, name, columns, points_per_kj) for (level, name), s in groups.items()),
            )
        )
    return tuple(curves)


def _apart(key: CellKey) -> tuple[str, str, str]:
    return (key.engine, key.model, key.decoding)


def _step(sample: Sample, base: int, new: int) -> Step:
    """The marginal gain, its interval by the paired bootstrap; the meter's common error is the difference's."""
    board, n = sample.board, sample.n
    gain, _ = quality_difference(sample, base, new)
    trials, provenance = gain.n_trials, joint_provenance(board.provenances[i] for i in (base, new))
    more_j = exact_sum(sample.columns["energy_j"][:, new] - sample.columns["energy_j"][:, base]) / n
    errors = sample.errors_j[:, :, new].sum(axis=1) - sample.errors_j[:, :, base].sum(axis=1)
    common = float(np.abs(errors).sum()) / n  # joules
    energy = Quantity(more_j, None, None, n, trials, provenance, TOO_FEW)
    rate = unknown_quantity("the larger size drew no more joules", n, trials)
    if more_j > 0.0 and gain.value is not None:
        rate = Quantity(100_000 * gain.value / more_j, None, None, n, trials, provenance, TOO_FEW)
    if n < MIN_QUESTIONS or not math.isfinite(common):
        return Step(board.keys[base].reasoning, board.keys[new].reasoning, gain, energy, rate)
    again_j = (sample.again["energy_j"][:, new] - sample.again["energy_j"][:, base]) / n
    low, high = percentile_interval(again_j, n)
    low, high = min(low, more_j) - Z95 * common, max(high, more_j) + Z95 * common
    energy = Quantity(more_j, low, high, n, trials, provenance)
    if rate.value is not None and low > 0.0:
        again = (sample.again["quality"][:, new] - sample.again["quality"][:, base]) / n
        ends = percentile_interval(100_000 * again / again_j, n)
        stretch = math.exp(Z95 * common / more_j)
        slow, fast = min(ends[0], rate.value), max(ends[1], rate.value)
        ends = (min(slow * stretch, slow / stretch), max(fast * stretch, fast / stretch))
        rate = Quantity(rate.value, *ends, n, trials, provenance)
    elif rate.value is not None:
        reason = "whether the larger size draws more joules cannot be told"
        rate = Quantity(rate.value, None, None, n, trials, provenance, reason)
    return Step(board.keys[base].reasoning, board.keys[new].reasoning, gain, energy, rate)


def _advice(sample: Sample, level: str, name: str, columns: Sequence[int], points_per_kj: float) -> Advice:
    """Of all sizes the one with the most accuracy less price times joules; of equals the one with the fewest joules."""
    board, n = sample.board, sample.n
    price = points_per_kj / 100_000  # share per joule
    joules = sample.columns["energy_j"].sum(axis=0)
    columns = sorted(columns, key=lambda i: float(joules[i]))  # where none is like another, the smallest comes first
    labels = [board.keys[i].reasoning for i in columns]
    why = None
    if not board.measured:
        why = "the joules are not measured"
    elif n < MIN_QUESTIONS:
        why = TOO_FEW
    elif not sample.columns["quality"][:, columns].any():
        why = NONE_RIGHT  # samples of none are none: they would be sure of what a few questions cannot tell
    if why is not None:
        return Advice(level, name, n, None, None, (), why)
    net = sample.columns["quality"][:, columns].sum(axis=0) - price * sample.columns["energy_j"][:, columns].sum(axis=0)
    again = sample.again["quality"][:, columns] - price * sample.again["energy_j"][:, columns]
    best = int(net.argmax())
    shares = np.bincount(again.argmax(axis=1), minlength=len(columns)) / len(again)
    often = sorted(range(len(columns)), key=lambda i: (-shares[i], i))
    enough = 1 + int(np.searchsorted(np.cumsum(shares[often]), SURE))
    may_be = [best] if shares[best] >= SURE else sorted({best, *often[:enough]})
    return Advice(level, name, n, labels[best], float(shares[best]), tuple(labels[i] for i in may_be))

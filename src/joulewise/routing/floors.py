"""Floors held against past answers: what a router with a floor loses, what it keeps, what it saves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulewise.analysis.intervals import wilson
from joulewise.energy.reading import Z95
from joulewise.errors import UserError
from joulewise.routing.evaluate import Figure
from joulewise.routing.guarantee import Certificate, certify

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

WITHINS = (0.01, 0.02, 0.05, 0.1)
"""Floors that are tried, safest first: shares of the best option's chance that may be lost."""
REPLICATES = 500
RISK = 0.05


@dataclass(frozen=True, slots=True)
class Floor:
    """The router with a floor.

    Args:
        within: share of the best option's chance that may be lost.
        loss: accuracy lost against the strongest option, realised; its interval is as if one label more had lost.
        allowed: what the floor allows.
        verdict: ``kept``, ``violated`` or ``cannot tell``, by the interval of the loss.
        saved: share of that option's joules saved.
    """

    within: float
    loss: Figure
    allowed: float
    verdict: str
    saved: Figure


@dataclass(frozen=True, slots=True)
class AbsoluteFloor:
    """The router with a least chance of a right answer.

    Args:
        least: that chance.
        reached: questions on which an option is expected to reach it; on the others the most accurate is taken.
        accuracy: on those questions, realised, with Wilson's 95 % interval; None where there are none.
        verdict: ``kept``, ``violated`` or ``cannot tell``, by that interval; ``never reached`` where there are none.
        overall: accuracy on all questions.
        energy_j: on all questions, on average.
        saved: share of the strongest option's joules saved, on all questions.
        certificate: what these labels prove of the share of wrong answers on the questions where it is reached; the
            risk is shared evenly among all floors that were asked for. None without such questions, or for a floor of 0
            or 1.
    """

    least: float
    reached: int
    accuracy: Figure | None
    verdict: str
    overall: Figure
    energy_j: float
    saved: Figure
    certificate: Certificate | None


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """By query and option: realised scores and joules, predicted accuracies and expected joules."""

    correct: Floats
    joules: Floats
    predicted: Floats
    expected: Floats


def floors_within(
    judged: Judged, strongest: int, accuracy: Floats, seed: int
) -> tuple[tuple[Floor, ...], Floats | None]:
    """The router within shares of the best option's chance, and its losses by query; none for a single option.

    Args:
        strongest: the column that losses are against.
        accuracy: by option, realised.
        seed: of the bootstrap.
    """
    n, options = judged.correct.shape
    if options < 2:
        return (), None
    rows, draws = np.arange(n), _draws(n, seed)
    floors, losses = [], []
    for within in WITHINS:
        chosen = _cheapest(judged, judged.predicted.max(axis=1, keepdims=True) * (1.0 - within))
        loss = judged.correct[:, strongest] - judged.correct[rows, chosen]
        losses.append(loss)
        mean = float(loss.mean())
        # One imagined label that lost: where all agree, labels still say only so much.
        half = Z95 * math.sqrt((float(((loss - mean) ** 2).sum()) + 1.0) / n / n)
        allowed = within * float(accuracy[strongest])
        verdict = "kept" if mean + half <= allowed else "violated" if mean - half > allowed else "cannot tell"
        saved = _saved(judged, chosen, strongest, draws)
        floors.append(Floor(within, Figure(mean, mean - half, mean + half), allowed, verdict, saved))
    return tuple(floors), np.stack(losses, axis=1)


def absolute_floors(judged: Judged, strongest: int, leasts: Sequence[float], seed: int) -> tuple[AbsoluteFloor, ...]:
    """The router with least chances of a right answer, as ``policy.choose`` keeps them.

    Args:
        strongest: the column that joules are saved against.
        leasts: the floors, each from 0 to 1.
        seed: of the bootstrap and of the labels' order.

    Raises:
        UserError: a floor beyond 0 to 1.
    """
    if strange := [least for least in leasts if not 0 <= least <= 1]:
        raise UserError(f"a floor of {strange[0]:g}: give a chance from 0 to 1, such as 0.8 for 80 %")
    n = len(judged.correct)
    rows, draws, order = np.arange(n), _draws(n, seed), np.random.default_rng(seed).permutation(n)
    found = []
    for least in leasts:
        reached = judged.predicted.max(axis=1) >= least
        # Where nothing reaches it, the most accurate; of equals the one of the fewest joules.
        floor = np.where(reached, least, judged.predicted.max(axis=1))[:, None]
        chosen = _cheapest(judged, floor)
        right = judged.correct[rows, chosen]
        there = right[order][reached[order]]
        certificate = None
        if len(there) and 0 < least < 1:
            # The labels' order must have nothing to do with them, and which are left is told by the queries alone.
            losses = (1.0 - there)[:, None]
            certificate = certify(losses, [f"at least {least:.1%} right"], 1.0 - least, RISK / len(leasts))
        accuracy = _accuracy(there) if len(there) else None
        found.append(
            AbsoluteFloor(
                least,
                int(reached.sum()),
                accuracy,
                "never reached" if accuracy is None else _verdict(accuracy, least),
                _accuracy(right),
                float(judged.joules[rows, chosen].mean()),
                _saved(judged, chosen, strongest, draws),
                certificate,
            )
        )
    return tuple(found)


def _cheapest(judged: Judged, floor: Floats) -> Rows:
    """By query the option of the fewest expected joules at or above a floor."""
    return np.asarray(np.argmin(np.where(judged.predicted >= floor, judged.expected, math.inf), axis=1))


def _draws(n: int, seed: int) -> Rows:
    return np.asarray(np.random.default_rng(seed).integers(0, n, (REPLICATES, n)))


def _saved(judged: Judged, chosen: Rows, strongest: int, draws: Rows) -> Figure:
    drew, full = judged.joules[np.arange(len(chosen)), chosen], judged.joules[:, strongest]
    shares = 1.0 - drew[draws].sum(axis=1) / full[draws].sum(axis=1)
    low, high = np.percentile(shares, [2.5, 97.5])
    return Figure(float(1.0 - drew.sum() / full.sum()), float(low), float(high))


def _accuracy(right: Floats) -> Figure:
    return Figure(float(right.mean()), *wilson(float(right.sum()), len(right)))


def _verdict(accuracy: Figure, least: float) -> str:
    lower, upper = accuracy.lower, accuracy.upper
    assert lower is not None
    assert upper is not None
    return "kept" if lower >= least else "violated" if upper < least else "cannot tell"

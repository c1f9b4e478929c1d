"""How far is a figure to be trusted? Bootstrap over questions, Wilson's interval, and the value that carries both.

``docs/statistics.md`` derives what is done here and says how often these intervals cover the truth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from joulewise.energy.reading import Z95, Provenance

Floats: TypeAlias = npt.NDArray[np.float64]

REPLICATES = 4000
"""Bootstrap replicates: the ends of an interval then move by about 2 % of its half-width from seed to seed."""

LARGE, REPLICATES_OF_LARGE = 1000, 1000
"""Above so many questions, so many replicates do: 4 % of a half-width that is small itself."""

MIN_QUESTIONS = 5
"""Fewer questions than this give no interval: resampling them cannot show how unlike the next question may be."""

TOO_FEW = f"fewer than {MIN_QUESTIONS} questions"


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure with its 95 % interval, the sample behind it, and where it comes from.

    Args:
        value: the figure; None where it is not known (or infinite: see ``unbounded``).
        lower, upper: ends of the 95 % interval, None where no interval can be given.
        n_questions: questions behind it.
        n_trials: Trials behind it (of a paired figure: of each of the two cells).
        provenance: of the joules (or seconds) in it.
        reason: why ``value`` or the interval is missing; None where nothing is.
        unbounded: the figure has no upper end: ``upper`` is None; if ``value`` is None too, the figure is infinite.
        common: the part of the interval that more questions do not shrink: the meter's common standard uncertainty,
            relative; None where no meter has a part in the figure, or where it is not known.
    """

    value: float | None
    lower: float | None
    upper: float | None
    n_questions: int
    n_trials: int
    provenance: Provenance
    reason: str | None = None
    unbounded: bool = False
    common: float | None = None

    def scaled(self, factor: float) -> Quantity:
        """The same figure in another unit, ``factor`` > 0 of the new one to one of the old."""
        return replace(
            self,
            value=None if self.value is None else self.value * factor,
            lower=None if self.lower is None else self.lower * factor,
            upper=None if self.upper is None else self.upper * factor,
        )


def unknown_quantity(reason: str, n_questions: int = 0, n_trials: int = 0) -> Quantity:
    """A figure that is not known, with the reason."""
    return Quantity(None, None, None, n_questions, n_trials, "unknown", reason)


def resample(columns: Floats, seed: int = 0, replicates: int | None = None) -> Floats:
    """Column sums over bootstrap samples of the rows.

    Args:
        columns: shape ``(n, k)``: one row a question (with all its repeats summed), one column a quantity. All columns
            see the same samples, so what is paired stays paired.
        seed: the same seed gives the same samples for the same ``n``.
        replicates: number of samples; if left out, as many as the number of rows calls for.

    Returns:
        shape ``(replicates, k)``.
    """
    n = len(columns)
    wanted = replicates or (REPLICATES if n <= LARGE else REPLICATES_OF_LARGE)
    blocks = _kept(n, seed, wanted) if n * wanted <= _MOST_KEPT else _multiplicities(n, seed, wanted)
    return np.concatenate([block.astype(np.float64) @ columns for block in blocks])


_MOST_KEPT = 10_000_000
"""Multiplicities (two bytes each) that are kept for the next figure over as many questions."""


@lru_cache(maxsize=8)
def _kept(n: int, seed: int, replicates: int) -> tuple[npt.NDArray[np.uint16], ...]:
    return tuple(_multiplicities(n, seed, replicates))


def _multiplicities(n: int, seed: int, replicates: int) -> Iterator[npt.NDArray[np.uint16]]:
    """How often each of ``n`` rows is drawn, in blocks of shape ``(replicates of the block, n)``."""
    rng = np.random.default_rng(seed)
    rows = max(1, 2_000_000 // n)
    for start in range(0, replicates, rows):
        height = min(rows, replicates - start)
        drawn = rng.integers(0, n, (height, n))
        drawn += n * np.arange(height)[:, None]
        yield np.bincount(drawn.ravel(), minlength=height * n).reshape(height, n).astype(np.uint16)


def student_t(level: float, degrees: int) -> float:
    """Quantile of Student's t distribution.

    The Cornish-Fisher series in 1/degrees (Abramowitz and Stegun 26.7.5), so that no interval needs scipy; within
    0.001 of the exact value at level 0.975 from 4 degrees of freedom on.
    """
    z = NormalDist().inv_cdf(level)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / degrees**power for power, term in enumerate(terms))


def expanded_tail(n: int) -> float:
    """The tail of the bootstrap distribution that a two-sided 95 % interval from ``n`` units cuts off on each side.

    A plain percentile interval takes 0.025 and is too narrow by ``sqrt((n - 1) / n)`` and by the normal quantile that
    stands where Student's should; taking ``Phi(-sqrt(n / (n - 1)) * t)`` instead mends both (Hesterberg 2015, "What
    Teachers Should Know About the Bootstrap", the expanded percentile interval).
    """
    return NormalDist().cdf(-math.sqrt(n / (n - 1)) * student_t(0.975, n - 1))


def percentile_interval(replicates: Floats, n: int) -> tuple[float, float]:
    """The expanded percentile interval at 95 %.

    Args:
        replicates: the statistic over bootstrap samples, shape ``(replicates,)``; infinite values are allowed.
        n: number of units that were resampled.
    """
    tail = expanded_tail(n)
    ordered = np.sort(replicates)
    # Order statistics, counted from each end alike, so that a statistic and its inverse have inverse intervals
    # (interpolation between a finite and an infinite value would also give nan).
    rank = math.floor(tail * (len(ordered) - 1))
    return float(ordered[rank]), float(ordered[-1 - rank])


def positive_quantity(
    value: float,
    replicates: Floats,
    *,
    n_questions: int,
    n_trials: int,
    provenance: Provenance,
    common: float = 0.0,
) -> Quantity:
    """A positive figure with its interval: the bootstrap's on the log scale, and the meter's added linearly.

    Args:
        value: the figure, finite and above 0.
        replicates: the figure over bootstrap samples of the questions.
        n_questions, n_trials, provenance: as in ``Quantity``.
        common: the meter's common standard uncertainty, relative. It is the same in every Trial, so it does not
            average out, and it is added to both ends in full: ``exp(+-1.96 common)``.
    """
    if not math.isfinite(common):
        reason = "the ledger does not say how far the meter can be trusted"
        return Quantity(value, None, None, n_questions, n_trials, provenance, reason)
    if n_questions < MIN_QUESTIONS:
        return Quantity(value, None, None, n_questions, n_trials, provenance, TOO_FEW, common=common)
    low, high = percentile_interval(replicates, n_questions)
    with np.errstate(over="ignore"):
        stretch = float(np.exp(Z95 * common))
    # The percentiles of a very skewed sample can lie to one side of the figure; the interval always holds it.
    lower, upper = min(low, value) / stretch, max(high, value) * stretch
    unbounded = not math.isfinite(upper)
    return Quantity(
        value,
        lower,
        None if unbounded else upper,
        n_questions,
        n_trials,
        provenance,
        unbounded=unbounded,
        common=common,
    )


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval for a proportion.

    Args:
        successes: how many of ``n`` units are right; may be fractional where a unit's repeats disagree (which makes
            the interval wider than it need be, never narrower).
        n: number of units, at least 1.
    """
    p, z2 = successes / n, Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n**2))
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def joint_provenance(provenances: Iterable[str | None]) -> Provenance:
    """What a sum over Trials may be called: as its weakest part. A component that is not there counts as unknown."""
    kinds = set(provenances)
    if kinds == {"measured"}:
        return "measured"
    return "modelled" if kinds and kinds <= {"measured", "modelled"} else "unknown"

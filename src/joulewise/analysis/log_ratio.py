"""The ratio of two sides' sums over the same questions, on the log scale, and all that makes it uncertain.

``docs/statistics.md`` (the gate) says why each part is there and how often the intervals hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from joulewise.analysis.intervals import MIN_QUESTIONS, TOO_FEW, Floats
from joulewise.analysis.student import quantile, upper_tail


@dataclass(frozen=True, slots=True, eq=False)
class LogRatio:
    """An estimate of ln(NEW / BASE).

    Args:
        value: the estimate.
        questions_se: its standard error from the questions (jackknife); None where there are too few.
        questions_df: degrees of freedom of that, the number of questions less 1.
        pulls: by question, how far leaving it out moves the estimate.
        reason: why there is no standard error.
    """

    value: float
    questions_se: float | None
    questions_df: int
    pulls: Floats
    reason: str | None = None


def log_ratio(base: Floats, new: Floats) -> LogRatio:
    """ln of (sum of NEW's first column / sum of its second) over the same of BASE, with the jackknife over questions.

    Leaving out one question at a time gives the bootstrap's variance to first order, without chance, exactly inverted
    when the sides change places, and good for tails that thousands of bootstrap samples do not reach.

    Args:
        base, new: shape ``(questions, 2)``, sums over each question's Trials; both columns' sums above 0.
    """
    n = len(base)
    value = _log(new.sum(axis=0)) - _log(base.sum(axis=0))
    if n < MIN_QUESTIONS:
        return LogRatio(float(value), None, n - 1, np.zeros(n), TOO_FEW)
    with np.errstate(divide="ignore", invalid="ignore"):
        without = _log(new.sum(axis=0) - new) - _log(base.sum(axis=0) - base)
    pulls = without - without.mean()
    if not np.isfinite(pulls).all():
        return LogRatio(float(value), None, n - 1, np.zeros(n), "all of it comes from one question")
    return LogRatio(float(value), jackknife_se(pulls), n - 1, pulls)


def jackknife_se(pulls: Floats) -> float:
    """Standard error from the leave-one-out estimates less their mean."""
    n = len(pulls)
    return math.sqrt((n - 1) / n * float(np.square(pulls).sum()))


def _log(sums: Floats) -> Floats:
    return np.asarray(np.log(sums[..., 0]) - np.log(sums[..., 1]))


def spread_of_runs(base: Sequence[float], new: Sequence[float]) -> tuple[float, int] | None:
    """How unlike each other the runs of a side are: standard deviation of one run, pooled over the sides, and its df.

    Args:
        base, new: the logarithm of the figure in each run of a side.
    """
    df = len(base) + len(new) - 2
    if df < 1:
        return None
    squares = math.fsum((x - math.fsum(side) / len(side)) ** 2 for side in (base, new) for x in side)
    return math.sqrt(squares / df), df


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """What an estimate of ln(NEW / BASE) may be off by.

    Args:
        se: standard error of what chance adds: questions and runs, in quadrature.
        df: its degrees of freedom (Welch and Satterthwaite).
        common: standard uncertainty of what neither more questions nor more runs shrink; added linearly.
        drift: a bound, added linearly.
    """

    se: float
    df: float
    common: float
    drift: float

    def half_width(self, tail: float) -> float:
        """Half of the interval that leaves out ``tail`` on each side."""
        return quantile(tail, self.df) * (self.se + self.common) + self.drift

    def p_above(self, value: float, limit: float) -> float:
        """The chance of an estimate as high as ``value`` where the truth is ``limit`` (both logarithms), at most."""
        excess = value - limit - self.drift
        if excess <= 0.0:
            return 1.0
        scale = self.se + self.common
        return upper_tail(excess / scale, self.df) if scale > 0.0 else 0.0


def add_up(parts: Iterable[tuple[float, float]], common: float, drift: float) -> Uncertainty:
    """The uncertainty of independent parts, each a standard error and its degrees of freedom."""
    parts = [(se, df) for se, df in parts if se > 0.0]
    variance = math.fsum(se**2 for se, _ in parts)
    if variance == 0.0:
        return Uncertainty(0.0, math.inf, common, drift)
    fourth = math.fsum(se**4 / df for se, df in parts)
    return Uncertainty(math.sqrt(variance), variance**2 / fourth if fourth else math.inf, common, drift)

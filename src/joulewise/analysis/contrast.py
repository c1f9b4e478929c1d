"""One cell against another on the same questions: accuracy and joules, with verdicts that hold among many comparisons.

``docs/tradeoffs.md`` has the formulas and their sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from joulewise.analysis.cells import CellKey, exact_sum
from joulewise.analysis.intervals import (
    MIN_QUESTIONS,
    TOO_FEW,
    Floats,
    Quantity,
    joint_provenance,
    percentile_interval,
    positive_quantity,
    unknown_quantity,
)
from joulewise.analysis.log_ratio import add_up, log_ratio
from joulewise.analysis.side_by_side import ACCURACY, Sample
from joulewise.energy.reading import Z95

FALSE_ALARM = 0.05
"""The chance that any verdict of a table is false though nothing in it differs, about."""

QualityVerdict = Literal["better", "worse", "cannot tell"]
EnergyVerdict = Literal["fewer joules", "more joules", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Against:
    """A cell against its baseline.

    Args:
        baseline: which cell that is.
        quality_difference: accuracy (or score) less the baseline's, as a share: 0.05 is 5 points.
        quality_relative: the same over the baseline's: 0.05 is 5 % more right answers.
        lost, gained: questions that the baseline has right and this cell wrong, and the reverse; None where a question
            has several answers or a score.
        quality_p: chance of such a difference if there were none, of this comparison by itself; None where not tested.
        quality_p_among: the same among all comparisons of the table (Holm 1979).
        quality_verdict: what the latter says; None where not tested.
        energy_relative: joules per answer over the baseline's, less 1: 0.05 is 5 % more joules.
        energy_p, energy_p_among, energy_verdict: likewise; None too where joules are not measured.
    """

    baseline: CellKey
    quality_difference: Quantity
    quality_relative: Quantity
    lost: int | None
    gained: int | None
    quality_p: float | None
    energy_relative: Quantity
    energy_p: float | None
    quality_p_among: float | None = None
    quality_verdict: QualityVerdict | None = None
    energy_p_among: float | None = None
    energy_verdict: EnergyVerdict | None = None


def contrast(sample: Sample, base: int, new: int) -> Against:
    """Cell ``new`` against cell ``base``, columns of the sample's board; its verdicts are ``judged`` later."""
    difference, p = quality_difference(sample, base, new)
    energy, energy_p = _energy(sample, base, new)
    lost = gained = None
    if sample.board.one_answer:
        moved = _differences(sample, base, new)
        lost, gained = int((moved < 0).sum()), int((moved > 0).sum())
    relative = _quality_relative(sample, base, new)
    return Against(sample.board.keys[base], difference, relative, lost, gained, p, energy, energy_p)


def quality_difference(sample: Sample, base: int, new: int) -> tuple[Quantity, float | None]:
    """Accuracy of ``new`` less that of ``base``, with its interval, and the chance of it if there were no difference.

    Right or wrong: the adjusted Wald interval for paired proportions (Bonett and Price 2012, "Adjusted Wald Confidence
    Interval for a Difference of Binomial Proportions Based on Paired Data"; repeats that disagree count as fractions)
    and, where each question has one answer, McNemar's exact test. Otherwise the paired bootstrap.
    """
    n, trials = sample.n, int(min(sample.trials[base], sample.trials[new]))
    if sample.board.measure is None:
        return unknown_quantity("nothing judges the answers", n, trials), None
    moved = _differences(sample, base, new)
    value, enough = exact_sum(moved) / n, n >= MIN_QUESTIONS
    again = (sample.again["quality"][:, new] - sample.again["quality"][:, base]) / n if enough else np.empty(0)
    if sample.board.measure == ACCURACY:
        low, high = adjusted_wald(-exact_sum(moved[moved < 0]), exact_sum(moved[moved > 0]), n)
    elif enough:
        low, high = percentile_interval(again, n)
    else:
        return Quantity(value, None, None, n, trials, "measured", TOO_FEW), None
    found = Quantity(value, min(low, value), max(high, value), n, trials, "measured")
    if not enough:
        return found, None
    if sample.board.one_answer:
        return found, mcnemar(int((moved < 0).sum()), int((moved > 0).sum()))
    return found, _bootstrap_p(again, int(np.count_nonzero(moved)))


def adjusted_wald(lost: float, gained: float, n: int) -> tuple[float, float]:
    """The 95 % interval of the difference of two paired proportions (Bonett and Price 2012).

    Args:
        lost, gained: of ``n`` pairs, those that are right on the first side alone, and on the second alone.
    """
    down, up = (lost + 1) / (n + 2), (gained + 1) / (n + 2)
    half = Z95 * math.sqrt(max(0.0, up + down - (up - down) ** 2) / (n + 2))
    return max(-1.0, up - down - half), min(1.0, up - down + half)


def mcnemar(lost: int, gained: int) -> float:
    """McNemar's exact test, two-sided: the chance that a fair coin splits the changed answers so unevenly."""
    changed, fewer = lost + gained, min(lost, gained)
    ways = term = 1
    for i in range(fewer):
        term = term * (changed - i) // (i + 1)
        ways += term
    return min(1.0, 2 * ways / (1 << changed))


def holm(chances: Sequence[float]) -> list[float]:
    """The chance of each among all of them: below a level, any false finding has at most that chance (Holm 1979).

    Args:
        chances: of each comparison by itself.
    """
    found, highest = [0.0] * len(chances), 0.0
    for rank, i in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        highest = max(highest, min(1.0, (len(chances) - rank) * chances[i]))
        found[i] = highest
    return found


def judged(found: Sequence[Against | None]) -> list[Against | None]:
    """The comparisons of one table with their verdicts: accuracy and joules are one family of tests."""
    tests = [
        (i, name)
        for i, one in enumerate(found)
        if one is not None
        for name in ("quality", "energy")
        if getattr(one, f"{name}_p") is not None
    ]
    among = dict(zip(tests, holm([getattr(found[i], f"{name}_p") for i, name in tests]), strict=True))
    return [
        one if one is None else _with_verdicts(one, among.get((i, "quality")), among.get((i, "energy")))
        for i, one in enumerate(found)
    ]


def _with_verdicts(one: Against, quality_p: float | None, energy_p: float | None) -> Against:
    if quality_p is not None:
        better: QualityVerdict = "better" if (one.quality_difference.value or 0.0) > 0.0 else "worse"
        one = replace(one, quality_p_among=quality_p, quality_verdict=better if clear(quality_p) else "cannot tell")
    if energy_p is not None:
        more: EnergyVerdict = "more joules" if (one.energy_relative.value or 0.0) > 0.0 else "fewer joules"
        one = replace(one, energy_p_among=energy_p, energy_verdict=more if clear(energy_p) else "cannot tell")
    return one


def clear(chance: float) -> bool:
    """Whether chance is ruled out."""
    return chance < FALSE_ALARM


def common_of_ratio(sample: Sample, base: int, new: int) -> float:
    """What the meter's common errors can do to the logarithm of a ratio of joules: as for a saving."""
    energies = [float(sample.columns["energy_j"][:, i].sum()) for i in (base, new)]
    errors = [sample.errors_j[:, :, i].sum(axis=1) / e for i, e in zip((base, new), energies, strict=True)]
    return float(np.abs(errors[1] - errors[0]).sum())


def _energy(sample: Sample, base: int, new: int) -> tuple[Quantity, float | None]:
    n, trials = sample.n, int(min(sample.trials[base], sample.trials[new]))
    columns = [sample.columns["energy_j"][:, i] for i in (base, new)]
    if any(np.isnan(column).any() or column.sum() <= 0.0 for column in columns):
        return unknown_quantity("the joules are not known", n, trials), None
    found = log_ratio(*(np.column_stack([column, np.ones(n)]) for column in columns))
    provenance = joint_provenance(sample.board.provenances[i] for i in (base, new))
    common, relative = common_of_ratio(sample, base, new), math.expm1(found.value)
    if found.questions_se is None or not math.isfinite(common):
        reason = found.reason or "the ledger does not say how far the meter can be trusted"
        return Quantity(relative, None, None, n, trials, provenance, reason), None
    uncertainty = add_up([(found.questions_se, found.questions_df)], common, 0.0)
    half = uncertainty.half_width(0.025)
    ends = (math.expm1(found.value - half), math.expm1(found.value + half))
    quantity = Quantity(relative, *ends, n, trials, provenance, common=common)
    if provenance != "measured":
        return quantity, None
    return quantity, min(1.0, 2 * min(uncertainty.p_above(found.value, 0.0), uncertainty.p_above(-found.value, 0.0)))


def _quality_relative(sample: Sample, base: int, new: int) -> Quantity:
    n, trials = sample.n, int(min(sample.trials[base], sample.trials[new]))
    if sample.board.measure is None:
        return unknown_quantity("nothing judges the answers", n, trials)
    before, after = (exact_sum(sample.columns["quality"][:, i]) for i in (base, new))
    if before <= 0.0:
        return unknown_quantity("the baseline has no correct answer", n, trials)
    if after <= 0.0:
        return Quantity(-1.0, None, None, n, trials, "measured", "no answer is correct")
    with np.errstate(divide="ignore", invalid="ignore"):
        again = sample.again["quality"][:, new] / sample.again["quality"][:, base]
    if not _differences(sample, base, new).any():
        return Quantity(after / before - 1.0, None, None, n, trials, "measured", "no answer differs")
    again = again[~np.isnan(again)]
    ratio = positive_quantity(after / before, again, n_questions=n, n_trials=trials, provenance="measured")
    low, high = (None if end is None else end - 1.0 for end in (ratio.lower, ratio.upper))
    return replace(ratio, value=after / before - 1.0, lower=low, upper=high, common=None)


def _differences(sample: Sample, base: int, new: int) -> Floats:
    found: Floats = sample.columns["quality"][:, new] - sample.columns["quality"][:, base]
    return found


def _bootstrap_p(again: Floats, moved: int) -> float:
    """Two-sided, and never below what the signs of so many questions that moved can prove."""
    tail = min(float((again <= 0.0).mean()), float((again >= 0.0).mean()))
    return min(1.0, max(2 * tail, 2 / (len(again) + 1), 2.0 ** (1 - moved)))

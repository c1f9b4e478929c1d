"""A floor with a guarantee: settings of a router whose loss against the strongest option is proven to be small.

Learn-then-Test (arXiv 2110.01052) with fixed-sequence testing: settings are ordered beforehand, from those that call
the strongest option most to those that save most; each is tested against "its mean loss is above the margin" until one
cannot be rejected. The chance that any certified setting loses more than the margin is then at most ``risk``, whatever
the distribution, for labels drawn independently of the settings' fit and order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from joulewise.counted import counted
from joulewise.errors import EnvironmentFault, UserError

Floats = npt.NDArray[np.float64]
Method = Literal["betting", "hoeffding-bentkus"]

_BOLDEST = 0.5
"""Most that is bet on a label, as a share of what could be lost."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What calibration labels prove.

    Args:
        setting: the last setting that is certified, the one that saves most; None where none is.
        certified: how many settings from the first on.
        p_values: of every setting.
        margin, risk: the loss exceeds ``margin`` with probability at most ``risk``.
        labels: how many there were.
        needed: about how many labels the first setting that failed would need; None where all are certified, or where
            its loss is not seen to be below the margin, so that no number will do.
        words: one sentence.
    """

    setting: str | None
    certified: int
    p_values: tuple[float, ...]
    margin: float
    risk: float
    labels: int
    needed: int | None
    words: str


def certify(
    losses: npt.ArrayLike,
    settings: Sequence[str],
    margin: float = 0.02,
    risk: float = 0.05,
    method: Method = "betting",
) -> Certificate:
    """Certify settings in their order.

    Args:
        losses: ``(labels, settings)``: what the strongest option scored less what the setting's choice scored on the
            same query, from -1 to 1; queries in random order, none of which the router was fitted to.
        settings: names, in an order that does not depend on ``losses``, safest first.
        margin: of the mean loss: 0.02 is two points.
        risk: chance of certifying a setting whose loss is above the margin.
        method: of the p-values, chosen before looking at them.

    Raises:
        UserError: no labels, losses beyond -1 to 1, not one name a column, or a margin or risk not between 0 and 1.
        EnvironmentFault: ``hoeffding-bentkus`` without scipy (extra ``routing``).
    """
    table = _checked(losses, margin)
    if table.shape[1] != len(settings) or not settings:
        raise UserError(f"{table.shape[1]} columns of losses and {len(settings)} settings: give each setting a column.")
    if not 0 < risk < 1:
        raise UserError(f"risk {risk:g}: a probability between 0 and 1, such as 0.05.")
    found = p_values(table, margin, method)
    failed = np.flatnonzero(~(found <= risk))
    certified = int(failed[0]) if len(failed) else len(settings)
    needed = _needed(table[:, certified], margin, risk, method) if len(failed) else None
    n = len(table)
    promise = f"the loss exceeds {100 * margin:g} points with probability at most {100 * risk:g} %"
    if certified:
        words = f"{settings[certified - 1]}: {promise} ({counted(n, 'label')})"
    else:
        words = f"cannot certify with {counted(n, 'label')} that {promise}"
    if len(failed):
        what = "" if not certified else f"; for {settings[certified]}"
        loss = 100 * float(table[:, certified].mean())
        more = f"about {needed:,} needed" if needed else f"its loss of {loss:.2f} points is not seen to be below"
        words += f"{what}{':' if what else ';'} {more}"
    last = settings[certified - 1] if certified else None
    return Certificate(last, certified, tuple(found.tolist()), margin, risk, n, needed, words)


def p_values(losses: npt.ArrayLike, margin: float, method: Method = "betting") -> Floats:
    """By setting, a valid p-value for "the mean loss is above the margin" from losses of -1 to 1.

    ``betting`` (arXiv 2010.09686): 1 over the most that a gambler owns who bets on each loss being below the margin, by
    what was seen before it; Ville's inequality makes it valid. It profits where the two options mostly agree, as they
    do here. ``hoeffding-bentkus`` (arXiv 2110.01052, section 3) on (1 + loss) / 2 does not, and needs about 11,000
    labels for two points at 5 % even where nothing is lost.

    Raises:
        UserError, EnvironmentFault: as ``certify``.
    """
    table = _checked(losses, margin)
    if method == "hoeffding-bentkus":
        return _hoeffding_bentkus((1.0 + table) / 2.0, (1.0 + margin) / 2.0)
    owned = np.maximum.accumulate(np.cumsum(_log_growth(table, margin), axis=0), axis=0)[-1]
    return np.asarray(np.exp(-np.maximum(owned, 0.0)), dtype=np.float64)


def _log_growth(table: Floats, margin: float) -> Floats:
    """By label and setting, the logarithm of the factor by which the gambler's capital changes.

    The bet is the one of the most expected growth to second order, (margin - mean) / (variance + (margin - mean)^2),
    from earlier labels and one imagined label of loss 0 and variance 1/4.
    """
    seen = np.arange(1.0, len(table) + 1.0)[:, None]
    first, second = np.cumsum(table, axis=0), np.cumsum(table**2, axis=0)
    mean = np.vstack([np.zeros((1, table.shape[1])), first[:-1]]) / seen
    square = (0.25 + np.vstack([np.zeros((1, table.shape[1])), second[:-1]])) / seen
    gap = margin - mean
    bet = np.clip(gap / np.maximum(square - mean**2 + gap**2, 1e-12), 0.0, _BOLDEST / (1.0 - margin))
    return np.asarray(np.log1p(bet * (margin - table)), dtype=np.float64)


def _hoeffding_bentkus(table: Floats, margin: float) -> Floats:
    try:
        from scipy.stats import binom
    except ImportError as error:
        raise EnvironmentFault(
            "Hoeffding-Bentkus p-values need scipy: install joulewise[routing], or take the method betting."
        ) from error
    n, mean = len(table), table.mean(axis=0)
    low = np.clip(np.minimum(mean, margin), 1e-300, 1 - 1e-16)
    divergence = low * np.log(low / margin) + (1 - low) * np.log((1 - low) / (1 - margin))
    bentkus = math.e * binom.cdf(np.ceil(n * mean - 1e-9), n, margin)
    return np.asarray(np.minimum(1.0, np.minimum(np.exp(-n * divergence), bentkus)), dtype=np.float64)


def _needed(losses: Floats, margin: float, risk: float, method: Method) -> int | None:
    """Labels at which the expected evidence reaches the risk, if more labels are like these; None: none will do.

    The variance is taken to be no less than with one more label that loses.
    """
    n, mean = len(losses), float(losses.mean())
    gap = margin - mean
    if gap <= 0:
        return None
    if method == "hoeffding-bentkus":
        sure = NormalDist().inv_cdf(1.0 - risk / math.e)
        per_label = max(gap**2 / 2.0, math.log(1.0 / risk) * gap**2 / max(sure, 1e-9) ** 2)
    else:
        variance = float(losses.var()) + 1.0 / (n + 1)
        bet = min(gap / (variance + gap**2), _BOLDEST / (1.0 - margin))
        per_label = bet * gap - bet**2 * (variance + gap**2) / 2.0
    return _round_up(max(n + 1, math.log(1.0 / risk) / per_label))


def _round_up(number: float) -> int:
    """To two digits."""
    step = int(10.0 ** max(0, math.floor(math.log10(number)) - 1))
    return math.ceil(number / step) * step


def _checked(losses: npt.ArrayLike, margin: float) -> Floats:
    table = np.asarray(losses, dtype=np.float64)
    if table.ndim != 2 or not len(table):
        raise UserError("There are no labels to certify with: give losses, a row a query and a column a setting.")
    if not (np.abs(table) <= 1).all():
        raise UserError("Losses are differences of scores, from -1 to 1; leave queries without a label out.")
    if not 0 < margin < 1:
        raise UserError(f"margin {margin:g}: a share between 0 and 1, such as 0.02 for two points.")
    return table

"""How likely each option is to answer a query right, learnt from outcomes and predicted in microseconds.

One option, the best on average, is the reference: learnt are its own chance and the *gain* of every other option over
it, for the gain is what a choice turns on. Both are ridge regressions over hashed n-grams (TF-IDF) and over a random
Fourier map of the query's structure, so few labels leave them near the mean. Held-out predictions then set the penalty,
a slope by which gains shrink to their mean (0: what was learnt does not carry over), and Platt's calibration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulewise.errors import EnvironmentFault, UserError
from joulewise.routing.features import BUCKETS, MOST_BUCKETS, STRUCTURE, features
from joulewise.routing.outcomes import Outcomes
from joulewise.routing.ridge import Design, ridge

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

PENALTIES = (3.0, 6.0, 12.0, 24.0, 48.0)
FOLDS = 5
HELD_OUT_ROWS = 8000
"""Penalty and calibration come from at most so many rows; all rows enter the weights."""
FEWEST_ROWS = 20
"""With fewer, each option's mean is all that is learnt."""
FOURIER = 128
STRUCTURE_WEIGHT, STRUCTURE_WIDTH = 0.1, 0.3
DOMAIN_WEIGHT = 0.5
_ONES = np.ones(MOST_BUCKETS, np.float32)


@dataclass(frozen=True)
class Prediction:
    """What is expected of each option, in the model's order.

    Args:
        accuracy: chance of a right answer, calibrated.
        gain: the expected difference of accuracy to the reference option, shrunk; 0 for the reference itself.
    """

    accuracy: Floats
    gain: Floats


@dataclass(frozen=True)
class Performance:
    """A fitted performance estimator; arrays only, so that a file holds it without pickle.

    Args:
        options: names; ``reference`` is the position of the one that others are compared with.
        table: ``(BUCKETS, 1 + options)``: squared inverse document frequency, then weights.
        center, scale: of the structure, each ``(structure,)``.
        waves, phases: the random Fourier map, ``(FOURIER, structure)`` and ``(FOURIER,)``.
        heads: ``(FOURIER, options)``.
        means: by column the intercept: the reference's accuracy, and the others' gains.
        slopes: by column what remains of the learnt part.
        platt: ``(2, options)``: offset and slope of the logistic calibration.
        domains, domain_effects: names, and by domain the shrunk difference of each column.
        labels: outcomes by option.
        calibration_error: by option, mean distance of predicted and observed accuracy over ten bins, held out; NaN
            with too few labels.
        seed: what the fit was seeded with.
    """

    options: tuple[str, ...]
    reference: int
    table: npt.NDArray[np.float32]
    center: Floats
    scale: Floats
    waves: Floats
    phases: Floats
    heads: Floats
    means: Floats
    slopes: Floats
    platt: Floats
    domains: tuple[str, ...]
    domain_effects: Floats
    labels: npt.NDArray[np.int64]
    calibration_error: Floats
    seed: int

    def predict(self, query: str, domain: str | None = None) -> Prediction:
        """What is expected of each option for a query; a domain that was not learnt is as good as none."""
        buckets, structure = features(query)
        structure -= self.center
        structure /= self.scale
        np.minimum(np.maximum(structure, -5, out=structure), 5, out=structure)
        angles = self.waves.dot(structure)
        angles += self.phases
        learnt = np.cos(angles, out=angles).dot(self.heads)
        if len(buckets):
            sums = _ONES[: len(buckets)].dot(self.table.take(buckets, axis=0))
            if sums[0] > 0:
                learnt += sums[1:] / math.sqrt(sums[0])
        if domain is not None and domain in self.domains:
            learnt += self.domain_effects[self.domains.index(domain)]
        columns = self.means + self.slopes * learnt
        base = columns[self.reference]
        columns[self.reference] = 0.0
        return Prediction(1.0 / (1.0 + np.exp(-(self.platt[0] + self.platt[1] * (base + columns)))), columns)


def predict_all(model: Performance, queries: Sequence[str], domains: Sequence[str | None] | None = None) -> Prediction:
    """The same for many queries: each array is ``(queries, options)``."""
    known = [None] * len(queries) if domains is None else domains
    found = [model.predict(query, domain) for query, domain in zip(queries, known, strict=True)]
    empty = np.zeros((0, len(model.options)))
    return Prediction(
        np.array([f.accuracy for f in found]) if found else empty, np.array([f.gain for f in found]) if found else empty
    )


def fit(outcomes: Outcomes, seed: int = 0) -> Performance:
    """Learn from outcomes. The same outcomes and seed give the same model.

    Raises:
        UserError: there are no outcomes.
        EnvironmentFault: scipy (extra ``routing``) is not installed.
    """
    if not outcomes.queries or np.isnan(outcomes.correct).all():
        raise UserError("There are no outcomes to learn from: give queries with at least one scored option each.")
    rng = np.random.default_rng(seed)
    known = ~np.isnan(outcomes.correct)
    labels = known.sum(axis=0)
    smoothed = (np.nansum(outcomes.correct, axis=0) + 1) / (labels + 2)
    reference = int(np.argmax(np.where(labels >= labels.max() / 2, smoothed, -1.0)))
    design, idf, center, scale, waves, phases, domains = _design(outcomes, rng)
    n, k = outcomes.correct.shape
    width = BUCKETS + len(domains)
    weights, heads = np.zeros((width, k)), np.zeros((FOURIER, k))
    means, slopes = smoothed - smoothed[reference], np.zeros(k)
    means[reference] = smoothed[reference]
    platt, error = np.stack([np.log(smoothed / (1 - smoothed)), np.zeros(k)]), np.full(k, math.nan)
    if n >= FEWEST_ROWS:
        held = np.sort(rng.permutation(n)[:HELD_OUT_ROWS])
        folds = rng.integers(0, FOLDS, len(held))
        base = outcomes.correct[:, [reference]]
        targets = outcomes.correct - np.where(np.isnan(base), smoothed[reference], base)
        targets[:, reference] = base[:, 0]
        inner = design.take(held)
        penalties, slopes, out = _held_out(inner, targets[held], folds, reference)
        for rows, columns in _groups(targets):
            means[columns] = targets[np.ix_(rows, columns)].mean(axis=0)
            part = design if len(rows) == n else design.take(rows)
            found = ridge(part, targets[np.ix_(rows, columns)] - means[columns], penalties[columns])
            weights[:, columns], heads[:, columns] = found
        scores = means + slopes * out
        whole = scores[:, [reference]] + np.where(np.arange(k) == reference, 0.0, scores)
        platt, error = _calibrate(whole, outcomes.correct[held], smoothed)
    table = np.concatenate([(idf**2)[:, None], idf[:, None] * weights[:BUCKETS]], axis=1).astype(np.float32)
    amplitude = math.sqrt(2 * STRUCTURE_WEIGHT / FOURIER)
    return Performance(
        outcomes.options, reference, table, center, scale, waves, phases, heads * amplitude, means, slopes, platt,
        domains, weights[BUCKETS:] * DOMAIN_WEIGHT, labels, error, seed,
    )  # fmt: skip


def _design(
    outcomes: Outcomes, rng: np.random.Generator
) -> tuple[Design, Floats, Floats, Floats, Floats, Floats, tuple[str, ...]]:
    try:
        from scipy.sparse import csr_matrix
    except ImportError as error:
        raise EnvironmentFault("Learning a router needs scipy: pip install 'joulewise[routing]'.") from error
    n = len(outcomes.queries)
    structure = np.empty((n, len(STRUCTURE)))
    found: list[npt.NDArray[np.int32]] = []
    for i, query in enumerate(outcomes.queries):
        known = features(query)
        structure[i] = known.structure
        found.append(known.buckets)
    sizes = np.array([len(f) for f in found])
    document = np.zeros(BUCKETS)
    for of_query in found:
        document[of_query] += 1
    idf = np.where(document >= min(2, n), np.log((1 + n) / (1 + document)) + 1, 0.0)
    names = tuple(sorted({d for d in outcomes.domains if d is not None}))
    place = {name: BUCKETS + i for i, name in enumerate(names)}
    ends = np.cumsum(sizes + np.array([d is not None for d in outcomes.domains]))
    indices, data = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.float32)
    at = 0
    for i, domain in enumerate(outcomes.domains):
        buckets = found[i]
        values = idf[buckets]
        norm = math.sqrt(float(values @ values))
        indices[at : at + len(buckets)] = buckets
        data[at : at + len(buckets)] = values / norm if norm else 0.0
        at += len(buckets)
        if domain is not None:
            indices[at], data[at] = place[domain], DOMAIN_WEIGHT
            at += 1
    sparse = csr_matrix((data, indices, np.concatenate([[0], ends])), shape=(n, BUCKETS + len(names)))
    center, scale = structure.mean(axis=0), structure.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    waves = rng.normal(0.0, math.sqrt(2 * STRUCTURE_WIDTH / len(STRUCTURE)), (FOURIER, len(STRUCTURE)))
    phases = rng.uniform(0, 2 * math.pi, FOURIER)
    dense = np.cos(np.clip((structure - center) / scale, -5, 5) @ waves.T + phases)
    dense *= math.sqrt(2 * STRUCTURE_WEIGHT / FOURIER)
    return Design(sparse, dense), idf, center, scale, waves, phases, names


def _groups(targets: Floats) -> list[tuple[Rows, Rows]]:
    """Columns that are known for the same rows, with these rows; columns that are known for none are left out."""
    groups: dict[bytes, list[int]] = {}
    known = ~np.isnan(targets)
    for column in range(targets.shape[1]):
        groups.setdefault(known[:, column].tobytes(), []).append(column)
    return [(np.flatnonzero(known[:, c[0]]), np.array(c)) for c in groups.values() if known[:, c[0]].any()]


def _held_out(
    design: Design, targets: Floats, folds: npt.NDArray[np.int64], reference: int
) -> tuple[Floats, Floats, Floats]:
    """By column the penalty and the slope that fit rows which were not learnt from, and the predictions for them."""
    n, k = targets.shape
    tries = len(PENALTIES)
    out = np.zeros((tries, n, k))
    for rows, columns in _groups(targets):
        many = np.repeat(PENALTIES, len(columns))
        for fold in range(FOLDS):
            train, test = rows[folds[rows] != fold], np.flatnonzero(folds == fold)
            if not len(train):
                continue
            part = targets[np.ix_(train, columns)]
            found = design.take(test).times(*ridge(design.take(train), np.tile(part - part.mean(axis=0), tries), many))
            for i in range(tries):
                out[np.ix_(np.array([i]), test, columns)] = found[None, :, i * len(columns) : (i + 1) * len(columns)]
    centred = targets - np.nanmean(np.where(np.isnan(targets).all(axis=0), 0.0, targets), axis=0)
    losses = np.nansum((centred - out) ** 2, axis=1)
    gains = np.arange(k) != reference
    best = np.full(k, int(np.argmin(losses[:, reference])))
    best[gains] = int(np.argmin(losses[:, gains].sum(axis=1))) if gains.any() else 0
    chosen = out[best, :, np.arange(k)].T
    square = np.where(np.isnan(targets), 0.0, chosen**2).sum(axis=0)
    slopes = np.clip(np.nansum(centred * chosen, axis=0) / np.maximum(square, 1e-12), 0.0, 1.5)
    return np.array(PENALTIES)[best], slopes, chosen


def _calibrate(scores: Floats, correct: Floats, smoothed: Floats) -> tuple[Floats, Floats]:
    """Platt's logistic calibration of every option (with his smoothed targets), and its error held out by halves."""
    k = scores.shape[1]
    platt, error = np.zeros((2, k)), np.full(k, math.nan)
    for option in range(k):
        rows = np.flatnonzero(~np.isnan(correct[:, option]))
        x, y = scores[rows, option], correct[rows, option]
        platt[:, option] = _platt(x, y, smoothed[option])
        if len(rows) >= 10 * FEWEST_ROWS:
            halves = [rows[::2], rows[1::2]]
            predicted, observed = [], []
            for learn, check in (halves, halves[::-1]):
                a, b = _platt(scores[learn, option], correct[learn, option], smoothed[option])
                predicted.append(1 / (1 + np.exp(-(a + b * scores[check, option]))))
                observed.append(correct[check, option])
            error[option] = calibration_error(np.concatenate(predicted), np.concatenate(observed))
    return platt, error


def _platt(x: Floats, y: Floats, mean: float) -> tuple[float, float]:
    """Offset and slope of a logistic curve by Newton's method, with a weak prior that it is flat at the mean."""
    at = math.log(mean / (1 - mean))
    a, b = at, 0.0
    center = float(x.mean()) if len(x) else 0.0
    z = x - center
    for _ in range(30):
        p = 1 / (1 + np.exp(-np.clip(a + b * z, -30, 30)))
        w = p * (1 - p)
        gradient = np.array([(y - p).sum() - (a - at), ((y - p) * z).sum() - 0.1 * b])
        hessian = np.array([[w.sum() + 1, (w * z).sum()], [(w * z).sum(), (w * z * z).sum() + 0.1]])
        step = np.linalg.solve(hessian, gradient)
        a, b = a + step[0], b + step[1]
        if abs(step).max() < 1e-8:
            break
    if b < 0:
        return at, 0.0
    return a - b * center, b


def reliability(predicted: Floats, observed: Floats, bins: int = 10) -> list[tuple[float, float, int]]:
    """By bin of equal counts: mean predicted chance, share that was right, and number of queries."""
    order = np.argsort(predicted, kind="stable")
    return [
        (float(predicted[part].mean()), float(observed[part].mean()), len(part))
        for part in np.array_split(order, bins)
        if len(part)
    ]


def calibration_error(predicted: Floats, observed: Floats, bins: int = 10) -> float:
    """Mean distance of predicted and observed accuracy over bins of equal counts (expected calibration error)."""
    table = reliability(predicted, observed, bins)
    return sum(abs(p - o) * n for p, o, n in table) / len(predicted)

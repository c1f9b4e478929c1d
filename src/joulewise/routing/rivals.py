"""Honest rivals of the estimator: nearest neighbours, k-means, the best single option, chance.

Each is fitted on outcomes and gives ``(queries, options)`` predicted accuracies, as the estimator does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from joulewise.routing.features import BUCKETS, features
from joulewise.routing.outcomes import Outcomes

Floats = npt.NDArray[np.float64]
Rival = Callable[[Sequence[str]], Floats]

_PRIOR = 3.0
"""Outcomes' worth of the overall mean in the mean of few neighbours or of a cluster."""


def best_single(outcomes: Outcomes) -> Rival:
    """Every option's mean, whatever the query."""
    means = _means(outcomes.correct)
    return lambda queries: np.tile(means, (len(queries), 1))


def chance(outcomes: Outcomes, seed: int = 0) -> Rival:
    """Random figures: choices by chance."""
    k = len(outcomes.options)
    return lambda queries: np.random.default_rng(seed).random((len(queries), k))


def nearest(outcomes: Outcomes, neighbours: int = 40) -> Rival:
    """The mean of the queries whose n-grams (TF-IDF) are most alike by cosine."""
    means = _means(outcomes.correct)
    vectors, idf = _vectors(outcomes.queries)
    k = min(neighbours, len(outcomes.queries))

    def predict(queries: Sequence[str]) -> Floats:
        out = np.empty((len(queries), len(means)))
        asked = _vectors(queries, idf)[0]
        for start in range(0, len(queries), 512):
            alike = (asked[start : start + 512] @ vectors.T).toarray()
            near = np.argpartition(-alike, k - 1, axis=1)[:, :k]
            out[start : start + 512] = _shrunk(outcomes.correct[near], means)
        return out

    return predict


def k_means(outcomes: Outcomes, clusters: int = 32, seed: int = 0) -> Rival:
    """The mean of the cluster that the query falls into (spherical k-means over the same vectors)."""
    rng = np.random.default_rng(seed)
    means = _means(outcomes.correct)
    vectors, idf = _vectors(outcomes.queries)
    n = len(outcomes.queries)
    centers = vectors[rng.permutation(n)[: min(clusters, n)]].toarray()
    for _ in range(10):
        of = np.argmax(vectors @ centers.T, axis=1)
        for c in np.unique(of):
            total = np.asarray(vectors[of == c].sum(axis=0)).ravel()
            centers[c] = total / max(float(np.linalg.norm(total)), 1e-12)
    of = np.argmax(vectors @ centers.T, axis=1)
    by_cluster = np.array([_shrunk(outcomes.correct[of == c][None], means)[0] for c in range(len(centers))])
    return lambda queries: by_cluster[np.argmax(_vectors(queries, idf)[0] @ centers.T, axis=1)]


def _means(correct: Floats) -> Floats:
    known = ~np.isnan(correct)
    return np.asarray((np.nansum(correct, axis=0) + 1) / (known.sum(axis=0) + 2))


def _shrunk(correct: Floats, means: Floats) -> Floats:
    """Means over the last axis but one, drawn to the overall ones."""
    known = (~np.isnan(correct)).sum(axis=-2)
    return np.asarray((np.nansum(correct, axis=-2) + _PRIOR * means) / (known + _PRIOR))


def _vectors(queries: Sequence[str], idf: Floats | None = None) -> tuple[Any, Floats]:
    """Unit TF-IDF vectors as a scipy CSR matrix, and the weights used (learnt from the queries, if none are given)."""
    from scipy.sparse import csr_matrix

    found = [features(query).buckets for query in queries]
    if idf is None:
        document = np.bincount(np.concatenate([np.zeros(0, np.int32), *found]), minlength=BUCKETS)
        idf = np.log((1 + len(queries)) / (1 + document)) + 1
    rows = [idf[f] / max(float(np.linalg.norm(idf[f])), 1e-12) for f in found]
    ends = np.cumsum([0, *map(len, found)])
    empty = np.zeros(0)
    data = np.concatenate([empty, *rows]).astype(np.float32)
    indices = np.concatenate([np.zeros(0, np.int32), *found])
    return csr_matrix((data, indices, ends), shape=(len(queries), BUCKETS)), idf

"""Ridge regression over sparse n-grams and a few dense features, for many targets at once, by conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
ITERATIONS = 60
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Design:
    """Rows of features: ``sparse`` (scipy CSR, float32) beside ``dense``."""

    sparse: Any
    dense: Floats

    def take(self, rows: npt.NDArray[np.int64]) -> Design:
        """Some of the rows."""
        return Design(self.sparse[rows], self.dense[rows])

    def times(self, sparse_weights: Floats, dense_weights: Floats) -> Floats:
        """Rows times weights: ``(rows, targets)``."""
        return np.asarray(self.sparse @ sparse_weights + self.dense @ dense_weights)

    def transposed(self, values: Floats) -> tuple[Floats, Floats]:
        """Features' sums over the rows, weighted by ``values`` of shape ``(rows, targets)``."""
        return np.asarray(self.sparse.T @ values), self.dense.T @ values


def ridge(design: Design, targets: Floats, penalties: Floats) -> tuple[Floats, Floats]:
    """Weights that minimise |X w - y|^2 + penalty |w|^2 by target: of the sparse and of the dense features.

    Solved in the dual, (X X' + penalty) a = y and w = X' a, so that few rows stay cheap however many features.

    Args:
        targets: ``(rows, targets)``, centred by the caller.
        penalties: one for each target, above 0.
    """
    alpha = np.zeros_like(targets)
    residual, direction = targets.copy(), targets.copy()
    size = start = np.einsum("ij,ij->j", residual, residual)
    for _ in range(ITERATIONS):
        applied = design.times(*design.transposed(direction)) + penalties * direction
        step = size / np.maximum(np.einsum("ij,ij->j", direction, applied), 1e-30)
        alpha += step * direction
        residual -= step * applied
        previous, size = size, np.einsum("ij,ij->j", residual, residual)
        if (size <= TOLERANCE**2 * start).all():
            break
        direction = residual + size / np.maximum(previous, 1e-30) * direction
    return design.transposed(alpha)

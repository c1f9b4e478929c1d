"""Least squares with coefficients of at least 0, many problems at a time."""

from __future__ import annotations

import numpy as np

from joulewise.analysis.intervals import Floats

_RIDGE = 1e-12
"""On the scaled diagonal: a column of zeros, or one that others make up, then gives a number and no error."""


def non_negative(gram: Floats, right: Floats) -> Floats:
    """The x >= 0 that minimise ``x' gram x - 2 right' x``.

    By principal pivoting (Murty 1974, "Note on a Bard-type scheme for solving the complementarity problem"): of the
    coefficients that are negative, and of those at 0 that would rise, the last one changes sides until none is left,
    which for a positive definite ``gram`` comes to an end.

    Args:
        gram: normal equations, ``X' W X`` of each problem, shape ``(problems, k, k)``.
        right: ``X' W y``, shape ``(problems, k)``.

    Returns:
        shape ``(problems, k)``.
    """
    k = gram.shape[-1]
    diagonal = np.diagonal(gram, axis1=1, axis2=2)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    scaled = gram * scale[:, :, None] * scale[:, None, :] + _RIDGE * np.eye(k)
    wanted = right * scale
    slack = 1e-9 * np.abs(wanted).max(axis=1, keepdims=True)
    free = np.ones(wanted.shape, dtype=bool)
    found = np.zeros(wanted.shape)
    left = np.arange(len(wanted))  # the problems that are not solved yet
    while len(left):
        a, b, f = scaled[left], wanted[left], free[left]
        system = np.where(f[:, :, None] & f[:, None, :], a, 0.0) + np.eye(k) * ~f[:, :, None]
        x = np.linalg.solve(system, np.where(f, b, 0.0)[:, :, None])
        rises = b - (a @ x)[:, :, 0]
        found[left] = x[:, :, 0]
        wrong = np.where(f, x[:, :, 0] < -slack[left], rises > slack[left])
        again = wrong.any(axis=1)
        left, wrong = left[again], wrong[again]
        free[left, k - 1 - np.argmax(wrong[:, ::-1], axis=1)] ^= True
    return np.asarray(np.maximum(found, 0.0) * scale, dtype=np.float64)

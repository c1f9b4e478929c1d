"""Least squares with coefficients of at least 0: the conditions that define them, for anything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.analysis.least_squares import non_negative


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 7), problems=st.integers(1, 20))
def test_no_other_coefficients_fit_better(seed: int, k: int, problems: int) -> None:
    """Karush, Kuhn and Tucker: where a coefficient is above 0 the slope is 0, and where it is 0 it would not fall."""
    rng = np.random.default_rng(seed)
    columns = rng.uniform(0.0, 1.0, (problems, 30, k)) * 10.0 ** rng.integers(-3, 3, k)
    wanted = rng.normal(0.0, 1.0, (problems, 30))
    gram = np.einsum("pij,pik->pjk", columns, columns)
    right = np.einsum("pij,pi->pj", columns, wanted)
    found = non_negative(gram, right)
    slopes = (np.einsum("pjk,pk->pj", gram, found) - right) / np.sqrt(np.einsum("pjj->pj", gram))
    assert (found >= 0.0).all()
    assert (slopes > -1e-6).all()
    assert slopes[found > 0.0] == pytest.approx(0.0, abs=1e-6)


def test_what_needs_no_bound_is_plain_least_squares_and_what_is_below_0_is_left_out() -> None:
    columns = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    for wanted, answer in (([1.0, 3.0, 5.0], [1.0, 2.0]), ([5.0, 3.0, 1.0], [3.0, 0.0])):
        found = non_negative((columns.T @ columns)[None], (columns.T @ np.array(wanted))[None])
        assert found[0] == pytest.approx(answer)


def test_an_empty_column_has_nothing() -> None:
    assert non_negative(np.array([[[4.0, 0.0], [0.0, 0.0]]]), np.array([[8.0, 0.0]]))[0] == pytest.approx([2.0, 0.0])

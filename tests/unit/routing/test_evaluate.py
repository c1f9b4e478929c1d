from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.errors import UserError
from joulewise.routing.evaluate import (
    aiq,
    apgr,
    cost_curve,
    draw_by_hash,
    first_crossing,
    folds_by_domain,
    folds_by_hash,
    pair_result,
    recovered,
)

WEAK = np.array([0.0, 1.0, 0.0, 1.0])
STRONG = np.array([1.0, 1.0, 1.0, 0.0])


def test_the_curve_by_hand() -> None:
    shares, gap = recovered(np.array([4.0, 2.0, 3.0, 1.0]), WEAK, STRONG)
    np.testing.assert_allclose(shares, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(gap, [0, 1, 2, 2, 1])
    assert apgr(np.array([4.0, 2.0, 3.0, 1.0]), WEAK, STRONG) == pytest.approx((0.5 + 1.5 + 2 + 1.5) / 4)


def test_the_crossing_is_the_first_where_the_curve_comes_back() -> None:
    shares, gap = np.linspace(0, 1, 5), np.array([0.0, 0.9, 0.3, 0.7, 1.0])
    assert first_crossing(shares, gap, 0.5) == 0.25
    assert math.isnan(first_crossing(shares, gap, 1.1))


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_a_replicate_counts_like_repeated_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, weak, strong = rng.permutation(20).astype(float), rng.random(20) / 2, 0.5 + rng.random(20) / 2
    counts = rng.integers(0, 4, 20)
    counts[0] += 1
    shares, gap = recovered(scores, weak, strong, counts.astype(float))
    once = recovered(np.repeat(scores, counts), np.repeat(weak, counts), np.repeat(strong, counts))
    np.testing.assert_allclose(np.interp(shares, *once), gap, atol=1e-9)


def test_no_gap_is_told() -> None:
    with pytest.raises(UserError, match="no gap to recover"):
        recovered(np.zeros(2), np.ones(2), np.ones(2))


def test_intervals_hold_the_value_and_chance_is_a_half() -> None:
    rng = np.random.default_rng(0)
    weak, strong = (rng.random(4000) < 0.6).astype(float), (rng.random(4000) < 0.8).astype(float)
    found = pair_result(rng.random(4000), weak, strong, replicates=200)
    for figure in (found.apgr, found.cpt50, found.cpt80):
        assert figure.value is not None
        assert figure.lower is not None
        assert figure.upper is not None
        assert figure.lower <= figure.value <= figure.upper
    assert found.apgr.lower is not None
    assert found.apgr.upper is not None
    assert found.apgr.lower < 0.5 < found.apgr.upper


def test_repeated_texts_are_on_one_side_of_a_split() -> None:
    queries = [f"query {i % 40}" for i in range(200)]
    folds = folds_by_hash(queries, 5)
    assert all(len({f for q, f in zip(queries, folds, strict=True) if q == text}) == 1 for text in set(queries))
    learn, test = draw_by_hash(queries, 33, seed=2)
    assert len(learn) == 33
    assert not {queries[i] for i in learn} & {queries[i] for i in test}
    assert set(learn.tolist()) != set(draw_by_hash(queries, 33, seed=3)[0].tolist())


def test_a_domain_lies_in_one_fold() -> None:
    domains = [f"subject {i % 11}" for i in range(110)]
    folds = folds_by_domain(domains, 5)
    assert sorted(set(folds.tolist())) == [0, 1, 2, 3, 4]
    assert len({(d, f) for d, f in zip(domains, folds.tolist(), strict=True)}) == 11


def test_cost_curve_and_hull_by_hand() -> None:
    correct = np.array([[1.0, 1.0], [0.0, 1.0]])
    costs = np.array([1.0, 3.0])
    spent, right = cost_curve(correct, costs, correct, np.array([0.0, 0.1, 1.0]))
    np.testing.assert_allclose(spent, [2, 2, 1])
    np.testing.assert_allclose(right, [1, 1, 0.5])
    assert aiq(spent, right, 1.0, 3.0) == pytest.approx((0.75 + 1.0) / 2, abs=1e-3)
    assert aiq(np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.4, 0.3]), 1.0, 3.0) == pytest.approx(0.5)

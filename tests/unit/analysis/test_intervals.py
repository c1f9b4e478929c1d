"""Intervals: known quantiles, known coverage, and what must hold for any sample."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from joulewise.analysis.intervals import (
    MIN_QUESTIONS,
    Quantity,
    expanded_tail,
    joint_provenance,
    percentile_interval,
    positive_quantity,
    resample,
    student_t,
    unknown_quantity,
    wilson,
)
from joulewise.energy.reading import Z95


def test_wilson_known_answers():
    # z = 1.96, z^2 = 3.8415. 0 of 10: upper end z^2 / (n + z^2) = 3.8415 / 13.8415 = 0.27753
    assert wilson(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert wilson(10, 10) == pytest.approx((1 - 0.27753, 1.0), abs=1e-5)
    # 5 of 10: centre 0.5; half = 1.96 / 1.38415 * sqrt(0.25 / 10 + 3.8415 / 400) = 1.41602 * 0.186016 = 0.26340
    assert wilson(5, 10) == pytest.approx((0.5 - 0.26340, 0.5 + 0.26340), abs=1e-5)


@given(st.integers(1, 500), st.floats(0, 1))
def test_wilson_holds_the_share_and_stays_between_0_and_1(n, p):
    low, high = wilson(p * n, n)
    assert 0.0 <= low <= p * n / n <= high <= 1.0


@pytest.mark.parametrize("degrees", [4, 5, 9, 24, 99, 1000])
def test_student_t_without_scipy_equals_scipy(degrees):
    assert student_t(0.975, degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=1.1e-3)


def test_the_expanded_tail_tends_to_the_plain_one():
    # n = 10: t = 2.26216, times sqrt(10 / 9) = 2.38453; Phi(-2.38453) = 0.00855
    assert expanded_tail(10) == pytest.approx(0.00855, abs=2e-5)
    assert expanded_tail(5) < expanded_tail(10) < expanded_tail(100) < 0.025
    assert expanded_tail(10**6) == pytest.approx(0.025, abs=1e-5)


def test_resample_draws_n_of_n_and_keeps_pairs_together():
    values = np.array([1.0, 10.0, 100.0])
    sums = resample(np.column_stack([values, 2 * values, np.ones(3)]), replicates=500)
    assert sums.shape == (500, 3)
    assert np.all(sums[:, 2] == 3.0)
    assert np.allclose(sums[:, 1], 2 * sums[:, 0])
    # Mean of a bootstrap sum is the sum, 111; its standard error sqrt(3 * var) / sqrt(500) = 77.9 / 22.4 = 3.5
    assert sums[:, 0].mean() == pytest.approx(111, abs=4 * 3.5)


def test_resample_is_seeded():
    column = np.arange(7.0)[:, None]
    assert np.array_equal(resample(column, seed=3), resample(column, seed=3))
    assert not np.array_equal(resample(column, seed=3), resample(column, seed=4))


def test_resample_in_several_blocks_keeps_its_shape():
    sums = resample(np.ones((9000, 1)), replicates=500)  # more than one block
    assert np.array_equal(sums, np.full((500, 1), 9000.0))


def test_percentile_interval_takes_order_statistics():
    # tail at n = 10 is 0.00855; rank = floor(0.00855 * 1000) = 8 from each end of 0 .. 1000
    assert percentile_interval(np.arange(1001.0), 10) == (8.0, 992.0)


def test_percentile_interval_allows_infinity():
    replicates = np.concatenate([np.full(900, 2.0), np.full(100, math.inf)])
    assert percentile_interval(replicates, 30) == (2.0, math.inf)


def test_the_meters_common_part_is_added_linearly_on_the_log_scale():
    replicates = np.linspace(0.9, 1.1, 1001)
    alone = positive_quantity(1.0, replicates, n_questions=20, n_trials=20, provenance="measured")
    both = positive_quantity(1.0, replicates, n_questions=20, n_trials=20, provenance="measured", common=0.1)
    # ln upper grows by 1.959964 * 0.1 = 0.1959964 and ln lower shrinks by as much
    assert math.log(both.upper / alone.upper) == pytest.approx(0.1 * Z95)
    assert math.log(alone.lower / both.lower) == pytest.approx(0.1 * Z95)


def test_an_infinite_end_is_unbounded_not_a_number():
    quantity = positive_quantity(
        2.0, np.array([1.0, 2.0, math.inf] * 100), n_questions=9, n_trials=9, provenance="measured"
    )
    assert (quantity.lower, quantity.upper, quantity.unbounded) == (1.0, None, True)


def test_a_huge_common_part_leaves_no_upper_end_rather_than_overflow():
    quantity = positive_quantity(1.0, np.ones(100), n_questions=9, n_trials=9, provenance="modelled", common=1000.0)
    assert (quantity.lower, quantity.upper, quantity.unbounded) == (0.0, None, True)


def test_too_few_questions_give_a_value_and_no_interval():
    quantity = positive_quantity(
        1.5, np.ones(10), n_questions=MIN_QUESTIONS - 1, n_trials=40, provenance="measured", common=0.1
    )
    assert (quantity.value, quantity.lower, quantity.upper) == (1.5, None, None)
    assert "fewer than 5 questions" in quantity.reason


def test_a_common_part_that_is_not_known_gives_no_interval():
    quantity = positive_quantity(1.5, np.ones(10), n_questions=9, n_trials=9, provenance="measured", common=math.nan)
    assert (quantity.lower, quantity.upper) == (None, None)
    assert quantity.reason


@settings(max_examples=50)
@given(
    st.lists(st.floats(0.01, 1000), min_size=MIN_QUESTIONS, max_size=40),
    st.floats(0, 0.5),
)
def test_the_interval_holds_the_value(values, common):
    sample = np.array(values)
    sums = resample(np.column_stack([sample, np.ones(len(sample))]), replicates=300)
    quantity = positive_quantity(
        float(sample.mean()),
        sums[:, 0] / sums[:, 1],
        n_questions=len(sample),
        n_trials=len(sample),
        provenance="measured",
        common=common,
    )
    assert quantity.lower <= quantity.value <= quantity.upper


def test_scaling_keeps_none_and_everything_else():
    assert unknown_quantity("why").scaled(3.0) == unknown_quantity("why")
    quantity = Quantity(2.0, 1.0, None, 7, 8, "modelled", "why", True, 0.1)
    assert quantity.scaled(3.0) == Quantity(6.0, 3.0, None, 7, 8, "modelled", "why", True, 0.1)


@pytest.mark.parametrize(
    ("kinds", "joint"),
    [
        (["measured", "measured"], "measured"),
        (["measured", "modelled"], "modelled"),
        (["measured", "unknown"], "unknown"),
        (["measured", None], "unknown"),
        (["modelled", "unknown"], "unknown"),
        ([], "unknown"),
    ],
)
def test_provenance_is_that_of_the_weakest(kinds, joint):
    assert joint_provenance(kinds) == joint

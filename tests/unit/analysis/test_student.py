"""Student's t against scipy, and what holds for any."""

import math

import pytest
from scipy import stats

from joulewise.analysis.student import quantile, upper_tail


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 24, 99, 1000])
@pytest.mark.parametrize("t", [-3.0, 0.0, 0.5, 2.0, 4.3, 30.0])
def test_tails_are_scipy_s(t, degrees):
    assert upper_tail(t, degrees) == pytest.approx(stats.t.sf(t, degrees), abs=1e-12)


@pytest.mark.parametrize("degrees", [1, 2, 4, 24])
@pytest.mark.parametrize("tail", [0.025, 0.001, 1e-5])
def test_quantiles_are_scipy_s(tail, degrees):
    assert quantile(tail, degrees) == pytest.approx(stats.t.isf(tail, degrees), rel=1e-6)


def test_many_degrees_are_the_normal_distribution():
    assert quantile(0.025, math.inf) == pytest.approx(1.959964, rel=1e-6)
    assert upper_tail(1.959964, math.inf) == pytest.approx(0.025, rel=1e-5)


def test_a_fraction_of_a_degree_only_widens():
    assert quantile(0.025, 4.9) == quantile(0.025, 4)
    assert quantile(0.025, 4 - 1e-12) == quantile(0.025, 4)  # Welch's formula rounds

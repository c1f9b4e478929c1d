"""Figures in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.analysis.intervals import Quantity, unknown_quantity
from joulewise.report.text import common_reason, figure, interval, value


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.0, "0"),
        (1.0, "1.00"),
        (1.2345, "1.23"),
        (0.9996, "1.00"),
        (9.996, "10.0"),
        (99.96, "100"),
        (0.012345, "0.0123"),
        (123456.0, "123,000"),
        (-1.5, "-1.50"),
        (1.5e-7, "1.50e-07"),
        (2.5e10, "2.50e+10"),
    ],
)
def test_three_significant_digits(number, shown):
    assert figure(number) == shown


@given(st.floats(1e-12, 1e12))
def test_what_is_shown_is_the_number(number):
    assert float(figure(number).replace(",", "")) == pytest.approx(number, rel=0.005)


def quantity(value, lower, upper, unbounded=False):
    return Quantity(value, lower, upper, 10, 10, "measured", unbounded=unbounded)


def test_values_and_intervals():
    assert value(quantity(1.5, 1.0, 2.0)) == "1.50"
    assert interval(quantity(1.5, 1.0, 2.0)) == "1.00 – 2.00"
    assert interval(quantity(0.015, 0.01, 0.02), 100) == "1.00 – 2.00"
    assert value(quantity(None, 130.0, None, True)) == "≥ 130"
    assert interval(quantity(None, 130.0, None, True)) is None
    assert interval(quantity(200.0, 130.0, None, True)) == "130 or more"
    assert value(quantity(None, None, None, True)) == "unbounded"
    assert value(unknown_quantity("why")) == "unknown"
    assert interval(unknown_quantity("why")) is None


def test_a_column_of_unknowns_with_one_reason_has_that_reason():
    assert common_reason([unknown_quantity("a"), unknown_quantity("a")]) == "a"
    assert common_reason([unknown_quantity("a"), unknown_quantity("b")]) is None
    assert common_reason([unknown_quantity("a"), quantity(1.0, 1.0, 1.0)]) is None
    assert common_reason([quantity(None, 1.0, None, True)]) is None
    assert common_reason([]) is None

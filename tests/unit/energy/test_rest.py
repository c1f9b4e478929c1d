"""A small version of ``benchmarks/rest.py``: why a run waits between Trials."""

from __future__ import annotations

import pytest

from load_benchmark import load_benchmark

load_benchmark("simulated_card")
load_benchmark("meter_accuracy")
rest = load_benchmark("rest")


@pytest.mark.parametrize("length_s", [0.2, 0.5])
def test_windows_with_rest_between_them_are_told_apart(length_s: float) -> None:
    row = rest.row("held", length_s, "settled", blocks=60)
    assert min(row.interval_holds) >= 95.0
    assert row.bias == pytest.approx((0.0, 0.0), abs=1.5)
    assert row.ratio_bias == pytest.approx(0.0, abs=1.0)


def test_windows_without_rest_leak_into_the_gap_and_their_intervals_do_not_hold() -> None:
    """Should a change of the meter make this fail, the runner's wait between Trials can be looked at anew."""
    row = rest.row("held", 0.5, "at once", blocks=60)
    assert max(row.bias) < -0.7
    assert min(row.interval_holds) < 85.0

"""Joules from power readings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.energy.power_integral import MAX_GAP_S, PowerIntegral


def test_a_ramp_is_integrated_exactly() -> None:
    integral = PowerIntegral()
    assert [integral.add(t / 10, 100 * t) for t in range(4)] == pytest.approx([0.0, 5.0, 20.0, 45.0])


def test_a_gap_begins_anew_which_a_meter_takes_for_a_reset() -> None:
    integral = PowerIntegral()
    integral.add(0.0, 100.0)
    assert integral.add(1.0, 100.0) == 100.0
    assert integral.add(1.0 + 1.01 * MAX_GAP_S, 100.0) == 0.0
    assert integral.add(2.0 + 1.01 * MAX_GAP_S, 100.0) == pytest.approx(100.0)


@given(st.lists(st.tuples(st.floats(-1.0, 1.9), st.floats(0.0, 1e4)), min_size=1))
def test_it_never_runs_backwards_without_a_gap(steps: list[tuple[float, float]]) -> None:
    integral, time_s, last_j = PowerIntegral(), 0.0, 0.0
    integral.add(0.0, 0.0)
    for step_s, power_w in steps:
        energy_j = integral.add(time_s + step_s, power_w)
        time_s = max(time_s, time_s + step_s)
        assert energy_j >= last_j
        last_j = energy_j

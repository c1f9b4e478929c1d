"""The timeline's arrays: the power's integral, its lag, and moments at which the counter is known."""

from __future__ import annotations

import pytest

from joulewise.energy import timeline
from joulewise.energy.timeline import AVERAGED_S, KEPT_S, Knots, PowerTrace


def test_the_integral_is_that_of_a_broken_line() -> None:
    trace = PowerTrace()
    for time_s, power_w in ((0.0, 100.0), (1.0, 100.0), (3.0, 300.0)):
        trace.add(time_s, power_w)
    assert trace.integral(3.0)[0] - trace.integral(0.0)[0] == pytest.approx(100 + 400)
    assert trace.integral(2.0)[0] - trace.integral(1.0)[0] == pytest.approx(150)  # 100 W rising to 200 W
    assert trace.integral(4.0)[0] - trace.integral(3.0)[0] == pytest.approx(300)  # held after the last
    assert trace.integral(0.0)[0] - trace.integral(-1.0)[0] == pytest.approx(100)
    trace.add(2.5, 999.0)  # late: passed over
    assert trace.last_s == 3.0


def held(every_s: float, hold_s: float) -> PowerTrace:
    trace = PowerTrace()
    for i in range(400):
        trace.add(i * every_s, 100.0 + (int(i * every_s / hold_s + 1e-9) % 7))
    return trace


def test_a_held_reading_is_late_by_half_of_how_long_it_is_held() -> None:
    trace = held(0.02, 0.1)
    assert trace.gap_s == pytest.approx(0.02)
    assert trace.held_s == pytest.approx(0.1)
    assert trace.lag_s == pytest.approx(AVERAGED_S / 2 + 0.05)
    assert held(0.02, 0.02).lag_s == pytest.approx(AVERAGED_S / 2 + 0.005)


def test_smooth_and_rough_power_are_told_apart() -> None:
    smooth, rough = PowerTrace(), PowerTrace()
    for i in range(100):
        smooth.add(i * 0.1, 100.0 + 5 * i)
        rough.add(i * 0.1, 700.0 if i % 2 else 100.0)
    assert smooth.roughness_w(0.0, 10.0) == pytest.approx(0.0, abs=1e-9)
    assert rough.roughness_w(0.0, 10.0) == pytest.approx(600.0)
    assert smooth.roughness_w(20.0, 30.0) == 0.0


def test_memory_is_bounded_and_what_is_kept_stays_right() -> None:
    trace, knots = PowerTrace(), Knots()
    for i in range(int(3 * KEPT_S)):
        trace.add(float(i), 200.0)
        knots.add(float(i), 200.0 * i, 0.0)
    assert len(trace) <= 1.1 * KEPT_S + 2
    assert len(knots) <= 1.1 * KEPT_S + 2
    end_s = trace.last_s
    assert trace.first_s <= end_s - KEPT_S + 1
    assert trace.integral(end_s)[0] - trace.integral(end_s - 1000)[0] == pytest.approx(200_000)


def test_knots_rise_and_are_found_around_a_moment() -> None:
    knots = Knots()
    for time_s, energy_j in ((1.0, 10.0), (2.0, 20.0), (2.0, 21.0), (1.5, 15.0), (3.0, 19.0), (4.0, 20.0)):
        knots.add(time_s, energy_j, 0.001)
    assert len(knots) == 3  # one at the same moment, one earlier, one of less energy are passed over
    first, second = knots.around(2.5)
    assert first == (2.0, 20.0, 0.001)
    assert second == (4.0, 20.0, 0.001)
    assert knots.around(0.5) == (None, (1.0, 10.0, 0.001))
    assert knots.around(9.0)[1] is None
    knots.clear()
    assert knots.around(2.5) == (None, None)


def test_what_is_forgotten_goes_from_all_columns() -> None:
    from array import array

    times, others = array("d", [1.0, 2.0, 3.0]), array("d", [10.0, 20.0, 30.0])
    timeline.forget(2.0, times, others)
    assert times.tolist() == [2.0, 3.0]
    assert others.tolist() == [20.0, 30.0]

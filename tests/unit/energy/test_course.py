"""The power's course around one step of a counter: when it changed, told by the step's joules."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.energy.course import Course, course, sharpened
from joulewise.energy.timeline import Change, PowerTrace

REACH_S = 0.06


def change(time_s: float, power_w: float) -> Change:
    return Change(time_s, 0.03, power_w)


@given(
    rise_s=st.floats(0.0, 0.1),
    seen_late_s=st.floats(-REACH_S, REACH_S),
    powers_w=st.tuples(st.floats(50.0, 900.0), st.floats(50.0, 900.0)).filter(lambda p: abs(p[0] - p[1]) > 5.0),
    place=st.floats(0.0, 0.1),
)
def test_a_change_that_is_seen_late_is_put_where_the_joules_say(
    rise_s: float, seen_late_s: float, powers_w: tuple[float, float], place: float
) -> None:
    before_w, after_w = powers_w
    truth = Course(before_w, (change(rise_s, after_w - before_w),))
    seen = Course(before_w, (change(rise_s + seen_late_s, after_w - before_w),))
    energy_j = truth.joules(0.0, 0.1)
    share, scale = seen.share(0.0, place, 0.1, energy_j, REACH_S)
    # Found between two shifts that were tried, where the joules bend: no more than an eighth of the reach away.
    off_j = abs(after_w - before_w) * REACH_S / 8
    assert share * energy_j == pytest.approx(truth.joules(0.0, place), abs=off_j)
    inside = REACH_S / 8 < rise_s < 0.1 - REACH_S / 8
    if inside:
        assert share * energy_j == pytest.approx(truth.joules(0.0, place), abs=1e-6)
        assert scale == pytest.approx(1.0)


@given(
    start_w=st.floats(1.0, 900.0),
    changes=st.lists(st.tuples(st.floats(-0.1, 0.2), st.floats(0.0, 500.0)), max_size=6),
    energy_j=st.floats(0.1, 100.0),
    places=st.tuples(st.floats(0.0, 0.1), st.floats(0.0, 0.1)),
)
def test_shares_rise_from_nothing_to_all(
    start_w: float, changes: list[tuple[float, float]], energy_j: float, places: tuple[float, float]
) -> None:
    power = Course(start_w, tuple(change(t, w) for t, w in sorted(changes)))
    early, late = (power.share(0.0, t, 0.1, energy_j, REACH_S)[0] for t in sorted(places))
    assert -1e-9 <= early <= late + 1e-9 <= 1 + 2e-9
    assert power.share(0.0, 0.1, 0.1, energy_j, REACH_S)[0] == pytest.approx(1.0)


def test_what_no_shift_explains_is_the_gains() -> None:
    share, scale = Course(100.0, ()).share(0.0, 0.03, 0.1, 11.0, REACH_S)
    assert share == pytest.approx(0.3)
    assert scale == pytest.approx(1.1)


def test_no_power_has_no_share() -> None:
    assert Course(0.0, ()).share(0.0, 0.03, 0.1, 5.0, REACH_S) == (0.0, 0.0)


def test_a_jump_that_shows_as_two_is_one_again_with_the_same_joules() -> None:
    two = [change(0.02, 320.0), change(0.12, 250.0)]
    (one,) = sharpened(two, held_s=0.1)
    assert one.power_w == 570.0
    assert Course(120.0, (one,)).joules(0.0, 0.3) == pytest.approx(Course(120.0, tuple(two)).joules(0.0, 0.3))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([(0.0, 50.0), (0.1, 55.0), (0.2, 60.0)], id="it goes on rising"),
        pytest.param([(0.0, 300.0), (0.1, -280.0)], id="up and down"),
        pytest.param([(0.0, 300.0), (0.3, 250.0)], id="far apart"),
        pytest.param([(0.0, 300.0)], id="one"),
        pytest.param([], id="none"),
    ],
)
def test_what_is_no_single_jump_stays(changes: list[tuple[float, float]]) -> None:
    given_ = [change(t, w) for t, w in changes]
    assert sharpened(given_, held_s=0.1) == given_


def test_the_course_of_a_trace_has_its_joules() -> None:
    trace = PowerTrace()
    for i in range(200):
        time_s = i * 0.03
        trace.add(time_s, 120.0 if int(time_s / 0.1) % 7 < 3 else 690.0)
    power = course(trace, 3.0, 3.4)
    assert power.joules(3.1, 3.3) == pytest.approx(trace.seen_until(3.3) - trace.seen_until(3.1), abs=570 * 0.03 / 8)
    assert all(math.isfinite(c.time_s) for c in power.changes)

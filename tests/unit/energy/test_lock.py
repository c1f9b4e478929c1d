"""Steps: period and phase from brackets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.energy.lock import StepLock


def taught(lock: StepLock, period_s: float, phase_s: float, width_s: float, jitter_s: float, steps: int) -> None:
    """Brackets of ``width_s``, at random around each of ``steps`` steps."""
    draw = random.Random(1)
    for number in range(steps):
        step_s = phase_s + number * period_s + draw.uniform(-jitter_s, jitter_s)
        early_s = draw.uniform(0.0, width_s)
        if lock.locked:
            lock.narrowed(number, step_s - early_s, step_s - early_s + width_s)
        else:
            lock.seen(step_s - early_s, step_s - early_s + width_s)


@given(
    period_s=st.floats(0.02, 2.0),
    phase_s=st.floats(1000.0, 1e6),
    width=st.floats(0.05, 0.2),
    assumed=st.floats(0.5, 2.0),
)
@settings(max_examples=50, deadline=None)
def test_every_step_lies_within_what_is_told(period_s: float, phase_s: float, width: float, assumed: float) -> None:
    lock = StepLock(assumed * period_s)
    taught(lock, period_s, phase_s, width * period_s, 0.0, 40)
    assert lock.locked
    for number in (20, 39, 45, 60):
        told_s = lock.step(number).time_s
        assert abs(told_s - (phase_s + number * period_s)) <= lock.half_width_s(number) + 1e-6
        assert lock.nearest(told_s).number == number
        assert lock.before(told_s + 0.4 * period_s).number == number
    assert lock.half_width_s(40) < width * period_s / 2


def test_many_brackets_tell_more_than_one() -> None:
    lock = StepLock(0.1)
    taught(lock, 0.1, 50.0, 0.01, 0.0, 5)
    few_s = lock.half_width_s(5)
    taught(lock := StepLock(0.1), 0.1, 50.0, 0.01, 0.0, 32)
    assert lock.half_width_s(32) < 0.7 * few_s


def test_uneven_steps_widen_what_is_told_by_their_unevenness() -> None:
    lock = StepLock(0.1)
    taught(lock, 0.1, 50.0, 0.001, 0.004, 32)
    assert lock.trusted
    assert 0.002 < lock.half_width_s(32) < 0.01
    assert not lock.uneven


def test_steps_without_a_period_are_not_locked_on_to() -> None:
    lock = StepLock(0.1)
    for step_s in (0.0, 0.02, 0.25, 0.3, 0.61, 0.64, 1.2, 1.25, 1.26):
        lock.seen(step_s, step_s + 0.005)
    assert lock.uneven
    assert not lock.locked
    assert not lock.trusted


def test_nothing_is_known_before_enough_steps_and_after_a_reset() -> None:
    lock = StepLock(0.1)
    taught(lock, 0.1, 50.0, 0.01, 0.0, 4)
    assert not lock.locked
    taught(lock := StepLock(0.1), 0.1, 50.0, 0.01, 0.0, 9)
    assert lock.locked
    assert lock.period_s == pytest.approx(0.1, rel=0.02)
    lock.reset()
    assert not lock.locked

"""Watching counters."""

from __future__ import annotations

import pytest
from simulated import Clock, Load, SimulatedSource, spec

from joulewise.energy.observe import observe


def watch(source: SimulatedSource, seconds: float = 1.2) -> tuple[float | None, int, str | None]:
    (seen,) = observe([source], seconds, source.clock)
    return seen.period_s, seen.steps, seen.fault


def test_the_period_and_the_cost_of_a_read_are_seen() -> None:
    source = SimulatedSource(Clock(), Load([(1.0, 300.0)]), read_s=0.004)
    (seen,) = observe([source], 1.2, source.clock)
    assert seen.period_s == pytest.approx(0.1, rel=0.02)
    assert seen.steps in (11, 12)
    assert seen.read_s == pytest.approx(0.004)
    assert seen.fault is None


def test_a_counter_faster_than_it_is_read_has_no_period() -> None:
    period_s, steps, _ = watch(
        SimulatedSource(Clock(), Load([(1.0, 300.0)]), spec(update_period_s=0.001), read_s=0.004)
    )
    assert period_s is None
    assert steps > 100


def test_a_counter_that_does_not_step_has_no_period() -> None:
    period_s, steps, _ = watch(SimulatedSource(Clock(), Load([(1.0, 300.0)]), spec(update_period_s=60.0), read_s=0.01))
    assert (period_s, steps) == (None, 0)


def test_a_fault_is_told() -> None:
    source = SimulatedSource(Clock(), Load([(1.0, 300.0)]), read_s=0.1, fault="GPU is lost")
    assert watch(source) == (None, 0, "GPU is lost")

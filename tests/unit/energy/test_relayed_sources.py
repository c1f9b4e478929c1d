"""A counter that comes by others' hands: when it changes here does not tell when it was taken."""

from __future__ import annotations

import pytest
from simulated import Clock, Load, SimulatedSource, meter_of, spec

from joulewise.energy import Meter


def tend_until(meter: Meter, clock: Clock, time_s: float) -> None:
    while clock() < time_s:
        meter.tend()
        clock.now_s = min(time_s, max(meter.due_s, clock() + 0.0005))


def uncertainty_j(relayed: bool) -> float:
    clock = Clock()
    meter = meter_of(SimulatedSource(clock, Load([(1.0, 300.0)]), spec(relayed=relayed), has_power=False))
    tend_until(meter, clock, 1010.0)
    with meter.window() as window:
        tend_until(meter, clock, clock() + 2.0)
    tend_until(meter, clock, clock() + 0.3)
    gpu = window.energy.gpu
    assert gpu is not None
    assert gpu.energy_j == pytest.approx(600.0, abs=31.0)
    return gpu.independent_j


def test_its_steps_are_not_locked_on_to() -> None:
    assert uncertainty_j(relayed=True) == pytest.approx(2**0.5 * 300.0 * 0.1 / 12**0.5, rel=0.1)
    assert uncertainty_j(relayed=False) < uncertainty_j(relayed=True) / 2

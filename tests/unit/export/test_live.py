"""Live figures: what a running meter tells, also across faults."""

from __future__ import annotations

import pytest
from simulated import Clock, Load, SimulatedSource, meter_of, run_to, spec

from joulewise.energy import ComponentEnergy, Meter
from joulewise.export.live import FRESH_S, Live

STEADY = Load([(1.0, 300.0)])


def test_joules_grow_with_time_and_carry_their_uncertainty() -> None:
    clock = Clock()
    meter = meter_of(SimulatedSource(clock, STEADY, spec(gain=0.05)))
    live = Live(meter, clock)
    for seconds in (2.0, 5.0, 11.0):
        run_to(meter, clock, 1000.0 + seconds)
        figures = live.figures()
        (source,) = figures.sources
        assert figures.duration_s == pytest.approx(seconds)
        assert source.energy is not None
        assert source.energy_j == pytest.approx(300.0 * seconds, abs=30.0)
        assert source.energy.gain_j == pytest.approx(0.05 * (source.energy_j or 0.0))
        assert 0.0 < source.energy.independent_j < 20.0
        assert source.power_w == pytest.approx(300.0)
        assert (source.fault, source.faults) == (None, 0)


def test_many_who_ask_cost_one_reading() -> None:
    clock = Clock()
    device = SimulatedSource(clock, STEADY, read_s=0.004)
    live = Live(meter_of(device), clock)
    clock.advance(1.0)
    first = live.figures()
    assert first.read_s == pytest.approx(0.004)
    clock.advance(FRESH_S / 2)
    assert live.figures() is first
    clock.advance(FRESH_S)
    assert live.figures() is not first


def test_a_metric_never_falls_where_an_estimate_does(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    live = Live(meter_of(SimulatedSource(clock, STEADY)), clock)
    estimates_j = iter([100.0, 99.9, 120.0])
    monkeypatch.setattr(Meter, "by_source", lambda *_: (ComponentEnergy("gpu", "measured", next(estimates_j)),))
    told_j = []
    for _ in range(3):
        clock.advance(1.0)
        told_j.append(live.figures().sources[0].energy_j)
    assert told_j == [100.0, 100.0, 120.0]


def test_a_counter_that_starts_anew_is_a_fault_and_then_counts_on() -> None:
    clock = Clock()
    device = SimulatedSource(clock, STEADY, offset_j=5000.0)
    meter = meter_of(device)
    live = Live(meter, clock)
    run_to(meter, clock, 1010.0)
    assert live.figures().sources[0].energy_j == pytest.approx(3000.0, abs=30.0)
    device.offset_j = -3000.0  # the driver is loaded again: the counter stands at 0
    run_to(meter, clock, 1011.0)
    (source,) = live.figures().sources
    assert source.energy is None
    assert source.fault is not None
    assert "ran backwards" in source.fault
    run_to(meter, clock, 1021.0)
    (source,) = live.figures().sources
    assert (source.fault, source.faults) == (None, 1)
    # The second in which the counter was reset is missing.
    assert source.energy_j == pytest.approx(6000.0, abs=60.0)


def test_a_machine_that_was_suspended_is_a_fault_and_then_counts_on() -> None:
    clock = Clock()
    asleep_s = 0.0
    meter = meter_of(SimulatedSource(clock, STEADY), asleep=lambda: asleep_s)
    live = Live(meter, clock)
    run_to(meter, clock, 1010.0)
    live.figures()
    asleep_s = 3600.0
    meter.tend()
    run_to(meter, clock, 1011.0)
    (source,) = live.figures().sources
    assert source.energy is None
    assert source.fault is not None
    assert "suspended" in source.fault
    run_to(meter, clock, 1021.0)
    (source,) = live.figures().sources
    assert (source.fault, source.faults) == (None, 1)
    assert source.energy_j == pytest.approx(6000.0, abs=60.0)


def test_a_source_that_fails_for_a_while_loses_nothing() -> None:
    clock = Clock()
    device = SimulatedSource(clock, STEADY)
    meter = meter_of(device)
    live = Live(meter, clock)
    run_to(meter, clock, 1002.0)
    live.figures()
    device.fault = "lost"
    for end_s in (1004.0, 1006.0):
        run_to(meter, clock, end_s)
        (source,) = live.figures().sources
        assert (source.energy, source.fault, source.faults) == (None, "lost", 1)
    device.fault = None
    run_to(meter, clock, 1010.0)
    (source,) = live.figures().sources
    assert (source.fault, source.faults) == (None, 1)
    assert source.energy_j == pytest.approx(3000.0, abs=30.0)


def test_a_source_that_fails_from_the_start_counts_once_it_can_be_read() -> None:
    clock = Clock()
    device = SimulatedSource(clock, STEADY, fault="not yet")
    meter = meter_of(device)
    live = Live(meter, clock)
    run_to(meter, clock, 1002.0)
    assert live.figures().sources[0].energy is None
    device.fault = None
    run_to(meter, clock, 1003.0)
    live.figures()
    run_to(meter, clock, 1013.0)
    assert live.figures().sources[0].energy_j == pytest.approx(3000.0, abs=60.0)

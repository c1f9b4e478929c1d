"""What other ways of measuring would have said."""

from __future__ import annotations

import pytest
from simulated import Clock, Load, SimulatedSource, meter_of, run_to, spec

from joulewise.energy.comparison import Comparison, compare

GB = 2**30


def by_name(found: tuple[Comparison, ...]) -> dict[tuple[str, str], float | None]:
    return {(c.name, c.component): c.energy_j for c in found}


def test_both_ways_for_a_steady_load() -> None:
    clock = Clock()
    meter = meter_of(SimulatedSource(clock, Load([(1.0, 300.0)])))
    run_to(meter, clock, 1002.0)
    with meter.window() as window:
        run_to(meter, clock, clock() + 1.05)
    found = by_name(compare(window, meter.specs, meter.drain_timeline(), 16 * GB))
    # The counter steps every 0.1 s, so its plain difference is a whole number of steps.
    counted = found["CodeCarbon 2", "gpu"]
    assert counted == pytest.approx(300.0, abs=1e-6) or counted == pytest.approx(330.0, abs=1e-6)
    assert found["CodeCarbon 2", "cpu"] == pytest.approx(42.5 * 1.05)
    assert found["CodeCarbon 2", "dram"] == pytest.approx(6.0 * 1.05)
    assert found["polled power x time", "gpu"] == pytest.approx(300.0 * 1.05)


def test_rapl_is_read_where_it_is() -> None:
    clock = Clock()
    package = spec(source_id="rapl:package-0", component="cpu", update_period_s=0.001)
    meter = meter_of(SimulatedSource(clock, Load([(1.0, 80.0)]), package, has_power=False))
    with meter.window() as window:
        run_to(meter, clock, clock() + 2.0)
    found = by_name(compare(window, meter.specs, meter.drain_timeline(), 8 * GB))
    assert found["CodeCarbon 2", "cpu"] == pytest.approx(160.0, rel=0.01)
    assert ("polled power x time", "gpu") not in found


def test_where_nothing_was_read_nothing_is_told() -> None:
    clock = Clock()
    source = SimulatedSource(clock, Load([(1.0, 300.0)]), has_power=False)
    meter = meter_of(source)
    with meter.window() as window:
        run_to(meter, clock, clock() + 1.0)
        source.fault = "lost"
    found = compare(window, meter.specs, meter.drain_timeline(), 8 * GB)
    told = {c.name: c for c in found if c.component == "gpu"}
    assert told["CodeCarbon 2"].energy_j is None
    assert "no counter" in told["CodeCarbon 2"].method
    assert told["polled power x time"].energy_j is None
    assert "no power reading" in told["polled power x time"].method


def test_a_comparison_is_in_no_sum() -> None:
    clock = Clock()
    meter = meter_of(SimulatedSource(clock, Load([(1.0, 300.0)])))
    with meter.window() as window:
        run_to(meter, clock, clock() + 1.0)
    before = window.energy
    compare(window, meter.specs, meter.drain_timeline(), 8 * GB)
    assert window.energy == before
    assert window.energy.dram is None


def test_integrated_power_is_not_told_twice() -> None:
    clock = Clock()
    integrated = SimulatedSource(clock, Load([(1.0, 300.0)]), spec(update_period_s=None), has_power=False)
    meter = meter_of(integrated)
    with meter.window() as window:
        run_to(meter, clock, clock() + 1.0)
    told = {c.name: c for c in compare(window, meter.specs, (), 8 * GB) if c.component == "gpu"}
    assert told["CodeCarbon 2"].energy_j is None
    assert told["polled power x time"].energy_j is None
    assert "integrated" in told["polled power x time"].method

"""The models of CPU and memory."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.energy.estimate import source_energy
from joulewise.energy.reading import Reading
from joulewise.energy.sources.cpu_model import CpuModel
from joulewise.energy.sources.cpu_model import discover as discover_cpu
from joulewise.energy.sources.dram_model import DramModel
from joulewise.energy.sources.dram_model import discover as discover_dram
from joulewise.energy.track import Edge


class Machine:
    """Eight logical CPUs whose times a test sets."""

    def __init__(self, chosen: set[int] | None = None) -> None:
        self.now_s = 100.0
        self.times = SimpleNamespace(
            user=50.0, nice=0.0, system=5.0, idle=700.0, iowait=3.0, irq=0.0, softirq=0.0, steal=0.0, guest=0.0
        )
        resting = [SimpleNamespace(user=0.0)] * 7
        self.model = CpuModel(8, lambda: [self.times, *resting], lambda: self.now_s, chosen)

    def pass_(self, seconds: float, **busy_s: float) -> float:
        self.now_s += seconds
        for name, value in busy_s.items():
            setattr(self.times, name, getattr(self.times, name) + value)
        energy_j = self.model.read().energy_j
        assert energy_j is not None
        return energy_j


def test_an_idle_machine_draws_a_quarter_of_a_busy_one() -> None:
    assert Machine().pass_(10.0, idle=80.0) == pytest.approx(8 * 1.0 * 10)
    assert Machine().pass_(10.0, user=60.0, system=20.0) == pytest.approx(8 * 4.0 * 10)
    assert Machine().pass_(10.0, user=40.0, idle=40.0) == pytest.approx(8 * 2.5 * 10)


def test_waiting_guests_and_stolen_time_are_no_work() -> None:
    assert Machine().pass_(10.0, iowait=30.0, steal=30.0, guest=20.0) == pytest.approx(80.0)


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(-0.02, 40.0)), max_size=20))
def test_it_never_runs_backwards_even_where_the_kernel_does(steps: list[tuple[float, float]]) -> None:
    machine = Machine()
    joules = [machine.pass_(seconds, user=busy) for seconds, busy in steps]
    assert all(a <= b for a, b in itertools.pairwise(joules))


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(-0.02, 40.0)), max_size=20))
def test_no_window_draws_more_than_all_cpus_busy_or_less_than_all_idle(steps: list[tuple[float, float]]) -> None:
    machine, before_j = Machine(), 0.0
    for seconds, busy in steps:
        energy_j = machine.pass_(seconds, user=busy)
        assert 8 * 1.0 * seconds - 1e-6 <= energy_j - before_j <= 8 * 4.0 * seconds + 1e-6
        before_j = energy_j


def test_a_tick_longer_than_the_window_is_counted_in_the_end() -> None:
    machine = Machine()
    assert machine.pass_(0.001, user=0.01) == pytest.approx(8 * 4.0 * 0.001)  # the tick is more than 8 CPUs x 1 ms
    assert machine.pass_(9.999) == pytest.approx(8 * 1.0 * 10 + 3.0 * 0.01)


def test_only_the_cpus_given_to_the_process_count() -> None:
    alone = Machine(chosen={0, 3})
    assert alone.model.spec.device == "2 of 8 logical CPUs"
    assert alone.pass_(10.0, user=10.0) == pytest.approx(4.0 * 10 + 1.0 * 10)
    assert Machine(chosen={3}).pass_(10.0, user=10.0) == pytest.approx(1.0 * 10)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no process to CPUs")
def test_a_pinned_process_counts_its_own_cpus() -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one CPU alone: nothing to pin away from")
    try:
        os.sched_setaffinity(0, {min(before)})
        (source,) = discover_cpu().sources
    finally:
        os.sched_setaffinity(0, before)
    assert source.spec.device.startswith("1 of ")
    assert source.read().energy_j is not None


def test_memory_draws_by_size_and_time() -> None:
    now = [10.0]
    model = DramModel(64.0, lambda: now[0])
    now[0] = 20.0
    assert model.read().energy_j == pytest.approx(0.2 * 64 * 10)


def test_models_of_this_machine_say_that_they_are_models() -> None:
    for source in (*discover_cpu().sources, *discover_dram().sources):
        assert source.spec.provenance == "modelled"
        assert source.spec.gain == 0.5
        assert source.spec.scope == "machine"
        first, second = source.read().energy_j, source.read().energy_j
        assert first is not None
        assert second is not None
        assert second >= first >= 0
        assert source.sample().energy_j is None


def test_readings_outside_a_short_window_add_nothing_to_its_power() -> None:
    machine = Machine()
    start = Edge(101.0, Reading(100.9995, 0.0, 0.0), None, None, None, 0.0, 0)
    end = Edge(101.002, Reading(101.0025, 0.0, 8 * 4.0 * 0.003), None, None, None, 0.0, 0)
    energy_j = source_energy(machine.model.spec, start, end).energy_j
    assert energy_j == pytest.approx(8 * 4.0 * 0.002)

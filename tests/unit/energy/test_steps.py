"""A meter that knows when the counter steps: how near it is, what it costs, and what it does when something fails."""

from __future__ import annotations

import itertools
import math
import os
import random
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import Clock, Load, SimulatedSource, spec

from joulewise.energy import ComponentEnergy, Meter, Reading, Window, timeline
from joulewise.energy import meter as meter_module
from joulewise.energy import track as track_module
from joulewise.energy.reading import DeviceState
from joulewise.errors import JoulewiseError
from load_benchmark import load_benchmark

accuracy = load_benchmark("meter_accuracy")
card_module = load_benchmark("simulated_card")
STEADY = Load([(1.0, 300.0)])


def follow(meter: Meter, clock: Clock, until_s: float) -> None:
    """Let time pass; the sampler does what is due when it is due."""
    while (due_s := meter.due_s) < until_s:
        clock.now_s = max(clock.now_s, due_s)
        meter.tend()
    clock.now_s = max(clock.now_s, until_s)


def locked_meter(source: SimulatedSource, **arguments: Any) -> Meter:
    """A meter that has had three seconds to learn the steps."""
    arguments = {"asleep": lambda: 0.0} | arguments
    meter = Meter([source], clock=source.clock, sample_period_s=None, **arguments)
    follow(meter, source.clock, source.clock() + 3.0)
    return meter


def window_of(meter: Meter, clock: Clock, seconds: float) -> Window:
    """A window, and time for the step after its end."""
    with meter.window() as window:
        follow(meter, clock, clock() + seconds)
    follow(meter, clock, clock() + 0.25)
    return window


def gpu_of(window: Window) -> ComponentEnergy:
    gpu = window.energy.gpu
    assert gpu is not None
    return gpu


@pytest.mark.parametrize("load", ["steady", "bursts", "ramps"])
def test_fresh_power_readings_reach_the_aims(load: str) -> None:
    """A small version of `benchmarks/meter_accuracy.py`, with its seeds."""
    for row in accuracy.simulate("fresh", load, 40, (0.053, 0.217, 1.037)):
        assert row.joulewise_p95 <= row.aim
        assert row.half_width_median <= 1.5 * row.aim
        assert row.interval_holds >= 92.0  # 40 windows
        assert row.bound_holds >= 99.0
        assert row.joulewise_p95 < row.difference_p95 / 5


@pytest.mark.parametrize("load", ["bursts", "ramps"])
def test_held_power_readings_widen_the_interval(load: str) -> None:
    for row in accuracy.simulate("held", load, 40, (0.053, 0.537)):
        assert row.interval_holds >= 90.0
        assert row.bound_holds >= 99.0
        assert row.joulewise_p95 < row.difference_p95


@pytest.mark.parametrize(("held_up_s", "share"), [(0.01, 1.0), (0.03, 0.3)])
def test_a_sampler_that_gets_on_late_keeps_the_steps(
    monkeypatch: pytest.MonkeyPatch, held_up_s: float, share: float
) -> None:
    """Beside a busy Python thread readings end late, though their values were fetched in time: they are no slower for
    it, cost no more, and tell no less."""
    lost: list[object] = []
    samples: list[float] = []
    behaviour = replace(accuracy.SENSORS["starved"], held_up_s=held_up_s, held_up_share=share)
    monkeypatch.setitem(accuracy.SENSORS, "starved", behaviour)
    unlock = track_module.Track._unlock
    monkeypatch.setattr(track_module.Track, "_unlock", lambda track: lost.append(track) or unlock(track))
    sample = accuracy.SimulatedCard.sample
    monkeypatch.setattr(accuracy.SimulatedCard, "sample", lambda card: samples.append(card.clock.now_s) or sample(card))
    for row in accuracy.simulate("starved", "bursts", 40, (0.217, 0.537)):
        assert row.interval_holds >= 90.0
        assert row.bound_holds >= 99.0
        assert row.half_width_median <= 2.5 * row.aim
    assert len(lost) <= 4  # in two minutes
    gaps_s = sorted(b - a for a, b in itertools.pairwise(samples) if b > a)
    assert gaps_s[len(gaps_s) // 2] < 0.06


class Sleepy:
    """A counter of 500 W that takes 3 ms to read, in which other threads go on, as NVML's."""

    def __init__(self) -> None:
        self.spec = spec(max_power_w=700.0)
        self.samples = 0

    def read(self) -> Reading:
        start_s = time.monotonic()
        time.sleep(0.003)
        end_s = time.monotonic()
        energy_j = 50.0 * math.floor((start_s + 0.0015) / 0.1)
        return Reading((start_s + end_s) / 2, end_s - start_s, energy_j, 500.0)

    def sample(self) -> Reading:
        start_s = time.monotonic()
        time.sleep(0)
        self.samples += 1
        end_s = time.monotonic()
        return Reading((start_s + end_s) / 2, end_s - start_s, None, 500.0)

    def close(self) -> None:
        """Nothing to let go of."""


@pytest.mark.alone
def test_the_power_is_followed_beside_a_busy_python_thread() -> None:
    """Waiting for the interpreter is no cost: it once took power readings for dear, and there was one in 0.7 s."""
    source, seconds = Sleepy(), 2.5
    with Meter([source]):
        end_s, number = time.monotonic() + seconds, 0
        while time.monotonic() < end_s:
            number += 1
    assert source.samples > 4 * seconds  # 25 a second where the machine has a core to spare


def test_steps_that_were_not_read_for_long_are_learnt_anew() -> None:
    """What a rough period foretells for minutes ahead is nothing; it must not leave every reading in doubt for ever."""
    clock = Clock()
    source = SimulatedSource(clock, STEADY)
    meter = locked_meter(source)
    (track,) = meter._order
    assert track._steps is not None
    track._steps._half_widths_s = (0.002, 0.02)  # as after the first rough look
    clock.advance(60.0)
    follow(meter, clock, clock() + 4.0)
    gpu = gpu_of(window_of(meter, clock, 0.5))
    assert gpu.note is None
    assert gpu.independent_j < 0.01 * 150.0


def test_the_sampler_takes_less_than_a_hundredth_of_a_core_in_the_quiet() -> None:
    cost = accuracy.cost(120.0)
    assert cost["quiet_share_of_a_core_percent"] < 0.6
    assert cost["counter_reads_per_s"] < 1.2
    assert cost["learning_busy_s"] < 0.5


@pytest.mark.parametrize("period_s", [0.02, 0.1, 0.25])
def test_a_period_that_nobody_told_is_learnt(period_s: float) -> None:
    clock = Clock()
    draw = random.Random(3)
    behaviour = card_module.Behaviour(period_s=period_s, read_s=0.001, slow_share=0.0)
    source = card_module.SimulatedCard(clock, STEADY, behaviour, draw)
    meter = Meter([source], clock=clock, sample_period_s=None)
    card_module.run_to(meter, clock, clock() + 10.0, draw, 0.0001)
    with meter.window() as window:
        card_module.run_to(meter, clock, clock() + 1.037, draw, 0.0001)
    card_module.run_to(meter, clock, clock() + 0.6, draw, 0.0001)
    gpu = gpu_of(window)
    assert gpu.energy_j == pytest.approx(300 * window.duration_s, rel=0.004)
    assert gpu.independent_j < 0.01 * 300


def test_a_window_before_the_steps_are_known_is_wide() -> None:
    clock = Clock()
    meter = Meter([SimulatedSource(clock, STEADY)], clock=clock, sample_period_s=None)
    early = window_of(meter, clock, 0.3)
    follow(meter, clock, clock() + 3.0)
    late = window_of(meter, clock, 0.3)
    assert gpu_of(early).independent_j > 5 * gpu_of(late).independent_j
    assert gpu_of(late).energy_j == pytest.approx(90.0, rel=0.01)


@given(
    load=st.lists(st.tuples(st.floats(0.02, 1.0), st.floats(1.0, 900.0)), min_size=1, max_size=12).map(
        lambda pieces: Load([(2.0, 300.0), *pieces])
    ),
    lengths_s=st.lists(st.floats(0.02, 1.0), min_size=2, max_size=5),
)
@settings(max_examples=40, deadline=None)
def test_adjacent_windows_sum_to_the_whole_and_none_is_negative(load: Load, lengths_s: list[float]) -> None:
    clock = Clock()
    meter = locked_meter(SimulatedSource(clock, load, phase_s=0.037, power_phase_s=0.011))
    parts = []
    with meter.window() as whole:
        for length_s in lengths_s:
            with meter.window() as part:
                follow(meter, clock, clock() + length_s)
            parts.append(part)
    follow(meter, clock, clock() + 0.3)
    joules = [gpu_of(p).energy_j for p in parts]
    assert all(j is not None and j >= 0 for j in joules)
    assert sum(j or 0.0 for j in joules) == pytest.approx(gpu_of(whole).energy_j, rel=1e-9, abs=1e-9)
    lower_j, upper_j = gpu_of(whole).bound_j or (0.0, 0.0)
    truth_j = load.energy_j(whole.end_s) - load.energy_j(whole.start_s)
    assert lower_j - 1e-6 <= truth_j <= upper_j + 1e-6


def test_a_stretch_is_told_after_the_fact() -> None:
    clock = Clock()
    load = Load([(4.0, 120.0), (1.0, 600.0), (1.0, 120.0)])  # busy from 1004 s to 1005 s
    meter = locked_meter(SimulatedSource(clock, load))
    follow(meter, clock, 1008.0)
    gpu = meter.between(1003.95, 1005.05).gpu
    assert gpu is not None
    assert gpu.interval_j is not None
    assert gpu.interval_j[0] <= 612.0 <= gpu.interval_j[1]
    assert gpu.energy_j == pytest.approx(612.0, rel=0.15)
    calm = meter.between(1006.1, 1007.9).gpu
    assert calm is not None
    assert calm.energy_j == pytest.approx(216.0, rel=0.02)


def test_a_stretch_is_told_by_what_is_known_where_nothing_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    meter = locked_meter(SimulatedSource(clock, STEADY))
    follow(meter, clock, 1008.0)
    waits: list[float] = []
    monkeypatch.setattr(meter._settled, "wait_for", lambda _, seconds: waits.append(seconds))
    monkeypatch.setattr(meter_module, "sampler", lambda: SimpleNamespace(follows=lambda _: True))
    told = meter.between(1004.0, 1007.99, wait=False).gpu
    assert not waits
    assert told is not None
    assert told.energy_j == pytest.approx(3.99 * 300.0, rel=0.02)
    meter.between(1004.0, 1007.99)
    assert len(waits) == 1


def test_a_stretch_of_a_counter_without_power_and_of_a_model_is_told_too() -> None:
    clock = Clock()
    rapl = SimulatedSource(clock, STEADY, spec(component="cpu", update_period_s=0.001, source_id="a"), has_power=False)
    model = SimulatedSource(
        clock, STEADY, spec(component="dram", update_period_s=None, provenance="modelled", source_id="b")
    )
    meter = Meter([rapl, model], clock=clock, sample_period_s=None)
    follow(meter, clock, 1010.0)
    energy = meter.between(1002.3, 1007.7)
    for component in energy.components:
        assert component.energy_j == pytest.approx(5.4 * 300, rel=0.001)
    assert energy.cpu is not None
    assert 0 < energy.cpu.independent_j < 20


def test_a_stretch_that_the_timeline_does_not_cover_is_refused() -> None:
    clock = Clock()
    meter = locked_meter(SimulatedSource(clock, STEADY))
    with pytest.raises(JoulewiseError, match="does not reach back"):
        meter.between(999.0, 1001.0)
    with pytest.raises(JoulewiseError, match="no stretch of the past"):
        meter.between(1001.0, clock() + 5.0)
    with pytest.raises(JoulewiseError, match="no stretch of the past"):
        meter.between(1002.0, 1001.0)
    with pytest.raises(JoulewiseError, match="still to come"):
        Meter([SimulatedSource(clock, STEADY)], clock=clock).between(1001.0, 1002.0)


def test_a_window_longer_than_the_memory_keeps_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "KEPT_S", 5.0)
    clock = Clock()
    meter = locked_meter(SimulatedSource(clock, STEADY))
    gpu = gpu_of(window_of(meter, clock, 30.0))
    assert gpu.energy_j == pytest.approx(9000.0, rel=1e-4)
    assert gpu.independent_j < 1.0
    with pytest.raises(JoulewiseError, match="does not reach back"):
        meter.between(clock() - 20.0, clock())


def test_resolvable_tells_how_long_to_measure() -> None:
    clock = Clock()
    meter = locked_meter(SimulatedSource(clock, STEADY, read_s=0.003))
    follow(meter, clock, clock() + 10.0)
    seconds = meter.resolvable(0.01)["gpu"]
    assert seconds is not None
    gpu = gpu_of(window_of(meter, clock, seconds))
    assert gpu.energy_j is not None
    assert 1.96 * gpu.independent_j / gpu.energy_j == pytest.approx(0.01, rel=0.5)
    assert meter.resolvable(0.001)["gpu"] == pytest.approx(10 * seconds, rel=0.05)


def test_resolvable_is_unknown_before_the_first_readings_and_wide_without_steps() -> None:
    clock = Clock()
    source = SimulatedSource(clock, STEADY, spec(relayed=True))
    meter = Meter([source], clock=clock, sample_period_s=None)
    assert meter.resolvable(0.01) == {"gpu": None}
    window_of(meter, clock, 1.0)
    assert meter.resolvable(0.01)["gpu"] == pytest.approx(1.96 * 2**0.5 * 0.1 / 12**0.5 / 0.01, rel=0.05)


def test_the_devices_state_is_in_the_timeline_once_a_second() -> None:
    class Telling(SimulatedSource):
        def state(self) -> DeviceState:
            return DeviceState(utilisation=0.5)

    clock = Clock()
    meter = locked_meter(Telling(clock, STEADY))
    follow(meter, clock, 1010.0)
    states = [row for row in meter.drain_timeline() if row.state is not None]
    assert len(states) == 10
    assert all(row.energy_j is None and row.power_w is None for row in states)
    assert states[0].state == DeviceState(utilisation=0.5)


# Faults.


def test_a_starved_sampler_is_told_and_the_interval_is_wide() -> None:
    clock = Clock()
    load = Load([(3.23, 120.0), (0.3, 800.0), (1.0, 120.0)])
    meter = locked_meter(SimulatedSource(clock, load, phase_s=0.05))
    with meter.window() as window:
        follow(meter, clock, clock() + 0.21)
    clock.now_s += 1.0  # nobody looks
    follow(meter, clock, clock() + 0.3)
    gpu = gpu_of(window)
    assert gpu.interval_j is not None
    truth_j = load.energy_j(window.end_s) - load.energy_j(window.start_s)
    assert gpu.interval_j[0] <= truth_j <= gpu.interval_j[1]
    assert gpu.note is not None
    assert "held up for 1" in gpu.note
    assert gpu.independent_j > 5
    assert gpu_of(window_of(meter, clock, 0.5)).note is None


def test_a_counter_that_begins_anew_makes_the_window_unknown_and_is_learnt_again() -> None:
    clock = Clock()
    source = SimulatedSource(clock, STEADY, offset_j=5000.0)
    meter = locked_meter(source)
    with meter.window() as window:
        follow(meter, clock, clock() + 0.5)
        source.offset_j = 0.0
        follow(meter, clock, clock() + 0.5)
    follow(meter, clock, clock() + 4.0)
    assert gpu_of(window).energy_j is None
    assert "backwards" in (gpu_of(window).note or "")
    assert gpu_of(window_of(meter, clock, 0.5)).energy_j == pytest.approx(150.0, rel=0.01)


def test_a_source_that_dies_inside_a_window_is_told() -> None:
    clock = Clock()
    source = SimulatedSource(clock, STEADY)
    meter = locked_meter(source)
    with meter.window() as window:
        follow(meter, clock, clock() + 0.3)
        source.fault = "GPU is lost"
        follow(meter, clock, clock() + 0.3)
    assert gpu_of(window).energy_j is None
    assert gpu_of(window).note == "simulated: GPU is lost"
    source.fault = None
    follow(meter, clock, clock() + 4.0)
    assert gpu_of(window_of(meter, clock, 0.5)).energy_j == pytest.approx(150.0, rel=0.01)


def test_a_window_over_a_suspension_is_unknown_and_the_next_is_not() -> None:
    clock, asleep_s = Clock(), [0.0]
    source = SimulatedSource(clock, STEADY)
    meter = locked_meter(source, asleep=lambda: asleep_s[0])
    with meter.window() as window:
        follow(meter, clock, clock() + 0.3)
        asleep_s[0] += 100.0  # the monotonic clock stands still meanwhile
        source.phase_s += 0.04
        follow(meter, clock, clock() + 0.3)
    assert gpu_of(window).energy_j is None
    assert "suspended for 100.0 s" in (gpu_of(window).note or "")
    follow(meter, clock, clock() + 4.0)
    assert gpu_of(window_of(meter, clock, 0.5)).energy_j == pytest.approx(150.0, rel=0.01)


def test_steps_that_move_are_learnt_again() -> None:
    clock = Clock()
    source = SimulatedSource(clock, STEADY)
    meter = locked_meter(source)
    source.phase_s += 0.05
    follow(meter, clock, clock() + 10.0)
    gpu = gpu_of(window_of(meter, clock, 0.5))
    assert gpu.energy_j == pytest.approx(150.0, rel=0.01)
    assert gpu.independent_j < 2.0


def test_a_wholly_uneven_counter_gets_the_wide_interval() -> None:
    class Uneven(SimulatedSource):
        def counter_j(self, time_s: float) -> float:
            number = int(time_s / 0.1)
            steps = [(n + random.Random(n).uniform(0.0, 0.9)) * 0.1 for n in range(number - 2, number + 1)]
            return self.load.energy_j(max(s for s in steps if s <= time_s))

    clock = Clock()
    meter = locked_meter(Uneven(clock, STEADY))
    gpu = gpu_of(window_of(meter, clock, 1.037))
    assert gpu.independent_j > 0.02 * 300


def test_two_meters_at_once_tell_the_same() -> None:
    clock = Clock()
    load = Load([(4.0, 120.0), (0.4, 600.0), (1.0, 120.0)])
    meters = [
        Meter([SimulatedSource(clock, load)], clock=clock, sample_period_s=None, asleep=lambda: 0.0) for _ in range(2)
    ]

    def both(until_s: float) -> None:
        while (due_s := min(m.due_s for m in meters)) < until_s:
            clock.now_s = max(clock.now_s, due_s)
            for meter in meters:
                meter.tend()
        clock.now_s = until_s

    both(1003.5)
    with meters[0].window() as first, meters[1].window() as second:
        both(1005.0)
    both(1005.3)
    assert gpu_of(first).energy_j == pytest.approx(gpu_of(second).energy_j, rel=0.001)
    assert gpu_of(first).energy_j == pytest.approx(0.4 * 600 + 1.1 * 120, rel=0.02)


class RealSteps:
    """A counter on the real clock that steps every 20 ms."""

    spec = spec(update_period_s=0.02)

    def read(self) -> Reading:
        now_s = time.monotonic()
        return Reading(now_s, 0.0, 6.0 * (now_s // 0.02), 300.0)

    def sample(self) -> Reading:
        return Reading(time.monotonic(), 0.0, None, 300.0)

    def close(self) -> None:
        pass


@pytest.mark.alone
def test_energy_waits_for_the_next_step_but_not_for_long() -> None:
    pause = threading.Event()
    with Meter([RealSteps()]) as meter:
        for _ in range(200):
            with meter.window() as window:
                pause.wait(0.03)
            before_s = time.monotonic()
            gpu = gpu_of(window)
            assert time.monotonic() - before_s < 5.0
            if gpu.independent_j < 0.5:
                break
        assert gpu.energy_j == pytest.approx(300 * window.duration_s, rel=0.15)
        assert gpu.independent_j < 0.5
        with meter.window() as window:
            pass
    assert window.energy.gpu is not None  # asked for after the meter was closed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_gets_its_joules_without_a_sampler() -> None:
    with Meter([RealSteps()]) as meter, meter.window() as window:
        meter._order[0]._lock.acquire()  # as if the sampler held it at that moment
        child = os.fork()
        if child == 0:
            with meter.window() as own:
                pass
            os._exit(0 if own.energy.gpu is not None else 1)
        meter._order[0]._lock.release()
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert window.energy.gpu is not None

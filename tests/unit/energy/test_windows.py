"""Windows: known answers, and what holds for all of them."""

from __future__ import annotations

import math
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import Clock, Load, SimulatedSource, measure, meter_of, run_to, spec

from joulewise.energy import Meter, Window
from joulewise.energy.reading import Z95
from joulewise.errors import JoulewiseError

powers = st.floats(1.0, 900.0)
seconds = st.floats(0.001, 3.0)
loads = st.lists(st.tuples(seconds, powers), min_size=1, max_size=8).map(Load)


def windows_one_after_another(
    meter: Meter, clock: Clock, start_s: float, lengths_s: list[float]
) -> tuple[list[Window], Window]:
    """Adjacent windows, and the whole over them; the clock stands still between one's end and the next one's start."""
    run_to(meter, clock, start_s)
    parts = []
    with meter.window() as whole:
        for length_s in lengths_s:
            with meter.window() as part:
                run_to(meter, clock, clock() + length_s)
            parts.append(part)
    return parts, whole


def test_a_steady_load_over_whole_periods_is_known_exactly() -> None:
    clock = Clock()
    meter = meter_of(SimulatedSource(clock, Load([(1.0, 400.0)])))
    run_to(meter, clock, 1005.02)
    with meter.window() as window:
        run_to(meter, clock, 1006.02)
    gpu = window.energy.gpu
    assert gpu is not None
    assert gpu.energy_j == pytest.approx(400.0)
    assert gpu.provenance == "measured"
    assert gpu.start_edge_j == pytest.approx(400 * 0.1 / math.sqrt(12), rel=0.01)
    assert gpu.end_edge_j == pytest.approx(400 * 0.1 / math.sqrt(12), rel=0.01)
    assert gpu.bound_j is not None
    assert gpu.bound_j[0] <= 400 - 0.1 * 400
    assert window.duration_s == pytest.approx(1.0)
    assert window.readings_end["simulated:0"].energy_j is not None


def test_gain_and_offset_are_common_and_grow_with_energy_and_time() -> None:
    clock = Clock()
    source = SimulatedSource(clock, Load([(1.0, 400.0)]), spec(gain=0.05, offset_w=5.0))
    meter = meter_of(source)
    with meter.window() as window:
        run_to(meter, clock, 1010.0)
    gpu = window.energy.gpu
    assert gpu is not None
    assert gpu.energy_j is not None
    assert gpu.gain_j == pytest.approx(0.05 * gpu.energy_j)
    assert gpu.offset_j == pytest.approx(50.0)
    assert gpu.upper_j == pytest.approx(gpu.energy_j + Z95 * math.hypot(gpu.independent_j, gpu.gain_j + gpu.offset_j))


def test_idle_before_the_window_is_not_taken_for_its_load() -> None:
    """The counter's last step before a window of work may lie in the idle time before it: on average half a period."""
    estimates = [
        measure(Load([(2.0, 100.0), (100.0, 700.0)]), 1002.0, 0.5, random.Random(seed), read_s=0.003)[0].energy.gpu
        for seed in range(200)
    ]
    mean_j = sum(e.energy_j for e in estimates if e and e.energy_j) / len(estimates)
    assert mean_j == pytest.approx(350.0, rel=0.03)  # a plain difference would give 320


@pytest.mark.parametrize("duration_s", [0.02, 0.09])
def test_a_window_shorter_than_the_counter_resolves_is_wide_and_says_so(duration_s: float) -> None:
    window, truth_j, _ = measure(Load([(1.0, 500.0)]), 1002.0, duration_s, random.Random(1))
    gpu = window.energy.gpu
    assert gpu is not None
    assert gpu.energy_j == pytest.approx(truth_j, rel=0.01)
    assert gpu.independent_j > 0.3 * truth_j
    assert gpu.note is not None
    assert "does not resolve" in gpu.note


def test_a_short_window_of_a_source_without_power_is_wide() -> None:
    window, truth_j, _ = measure(Load([(1.0, 500.0)]), 1002.0, 0.02, random.Random(1), has_power=False)
    gpu = window.energy.gpu
    assert gpu is not None
    assert gpu.energy_j is not None
    assert gpu.upper_j is not None
    assert gpu.upper_j > truth_j
    assert gpu.note is not None
    assert "does not resolve" in gpu.note


def test_a_short_window_that_nothing_tells_is_unknown() -> None:
    source_spec = spec(max_power_w=None)
    window, _, _ = measure(Load([(1.0, 500.0)]), 1002.0, 0.02, random.Random(1), has_power=False, spec=source_spec)
    gpu = window.energy.gpu
    assert gpu is not None
    assert gpu.energy_j is None
    assert gpu.provenance == "unknown"
    assert gpu.bound_j is None


@given(load=loads, start_s=st.floats(1000.0, 1003.0), lengths_s=st.lists(seconds, min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_adjacent_windows_sum_to_the_whole(load: Load, start_s: float, lengths_s: list[float]) -> None:
    """Of a counter without power, in all cases; with power, wherever the counter resolves each part (below)."""
    clock = Clock()
    meter = meter_of(SimulatedSource(clock, load, phase_s=0.037, has_power=False))
    parts, whole = windows_one_after_another(meter, clock, start_s, lengths_s)
    total = parts[0].energy
    for part in parts[1:]:
        total = total + part.energy
    assert total.gpu is not None
    assert whole.energy.gpu is not None
    assert total.gpu.energy_j == pytest.approx(whole.energy.gpu.energy_j, rel=1e-9, abs=1e-9)
    assert total.duration_s == pytest.approx(whole.duration_s)


@given(load=loads, lengths_s=st.lists(st.floats(0.21, 2.0), min_size=2, max_size=5))
@settings(max_examples=40, deadline=None)
def test_adjacent_windows_share_their_inner_edges(load: Load, lengths_s: list[float]) -> None:
    clock = Clock()
    meter = meter_of(SimulatedSource(clock, load, phase_s=0.037, power_phase_s=0.011))
    parts, whole = windows_one_after_another(meter, clock, 1000.5, lengths_s)
    total = parts[0].energy
    for part in parts[1:]:
        total = total + part.energy
    assert total.gpu is not None
    assert whole.energy.gpu is not None
    assert total.gpu.energy_j == pytest.approx(whole.energy.gpu.energy_j, rel=1e-9)
    assert total.gpu.start_edge_j == pytest.approx(whole.energy.gpu.start_edge_j)
    assert total.gpu.end_edge_j == pytest.approx(whole.energy.gpu.end_edge_j)
    assert total.gpu.independent_j == pytest.approx(whole.energy.gpu.independent_j)


@given(
    load=loads,
    work_s=st.floats(0.2, 2.0),
    idle_s=st.floats(0.0, 1.0),
    read_s=st.sampled_from([0.0, 0.004]),
    has_power=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_adding_idle_time_never_lowers_the_energy(
    load: Load, work_s: float, idle_s: float, read_s: float, has_power: bool
) -> None:
    clock = Clock()
    meter = meter_of(SimulatedSource(clock, load, phase_s=0.03, power_phase_s=0.08, read_s=read_s, has_power=has_power))
    run_to(meter, clock, 1000.4)
    with meter.window() as longer:
        with meter.window() as shorter:
            run_to(meter, clock, clock() + work_s)
        run_to(meter, clock, clock() + idle_s)
    assert longer.energy.gpu is not None
    assert shorter.energy.gpu is not None
    assert longer.energy.gpu.energy_j is not None
    assert shorter.energy.gpu.energy_j is not None
    assert 0 <= shorter.energy.gpu.energy_j <= longer.energy.gpu.energy_j + 1e-9


@given(load=loads, start_j=st.floats(0.0, 500.0), duration_s=st.floats(0.3, 20.0))
@settings(max_examples=40, deadline=None)
def test_a_wrapping_counter_tells_the_same_as_one_that_does_not(load: Load, start_j: float, duration_s: float) -> None:
    """With polls every 50 ms and at most 900 W, a range of 500 J wraps at most once between two of them."""

    def energy_j(wrap_j: float | None) -> float | None:
        clock = Clock()
        source = SimulatedSource(clock, load, spec(wrap_j=wrap_j), has_power=False, offset_j=start_j)
        meter = meter_of(source)
        with meter.window() as window:
            run_to(meter, clock, clock() + duration_s)
        return window.energy.gpu.energy_j if window.energy.gpu else None

    assert energy_j(500.0) == pytest.approx(energy_j(None), abs=1e-6)


def test_windows_nest_overlap_and_come_from_threads() -> None:
    clock = Clock()
    meter = meter_of(SimulatedSource(clock, Load([(1.0, 300.0)])))
    opened, done = threading.Event(), threading.Event()
    others: list[Window] = []

    def other() -> None:
        with meter.window() as window:
            others.append(window)
            opened.set()
            assert done.wait(10)

    thread = threading.Thread(target=other)
    with meter.window() as outer:
        thread.start()
        assert opened.wait(10)
        with meter.window() as inner:
            run_to(meter, clock, clock() + 2.0)
        run_to(meter, clock, clock() + 1.0)
    run_to(meter, clock, clock() + 1.0)
    done.set()
    thread.join(10)
    measured = [w.energy.gpu.energy_j for w in (inner, outer, others[0]) if w.energy.gpu]
    assert measured == pytest.approx([600.0, 900.0, 1200.0])


def test_an_exception_inside_still_closes_the_window() -> None:
    clock = Clock()
    meter = meter_of(SimulatedSource(clock, Load([(1.0, 300.0)])))

    def fail() -> None:
        run_to(meter, clock, clock() + 1.0)
        raise RuntimeError("the work failed")

    with pytest.raises(RuntimeError, match="the work failed"), meter.window() as window:
        fail()
    assert window.energy.gpu is not None
    assert window.energy.gpu.energy_j == pytest.approx(300.0)


@pytest.mark.parametrize("field", ["energy", "end_s", "duration_s", "readings_end"])
def test_what_an_open_window_does_not_know_yet_is_an_error(field: str) -> None:
    meter = meter_of(SimulatedSource(Clock(), Load([(1.0, 300.0)])))
    with meter.window() as window, pytest.raises(JoulewiseError, match="still open"):
        getattr(window, field)


def test_a_long_window_whose_counter_never_stepped_is_told_by_the_power() -> None:
    clock = Clock()
    meter = meter_of(SimulatedSource(clock, Load([(1.0, 300.0)]), spec(update_period_s=60.0), phase_s=20.0))
    run_to(meter, clock, 1030.0)
    with meter.window() as window:
        run_to(meter, clock, clock() + 5.0)
    gpu = window.energy.gpu
    assert gpu is not None
    assert gpu.energy_j == pytest.approx(1500.0)
    assert gpu.note is not None
    assert "does not resolve" in gpu.note

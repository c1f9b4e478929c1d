"""Does the 95 % interval hold the truth in 95 % of windows, and the bound in all of them?"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from simulated import Clock, Load, SimulatedSource, measure, meter_of, run_to

from joulewise.energy import Meter
from joulewise.energy.sources.replay import load_recording, replay

WINDOWS = 150
ENOUGH = 0.92
"""150 windows of true coverage 0.95 fall below this in about 4 % of trials; the seed is fixed, and was not chosen."""


def bursts(draw: random.Random) -> Load:
    pieces = [(draw.uniform(0.03, 0.3), watts) for _ in range(80) for watts in (690.0, 120.0)]
    return Load(pieces)


LOADS: dict[str, Callable[[random.Random], Load]] = {
    "steady": lambda _: Load([(1.0, 690.0)]),
    "from idle": lambda _: Load([(2.0, 120.0), (1.0, 690.0)]),
    "to idle": lambda _: Load([(2.0, 690.0), (1.0, 120.0)]),
    "bursts": bursts,
}


@pytest.mark.parametrize("duration_s", [0.053, 0.217, 0.537, 2.053])
@pytest.mark.parametrize("name", LOADS)
def test_intervals_hold_the_truth(name: str, duration_s: float) -> None:
    draw = random.Random(f"{name} {duration_s}")
    inside, bounded = 0, 0
    for _ in range(WINDOWS):
        window, truth_j, _ = measure(LOADS[name](draw), 1002.0, duration_s, draw, read_s=0.003)
        gpu = window.energy.gpu
        assert gpu is not None
        assert gpu.interval_j is not None
        assert gpu.bound_j is not None
        inside += gpu.interval_j[0] <= truth_j <= gpu.interval_j[1]
        bounded += gpu.bound_j[0] <= truth_j + 1e-9 and truth_j <= gpu.bound_j[1] + 1e-9
    assert inside / WINDOWS >= ENOUGH
    assert bounded == WINDOWS


@pytest.fixture(scope="module")
def recorded_load(repository: Path) -> Load:
    """The H200's power in steps of the counter: a real load, taken for the truth."""
    recording = load_recording(repository / "tests" / "data" / "nvml_h200.jsonl")
    series = recording.energy[0]
    points = list(zip(series.times_s, series.values, strict=True))
    steps = [points[0], *(after for before, after in itertools.pairwise(points) if after[1] != before[1])]
    return Load([(b[0] - a[0], (b[1] - a[1]) / (b[0] - a[0])) for a, b in itertools.pairwise(steps)])


def test_intervals_hold_the_truth_of_a_recorded_load(recorded_load: Load) -> None:
    draw = random.Random(0)
    inside, windows = 0, 0
    for _ in range(150):
        duration_s = draw.choice([0.217, 0.537, 1.037, 2.053])
        window, truth_j, _ = measure(recorded_load, draw.uniform(1001.0, 1029.0), duration_s, draw, read_s=0.003)
        gpu = window.energy.gpu
        assert gpu is not None
        assert gpu.lower_j is not None
        assert gpu.upper_j is not None
        windows += 1
        inside += gpu.lower_j <= truth_j <= gpu.upper_j
    assert inside / windows >= ENOUGH


def test_windows_over_the_recording_agree_with_its_long_run_power(repository: Path) -> None:
    """The recording itself, with its own steps and read times; its steady phase is from 6 s to 14 s."""
    recording = load_recording(repository / "tests" / "data" / "nvml_h200.jsonl")
    draw, clock = random.Random(0), Clock()
    start_s, end_s = next((s, e) for name, s, e in recording.header["phases"] if name == "steady")
    counter = recording.energy[0]
    first_j, last_j = counter.at(start_s + 1.5), counter.at(end_s - 0.01)
    assert first_j is not None
    assert last_j is not None
    power_w = (last_j - first_j) / (end_s - start_s - 1.5)
    inside, windows = 0, 100
    for _ in range(windows):
        # Moments of the recording are those of the clock less 1000 s.
        meter = Meter(replay(recording, clock, origin_s=1000.0 + recording.start_s), clock=clock, sample_period_s=None)
        duration_s = draw.choice([0.217, 0.537, 1.037])
        clock.now_s = 1000.0 + draw.uniform(start_s + 1.5, end_s - duration_s)
        run_to(meter, clock, clock())
        with meter.window() as window:
            run_to(meter, clock, clock() + duration_s)
        gpu = window.energy.gpu
        assert gpu is not None
        assert gpu.energy_j is not None
        half_j = 1.96 * gpu.independent_j
        inside += gpu.energy_j - half_j <= power_w * duration_s <= gpu.energy_j + half_j
    assert inside / windows >= ENOUGH


def test_gpu_cpu_and_memory_are_all_measured_from_recordings(repository: Path) -> None:
    """The total saving factor of measured parts needs no hardware."""
    data = repository / "tests" / "data"
    clock = Clock()
    sources = [
        *replay(load_recording(data / "nvml_h200.jsonl"), clock),
        *replay(load_recording(data / "synthetic_rapl.jsonl"), clock),
    ]
    meter = Meter(sources, clock=clock, sample_period_s=None)
    with meter.window() as window:
        run_to(meter, clock, 1009.0)
    energy = window.energy
    assert [c.component for c in energy.components] == ["gpu", "cpu", "dram"]
    assert energy.total.provenance == "measured"
    assert energy.cpu is not None
    assert energy.cpu.energy_j == pytest.approx(5 * 60 + 4 * 200, rel=0.01)  # over a wrap of the counter
    assert energy.dram is not None
    assert energy.dram.energy_j == pytest.approx(5 * 8 + 4 * 14, rel=0.01)
    assert energy.total.energy_j == pytest.approx(sum(c.energy_j or 0 for c in energy.components))
    assert energy.cpu.note is not None
    assert "synthetic" in energy.cpu.note


def test_of_twenty_nested_windows_each_holds_the_next() -> None:
    clock = Clock()
    meter = meter_of(SimulatedSource(clock, bursts(random.Random(2)), phase_s=0.03, read_s=0.004))
    managers = []
    for _ in range(20):
        run_to(meter, clock, clock() + 0.15)
        manager = meter.window()
        managers.append((manager, manager.__enter__()))
    for manager, _ in reversed(managers):
        run_to(meter, clock, clock() + 0.15)
        manager.__exit__(None, None, None)
    joules = [w.energy.gpu.energy_j for _, w in managers if w.energy.gpu and w.energy.gpu.energy_j is not None]
    assert len(joules) == 20
    assert joules == sorted(joules, reverse=True)

"""The meter: which sources it takes, what it does with faults, and how it starts and ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from simulated import Clock, Load, SimulatedSource, meter_of, run_to, spec

from joulewise.energy import Absent, Discovery, Energy, Meter, Reading, discover
from joulewise.energy import meter as meter_module
from joulewise.errors import JoulewiseError, UserError

STEADY = Load([(1.0, 300.0)])


def source(clock: Clock, **fields: object) -> SimulatedSource:
    return SimulatedSource(clock, STEADY, spec(**fields))


def second_of(meter: Meter, clock: Clock) -> Energy:
    with meter.window() as window:
        run_to(meter, clock, clock() + 1.0)
    return window.energy


def test_measured_wins_over_modelled_and_the_other_is_closed() -> None:
    clock = Clock()
    measured = source(clock, source_id="rapl:0", component="cpu")
    modelled = source(clock, source_id="model:cpu", component="cpu", provenance="modelled", gain=0.5)
    meter = meter_of(modelled, measured)
    cpu = second_of(meter, clock).cpu
    assert cpu is not None
    assert cpu.provenance == "measured"
    assert cpu.source_ids == ("rapl:0",)
    assert [s.source_id for s in meter.specs] == ["rapl:0"]
    assert modelled.closed == 1


def test_a_model_stands_in_for_a_counter_that_may_not_be_read_and_says_why() -> None:
    clock = Clock()
    modelled = source(clock, component="cpu", provenance="modelled", gain=0.5, update_period_s=None, method="a guess")
    absent = [Absent("rapl", "cpu", True, "may be read by root only", "chmod")]
    energy = second_of(meter_of(modelled, absent=absent), clock)
    assert energy.cpu is not None
    assert energy.cpu.provenance == "modelled"
    assert energy.total.provenance == "modelled"
    assert energy.cpu.gain_j == pytest.approx(150.0)
    assert energy.cpu.independent_j == 0
    assert energy.cpu.bound_j is None
    assert energy.cpu.note == ("a model, not a measurement: a guess; it stands in for rapl: may be read by root only")


def test_one_socket_of_two_is_no_measurement_of_the_cpu() -> None:
    clock = Clock()
    one = source(clock, component="cpu", source_id="rapl:package-0")
    absent = [Absent("rapl", "cpu", True, "package-1 may be read by root only")]
    cpu = second_of(meter_of(one, absent=absent), clock).cpu
    assert cpu is not None
    assert cpu.provenance == "unknown"
    assert cpu.energy_j is None


def test_a_component_that_is_there_but_cannot_be_read_is_unknown_and_one_that_is_not_is_left_out() -> None:
    clock = Clock()
    absent = [Absent("nvml", "gpu", True, "no permission"), Absent("rapl", "dram", False, "none")]
    energy = second_of(meter_of(source(clock, component="cpu"), absent=absent), clock)
    assert energy.gpu is not None
    assert energy.gpu.energy_j is None
    assert energy.gpu.note == "nvml: no permission"
    assert energy.dram is None
    assert energy.total.provenance == "unknown"
    assert energy.total.energy_j is None


def test_two_devices_are_summed_and_one_failing_makes_the_component_unknown() -> None:
    clock = Clock()
    first, second = source(clock, source_id="gpu:0"), source(clock, source_id="gpu:1", device="second card")
    meter = meter_of(first, second)
    gpu = second_of(meter, clock).gpu
    assert gpu is not None
    assert gpu.energy_j == pytest.approx(600.0)
    assert gpu.source_ids == ("gpu:0", "gpu:1")
    with meter.window() as window:
        second.fault = "GPU is lost"
        run_to(meter, clock, clock() + 1.0)
    assert window.energy.gpu is not None
    assert window.energy.gpu.energy_j is None
    assert window.energy.gpu.note is not None
    assert "second card: GPU is lost" in window.energy.gpu.note
    second.fault = None
    assert (recovered := second_of(meter, clock).gpu) is not None
    assert recovered.energy_j == pytest.approx(600.0)


def test_a_source_that_only_ever_reports_faults_is_unknown_and_nothing_raises() -> None:
    clock = Clock()
    faulty = source(clock)
    faulty.fault = "sensor says no"
    meter = meter_of(faulty)
    gpu = second_of(meter, clock).gpu
    assert gpu is not None
    assert gpu.provenance == "unknown"
    assert gpu.note == "simulated: sensor says no"
    assert meter.drain_timeline() == []


def test_a_value_with_a_fault_is_not_trusted() -> None:
    clock = Clock()

    class Doubtful(SimulatedSource):
        def read(self) -> Reading:
            return Reading(self.clock(), 0.0, 5.0, fault="stale")

    gpu = second_of(meter_of(Doubtful(clock, STEADY)), clock).gpu
    assert gpu is not None
    assert gpu.energy_j is None


def test_a_counter_that_runs_backwards_makes_the_window_unknown_and_the_next_one_is_good_again() -> None:
    clock = Clock()
    reset = source(clock)
    reset.offset_j = 1000.0
    meter = meter_of(reset)
    with meter.window() as window:
        run_to(meter, clock, clock() + 1.0)
        reset.offset_j = 0.0
    gpu = window.energy.gpu
    assert gpu is not None
    assert gpu.provenance == "unknown"
    assert gpu.note is not None
    assert "backwards" in gpu.note
    assert (after := second_of(meter, clock).gpu) is not None
    assert after.energy_j == pytest.approx(300.0)


def test_a_reset_of_a_wrapping_counter_is_no_wrap() -> None:
    """From 40 % of the range to 0 is a reset; a wrap comes from the top."""
    clock = Clock()
    reset = source(clock, wrap_j=10_000.0)
    reset.offset_j = 4000.0
    meter = meter_of(reset)
    with meter.window() as window:
        run_to(meter, clock, clock() + 1.0)
        reset.offset_j = 0.0
    assert window.energy.gpu is not None
    assert window.energy.gpu.energy_j is None


def test_an_unknown_gain_is_left_out_of_the_interval_and_told() -> None:
    clock = Clock()
    gpu = second_of(meter_of(source(clock, gain=None)), clock).gpu
    assert gpu is not None
    assert gpu.gain_j == 0
    assert gpu.note is not None
    assert "gain is unknown" in gpu.note


def test_the_timeline_is_drained_once_and_its_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "TIMELINE_ROWS", 10)
    clock = Clock()
    meter = meter_of(source(clock))
    run_to(meter, clock, clock() + 1.0)
    rows = meter.drain_timeline()
    assert len(rows) == 10
    assert meter.timeline_dropped > 0
    assert rows[-1].time_s == pytest.approx(clock() - 0.05)
    assert rows[-1].power_w == pytest.approx(300.0)
    assert rows[-1].energy_j is None
    assert meter.drain_timeline() == []


@pytest.mark.alone
def test_the_sampler_follows_ends_and_costs_little() -> None:
    class Quick(SimulatedSource):
        """On the real clock, unlike the others here."""

        def read(self) -> Reading:
            return Reading(time.monotonic(), 0.0, time.monotonic() * 300)

        def sample(self) -> Reading:
            samples.release()
            return Reading(time.monotonic(), 0.0, None, 300.0)

    samples = threading.Semaphore(0)
    meter = Meter([Quick(Clock(), STEADY, spec(relayed=True))])  # no steps to learn
    with meter:
        for _ in range(10):
            assert samples.acquire(timeout=5)
        start_s, cpu_s = time.monotonic(), meter.sampler_cpu_s or 0.0
        for _ in range(60):  # two seconds at the usual rate
            assert samples.acquire(timeout=5)
        cpu_s = (meter.sampler_cpu_s or 0.0) - cpu_s
        passed_s = time.monotonic() - start_s
        assert any(t.name == "joulewise-sampler" for t in threading.enumerate())
    assert 0 < cpu_s < 0.02 * passed_s
    assert not any(t.name == "joulewise-sampler" for t in threading.enumerate())


def test_closing_twice_is_fine_and_a_closed_meter_opens_no_window() -> None:
    clock = Clock()
    kept = source(clock)
    meter = Meter([kept], clock=clock)
    with meter:
        pass
    meter.close()
    assert kept.closed >= 1
    with pytest.raises(JoulewiseError, match="closed"), meter.window():
        pass


def test_one_kind_of_source_that_finds_nothing_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    absent = Absent("nvml", "gpu", True, "no permission", "ask for it")
    monkeypatch.setattr(
        meter_module,
        "SOURCES",
        {
            "nvml": lambda: Discovery(absent=(absent,)),
            "rapl": lambda: Discovery((source(clock, component="cpu"),)),
            "never": lambda: pytest.fail("not selected"),
        },
    )
    meter = discover(["nvml", "rapl"])
    assert [s.component for s in meter.specs] == ["cpu"]
    assert meter.absent == (absent,)


def test_a_source_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="did you mean 'nvml'"):
        discover(["nvlm"])


def test_a_window_open_at_exit_does_not_hang_the_interpreter() -> None:
    program = (
        "import joulewise.energy as e\n"
        "w = e.measure()\n"
        "w.__enter__()\n"
        "meter = e.discover().__enter__()\n"
        "other = meter.window()\n"
        "other.__enter__()\n"
        "print('leaving')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "leaving\n")
    assert done.stderr == ""


@pytest.mark.parametrize("reading_s", [0.2, 3600.0], ids=["slow", "hanging"])
def test_a_sampler_stopped_while_it_reads_holds_up_no_window_at_exit(reading_s: float, tmp_path: Path) -> None:
    # In a module of its own: functions of __main__ would keep the window from being closed at exit.
    (tmp_path / "slow.py").write_text(
        "import threading, time\n"
        "from joulewise.energy import Meter, Reading, SourceSpec\n"
        "class Slow:\n"
        "    reading = threading.Event()\n"
        "    spec = SourceSpec('slow', 'gpu', 'slow', 'measured', 'slow')\n"
        "    def read(self):\n"
        "        return Reading(time.monotonic(), 0.0, 1.0)\n"
        "    def sample(self):\n"
        "        if threading.current_thread() is not threading.main_thread():\n"
        "            self.reading.set()\n"
        f"            time.sleep({reading_s})\n"
        "        return self.read()\n"
        "    def close(self):\n"
        "        pass\n"
    )
    program = (
        "import slow\n"
        "meter = slow.Meter([slow.Slow()]).__enter__()\n"
        "window = meter.window()\n"
        "window.__enter__()\n"
        "slow.Slow.reading.wait()\n"
        "print('leaving')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")


def test_measure_uses_one_meter_for_the_whole_process() -> None:
    program = (
        "import threading, joulewise\n"
        "for _ in range(3):\n"
        "    with joulewise.measure() as window:\n"
        "        pass\n"
        "    assert window.energy.cpu is not None\n"
        "names = [t.name for t in threading.enumerate()]\n"
        "assert names.count('joulewise-sampler') == 1, names\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr

"""The one thread that follows all meters: it begins and ends with them, and survives one that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fake_source import SteadySource
from joulewise.energy import Meter
from joulewise.energy import sampler as sampler_module
from joulewise.energy.sampler import Sampler


class Told:
    """Something to tend that says when it was, and stays for as long as it is held."""

    def __init__(self) -> None:
        self.tended = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()
        self.cpu_s = 0.0

    @property
    def due_in_s(self) -> float:
        return 0.0

    def tend(self) -> None:
        self.tended.release()
        assert self.go_on.wait(30)

    def charge(self, cpu_s: float) -> None:
        self.cpu_s += cpu_s


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "joulewise-sampler"]


def end(hanging: Told) -> None:
    """Let it go on, and its thread end."""
    hanging.go_on.set()
    for thread in threads():
        if thread is not sampler_module.sampler()._thread:
            thread.join(10)


def test_one_thread_tends_all_and_ends_with_the_last() -> None:
    one, other, sampler = Told(), Told(), Sampler()
    before = len(threads())
    sampler.follow(one)
    sampler.follow(other)
    assert len(threads()) == before + 1
    for _ in range(5):
        assert one.tended.acquire(timeout=10)
        assert other.tended.acquire(timeout=10)
    assert sampler.leave(one)
    assert not sampler.follows(one)
    while one.tended.acquire(blocking=False):
        pass
    for _ in range(5):
        assert other.tended.acquire(timeout=10)
    assert not one.tended.acquire(blocking=False)
    assert sampler.leave(other)
    assert len(threads()) == before
    assert one.cpu_s > 0
    assert other.cpu_s > 0
    assert sampler.leave(other)  # again, as closing twice does
    sampler.follow(one)
    assert one.tended.acquire(timeout=10)
    assert sampler.leave(one)


def test_leaving_waits_until_the_sampler_has_left() -> None:
    told, sampler = Told(), Sampler()
    told.go_on.clear()
    sampler.follow(told)
    assert told.tended.acquire(timeout=10)
    left: list[bool] = []
    leaving = threading.Thread(target=lambda: left.append(sampler.leave(told)))
    leaving.start()
    leaving.join(0.05)
    assert not left
    told.go_on.set()
    leaving.join(10)
    assert left == [True]


def test_one_that_hangs_is_given_up_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "JOIN_S", 0.05)
    hanging, other, sampler = Told(), Told(), Sampler()
    hanging.go_on.clear()
    sampler.follow(hanging)
    sampler.follow(other)
    assert hanging.tended.acquire(timeout=10)
    assert not sampler.leave(hanging)
    for _ in range(5):
        assert other.tended.acquire(timeout=10)
    hanging.go_on.set()  # the thread that was given up comes back, and ends
    for _ in range(5):
        assert other.tended.acquire(timeout=10)
    assert not hanging.tended.acquire(blocking=False)
    assert sampler.leave(other)
    end(hanging)


def test_no_thread_is_started_once_the_last_one_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "JOIN_S", 0.05)
    hanging, other, sampler = Told(), Told(), Sampler()
    hanging.go_on.clear()
    sampler.follow(hanging)
    sampler.follow(other)
    assert hanging.tended.acquire(timeout=10)
    before = len(threads())
    sampler.last_thread()
    assert not sampler.leave(hanging)
    assert sampler.leave(other)
    assert len(threads()) == before
    end(hanging)


def test_meters_share_it() -> None:
    before = len(threads())
    with Meter([SteadySource()]) as one, Meter([SteadySource()]) as other, one.window() as window:
        assert len(threads()) == max(1, before)
        with other.window() as inner:
            pass
    assert window.energy.gpu is not None
    assert inner.energy.gpu is not None
    assert len(threads()) == before


HANGING = """
import threading, time
from fake_source import SteadySource
class Hanging(SteadySource):
    reading = threading.Event()
    opened = False  # before its window is open, the program itself would wait for the driver
    def read(self):
        if self.opened and threading.current_thread() is not threading.main_thread():
            self.reading.set()
            time.sleep(3600)
        return super().read()
"""


@pytest.mark.parametrize("order", ["[Hanging(), SteadySource()]", "[SteadySource(), Hanging()]"])
def test_a_driver_that_hangs_in_one_meter_does_not_hang_the_programs_exit(order: str, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    program = (
        "from hanging import Hanging, SteadySource\n"
        "from joulewise.energy import Meter\n"
        f"meters = [Meter([source]).__enter__() for source in {order}]\n"
        "windows = [meter.window() for meter in meters]\n"
        "for window in windows: window.__enter__()\n"
        "Hanging.opened = True\n"
        "assert Hanging.reading.wait(10)\n"
        "print('leaving')\n"
    )
    done = run_python("-c", program, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")


WORKERS = """
import multiprocessing, sys, threading
import joulewise
from fake_source import SteadySource
from joulewise.energy import Meter
from joulewise.energy.sampler import sampler

meter = Meter([SteadySource()])

def worker(number):
    assert not sampler().follows(meter)
    with joulewise.measure() as every:
        with Meter([SteadySource()]) as own, own.window() as window:
            assert sampler().follows(own)
            assert [t.name for t in threading.enumerate()].count("joulewise-sampler") == 1
            threading.Event().wait(0.02)
        with meter.window() as inherited:  # of a fork it is the parent's, of a spawn a new one that nobody entered
            threading.Event().wait(0.02)
    return [e.gpu.energy_j / e.duration_s for e in (window.energy, inherited.energy)], every.energy.duration_s

if __name__ == "__main__":
    with meter, meter.window() as whole:
        context = multiprocessing.get_context(sys.argv[1])
        with context.Pool(2) as pool:
            found = pool.map(worker, range(4))
        assert sampler().follows(meter)
    for powers_w, duration_s in found:
        assert all(abs(p - 100) < 1 for p in powers_w), powers_w
        assert duration_s > 0.04
    assert abs(whole.energy.gpu.energy_j / whole.duration_s - 100) < 1
    print("done")
"""


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("fork", marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")),
        "spawn",
    ],
)
def test_workers_measure_while_a_meter_is_open_in_the_parent(method: str, tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)
    done = run_python("-W", "ignore::DeprecationWarning", "workers.py", method, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr == ""


def run_python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

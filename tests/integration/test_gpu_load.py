"""The GPU load's process, with fakes of torch and Triton."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_benchmark import load_benchmark

gpu_load = load_benchmark("gpu_load")

FAKE_TRITON = """
import torch


def jit(function):
    class Kernel:
        def __getitem__(self, grid):
            return lambda a, out, rounds, **_: torch.work(rounds)

    return Kernel()
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    shutil.copy(Path(__file__).parents[1] / "fake_torch.py", tmp_path / "torch.py")
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text(FAKE_TRITON)
    (tmp_path / "triton" / "language.py").write_text("class constexpr: pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = gpu_load.LoadProcess()
    yield process
    process.close()


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=400))
def test_busy_multiprocessors_follow_the_shares(shares: list[float]) -> None:
    found = gpu_load.counts(shares, 132)
    assert all(1 <= count <= 132 for count in found)
    for so_far, share in zip(itertools.accumulate(found), itertools.accumulate(shares), strict=True):
        assert so_far == pytest.approx(132 * share, abs=0.5 + 1e-6)


def test_even_units_alternate_between_the_two_nearest_numbers() -> None:
    assert gpu_load.counts([0.5] * 4, 7) == [4, 3, 4, 3]
    assert gpu_load.counts([0.0] * 3, 7) == [1, 1, 1]


@pytest.mark.alone
def test_bursts_come_when_they_are_due_and_last_as_long_as_asked(load: Any) -> None:
    assert load.about["unit_s"] == pytest.approx(0.0005, rel=0.1)
    first_s = time.monotonic() + 0.3
    bursts = load.locked(first_s, 0.1, 5, 0.02)
    assert len(bursts) == 5
    for number, (start_s, end_s) in enumerate(bursts):
        assert start_s - (first_s + 0.1 * number) >= 0.0
        assert end_s - start_s >= 0.019


def test_an_order_ends_steady_load(load: Any) -> None:
    load.steady()
    load.idle()
    load.steady()
    assert len(load.locked(time.monotonic(), 0.05, 2, 0.01)) == 2


@pytest.mark.alone
@pytest.mark.slow
def test_phases_tell_when_the_load_changed(load: Any) -> None:
    told = list(load.phases([("idle", 0.1), ("steady", 0.2), ("bursts", 0.5), ("ramps", 2.0)]))
    names = [t[1] for t in told if t[0] == "phase"]
    assert names == ["idle", "steady", "bursts", "ramps", None]
    events = [(t, kind) for what, t, kind in told if what == "event"]
    assert [t for t, _ in events] == sorted(t for t, _ in events)
    kinds = [kind for _, kind in events]
    bursts = kinds.index(2)
    assert kinds[:bursts] == [1, 0] * (bursts // 2)
    ramps = [t for t, kind in events if kind == 2]
    for before_s, after_s in itertools.pairwise(ramps):
        assert after_s - before_s == pytest.approx(2 * gpu_load.RAMP_S, rel=0.1)


def test_a_load_that_cannot_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SystemExit, match="has ended"):
        gpu_load.LoadProcess()

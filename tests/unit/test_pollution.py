"""Others' use of the CPU, told from this process's own."""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from joulewise import pollution
from joulewise.pollution import CpuUse, cpu_use, other_cores


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    each = [SimpleNamespace(user=10.0 * n, system=1.0, nice=0.5, irq=0.25, idle=900.0) for n in range(4)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: each)
    return each


def test_only_cpus_that_this_process_may_use_count(cpus: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    before = cpu_use()
    assert before.machine_s == pytest.approx(0.0 + 20.0 + 2 * 1.75)
    cpus[1].user += 100.0  # pinned to a CPU that is not ours
    assert cpu_use().machine_s == before.machine_s
    cpus[2].user += 3.0
    assert cpu_use().machine_s == pytest.approx(before.machine_s + 3.0)


def test_all_cpus_count_where_numbers_tell_nothing(cpus: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 9})
    assert cpu_use().machine_s == pytest.approx(60.0 + 4 * 1.75)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cpu_use().machine_s == pytest.approx(60.0 + 4 * 1.75)


def test_own_use_is_taken_off_and_a_short_window_tells_nothing() -> None:
    before = CpuUse(10.0, 100.0, 50.0)
    assert other_cores(before, CpuUse(12.0, 106.0, 53.0)) == pytest.approx(1.5)
    assert other_cores(before, CpuUse(12.0, 100.0, 51.0)) == 0.0  # clock ticks of the two are not the same
    assert other_cores(before, CpuUse(10.1, 106.0, 53.0)) is None


def test_this_machine_is_read() -> None:
    now = cpu_use()
    assert now.own_s > 0.0
    assert dataclasses.replace(now) == now
    assert all(cpu >= 0 for cpu in pollution._cpus(os.cpu_count() or 1))

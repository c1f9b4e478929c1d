"""Equality in value by math-verify in a process of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.errors import EnvironmentFault
from joulewise.tasks import math_equality
from joulewise.tasks.math_equality import equal_in_value, stop_worker

pytest.importorskip("math_verify", reason="needs the extra 'score'")


@pytest.fixture(autouse=True, scope="module")
def _stop_at_the_end() -> Iterator[None]:
    yield
    stop_worker()


@pytest.mark.parametrize(
    ("reference", "answer", "equal"),
    [
        ("0.5", "\\frac{1}{2}", True),
        ("1024", "2^{10}", True),
        ("2\\sqrt{3}", "\\sqrt{12}", True),
        ("2x + 1", "1 + 2x", True),
        ("18", "18.0", True),
        ("18", "19", False),
        ("2x + 1", "2x - 1", False),
        ("18", "", False),
        ("18", "\\frac{", False),
        ("18", "\ud800", False),
        ("18", "18\n19", False),
    ],
)
def test_known_pairs(reference: str, answer: str, equal: bool) -> None:
    assert equal_in_value(reference, answer) is equal


def test_time_runs_out_and_the_next_comparison_works() -> None:
    assert equal_in_value("7", "7")
    begun = time.monotonic()
    assert not equal_in_value("7", "9^{9^{9}}", limit_s=0.5)
    assert time.monotonic() - begun < 10
    assert equal_in_value("0.5", "1/2")


def test_it_works_from_many_threads() -> None:
    results: dict[int, bool] = {}

    def compare(i: int) -> None:
        results[i] = equal_in_value(str(i), f"{i + i % 2}")

    threads = [threading.Thread(target=compare, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: i % 2 == 0 for i in range(8)}


def test_an_interrupted_comparison_does_not_answer_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert equal_in_value("7", "7")

    def interrupt(self: math_equality._Worker, limit_s: float) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(math_equality._Worker, "_read", interrupt)
        with pytest.raises(KeyboardInterrupt):
            equal_in_value("7", "7")
    assert not equal_in_value("7", "8")


def test_a_dead_process_is_replaced() -> None:
    assert equal_in_value("7", "7")
    worker = math_equality._worker
    assert worker is not None
    worker.process.kill()
    worker.process.wait()
    assert not equal_in_value("7", "7"), "a comparison that could not be made is not equal"
    assert equal_in_value("7", "7")


def test_a_forked_child_leaves_the_parents_process_alone() -> None:
    assert equal_in_value("7", "7")
    child = os.fork()
    if child == 0:
        os._exit(0 if math_equality._worker is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert equal_in_value("7", "7")


def test_math_verify_that_does_not_start_is_a_fault_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop_worker()
    broken = tmp_path / "math_worker.py"
    broken.write_text("raise ImportError('no antlr here')")
    monkeypatch.setattr(math_equality, "__file__", str(tmp_path / "math_equality.py"))
    with pytest.raises(EnvironmentFault, match=r"no antlr here.*joulewise\[score\]"):
        equal_in_value("7", "8")

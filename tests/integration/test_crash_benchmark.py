"""kill -9 in the middle of a run with a real engine, by ``benchmarks/crash.py``: ``--resume`` goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from load_benchmark import load_benchmark


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", "native"])
def test_a_kill_loses_the_trial_in_flight_at_most(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "crash.json"
    monkeypatch.setattr(sys, "argv", ["crash", "--engine", engine, "--kills", "1", "--json", str(file)])
    assert load_benchmark("crash").main() == 0
    told = json.loads(file.read_text())
    assert (told["kills"], told["finished"], told["written_twice"], told["reported_and_lost"]) == (1, True, 0, 0)
    assert told["each"][0]["begun"] >= 1

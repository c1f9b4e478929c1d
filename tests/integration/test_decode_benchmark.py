"""benchmarks/decode.py on a shape that a CPU can afford: it must be ready when a GPU is lent."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from load_benchmark import load_benchmark

SMALL = ["--target", "tiny", "--draft", "tiny", "--prompt", "8", "--output", "6", "--repeats", "2", "--device", "cpu"]


def test_it_measures_every_way_and_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = load_benchmark("decode")
    monkeypatch.setattr(bench, "STEPS_S", 0.0)
    monkeypatch.setattr(bench, "STEP_WIDTHS", (1, 6))
    ways = "vanilla,coga-5,eagle3-chain-5,generate"
    assert bench.main([*SMALL, "--only", ways, "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found["ways"]) == set(ways.split(","))
    assert found["ways"]["vanilla"]["acceptance_length"] == 1.0
    assert found["runs"]["coga-5"]["rounds"] >= 1
    assert all(len(runs["seconds"]) == 2 for runs in found["runs"].values())
    assert {row["step"] for row in found["steps"]} == {"target x1", "target x6", "draft x1", "draft x6"}
    assert "eagle3-chain-5" in capsys.readouterr().out


def test_a_way_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_benchmark("decode").main([*SMALL, "--only", "vanila"]) == 2
    assert "vanila" in capsys.readouterr().err


def test_without_vllm_its_ways_are_left_out_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_benchmark("decode").main([*SMALL, "--only", "vanilla,vllm-vanilla"]) == 2
    assert "vllm-vanilla: vLLM is not installed" in capsys.readouterr().err


def test_a_process_beside_generates_when_told_to() -> None:
    bench = load_benchmark("decode")
    worker = "import sys\nprint('{}', flush=True)\nfor line in sys.stdin: print('{\"n\": 1}', flush=True)"
    beside = bench.Beside([sys.executable, "-c", worker])
    assert [beside(), beside()] == [(0, None, {})] * 2
    beside.close()
    with pytest.raises(bench.NotBesideError, match="ended with code 3"):
        bench.Beside([sys.executable, "-c", "import os; os.close(1); raise SystemExit(3)"])()


def test_a_process_beside_that_does_not_answer_is_ended_and_its_way_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = load_benchmark("decode")
    for name, value in (("START_S", 0.2), ("STEPS_S", 0.0), ("STEP_WIDTHS", (1,)), ("find_spec", lambda _: True)):
        monkeypatch.setattr(bench, name, value)
    started: list[Any] = []
    real = bench.subprocess.Popen

    def silent(_: list[str], **how: object) -> object:
        process = real([sys.executable, "-c", "import time; time.sleep(60)"], **how)
        started.append(process)
        return process

    monkeypatch.setattr(bench.subprocess, "Popen", silent)
    assert bench.main([*SMALL, "--only", "vanilla,vllm-vanilla"]) == 0
    told = capsys.readouterr()
    assert "left out: vllm-vanilla" in told.err
    assert "did not answer within 0.2 s" in told.err
    assert "vllm-vanilla" not in told.out
    assert [process.returncode for process in started] == [-9]


def test_a_run_that_is_cut_keeps_the_repeats_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = load_benchmark("decode")
    monkeypatch.setattr(bench, "STEPS_S", 0.0)
    monkeypatch.setattr(bench, "STEP_WIDTHS", (1,))
    real, done = bench.summary, []

    def cut(runs: Any) -> Any:
        done.append(runs)
        if len(done) == 2:
            raise KeyboardInterrupt
        return real(runs)

    monkeypatch.setattr(bench, "summary", cut)
    with pytest.raises(KeyboardInterrupt):
        bench.main([*SMALL, "--only", "vanilla", "--json", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["runs"]["vanilla"]["seconds"]) == 1
    assert found["steps"]


def test_several_texts_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bench = load_benchmark("decode")
    monkeypatch.setattr(bench, "STEPS_S", 0.0)
    monkeypatch.setattr(bench, "STEP_WIDTHS", (1,))
    assert bench.main([*SMALL, "--batch", "3", "--only", "vanilla,coga-5,generate"]) == 0
    assert "batch 3" in capsys.readouterr().out
    assert bench.main([*SMALL, "--batch", "3", "--only", "medusa"]) == 2
    assert "medusa: not for --batch 3" in capsys.readouterr().err

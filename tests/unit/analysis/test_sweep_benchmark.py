"""``benchmarks/curves.py --sweep`` and ``--fit``: what is told of a sweep."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from joulewise import energy, sweep
from joulewise.analysis.design import Box
from joulewise.energy.meter import Meter
from joulewise.engines.spec import NativeSpec
from joulewise.ledger import load
from load_benchmark import load_benchmark
from scripted_sweep import Counter, ScriptedSweep, planted_j

curves = load_benchmark("curves")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "LEAST_S", 0.0)


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["curves.py", *arguments])
    code: int = curves.main()
    return code


def test_a_sweep_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with Meter([Counter()]) as meter:
        sweep.sweep(ScriptedSweep(), NativeSpec(), Box(), tmp_path / "run", meter=meter, points=30)
    assert call(monkeypatch, "--fit", str(tmp_path / "run"), "--json", str(tmp_path / "got.json")) == 0
    got = json.loads((tmp_path / "got.json").read_text())
    assert got["aim"] == {"median": 0.03, "p90": 0.08}
    assert got["aim_met"]
    assert len(got["points"]) == 30
    assert all(
        point["energy_j"] == pytest.approx(planted_j(point["prompt_tokens"], point["output_tokens"], point["running"]))
        for point in got["points"]
    )
    for told in got["told"]:
        p, o, b = told["request"]
        assert told["energy_j"] == pytest.approx(planted_j(p, o, b), rel=0.01)
        assert told["per_output_token_j"] == told["energy_j"] / o
        first, *_, last = told["output_token_j"].values()
        assert first < last  # later tokens have more context
        more = (b + 1) * planted_j(p, o, b + 1) - b * planted_j(p, o, b)
        assert told["another_request_j"] == pytest.approx(more, rel=0.15)
    printed = capsys.readouterr().out
    assert "Held-out error (each point predicted from the others)" in printed
    assert "Aim 3% / 8% of points within the others' ranges: met" in printed
    assert "successive output tokens" in printed


def test_a_sweep_that_misses_the_aim_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Meter([Counter()]) as meter:
        sweep.sweep(ScriptedSweep(), NativeSpec(), Box(), tmp_path / "run", meter=meter, points=30)
    ledger = tmp_path / "run" / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    for number, line in enumerate(lines):
        line["energy"][0]["energy_j"] *= (0.5, 1.0, 2.0)[number % 3]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert call(monkeypatch, "--fit", str(tmp_path / "run")) == 1
    assert "MISSED" in capsys.readouterr().out


def test_a_shape_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(Path(curves.__file__).parent))
    monkeypatch.setattr(energy, "discover", lambda: Meter([Counter()]))
    ranges = ("--prompt", "4,64", "--output", "1,8", "--load", "1,2", "--points", "12")
    out = tmp_path / "run"
    assert call(monkeypatch, "--sweep", "tiny", "--out", str(out), *ranges) == 2  # the counter stood still
    assert "no joules" in capsys.readouterr().err
    table = load(out).arrow
    assert table.num_rows == 12
    assert set(table["running"].to_pylist()) == {1, 2}
    assert set(table["model"].to_pylist()) == {"random-tiny"}


def test_a_sweep_without_a_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "--sweep", "tiny") == 2
    assert "--sweep needs --out" in capsys.readouterr().err

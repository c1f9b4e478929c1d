"""llama.cpp's own server, started, measured and stopped by a run: real weights on the CPU."""

from __future__ import annotations

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

from joulewise.cli.main import app
from joulewise.errors import EnvironmentFault, ServerError
from joulewise.ledger import load
from joulewise.ledger_lines import read_ledger
from scripted_runs import questions_task

pytest.importorskip("xllamacpp", reason="the extra llamacpp is not installed")
pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")

pytestmark = [pytest.mark.model, pytest.mark.slow]

PLAN = """
name: servers
engines:
  - kind: endpoint
    server: {{kind: llamacpp, model: default, args: {{threads: 1, ctx-size: 1024}}{server}}}
decodings: [vanilla, {{kind: prompt_lookup, tokens: 4}}]
tasks: [{{name: {task}, label: repeated, max_new_tokens: 24}}]
repeats: {repeats}
idle_baseline_s: 0.2
{more}
"""


def write_plan(folder: Path, *, server: str = "", repeats: int = 1, more: str = "", questions: int = 2) -> Path:
    asked = [f"Repeat this after me: the cat sat on mat {i}, the cat sat on mat {i}, the cat" for i in range(questions)]
    questions_task(folder, asked, "repeated")
    plan = folder / "plan.yaml"
    plan.write_text(PLAN.format(task="repeated.yaml", server=server, repeats=repeats, more=more))
    return plan


def servers_left() -> list[int]:
    return [p.pid for p in psutil.Process().children(recursive=True)]


@pytest.fixture(autouse=True)
def no_server_is_left() -> Iterator[None]:
    before = set(servers_left())
    yield
    assert set(servers_left()) <= before


def run(plan: Path, out: Path, code: int = 0) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["run", str(plan), "--out", str(out)], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return load(out).arrow.to_pylist()


def test_a_run_and_its_report(tmp_path: Path) -> None:
    rows = run(write_plan(tmp_path), tmp_path / "run")
    assert [row["status"] for row in rows] == ["ok"] * 4
    by_decoding = {d: [r for r in rows if r["decoding"] == d] for d in ("vanilla", "prompt-lookup-4")}
    for row in rows:
        assert 1 < row["output_tokens"] <= 24
        assert row["prompt_tokens"] > 20
        assert 0.0 < row["prefill_s"] < row["duration_s"]
        assert row["note"] is None  # no prompt from the cache, nobody else
    assert all(row["drafted_tokens"] == 0 for row in by_decoding["vanilla"])
    spoken = by_decoding["prompt-lookup-4"]
    assert any(row["accepted_tokens"] > 0 for row in spoken)
    for row in spoken:
        # Each output token is the first, a bonus or an accepted one.
        assert row["output_tokens"] == 1 + row["rounds"] + row["accepted_tokens"]
        assert row["accepted_tokens"] <= row["drafted_tokens"]
        assert row["check_status"] in ("identical", "not_checked")
    told = json.loads((tmp_path / "run" / "environment.json").read_text())["engines"][0]
    assert told["model_class"] == "llama.cpp: SmolLM2-135M-Instruct.Q4_1.gguf"
    assert told["parameters"] == 134_515_008
    assert "prefix caching: off" in told["notes"]
    assert any(note.startswith("prompt-lookup-4: ") and "ngram-simple" in note for note in told["notes"])
    assert len(list((tmp_path / "run" / "servers").glob("*.log"))) == 2
    report = CliRunner().invoke(app, ["report", str(tmp_path / "run")], env={"COLUMNS": "200"})
    assert report.exit_code == 0, report.output
    assert "Acceptance length is the mean number of tokens" in report.output


def test_one_server_at_a_time_in_blocks(tmp_path: Path) -> None:
    """As servers do that would not fit side by side; a repeat is a block of each."""
    rows = run(write_plan(tmp_path, server=", side_by_side: false", repeats=2), tmp_path / "run")
    assert [row["status"] for row in rows] == ["ok"] * 8
    order = [row["decoding"] for row in sorted(rows, key=lambda row: row["sequence"])]
    assert all(len(set(order[i : i + 2])) == 1 for i in range(0, 8, 2))
    assert all(len(set(order[i : i + 4])) == 2 for i in (0, 4))
    told = json.loads((tmp_path / "run" / "environment.json").read_text())["engines"][0]
    assert any("ran one after the other, in blocks" in note for note in told["notes"])


def test_exactly_so_many_tokens(tmp_path: Path) -> None:
    rows = run(write_plan(tmp_path, more="stop: {rule: fixed, tokens: 40}"), tmp_path / "run")
    assert [(row["status"], row["output_tokens"]) for row in rows] == [("ok", 40)] * 4


def test_a_probe_is_what_a_budget_of_so_many_tokens_answers(tmp_path: Path) -> None:
    """Word for word, also where the cut lies inside a character, which is three tokens here."""
    party = "Write \N{PARTY POPPER}\N{CONFETTI BALL} ten times, a party."
    task = Path(questions_task(tmp_path, [party, "What is 7 times 12, and how do you get there?"]))
    task.write_text(task.read_text() + "cot_prompt: '{text}'\n")
    alone = [{"kind": "budget", "tokens": tokens, "answer_tokens": 17} for tokens in (10, 21)]
    budgets = json.dumps([{"kind": "budget", "tokens": 40, "probes": [10, 21]}, *alone])
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN.format(task="words.yaml", server="", repeats=1, more=f"reasonings: {budgets}"))
    rows = run(plan, tmp_path / "run")
    trials = [t for t in read_ledger(tmp_path / "run" / "ledger.jsonl").trials if t.status == "ok"]
    assert len(trials) == 2 * 2 * 3
    found = {(t.decoding, t.question_id, t.reasoning): t for t in trials}
    probes = 0
    for (decoding, question, reasoning), trial in found.items():
        for probe in trial.probes:
            thought, *closings = found[decoding, question, f"budget-{probe.tokens}-17"].generations
            assert (reasoning, probe.error, thought.output_tokens) == ("budget-40", None, probe.tokens)
            (closing,) = closings
            assert probe.closing is not None
            assert closing.text is not None
            assert probe.closing.text
            assert closing.text.startswith(probe.closing.text)
            assert probe.closing.prompt_tokens == closing.prompt_tokens
            assert probe.time_s is not None
            assert trial.start_s < probe.time_s < trial.end_s
            probes += 1
    assert probes == 8
    assert sum(row["probe_of"] is not None for row in rows) == 8


def test_a_server_that_dies_in_the_middle_fails_its_trial_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within its second Trial: that one has failed with the log's last lines, the server is started anew."""
    from joulewise.engines.endpoint import EndpointEngine

    generate, calls = EndpointEngine._answer, []

    def dying(self: EndpointEngine, served: Any, request: Any) -> Any:
        if served.decoding.kind == "prompt_lookup" and request.max_new_tokens == 24:
            calls.append(served)
            if len(calls) == 2:
                os.kill(served.process.pid, signal.SIGKILL)
        return generate(self, served, request)

    monkeypatch.setattr(EndpointEngine, "_answer", dying)
    rows = run(write_plan(tmp_path, questions=3), tmp_path / "run")
    failed = [row for row in rows if row["status"] == "failed"]
    assert [row["decoding"] for row in failed] == ["prompt-lookup-4"]
    assert "exit code 137, SIGKILL" in failed[0]["error"]
    assert "print_timing" in failed[0]["error"]
    assert len(rows) == 6
    assert calls[2].process.pid != calls[1].process.pid


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    plan.write_text(plan.read_text().replace("model: default", "model: nowhere.gguf"))
    done = CliRunner().invoke(app, ["run", str(plan), "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, EnvironmentFault)
    assert "nowhere.gguf is none that is here" in str(done.exception)


def test_a_model_that_is_none_ends_with_the_log(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"this is no model" * 10)
    plan = write_plan(tmp_path)
    plan.write_text(plan.read_text().replace("model: default", f"model: {tmp_path}/broken.gguf"))
    done = CliRunner().invoke(app, ["run", str(plan), "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, ServerError)
    assert "has ended (exit code 1)" in str(done.exception)
    assert "exiting due to model loading error" in str(done.exception)


def test_a_killed_run_leaves_no_server_and_goes_on(tmp_path: Path) -> None:
    """kill -9 of `joulewise run` with its servers up, then --resume."""
    plan, out = write_plan(tmp_path, questions=4), tmp_path / "run"
    command = [sys.executable, "-m", "joulewise", "run", str(plan), "--out", str(out)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end_s = time.monotonic() + 120.0
    ledger = out / "ledger.jsonl"
    while not (ledger.exists() and ledger.read_bytes().count(b"\n")):
        assert running.poll() is None
        assert time.monotonic() < end_s
        time.sleep(0.02)
    held = psutil.Process(running.pid).children(recursive=True)
    assert len(held) == 4  # two servers, each with its watchdog
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    _, alive = psutil.wait_procs(held, timeout=30.0)
    assert alive == []
    done = CliRunner().invoke(app, ["run", str(plan), "--out", str(out), "--resume"])
    assert done.exit_code == 0, done.output
    assert [row["status"] for row in load(out).arrow.to_pylist()] == ["ok"] * 8

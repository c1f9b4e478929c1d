"""`joulewise run` and `report` as a user types them; the engine is scripted, everything around it is real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_runs import PLAN, SCRIPTED, environment, joulewise, write_plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_plan(tmp_path)
    return tmp_path


def ledger_trials(folder: Path) -> list[str]:
    lines = (folder / "out" / "ledger.jsonl").read_text().splitlines()
    return [r["trial_id"] for r in map(json.loads, lines) if r["kind"] == "trial"]


def test_a_run_ends_in_tables_and_a_page(folder: Path) -> None:
    done = joulewise(folder, "run", "plan.yaml", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "coga-5" in done.stdout
    assert "[12/12]" in done.stderr
    assert "<html" in (folder / "out" / "report.html").read_text()
    assert len(ledger_trials(folder)) == 12
    again = joulewise(folder, "report", "out", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)


def test_a_run_ends_with_its_result_in_words(folder: Path) -> None:
    done = joulewise(folder, "run", "plan.yaml", "--out", "out")
    assert done.returncode == 0, done.stderr
    *_, result, tables = done.stdout.strip().split("\n\n")
    assert result.startswith("Result: coga-5: ")
    assert tables == "All tables: joulewise report out"
    whole = joulewise(folder, "report", "out").stdout
    assert "Result:" not in whole
    for text, words in (
        (done.stdout, "Savings against vanilla"),
        (whole, "Savings against vanilla"),
        (whole, "Drafts"),
    ):
        assert f"\n{words}" in text
    assert "\nDrafts" not in done.stdout
    assert "report.html" in done.stderr


def test_outputs_that_differ_from_vanilla_are_told_loudly(folder: Path) -> None:
    (folder / "plan.yaml").write_text(PLAN.replace("{kind: coga, tokens: 5}", "prompt_lookup"))
    (folder / "words.jsonl").write_text('{"id": "q0", "text": "DIFFER", "answer": "1"}\n')
    done = joulewise(folder, "run", "plan.yaml", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "1 output of lossless decodings differs from vanilla's beyond near-ties" in done.stderr


def test_trials_that_failed_are_told_in_the_end(folder: Path) -> None:
    with (folder / "words.jsonl").open("a") as file:
        file.write('{"id": "q6", "text": "OVERLONG", "answer": "1"}\n')
    done = joulewise(folder, "run", "plan.yaml", "--out", "out")
    assert done.returncode == 0, done.stderr
    reason = "prompt of 900 tokens and 16 new ones do not fit the context of 512 tokens (2)"
    assert done.stderr.rstrip().endswith(f"2 of 14 Trials failed: {reason}")
    whole = joulewise(folder, "run", "plan.yaml", "--out", "whole", "--limit", "1")
    assert whole.returncode == 0, whole.stderr
    assert "Trials failed" not in whole.stderr


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_run_in_which_every_trial_failed_is_a_failure(folder: Path, more: list[str]) -> None:
    (folder / "words.jsonl").write_text('{"id": "q0", "text": "OVERLONG", "answer": "1"}\n')
    done = joulewise(folder, "run", "plan.yaml", "--out", "out", *more)
    assert done.returncode == 2
    assert "2 of 2 Trials failed: prompt of 900 tokens" in done.stderr
    if more:
        assert json.loads(done.stdout)["failed"] == 2


def test_json_output_is_json_alone(folder: Path) -> None:
    done = joulewise(folder, "run", "plan.yaml", "--out", "out", "--limit", "2", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["done"], result["total"], result["interrupted"]) == (4, 4, False)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["run", "plan.yaml", "--out", ""], "--out"),
        (["run", "plan.yaml", "--data", " "], "--data"),
        (["export", "runs/x", "--trials", ""], "--trials"),
        (["export", "runs/x", "--timeline", ""], "--timeline"),
        (["meter", "--json", "", "--", "true"], "--json"),
    ],
)
def test_a_path_of_no_characters_is_not_the_current_folder(folder: Path, arguments: list[str], option: str) -> None:
    before = sorted(folder.iterdir())
    done = joulewise(folder, *arguments)
    assert done.returncode == 2
    assert f"{option} is empty; give the " in done.stderr
    assert sorted(folder.iterdir()) == before


def test_broken_lines_are_refused_or_skipped_and_told(folder: Path) -> None:
    with (folder / "words.jsonl").open("a") as file:
        file.write('{"id": "q6", "text": "no answer"}\n{"id": "q0", "text": "again", "answer": "1"}\n{\n')
    refused = joulewise(folder, "run", "plan.yaml", "--dry-run")
    assert refused.returncode == 2
    assert "words.jsonl:7: no field 'answer'" in refused.stderr
    assert "--skip-bad" in refused.stderr
    dry = json.loads(joulewise(folder, "run", "plan.yaml", "--dry-run", "--skip-bad", "--json").stdout)
    assert dry["generations"] == 12
    assert "task words: 3 broken lines left out: " in dry["warnings"][0]
    done = joulewise(folder, "run", "plan.yaml", "--out", "out", "--skip-bad")
    assert done.returncode == 0, done.stderr
    for place in (":7: no field", ":8: the id 'q0' stands already at", ":9: not valid JSON"):
        assert f"words.jsonl{place}" in done.stderr
    assert len(json.loads((folder / "out" / "skipped.json").read_text())["skipped"]["words"]) == 3
    assert "broken lines of the task words were left out: 3" in joulewise(folder, "report", "out").stdout


def test_the_default_folder_and_its_resumption(folder: Path) -> None:
    assert joulewise(folder, "run", "plan.yaml", "--limit", "1").returncode == 0
    (made,) = (folder / "runs").iterdir()
    assert made.name.startswith("small-")
    assert joulewise(folder, "run", "plan.yaml", "--resume").returncode == 0
    assert len((made / "ledger.jsonl").read_text().splitlines()) == 12 + 6  # Trials and the verdicts on coga


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("plan.yaml", "tokens: 5", "tokns: 5", "plan.yaml:3: decodings[1].tokns: unknown key; did you mean 'tokens'?"),
        ("plan.yaml", "words.yaml", "none.yaml", "plan.yaml:4: tasks[0]: no file "),
        ("plan.yaml", "words.yaml", "startr", "plan.yaml:4: tasks[0]: unknown task 'startr'; did you mean 'starter'?"),
        ("words.jsonl", '"q3"', '"q2"', "q2"),
        ("words.yaml", "scorer: exact", "scorer: exakt", "exact"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(folder: Path, file: str, old: str, new: str, words: str) -> None:
    path = folder / file
    path.write_text(path.read_text().replace(old, new))
    done = joulewise(folder, "run", "plan.yaml", "--out", "out")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "out").exists()


def test_an_empty_task_file_is_refused(folder: Path) -> None:
    (folder / "words.jsonl").write_text("")
    done = joulewise(folder, "run", "plan.yaml", "--out", "out")
    assert done.returncode == 2
    assert "words.jsonl" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="root writes anywhere; the read-only case below covers other users")
def test_a_place_that_cannot_be_written_is_told_root(folder: Path) -> None:
    done = joulewise(folder, "run", "plan.yaml", "--out", "/proc/none/out")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root is not held back by permissions; /proc stands in above")
def test_a_read_only_folder_is_told(folder: Path) -> None:
    locked = folder / "locked"
    locked.mkdir(mode=0o500)
    done = joulewise(folder, "run", "plan.yaml", "--out", "locked/out")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def blocked_run(folder: Path) -> subprocess.Popen[str]:
    """A run that stands in the middle of its last question's first Trial."""
    lines = (folder / "words.jsonl").read_text().splitlines()
    (folder / "words.jsonl").write_text("\n".join([*lines[:-1], lines[-1].replace("question 5", "BLOCK")]) + "\n")
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPTED, "run", "plan.yaml", "--out", "out"],
        cwd=folder,
        env=environment(JOULEWISE_TEST_BLOCK="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "blocked\n"
    return process


def resume_and_count(folder: Path) -> None:
    done = joulewise(folder, "run", "plan.yaml", "--out", "out", "--resume")
    assert done.returncode == 0, done.stderr
    trials = ledger_trials(folder)
    assert len(trials) == len(set(trials)) == 12


def test_kill_9_in_the_middle_of_a_trial_loses_that_trial_alone(folder: Path) -> None:
    process = blocked_run(folder)
    process.kill()
    process.communicate()
    finished = ledger_trials(folder)
    assert all("|q5|" not in trial for trial in finished)
    resume_and_count(folder)
    assert ledger_trials(folder)[: len(finished)] == finished


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_two_signals_stop_at_once_and_keep_every_finished_trial(folder: Path, signum: signal.Signals) -> None:
    process = blocked_run(folder)
    before = ledger_trials(folder)
    assert process.stderr is not None
    process.send_signal(signum)
    # The second signal must not merge with the first: wait until the first was handled.
    while "once more" not in (line := process.stderr.readline()):
        assert line, "the run ended at the first signal"
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "--resume" in errors
    assert ledger_trials(folder) == before
    resume_and_count(folder)


def test_two_runs_in_one_folder_refuse_each_other(folder: Path) -> None:
    process = blocked_run(folder)
    try:
        second = joulewise(folder, "run", "plan.yaml", "--out", "out", "--resume")
        assert second.returncode == 2
        assert "another run is writing in this folder" in second.stderr
    finally:
        process.kill()
        process.communicate()


def test_help_of_every_command(folder: Path) -> None:
    assert "doctor" in joulewise(folder, "--help").stdout
    for command in ("run", "report", "meter", "doctor", "schema"):
        done = joulewise(folder, command, "--help")
        assert done.returncode == 0
        assert "Usage" in done.stdout
        assert "...." not in done.stdout


def test_the_schema_is_printed(folder: Path) -> None:
    assert json.loads(joulewise(folder, "schema").stdout)["title"] == "Plan"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "plan.yaml", "--dry-run"],
        ["run", "plan.yaml", "--out", "out"],
        ["run", "plan.yaml", "--out", "out", "--json"],
        ["report", "whole"],
        ["report", "whole", "--json"],
        ["doctor"],
        ["doctor", "--json"],
        ["schema"],
        ["--help"],
    ],
)
def test_a_reader_who_has_gone_ends_it_quietly(folder: Path, arguments: list[str]) -> None:
    if arguments[0] == "report":
        assert joulewise(folder, "run", "plan.yaml", "--out", "whole", "--limit", "1").returncode == 0
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPTED, *arguments],
            cwd=folder,
            env=environment(),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        os.close(writer)
    assert done.returncode == 141
    assert "Broken" not in done.stderr
    assert "Traceback" not in done.stderr
    if "out" not in arguments:
        assert done.stderr == ""
    else:
        assert len(ledger_trials(folder)) == 12, "the run itself is whole"

"""`joulewise run` and `report` as a user types them; the engine is scripted, everything around it is real."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_heads
import tiny_models

SCRIPTED = (
    "import joulewise.engines as e; e.ENGINES['transformers'] = 'scripted_engine:ScriptedEngine'; "
    "from joulewise.cli.main import main; main()"
)
TASK = """\
name: words
questions: words.jsonl
id: id
prompt: '{text}'
reference: answer
scorer: exact
max_new_tokens: 8
"""
PLAN = """\
name: small
engines: [{kind: transformers, name: toy, draft: x}]
decodings: [vanilla, {kind: coga, tokens: 5}]
tasks: [words.yaml]
idle_baseline_s: 0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "words.yaml").write_text(TASK)
    questions = [{"id": f"q{i}", "text": f"question {i}", "answer": "1"} for i in range(6)]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
    return tmp_path


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads and a model, whole and damaged, in folders of those names."""
    root = tmp_path_factory.mktemp("heads")
    tiny_heads.write(root / "medusa", tiny_heads.medusa(2))
    tiny_heads.write(root / "eagle3", tiny_heads.eagle3(), tiny_heads.CONFIG)
    tiny_models.save(root / "model", tiny_models.build("llama"))
    (root / "empty").mkdir()
    (root / "cut").mkdir()
    (root / "cut" / "model.safetensors").write_bytes((root / "medusa" / "model.safetensors").read_bytes()[:-9])
    (root / "pickle").mkdir()
    (root / "pickle" / "medusa_lm_head.pt").write_bytes(pickle.dumps("no head"))
    return root


def environment(**more: str) -> dict[str, str]:
    here = str(Path(__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": here, "COLUMNS": "100", "HF_HUB_OFFLINE": "1", **more}


def joulewise(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPTED, *arguments],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


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


def test_dry_run_prints_the_grid_and_runs_nothing(folder: Path) -> None:
    done = joulewise(folder, "run", "plan.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("toy\n  vanilla/direct/words  6 x 8 tokens  ")
    assert "\n  coga-5/direct/words " in done.stdout
    assert "2 cells, 12 generations" in done.stdout
    assert not (folder / "runs").exists()
    data = json.loads(joulewise(folder, "run", "plan.yaml", "--dry-run", "--json").stdout)
    assert data["generations"] == 12
    assert data["estimate_s"] > 0


def test_a_dry_run_cuts_no_name_in_a_narrow_terminal(folder: Path) -> None:
    done = joulewise(folder, "run", "plan.yaml", "--dry-run", COLUMNS="30")
    assert "\n  coga-5/direct/words\n      6 x 8 tokens  about" in done.stdout


def test_a_dry_run_lists_the_cells_that_cannot_run_beside_those_that_can(folder: Path) -> None:
    tasks = (
        "tasks: [words.yaml, {name: gsm8k}, {name: starter-maths, questions: 2, label: some}, {name: starter-maths, "
    )
    plan = PLAN.replace("tasks: [words.yaml]", tasks + "questions: 999, label: many}]")
    assert plan != PLAN
    (folder / "plan.yaml").write_text(plan.replace("draft: x", "draft: ./gone"))
    (folder / "nothing").mkdir()
    done = joulewise(folder, "run", "plan.yaml", "--dry-run", "--data", "nothing")
    assert done.returncode == 2
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("  ")}
    assert len(lines) == 8
    assert lines["vanilla/direct/words"].startswith("6 x 8 tokens about")
    assert lines["vanilla/direct/some"].startswith("2 x ")
    assert lines["vanilla/direct/gsm8k"] == "cannot run (1)"
    assert lines["coga-5/direct/many"] == "cannot run (2) (3)"
    assert lines["coga-5/direct/words"] == "cannot run (3)"
    assert "8 cells, 2 of which can run, 8 generations, about " in done.stdout
    head, *faults = done.stderr.splitlines()
    assert head == "joulewise: 6 of 8 cells cannot run:"
    assert [fault.split(" ", 2)[1] for fault in faults if fault.startswith("joulewise: (")] == ["(1)", "(2)", "(3)"]
    assert "gsm8k" in faults[0]
    assert "task many: asks for 999 questions but there are" in faults[1]
    assert "there is no folder ./gone" in faults[2]
    told = joulewise(folder, "run", "plan.yaml", "--dry-run", "--data", "nothing", "--json")
    assert told.returncode == 2
    cells = {row["cell"]: row["faults"] for row in json.loads(told.stdout)["cells"]}
    assert cells["toy/vanilla/direct/words"] == []
    assert len(cells["toy/coga-5/direct/gsm8k"]) == 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("draft: x", "draft: first-layers:31", "draft first-layers:31: default has 30 layers: name 1 to 30"),
        ("draft: x", "draft: ./gone", "engine toy: there is no folder ./gone"),
        ("draft: x", "model: mine, draft: x", "engine toy: the folder mine holds no config.json"),
    ],
)
def test_a_dry_run_tells_a_model_that_is_not_there(folder: Path, old: str, new: str, words: str) -> None:
    (folder / "mine").mkdir()
    (folder / "plan.yaml").write_text(PLAN.replace(old, new))
    done = joulewise(folder, "run", "plan.yaml", "--dry-run")
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize(
    ("decoding", "words"),
    [
        ("{kind: medusa, head: random, synthetic_acceptance: 0.5}", None),
        ("{kind: medusa}", None),
        ("{kind: medusa, head: medusa/model.safetensors, tree: [[0], [0, 0]]}", None),
        ("{kind: medusa, head: medusa, tree: [[0], [0, 0]]}", None),
        ("{kind: eagle3, head: eagle3}", None),
        ("{kind: medusa, head: empty}", "medusa: empty holds no Medusa, EAGLE-1/2 or EAGLE-3 head (it holds no "),
        ("{kind: medusa, head: gone/head.bin}", "there is no head gone/head.bin"),
        ("{kind: medusa, head: plan.yaml}", "plan.yaml is no file of weights: name a .safetensors, .bin, .pt or"),
        ("{kind: medusa, head: 'shipped:medua'}", "There is no 'shipped:medua'"),
        ("{kind: medusa, head: cut}", "cut/model.safetensors could not be read as tensors alone"),
        ("{kind: medusa, head: model}", "medusa: model holds no Medusa, EAGLE-1/2 or EAGLE-3 head (its tensors are "),
        ("{kind: eagle2, head: eagle3}", "eagle3 holds a head of the family EAGLE-3, not EAGLE-1/2"),
        (
            "{kind: medusa, head: medusa, tree: mc_sim_7b_63}",
            "A Medusa tree 4 deep needs as many heads, and medusa has",
        ),
        ("{kind: medusa, head: medusa, tree: [[0], [95]]}", "A rank of the Medusa tree is over the 80 tokens"),
        ("{kind: eagle3, head: eagle3, top_k: 25}", "top_k 25 is more than the 24 tokens that the head eagle3 can"),
        ("{kind: coga, draft: eagle3}", "The draft eagle3 is no model: it holds a head of the family EAGLE-3. Name it"),
        ("{kind: coga, draft: medusa/model.safetensors}", "is no model: it holds a head of the family Medusa"),
        ("{kind: coga, draft: model}", None),
    ],
)
def test_a_dry_run_looks_at_the_headers_of_heads_and_drafts(
    heads: Path, folder: Path, decoding: str, words: str | None
) -> None:
    shutil.copytree(heads, folder, dirs_exist_ok=True)
    plan = PLAN.replace("{kind: coga, tokens: 5}", decoding).replace("kind: transformers", "kind: native")
    (folder / "plan.yaml").write_text(plan.replace(", draft: x", ""))
    done = joulewise(folder, "run", "plan.yaml", "--dry-run")
    if words is None:
        assert (done.returncode, "Warning" in done.stdout) == (0, False), done.stderr
    else:
        assert done.returncode == 2
        head, fault = done.stderr.splitlines()
        assert head == "joulewise: 1 of 2 cells cannot run:"
        assert fault.startswith("joulewise: (1) engine toy: ")
        assert words in fault


def test_a_dry_run_opens_no_pickle(heads: Path, folder: Path) -> None:
    shutil.copytree(heads, folder, dirs_exist_ok=True)
    plan = PLAN.replace("{kind: coga, tokens: 5}", "{kind: medusa, head: pickle}")
    (folder / "plan.yaml").write_text(plan.replace("kind: transformers", "kind: native").replace(", draft: x", ""))
    done = joulewise(folder, "run", "plan.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Warning: engine toy: the head pickle is a pickle: not checked, the run will open it as" in done.stdout


def test_a_dry_run_tells_a_device_that_is_not_there(folder: Path) -> None:
    (folder / "plan.yaml").write_text(PLAN.replace("draft: x", "draft: x, device: 'cuda:99'"))
    done = joulewise(folder, "run", "plan.yaml", "--dry-run")
    assert done.returncode == 2
    assert "engine toy: device: cuda:99 needs a GPU, and torch sees " in done.stderr


def test_a_dry_run_refuses_the_folders_that_a_run_would(folder: Path) -> None:
    (folder / "a-file").write_text("")
    for out, words in (
        (["--out", "a-file/run"], "a-file: not a folder; choose another folder with --out"),
        (["--out", "nothing", "--resume"], "nothing: there is no run to resume here"),
        (["--resume"], "no earlier run of the plan 'small' to resume"),
    ):
        done = joulewise(folder, "run", "plan.yaml", "--dry-run", *out)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert joulewise(folder, "run", "plan.yaml", "--out", "out", "--limit", "1").returncode == 0
    before = sorted((p.name, p.stat().st_mtime_ns) for p in (folder / "out").iterdir())
    holds = joulewise(folder, "run", "plan.yaml", "--dry-run", "--out", "out")
    assert holds.returncode == 2
    assert "out: holds a run; go on with --resume" in holds.stderr
    assert joulewise(folder, "run", "plan.yaml", "--dry-run", "--out", "out", "--resume").returncode == 0
    (folder / "plan.yaml").write_text(PLAN + "seed: 7\n")
    other = joulewise(folder, "run", "plan.yaml", "--dry-run", "--out", "out", "--resume")
    assert other.returncode == 2
    assert "was started with another plan (they differ in: seed)" in other.stderr
    assert sorted((p.name, p.stat().st_mtime_ns) for p in (folder / "out").iterdir()) == before


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


def test_a_dry_run_warns_of_a_missing_baseline_and_a_model_that_it_cannot_see(folder: Path) -> None:
    (folder / "plan.yaml").write_text(PLAN.replace("[vanilla, {", "[{"))
    done = joulewise(folder, "run", "plan.yaml", "--dry-run", "--limit", "1", HF_HUB_CACHE=str(folder))
    assert done.returncode == 0, done.stderr
    assert "\n1 cell, 1 generation, about " in done.stdout
    assert "Warning: there is no vanilla to compare 1 of 1 cell with, such as toy/coga-5/direct/words: " in done.stdout
    assert "Warning: engine toy: x is no folder here and not in the hub's cache: not checked" in done.stdout


def test_a_dry_run_of_a_model_of_unknown_size_tells_no_time(folder: Path) -> None:
    (folder / "plan.yaml").write_text(PLAN.replace("name: toy, draft: x", "name: toy, model: x, draft: x"))
    done = joulewise(folder, "run", "plan.yaml", "--dry-run", "--limit", "1", HF_HUB_CACHE=str(folder))
    assert done.returncode == 0, done.stderr
    assert "generations, unknown time in all. Nothing was run." in done.stdout
    assert "about" not in done.stdout


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

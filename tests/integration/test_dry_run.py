"""`joulewise run --dry-run`: what would run and what could not, and nothing is run."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest

import tiny_heads
import tiny_models
from command_runs import PLAN, called, joulewise, write_plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_plan(tmp_path)
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
    done = called(folder, "run", "plan.yaml", "--dry-run", COLUMNS="30")
    assert "\n  coga-5/direct/words\n      6 x 8 tokens  about" in done.stdout


def test_a_dry_run_lists_the_cells_that_cannot_run_beside_those_that_can(folder: Path) -> None:
    tasks = (
        "tasks: [words.yaml, {name: gsm8k}, {name: starter-maths, questions: 2, label: some}, {name: starter-maths, "
    )
    plan = PLAN.replace("tasks: [words.yaml]", tasks + "questions: 999, label: many}]")
    assert plan != PLAN
    (folder / "plan.yaml").write_text(plan.replace("draft: x", "draft: ./gone"))
    (folder / "nothing").mkdir()
    done = called(folder, "run", "plan.yaml", "--dry-run", "--data", "nothing")
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
    told = called(folder, "run", "plan.yaml", "--dry-run", "--data", "nothing", "--json")
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
    done = called(folder, "run", "plan.yaml", "--dry-run")
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
    done = called(folder, "run", "plan.yaml", "--dry-run")
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
    done = called(folder, "run", "plan.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Warning: engine toy: the head pickle is a pickle: not checked, the run will open it as" in done.stdout


def test_a_dry_run_tells_a_device_that_is_not_there(folder: Path) -> None:
    (folder / "plan.yaml").write_text(PLAN.replace("draft: x", "draft: x, device: 'cuda:99'"))
    done = called(folder, "run", "plan.yaml", "--dry-run")
    assert done.returncode == 2
    assert "engine toy: device: cuda:99 needs a GPU, and torch sees " in done.stderr


def test_a_dry_run_refuses_the_folders_that_a_run_would(folder: Path) -> None:
    (folder / "a-file").write_text("")
    for out, words in (
        (["--out", "a-file/run"], "a-file: not a folder; choose another folder with --out"),
        (["--out", "nothing", "--resume"], "nothing: there is no run to resume here"),
        (["--resume"], "no earlier run of the plan 'small' to resume"),
    ):
        done = called(folder, "run", "plan.yaml", "--dry-run", *out)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert called(folder, "run", "plan.yaml", "--out", "out", "--limit", "1").returncode == 0
    before = sorted((p.name, p.stat().st_mtime_ns) for p in (folder / "out").iterdir())
    holds = called(folder, "run", "plan.yaml", "--dry-run", "--out", "out")
    assert holds.returncode == 2
    assert "out: holds a run; go on with --resume" in holds.stderr
    assert called(folder, "run", "plan.yaml", "--dry-run", "--out", "out", "--resume").returncode == 0
    (folder / "plan.yaml").write_text(PLAN + "seed: 7\n")
    other = called(folder, "run", "plan.yaml", "--dry-run", "--out", "out", "--resume")
    assert other.returncode == 2
    assert "was started with another plan (they differ in: seed)" in other.stderr
    assert sorted((p.name, p.stat().st_mtime_ns) for p in (folder / "out").iterdir()) == before


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

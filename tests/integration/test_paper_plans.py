"""The papers' plans: dry-run as they stand, and run on tiny random siblings of their models' true classes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

import joulewise
import tiny_heads
import tiny_models
from joulewise.cli.main import app
from joulewise.plan import load_plan
from joulewise.report.summary import summarise
from joulewise.report.text import run_lines
from joulewise.tasks.mmlu_subjects import CATEGORIES
from joulewise.tasks.sandbox import unavailable

pytest.importorskip("bitsandbytes", reason="needs the extra 'bitsandbytes'")
pytest.importorskip("math_verify", reason="needs the extra 'score'")
pytest.importorskip("rouge_score", reason="needs the extra 'score'")

PLANS = Path(__file__).parents[2] / "plans"
SPECULATION, THINKING = PLANS / "paper-speculative-decoding.yaml", PLANS / "paper-energy-per-token.yaml"
FAMILIES = {"lmsys": "llama", "double7": "llama", "meta-llama": "llama", "google": "t5", "Qwen": "qwen3"}
"""The class of a model, by who publishes it."""

QUANTISED = ("qwen3-4b-nf4", "flan-t5-l-nf4")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many made-up questions as the plans ask for."""
    folder = tmp_path_factory.mktemp("data")

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    code = {"prompt": "def two():\n", "entry_point": "two", "test": "def check(f):\n    assert f() == 2\n"}
    write("humaneval.jsonl", [code | {"task_id": f"HumanEval/{i}"} for i in range(164)])
    write("gsm8k_test.jsonl", [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(256)])
    write("cnn_dm.jsonl", [{"id": f"{i}", "article": f"News {i}.", "highlights": "News."} for i in range(256)])
    mmlu = {"split": "test", "question": "Which?", "choices": ["1", "2", "3", "4"], "answer": "B"}
    write("mmlu.jsonl.gz", [mmlu | {"subject": s, "index": i} for s in sorted(CATEGORIES) for i in range(30)])
    turns = {"category": "writing", "turns": ["Write.", "Again."], "reference": []}
    write("mt_bench_questions.jsonl", [turns | {"question_id": 81 + i} for i in range(80)])
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders by family, with ``-draft``, and by family and kind of head."""
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for family in set(FAMILIES.values()):
        shape = {} if family == "t5" else {"num_hidden_layers": tiny_heads.LAYERS, "max_position_embeddings": 4096}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = tiny_models.FAMILIES[family](**shape).eval()
        found[family] = tiny_models.save(folder / family, model)
        found[f"{family}-draft"] = tiny_models.save(folder / f"{family}-draft", tiny_models.noisy(model))
    found["small"] = tiny_models.save(
        folder / "small", tiny_models.llama(num_hidden_layers=1, max_position_embeddings=4096).eval()
    )
    eagle2 = tiny_heads.eagle2(tiny_heads.target())
    heads = {"eagle2": (eagle2, {"bias": True}), "eagle3": (tiny_heads.eagle3(), {"draft_vocab_size": 24})}
    for kind, (tensors, config) in heads.items():
        found[kind] = tiny_heads.write(folder / kind, tensors, tiny_heads.CONFIG | config)
    found["medusa"] = tiny_heads.write(
        folder / "medusa", tiny_heads.medusa(4), {"medusa_num_heads": 4, "medusa_num_layers": 1}
    )
    return found


def command(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def with_siblings(plan: Path, models: dict[str, str], target: Path, **changes: Any) -> Path:
    """The plan with tiny random models of the same classes on the CPU, and a few tokens a question, once."""
    text = yaml.safe_load(plan.read_text())
    # Of the quantised ones one of each kind of engine: loading takes longer than all else here.
    text["engines"] = [
        e for e in text["engines"] if "quantisation" not in e or e["quantisation"] == "none" or e["name"] in QUANTISED
    ]
    for engine in text["engines"]:
        family = FAMILIES[engine["model"].partition("/")[0]]
        engine["model"] = models["small" if engine["model"] == "meta-llama/Llama-3.2-1B-Instruct" else family]
        engine["device"] = "cpu"
        if "draft" in engine:
            engine["draft"] = models[f"{family}-draft"]
        if "heads" in engine:
            engine["heads"] = {kind: models[kind] for kind in engine["heads"]}
    for task in text["tasks"]:
        task["max_new_tokens"] = 4
    for reasoning in text.get("reasonings", []):
        if isinstance(reasoning, dict) and "max_new_tokens" in reasoning:
            reasoning["max_new_tokens"] = 4
    if unavailable() is not None:
        text["tasks"] = [task for task in text["tasks"] if task["name"] != "humaneval"]
    target.write_text(yaml.safe_dump(text | {"repeats": 1, "warm_up": 0, "idle_baseline_s": 0.0} | changes))
    return target


@pytest.mark.parametrize("plan", [SPECULATION, THINKING], ids=lambda plan: plan.stem)
def test_a_dry_run_needs_no_weights(plan: Path, data: Path) -> None:
    if plan == SPECULATION and (reason := unavailable()):
        pytest.skip(f"HumanEval needs a sandbox: {reason}")
    told = json.loads(command("run", plan, "--dry-run", "--data", data, "--json"))
    assert told["cells"]
    assert all(exclusion["reason"] for exclusion in told["excluded"])
    assert any("meta-llama/Llama-3.1-8B-Instruct is no folder here" in warning for warning in told["warnings"])
    if plan == SPECULATION and not torch.cuda.is_available():
        assert any("llama-70b: device: balanced needs a GPU" in warning for warning in told["warnings"])
        assert any("head yuhuili/EAGLE-Vicuna-7B-v1.3 is not in the hub's cache" in w for w in told["warnings"])


def test_which_strategies_meet_which_targets() -> None:
    plan = load_plan(SPECULATION)
    found: dict[str, set[str]] = {}
    for cell in plan.cells():
        found.setdefault(cell.engine.label, set()).add(cell.decoding.label)
    drafts = {"vanilla", "coga-5", "coga-10", "coga-20", "dyga-20", "dyga-20-confidence-0.4"}
    heads = {
        "vicuna-7b": {"medusa", "eagle2-60x5x10"},
        "vicuna-13b": {"medusa", "eagle2-60x5x10", "eagle3-60x5x10"},
        "llama-8b": {"eagle2-60x5x10", "eagle3-60x5x10"},
        "llama-70b-nf4": {"eagle3-60x5x10"},
        "llama-70b": set(),
        "flan-t5-l": set(),
        "flan-t5-xl": set(),
        "qwen3-4b": {"eagle3-60x5x10"},
        "qwen3-8b": {"eagle3-60x5x10"},
    }
    assert len(found) == 16
    assert found == {name: drafts | heads.get(name, heads[name.removesuffix("-nf4")]) for name in found}
    assert (plan.repeats, plan.sampling.temperature, {task.max_new_tokens for task in plan.tasks}) == (5, 0.0, {200})
    assert {e.device for e in plan.engines if e.label == "llama-70b"} == {"balanced"}
    for engine in plan.engines:
        assert engine.quantisation == ("nf4" if engine.label.endswith("-nf4") else "none")


@pytest.mark.slow
def test_speculation_on_siblings(tmp_path: Path, data: Path, models: dict[str, str]) -> None:
    plan = with_siblings(SPECULATION, models, tmp_path / "plan.yaml")
    command("run", plan, "--dry-run", "--data", data)
    command("run", plan, "--out", tmp_path / "run", "--data", data, "--limit", "1")
    table = joulewise.load(tmp_path / "run")
    rows = table.arrow.select(["status", "error", "engine", "decoding"]).to_pylist()
    assert [row for row in rows if row["status"] != "ok"] == []
    assert {(row["engine"], row["decoding"]) for row in rows} == {
        (c.engine.label, c.decoding.label) for c in load_plan(plan).cells()
    }
    summary = summarise(table)
    lines = [told for _, told in run_lines(summary.runs[0])]
    assert "vicuna-7b*, eagle3* (no EAGLE-3 head is published for Vicuna-7B)" in lines
    assert "no EAGLE-3 head is published for Vicuna-7B" in (tmp_path / "run" / "report.html").read_text()
    touched = {claim.letter for claim in summary.claims if claim.verdict is not None}
    assert {"c", "d", "f"} <= touched
    assert sum(check.different for check in summary.lossless) == 0


def test_thinking_on_siblings(tmp_path: Path, data: Path, models: dict[str, str]) -> None:
    plan = with_siblings(THINKING, models, tmp_path / "plan.yaml")
    command("run", plan, "--dry-run", "--data", data)
    command("run", plan, "--out", tmp_path / "run", "--data", data, "--limit", "2")
    table = joulewise.load(tmp_path / "run")
    rows = table.arrow.select(["status", "reasoning", "task"]).to_pylist()
    assert {row["status"] for row in rows} == {"ok"}
    asked = {(row["reasoning"], row["task"]) for row in rows}
    assert asked == {
        *((name, "mmlu") for name in ("direct", "vote-3", "vote-5", "vote-5-batched", "cot-4")),
        ("direct", "mt_bench"),
    }
    summary = summarise(table)
    assert {claim.letter for claim in summary.claims if claim.verdict is not None} >= {"g", "h", "i"}
    assert {found.task for found in summary.tradeoffs} == {"mmlu", "mt_bench"}

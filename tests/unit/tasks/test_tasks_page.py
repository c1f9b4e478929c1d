"""``docs/tasks.md`` says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from joulewise.tasks import open_task, prompts, task_names
from joulewise.tasks.custom import CustomTask
from joulewise.tasks.sandbox import KEPT_OUTPUT_BYTES, Limits
from joulewise.tasks.task import Question


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "tasks.md").read_text(encoding="utf-8")


def block(page: str, language: str, contains: str) -> str:
    (found,) = (b for b in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if contains in b)
    return str(found)


def test_the_example_of_ones_own_task_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = block(page, "yaml", "name: capitals")
    (tmp_path / "capitals.jsonl").write_text(block(page, "json", "France"))
    (tmp_path / "capitals-shown.jsonl").write_text(block(page, "json", "Italy"))
    (tmp_path / "capitals.yaml").write_text(spec)
    monkeypatch.chdir(tmp_path)
    exec(compile(block(page, "python", "capitals.yaml"), "docs/tasks.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "What is the capital of France?\n\nA) Lyon\nB) Paris\nC) Nice\nD) Lille\n" in printed
    assert "correct=True" in printed
    assert [(q.question_id, q.category) for q in open_task("capitals.yaml").questions()] == [
        ("fr", "Europe"),
        ("jp", "Asia"),
    ]
    assert set(re.findall(r"^(\w+):", spec, re.MULTILINE)) == set(CustomTask.model_fields), "the example has every key"


@pytest.mark.parametrize(
    ("heading", "prompt"),
    [
        ("`starter-maths`", prompts.short_maths),
        ("`gsm8k`", prompts.stepwise_maths),
        ("`starter-summarisation`", prompts.summary),
        ("`cnn_dm`", prompts.news_summary),
        ("`starter-choice` and `mmlu`; the text ends with `Options:` and one line `A) …` an option", prompts.choice),
        (
            "`starter-code` and `humaneval`; the text is a signature and a docstring, with what stands above them",
            prompts.code,
        ),
    ],
)
def test_the_prompts_are_the_codes(page: str, heading: str, prompt: object) -> None:
    assert callable(prompt)
    assert f"\n{heading}\n\n```text\n{prompt(Question('0', '{text}', ''))}\n```\n" in page


def test_the_sandboxs_limits_are_the_codes(page: str) -> None:
    limits = Limits()
    for said in (
        f'"timed out" ({limits.wall_s:.0f} seconds)',
        f'"out of memory" ({limits.memory_bytes >> 20} MiB)',
        f'"too much output" ({limits.output_bytes >> 20} MiB)',
        f"{limits.disk_bytes >> 20} MiB of its own in memory, in at most {limits.file_bytes >> 20} MiB a file",
        f"at most {limits.processes} with threads",
        f"{limits.wall_s:.0f} seconds, and {limits.cpu_s} seconds of processor time",
        f"of which {KEPT_OUTPUT_BYTES >> 10} KiB are kept",
    ):
        assert said in page


def test_the_table_names_every_task_with_its_size_and_budget(page: str) -> None:
    pytest.importorskip("math_verify", reason="needs the extra 'score'")
    pytest.importorskip("rouge_score", reason="needs the extra 'score'")
    rows = {
        name: [cell.strip() for cell in rest.split("|")]
        for name, rest in re.findall(r"^\| `([\w-]+)` \| (\d.*)\|$", page, re.MULTILINE)
    }
    assert list(rows) == task_names()
    for name in task_names():
        if name.startswith("starter"):
            task = open_task(name)
            assert rows[name][0] == str(len(task.questions()))
            assert rows[name][2] == str(task.max_new_tokens)

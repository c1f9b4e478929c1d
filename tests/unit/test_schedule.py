"""The questions of a plan's tasks; the order of Trials is tested with the runner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joulewise.errors import UserError
from joulewise.plan import Plan
from joulewise.schedule import Skipped, open_tasks

pytest.importorskip("math_verify", reason="needs the extra 'score'")


def plan(**task: object) -> Plan:
    return Plan.model_validate(
        {
            "name": "p",
            "engines": [{"kind": "transformers"}],
            "decodings": ["vanilla"],
            "tasks": [{"name": "gsm8k", **task}],
        }
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for split in ("test", "train"):
        rows = [json.dumps({"question": f"{split} {i}?", "answer": f"#### {i}"}) + "\n" for i in range(8)]
        (tmp_path / f"gsm8k_{split}.jsonl").write_text("".join(rows))
    return tmp_path


def test_a_plans_options_reach_the_task(data: Path) -> None:
    chosen = open_tasks(plan(label="more", options={"split": "train"}), data, None)
    assert {q.question_id for q in chosen["more"][1]} == {f"train-{i}" for i in range(8)}
    with pytest.raises(UserError, match=r"option 'split': .*found 'dev'"):
        open_tasks(plan(options={"split": "dev"}), data, None)


def test_a_sample_larger_than_the_task_is_refused_with_the_way_out(data: Path) -> None:
    with pytest.raises(UserError, match="task gsm8k: asks for 9 questions but there are 8; ask for fewer"):
        open_tasks(plan(questions=9), data, None)


def test_skipped_lines_are_counted_and_the_first_few_told(data: Path) -> None:
    file = data / "gsm8k_test.jsonl"
    file.write_text(file.read_text() + "{\n" * 5)
    skipped = Skipped()
    chosen = open_tasks(plan(), data, None, skipped.add)
    assert len(chosen["gsm8k"][1]) == 8
    assert len(skipped.faults["gsm8k"]) == 5
    (told,) = skipped.told()
    assert told.startswith(f"task gsm8k: 5 broken lines left out: {file}:9: not valid JSON")
    assert f"{file}:11: " in told
    assert f"{file}:12: " not in told
    assert told.endswith("; ...")
    with pytest.raises(UserError, match=r"gsm8k_test\.jsonl:9: not valid JSON.*--skip-bad"):
        open_tasks(plan(), data, None)

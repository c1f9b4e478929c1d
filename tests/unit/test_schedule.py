"""The questions of a plan's tasks; the order of Trials is tested with the runner."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.errors import UserError
from joulewise.plan import Plan
from joulewise.schedule import Skipped, in_proportion, open_tasks
from joulewise.tasks.task import Question

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


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8), seed=st.integers(0, 1000), share=st.floats(0.0, 1.0))
def test_every_beginning_holds_the_categories_in_proportion(sizes: list[int], seed: int, share: float) -> None:
    questions = [Question(f"{c}-{i}", "", "", f"{c}") for c, size in enumerate(sizes) for i in range(size)]
    found = in_proportion(questions, random.Random(seed))
    assert sorted(q.question_id for q in found) == sorted(q.question_id for q in questions)
    cut = round(share * len(found))
    counts = Counter(q.category for q in found[:cut])
    # At a cut each category has gone as far as all others, to within one question of its own.
    reached = [(counts[f"{c}"] - 1, counts[f"{c}"] + 1, size) for c, size in enumerate(sizes)]
    assert max(low / size for low, _, size in reached) <= min(high / size for _, high, size in reached) + 1e-9


def test_without_categories_the_order_is_a_plain_shuffle() -> None:
    questions = [Question(f"{i}", "", "") for i in range(20)]
    shuffled = list(questions)
    random.Random(7).shuffle(shuffled)
    assert in_proportion(questions, random.Random(7)) == shuffled


def test_within_a_category_every_question_is_as_likely() -> None:
    questions = [Question(f"{c}{i}", "", "", c) for c, size in (("a", 3), ("b", 9)) for i in range(size)]
    drawn = Counter(q.question_id for seed in range(3000) for q in in_proportion(questions, random.Random(seed))[:4])
    assert all(count / 3000 == pytest.approx(4 / 12, abs=0.04) for count in drawn.values())
    assert len(drawn) == 12


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

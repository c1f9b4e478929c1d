"""The third-party tasks over the real data in ``../shared/data``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from joulewise.tasks import open_task
from joulewise.tasks.math_answer import extract_math

pytest.importorskip("math_verify", reason="needs the extra 'score'")
pytest.importorskip("rouge_score", reason="needs the extra 'score'")


@pytest.mark.parametrize(("split", "rows", "negative", "with_commas"), [("test", 1319, 2, 14), ("train", 7473, 3, 79)])
def test_gsm8k(shared_data: Path, split: str, rows: int, negative: int, with_commas: int) -> None:
    task = open_task("gsm8k", shared_data, {"split": split})
    questions = task.questions()
    assert len({q.question_id for q in questions}) == rows
    assert sum(q.reference.startswith("-") for q in questions) == negative
    golds = [json.loads(line)["answer"] for line in (shared_data / f"gsm8k_{split}.jsonl").open(encoding="utf-8")]
    assert sum("," in gold.rpartition("####")[2] for gold in golds) == with_commas
    for question, gold in zip(questions, golds, strict=True):
        assert str(int(question.reference)) == question.reference
        assert task.score(question, gold).correct, question.question_id
        assert task.score(question, f"The answer is ${int(question.reference):,}.").correct
        assert not task.score(question, f"The answer is {int(question.reference) + 1}.").correct


def test_gsm8k_solutions_hold_no_other_marked_answer(shared_data: Path) -> None:
    """Without the ``####`` line the last number of a solution is nearly always the answer too."""
    task = open_task("gsm8k", shared_data)
    golds = [json.loads(line)["answer"] for line in (shared_data / "gsm8k_test.jsonl").open(encoding="utf-8")]
    found = sum(
        extract_math(gold.rpartition("####")[0]) == q.reference for q, gold in zip(task.questions(), golds, strict=True)
    )
    assert found >= 0.95 * len(golds)


def test_mmlu(shared_data: Path) -> None:
    task = open_task("mmlu", shared_data)
    questions = task.questions()
    assert len(questions) == len({q.question_id for q in questions}) == 14_042
    table = json.loads((shared_data / "mmlu_subjects.json").read_text())
    assert Counter(q.category for q in questions) == {subject: row["test"] for subject, row in table.items()}
    assert len(table) == 57
    assert Counter(q.reference for q in questions) == {"A": 3222, "B": 3462, "C": 3582, "D": 3776}
    assert questions[0].question_id == "abstract_algebra-test-0"
    for question in questions:
        assert task.score(question, f"{question.reference}) {question.extra['choices'][0]}").correct, (
            question.question_id
        )
        assert all(choice in question.text for choice in question.extra["choices"])


def test_cnn_dm(shared_data: Path) -> None:
    task = open_task("cnn_dm", shared_data)
    questions = task.questions()
    assert len({q.question_id for q in questions}) == 208
    assert Counter(q.category for q in questions) == {"cnn_dailymail_3.0.0_test": 128, "spec_bench": 80}
    for question in questions:
        assert task.score(question, question.reference).value == pytest.approx(1.0)
    lead = [task.score(q, " ".join(q.text.split()[:45])).value for q in questions]
    assert 0.1 < sum(lead) / len(lead) < 0.6, "the first words of an article are a fair summary, no perfect one"


def test_mmlu_splits(shared_data: Path) -> None:
    assert len(open_task("mmlu", shared_data, {"split": "val"}).questions()) == 1_531
    assert len(open_task("mmlu", shared_data, {"split": "dev"}).questions()) == 285


def test_mt_bench(shared_data: Path) -> None:
    task = open_task("mt_bench", shared_data)
    questions = task.questions()
    assert [q.question_id for q in questions] == [str(number) for number in range(81, 161)]
    assert set(Counter(q.category for q in questions).values()) == {10}
    assert len({q.category for q in questions}) == 8
    assert all(len(task.turns(q)) == 2 for q in questions)

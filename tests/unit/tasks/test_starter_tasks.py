"""The project's own questions: right, clear and as many as promised."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime, timedelta
from fractions import Fraction
from importlib.resources import files
from math import ceil
from typing import Any

import pytest

from joulewise.errors import UserError
from joulewise.tasks import GROUPS, TaskContext, open_task
from joulewise.tasks.starter import (
    open_starter_choice,
    open_starter_code,
    open_starter_maths,
    open_starter_summarisation,
)
from joulewise.tasks.task import Task

pytest.importorskip("math_verify", reason="needs the extra 'score'")
pytest.importorskip("rouge_score", reason="needs the extra 'score'")

MATHS = {
    "maths-01": 8 + 5,
    "maths-02": 46 + 37,
    "maths-03": 92 - 58,
    "maths-04": 7 * 9,
    "maths-05": Fraction(144, 12),
    "maths-06": 15 * 14,
    "maths-07": 6 + 4 * 3,
    "maths-08": (18 - 6) * (2 + 3),
    "maths-09": 5 - 12,
    "maths-10": Fraction("2.5") + Fraction("3.75"),
    "maths-11": 1250 * 8,
    "maths-12": 53 % 6,
    "maths-13": 6 + 9,
    "maths-14": 31 - 12 + 7,
    "maths-15": Fraction(120, 8),
    "maths-16": 4 * 6 + 3 * 2,
    "maths-17": ceil(100 / 14),
    "maths-18": 4 * 3 + 5 * 2,
    "maths-19": 20 - Fraction("13.60"),
    "maths-20": Fraction(42, 3) + 1,
    "maths-21": Fraction(390 - 140, 25),
    "maths-22": 250 * (7 - 4),
    "maths-23": (datetime(2000, 1, 1, 19, 40) + timedelta(minutes=95) - datetime(2000, 1, 1, 21))
    // timedelta(minutes=1),
    "maths-24": timedelta(hours=2, minutes=5) // timedelta(seconds=1),
    "maths-25": Fraction(24, 40) * 120,
    "maths-26": Fraction(210, 3),
    "maths-27": Fraction(360, 12 - 3),
    "maths-28": Fraction(450, 100) * 6,
    "maths-29": Fraction(5 * 12, 3),
    "maths-30": Fraction(3, 4) * 48,
    "maths-31": Fraction(36, 2) / 3,
    "maths-32": Fraction(300, 4) * 10,
    "maths-33": Fraction(15, 100) * 80,
    "maths-34": 120 * (1 - Fraction(25, 100)),
    "maths-35": 8000 * Fraction(110, 100) ** 2,
    "maths-36": 2 * (9 + 4),
    "maths-37": 12 * 7 - 3 * 3,
    "maths-38": 180 - 35 - 65,
    "maths-39": Fraction(35 - 9, 2),
    "maths-40": Fraction(30 + 4, 2),
    "maths-41": 3 - 2 * (17 - 12),
    "maths-42": 4 * 15 - (10 + 12 + 20),
}
"""Each answer as it follows from the question's numbers."""


def rows(stem: str) -> list[dict[str, Any]]:
    text = files("joulewise.tasks").joinpath("data", f"{stem}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


ALL = [open_starter_maths, open_starter_summarisation, open_starter_choice, open_starter_code]


@pytest.mark.parametrize("name", sorted({*GROUPS["starter"]} - {"starter-code"}))  # code: test_code_tasks.py
def test_each_task_is_large_enough_and_its_references_score_one(name: str) -> None:
    task: Task = open_task(name)
    questions = task.questions()
    assert task.name == name
    assert not task.third_party
    assert "Apache-2.0" in task.source
    assert len(questions) >= 25
    assert len({q.question_id for q in questions}) == len(questions)
    assert len({q.text for q in questions}) == len(questions)
    for question in questions:
        score = task.score(question, question.reference)
        assert score.value == pytest.approx(1.0), question.question_id
        assert score.metric == task.metric
        assert task.score(question, "").value == 0.0
        (message,) = task.turns(question)[0]
        assert message.role == "user"
        assert question.text in message.content
    assert task.questions() == questions


def test_maths_answers_are_computed() -> None:
    questions = {r["id"]: r for r in rows("starter_maths")}
    assert questions.keys() == MATHS.keys()
    for question_id, value in MATHS.items():
        assert Fraction(questions[question_id]["answer"]) == value, question_id


def test_choices_are_four_different_ones_and_letters_are_balanced() -> None:
    questions = rows("starter_choice")
    assert len(questions) >= 32
    for row in questions:
        assert len(row["choices"]) == 4, row["id"]
        assert len({c.casefold().strip() for c in row["choices"]}) == 4, row["id"]
    counts = Counter(r["answer"] for r in questions)
    assert set(counts) == set("ABCD")
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len({r["category"] for r in questions}) >= 4


def test_choice_prompts_show_every_option_and_no_answer_key() -> None:
    task = open_task("starter-choice")
    for question in task.questions():
        content = task.turns(question)[0][0].content
        assert [line[:2] for line in content.splitlines() if re.match(r"[A-Z]\)", line)] == ["A)", "B)", "C)", "D)"]
        assert all(choice in content for choice in question.extra["choices"])


def test_passages_have_the_length_promised_and_summaries_are_short() -> None:
    questions = rows("starter_summarisation")
    assert len(questions) >= 26
    for row in questions:
        assert 90 <= len(row["passage"].split()) <= 180, row["id"]
        assert len(re.findall(r"[.!?](?:\s|$)", row["summary"])) in (1, 2), row["id"]
        assert len(row["summary"].split()) <= 45, row["id"]
    assert len({r["category"] for r in questions}) >= 8


NUMBER_WORD = re.compile(
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty(-four)?|thirty|forty|hundred|thousand|half|third"
)


def test_names_and_numbers_of_a_summary_stand_in_its_passage() -> None:
    for row in rows("starter_summarisation"):
        passage = set(re.findall(r"[\w'-]+", row["passage"].lower()))
        sentences = re.split(r"(?<=[.!?])\s", row["summary"])
        names = [w for s in sentences for w in re.findall(r"[\w'-]+", s)[1:] if w[0].isupper()]
        numbers = [
            w for w in re.findall(r"[\w'-]+", row["summary"].lower()) if w[0].isdigit() or NUMBER_WORD.fullmatch(w)
        ]
        for word in names + numbers:
            assert word.lower().removesuffix("'s") in {p.removesuffix("'s") for p in passage}, (row["id"], word)


@pytest.mark.parametrize("open_starter", ALL)
def test_an_option_is_refused(open_starter: Any) -> None:
    with pytest.raises(UserError, match="unknown option 'split'; this task has no options"):
        open_starter(TaskContext(options={"split": "test"}))

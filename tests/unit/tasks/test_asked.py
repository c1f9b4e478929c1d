from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joulewise.errors import UserError
from joulewise.tasks import open_task, task_names
from joulewise.tasks.asked import answer_kind
from joulewise.tasks.task import Task

OPTIONS = "Which?\nA. one\nB. two\nC. three"


def asked(folder: Path, rows: list[Any], **options: object) -> Task:
    file = folder / "asked.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return open_task("asked", options={"file": str(file), **options})


def test_questions_are_those_of_the_file(tmp_path: Path) -> None:
    task = asked(tmp_path, [{"query": "Where?", "reference": "Paris", "domain": "places"}, {"query": "x", "id": 7}])
    first, second = task.questions()
    assert (first.question_id, first.text, first.category) == ("row-0", "Where?", "places")
    assert (second.question_id, second.reference) == ("7", "")
    assert task.turns(first)[0][0].content == "Where?"
    steps = task.asked(first).stepwise
    assert steps is not None
    assert "step by step" in steps[0].content
    assert "asked" not in task_names()


@pytest.mark.parametrize(
    ("text", "correct"),
    [("It is Paris.", True), ("paris", True), ("Parisian", False), ("In New\nYork", False), ("", False)],
)
def test_a_text_is_right_where_the_reference_stands_in_it(tmp_path: Path, text: str, correct: bool) -> None:
    task = asked(tmp_path, [{"query": "Where?", "reference": "Paris"}])
    assert task.score(task.questions()[0], text).correct is correct


def test_words_apart_are_the_same_words(tmp_path: Path) -> None:
    task = asked(tmp_path, [{"query": "Where?", "reference": "New  York"}])
    assert task.score(task.questions()[0], "In New\nYork.").correct is True


def test_without_a_reference_there_is_no_score(tmp_path: Path) -> None:
    task = asked(tmp_path, [{"query": "How many?"}], answer="number")
    score = task.score(task.questions()[0], "The answer is 7.")
    assert (score.value, score.correct, score.extracted, score.metric) == (None, None, "7", "unscored")


@pytest.mark.parametrize(
    ("query", "reference", "kind"),
    [
        (OPTIONS, None, "letter"),
        (OPTIONS, "7", "letter"),
        ("How many?", "7", "number"),
        ("How many?", "1,000.5", "number"),
        ("How many?", None, "text"),
        ("Who?", "7 dwarfs", "text"),
        ("A. is the first letter", None, "text"),
        ("A. one\nA. two\nB. three", None, "text"),
    ],
)
def test_how_a_question_is_asked(query: str, reference: str | None, kind: str) -> None:
    assert answer_kind(query, reference) == kind


@pytest.mark.parametrize(
    ("row", "options", "told"),
    [
        ({"query": " "}, {}, "no text under 'query'"),
        ({"question": "x"}, {}, "no text under 'query'"),
        ({"query": "x", "reference": "Z"}, {"answer": "letter"}, "is not one of the letters"),
        ({"query": "x"}, {"answer": "poem"}, "option 'answer'"),
        ({"query": "x"}, {"max_new_tokens": 0}, "option 'max_new_tokens'"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, row: Any, options: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        asked(tmp_path, [row], **options)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file"):
        open_task("asked", options={"file": str(tmp_path / "none.jsonl")})

"""The tasks whose answers are run: ``starter-code``, ``humaneval`` and custom ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from joulewise.errors import EnvironmentFault, UserError
from joulewise.tasks import humaneval, open_task, sandbox
from joulewise.tasks.rows import HubDataset, Rows
from joulewise.tasks.task import Question, Score, Task
from load_benchmark import load_benchmark

OTHER_RESULT = load_benchmark("hostile").OTHER_RESULT

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def one():\n    """Return one."""\n',
    "entry_point": "one",
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
}


def score_all(task: Task, answers: list[str]) -> list[Score]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(task.score, task.questions(), answers))


def test_starter_code_right_solutions_pass_and_wrong_ones_fail(repository: Path) -> None:
    task = open_task("starter-code")
    lines = (repository / "tests" / "data" / "starter_code_solutions.jsonl").read_text(encoding="utf-8").splitlines()
    solutions = {row["id"]: row for row in map(json.loads, lines)}
    questions = task.questions()
    assert len(questions) >= 24
    assert [q.question_id for q in questions] == list(solutions)
    assert len({q.extra["entry_point"] for q in questions}) == len(questions)
    assert (task.third_party, task.metric) == (False, "tests_passed")
    assert "Apache-2.0" in task.source
    for kind, passed in (("right", True), ("wrong", False)):
        scores = score_all(task, [solutions[q.question_id][kind] for q in questions])
        assert [s.correct for s in scores] == [passed] * len(questions), kind
        assert {s.note for s in scores} == ({None} if passed else {"AssertionError"})
    whole = [q.text + solutions[q.question_id]["right"] for q in questions]
    assert all(s.correct for s in score_all(task, [f"```python\n{code}```" for code in whole]))
    assert not any(s.correct for s in score_all(task, [q.text for q in questions])), "a stub alone is no answer"
    for question in questions:
        (message,) = task.turns(question)[0]
        assert question.text in message.content
        assert question.reference not in message.content


def test_humaneval_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "humaneval.jsonl").write_text(json.dumps(HUMANEVAL) + "\n")
    task = open_task("humaneval", tmp_path)
    (question,) = task.questions()
    assert (task.name, task.third_party, task.metric) == ("humaneval", True, "tests_passed")
    assert question.question_id == "HumanEval/0"
    assert task.score(question, "    return 1").correct
    assert task.score(question, "    return 2").note == "AssertionError"
    assert task.score(question, "").note == "no code"


def test_humaneval_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def find_rows(context: object, task: str, file_name: str, hub: HubDataset) -> Rows:
        asked.append((task, file_name, str(hub)))
        return [("row 0", HUMANEVAL)]

    monkeypatch.setattr(humaneval, "find_rows", find_rows)
    assert [q.question_id for q in open_task("humaneval").questions()] == ["HumanEval/0"]
    assert asked == [("humaneval", "humaneval.jsonl", "openai/openai_humaneval (openai_humaneval, test)")]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"test": "def check(:"}, "the field 'test' is not valid Python"),
        ({"entry_point": 3}, "the field 'entry_point'"),
    ],
)
def test_humaneval_with_a_broken_row(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    rows = [HUMANEVAL, {**HUMANEVAL, **change}]
    (tmp_path / "humaneval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=rf"humaneval\.jsonl:2: {fault}"):
        open_task("humaneval", tmp_path)
    skipped: list[str] = []
    assert len(open_task("humaneval", tmp_path, skip_bad=skipped.append).questions()) == 1
    assert len(skipped) == 1


def test_humaneval_right_solutions_pass_and_wrong_ones_fail(shared_data: Path) -> None:
    task = open_task("humaneval", shared_data)
    rows = [json.loads(line) for line in (shared_data / "humaneval.jsonl").open(encoding="utf-8")]
    assert [q.question_id for q in task.questions()] == [f"HumanEval/{i}" for i in range(164)]
    scores = score_all(task, [row["canonical_solution"] for row in rows])
    assert [s.note for s in scores if not s.correct] == []
    wrong = [
        f"{row['prompt']}{row['canonical_solution']}{OTHER_RESULT.format(name=row['entry_point'])}" for row in rows
    ]
    scores = score_all(task, wrong)
    assert [(q.question_id, s) for q, s in zip(task.questions(), scores, strict=True) if s.correct] == []


@pytest.fixture
def no_sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that lacks what the sandbox needs."""
    monkeypatch.setattr(sandbox, "_WAY_OUT", "get a better machine")
    monkeypatch.setattr(sandbox.sys, "executable", "/nowhere/python")
    sandbox.unavailable.cache_clear()
    yield
    sandbox.unavailable.cache_clear()


@pytest.mark.usefixtures("no_sandbox")
def test_without_a_sandbox_the_tasks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "humaneval.jsonl").write_text(json.dumps(HUMANEVAL) + "\n")
    with pytest.raises(EnvironmentFault, match=r"task humaneval: .*cannot be started: .*/nowhere/python"):
        open_task("humaneval", tmp_path)
    with pytest.raises(
        EnvironmentFault, match=r"To leave it out, write .*starter-maths, starter-summarisation, starter-"
    ):
        open_task("starter-code")
    custom(tmp_path, "assert x == 3")
    with pytest.raises(EnvironmentFault, match=r"task three: .*cannot be started"):
        open_task(str(tmp_path / "task.yaml"))
    assert open_task("starter-choice").questions(), "the others do without"


def custom(folder: Path, tests: str) -> None:
    (folder / "questions.jsonl").write_text(json.dumps({"what": "x", "tests": tests}) + "\n")
    (folder / "task.yaml").write_text(
        "name: three\nquestions: questions.jsonl\nprompt: 'Write Python that sets {what} to three.'\n"
        "reference: tests\nscorer: code\nmax_new_tokens: 32\n"
    )


def test_a_custom_task_with_code(tmp_path: Path) -> None:
    custom(tmp_path, "assert x == 3")
    task = open_task(str(tmp_path / "task.yaml"))
    question: Question = task.questions()[0]
    assert task.score(question, "```python\nx = 3\n```").correct
    assert task.score(question, "x = 2").note == "AssertionError"
    custom(tmp_path, "assert x ==")
    with pytest.raises(UserError, match=r"questions\.jsonl:1: the field 'tests' is not valid Python"):
        open_task(str(tmp_path / "task.yaml"))

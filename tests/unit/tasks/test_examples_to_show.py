"""Examples that are shown before a question: a task's own, answered as its prompt asks, and never what is asked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from test_custom_task import ROWS, YAML, write

from joulewise.errors import UserError
from joulewise.tasks import open_task

PERU = {"country": "Peru", "capital": "Lima", "code": 51, "area": "America"}


@pytest.mark.parametrize("name", ["starter-maths", "starter-choice"])
def test_starter_examples_are_right_and_are_not_asked(name: str) -> None:
    task = open_task(name)
    asked = {task.turns(question)[0][0].content for question in task.questions()}
    shown = task.asked(task.questions()[0]).examples()
    assert len({user.content for user, _ in shown}) == 5
    assert not {user.content for user, _ in shown} & asked
    for user, answer in shown:
        assert (user.role, answer.role) == ("user", "assistant")
        assert user.content.splitlines()[-1] == task.turns(task.questions()[0])[0][0].content.splitlines()[-1]


def test_starter_maths_examples_end_in_the_answer_they_have(repository: Path) -> None:
    rows = (repository / "src/joulewise/tasks/data/starter_maths_examples.jsonl").read_text().splitlines()
    for row in map(json.loads, rows):
        assert row["shown"].endswith(f"The answer is {row['answer']}.")


@pytest.mark.parametrize("name", ["starter-summarisation", "starter-code"])
def test_a_task_may_have_none(name: str) -> None:
    task = open_task(name)
    assert task.asked(task.questions()[0]).examples() == ()


def write_gsm8k(folder: Path, train: list[str]) -> None:
    test = {"question": "Two and two?", "answer": "It is <<2+2=4>>4.\n#### 4"}
    (folder / "gsm8k_test.jsonl").write_text(json.dumps(test))
    (folder / "gsm8k_train.jsonl").write_text("\n".join(train))


def test_gsm8k_shows_worked_solutions_of_the_train_split(tmp_path: Path) -> None:
    row = {"question": "A half of 2,000?", "answer": "2000/2=<<2000/2=1000>>1000\n#### 1,000"}
    write_gsm8k(tmp_path, [json.dumps(row), json.dumps(row | {"question": "Again?"})])
    task = open_task("gsm8k", tmp_path)
    first, second = task.asked(task.questions()[0]).examples()
    assert first[0].content.startswith("A half of 2,000?\n\nSolve it")
    assert first[1].content == "2000/2=1000\nThe answer is 1,000."
    assert second[0].content.startswith("Again?")
    train = open_task("gsm8k", tmp_path, {"split": "train"})
    assert train.asked(train.questions()[0]).examples() == ()


@pytest.mark.parametrize(
    ("train", "words"),
    [("{}", "field 'question' is missing"), ("x", "not valid JSON"), ('{"question": "1?", "answer": "1"}', "'#### '")],
)
def test_a_broken_line_of_the_train_split_is_told_when_it_is_shown(tmp_path: Path, train: str, words: str) -> None:
    write_gsm8k(tmp_path, [train])
    task = open_task("gsm8k", tmp_path)
    with pytest.raises(UserError, match=f"gsm8k_train.jsonl:1: .*{words}"):
        task.asked(task.questions()[0]).examples()


def test_without_the_train_split_the_test_split_is_asked_all_the_same(tmp_path: Path) -> None:
    write_gsm8k(tmp_path, [])
    (tmp_path / "gsm8k_train.jsonl").unlink()
    task = open_task("gsm8k", tmp_path)
    with pytest.raises(UserError, match=r"no file gsm8k_train\.jsonl"):
        task.asked(task.questions()[0]).examples()


def mmlu(split: str, subject: str, index: int, answer: str = "B") -> dict[str, Any]:
    question = f"{split} {subject} {index}?"
    return {"split": split, "subject": subject, "index": index, "question": question, "choices": list("wxyz"),
            "answer": answer}  # fmt: skip


def test_mmlu_shows_the_dev_questions_of_the_subject(tmp_path: Path) -> None:
    rows = [mmlu("test", "law", 0), mmlu("dev", "law", 0), mmlu("dev", "art", 0), mmlu("dev", "law", 1, "D")]
    with gzip.open(tmp_path / "mmlu.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    task = open_task("mmlu", tmp_path)
    shown = task.asked(task.questions()[0]).examples()
    assert [(user.content.splitlines()[0], answer.content) for user, answer in shown] == [
        ("Question: dev law 0?", "B"),
        ("Question: dev law 1?", "D"),
    ]
    dev = open_task("mmlu", tmp_path, {"split": "dev"})
    assert dev.asked(dev.questions()[0]).examples() == ()


def test_the_real_data_have_examples_for_every_subject(shared_data: Path) -> None:
    task = open_task("mmlu", shared_data)
    by_subject = {question.category: question for question in task.questions()}
    assert {len(task.asked(question).examples()) for question in by_subject.values()} == {5}
    gsm8k = open_task("gsm8k", shared_data)
    shown = gsm8k.asked(gsm8k.questions()[0]).examples()
    assert len(shown) == 32
    assert all("<<" not in answer.content for _, answer in shown)
    assert not {user.content for user, _ in shown} & {gsm8k.turns(q)[0][0].content for q in gsm8k.questions()}


def test_one_s_own_examples(tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text(json.dumps(PERU))
    task = open_task(write(tmp_path, YAML + "examples: more.jsonl\n"))
    ((user, answer),) = task.asked(task.questions()[0]).examples()
    assert (user.content, answer.content) == ("What is the capital of Peru? Name the city only.", "Lima")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROWS[1], "is question 'row-1', which is asked"),
        ({"country": "Peru"}, "no line of .*more.jsonl has the field 'capital'"),
    ],
)
def test_wrong_examples_are_refused(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    (tmp_path / "more.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match=words):
        open_task(write(tmp_path, YAML + "examples: more.jsonl\n"))


def test_a_missing_file_of_examples_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"capitals\.yaml:7: examples: no file .*more\.jsonl"):
        open_task(write(tmp_path, YAML + "examples: more.jsonl\n"))


def test_tests_are_no_answers_to_be_shown(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="examples: the reference of the scorer 'code' is no answer"):
        open_task(write(tmp_path, YAML.replace("exact", "code") + "examples: more.jsonl\n"))


def test_without_a_dev_split_mmlu_shows_questions_by_joulewise_and_says_so(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "mmlu.jsonl.gz", "wt") as file:
        file.write(json.dumps(mmlu("test", "law", 0)))
    task = open_task("mmlu", tmp_path)
    shown = task.asked(task.questions()[0]).examples()
    starter = open_task("starter-choice")
    assert shown == starter.asked(starter.questions()[0]).examples()
    assert len(shown) == 5
    assert "test law 0" not in str(shown)
    assert "examples to show are Joulewise's own" in task.source

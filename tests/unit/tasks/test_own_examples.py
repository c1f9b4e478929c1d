"""How many of a question's own examples an answer gets right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joulewise.tasks import open_task
from joulewise.tasks.own_examples import rate_by_examples, shown_examples
from joulewise.tasks.task import Question

TEXT = '''def total(numbers):
    """Add numbers, é or not.

    >>> total([1, 2])
    3
    >>> total([])
    0
    >>> total("é")
    Traceback (most recent call last):
    TypeError: ...
    """
'''
QUESTION = Question("q", TEXT, "assert False, 'the tests take no part'", extra={"entry_point": "total"})


def test_the_examples_that_can_be_compared() -> None:
    assert shown_examples(TEXT) == [("total([1, 2])\n", "3\n"), ("total([])\n", "0\n")]
    assert shown_examples("def f(): ...") == []
    assert shown_examples(">>> f()\n1\n") == []  # no Python
    assert shown_examples('def f():\n    """\n    >>> f()\n  1\n    """\n') == []  # its lines are not indented alike
    last = 'import math\ndef f(n):\n    """What it does.\n    >>> f(2) == 4\n    >>> f(2) 4\n    >>> f(3)\n    """\n'
    assert shown_examples(last) == [("f(2) == 4\n", "True\n")]
    assert shown_examples('def f():\n    """\n    >>> f()\n    1\n    """\n') == [("f()\n", "1\n")]


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("    return sum(numbers)", 1.0),
        ("```python\ndef total(numbers):\n    return sum(numbers)\n```", 1.0),
        ("    return 3", 0.5),
        ("    return None", 0.0),
        ("    raise ValueError(numbers)", 0.0),
        ("    return 3 +", 0.0),  # no Python
        ("", 0.0),
        ("    print('3'); return", 0.5),
        ("    raise SystemExit", 0.0),
        ("    print('\\n' * 9, 2)\n    return sum(numbers)", 0.0),
    ],
)
def test_what_an_answer_is_worth_by_them(answer: str, worth: float) -> None:
    assert rate_by_examples(QUESTION, answer) == worth


@pytest.mark.parametrize(
    ("want", "answer", "worth"),
    [
        ('"21"', "    return '21'", 1.0),
        ("'21'", "    return 21", 0.0),
        ("[1,2]", "    return [1, 2]", 1.0),
        ("[1, 2]", "    return (1, 2)", 0.0),
        ("{'b': 1, 'a': 2}", "    return {'a': 2, 'b': 1}", 1.0),
        ("2.50", "    return 2.5", 1.0),
        ("é", "    print('é')", 1.0),
    ],
)
def test_equal_values_may_be_written_otherwise(want: str, answer: str, worth: float) -> None:
    text = f'def f():\n    """It shows:\n    >>> f()\n    {want}\n    """\n'
    assert rate_by_examples(Question("q", text, "f()", extra={"entry_point": "f"}), answer) == worth


def test_humaneval_s_own_solutions_get_its_examples_right(repository: Path) -> None:
    data = repository.parent / "shared" / "data"
    if not (data / "humaneval.jsonl").is_file():
        pytest.skip("the data sets of ../shared/data are not here")
    lines = (data / "humaneval.jsonl").read_text(encoding="utf-8").splitlines()
    solutions = {row["task_id"]: row["canonical_solution"] for row in map(json.loads, lines)}
    questions = open_task("humaneval", data).questions()
    showing = [question for question in questions if shown_examples(question.text)]
    assert (len(questions), len(showing)) == (164, 75)
    contradicted = {"HumanEval/47", "HumanEval/116"}  # by the published solutions themselves
    asked = [q for i, q in enumerate(showing) if i % 9 == 0 or q.question_id in contradicted]
    rated = {q.question_id: rate_by_examples(q, solutions[q.question_id]) for q in asked}
    assert {question for question, worth in rated.items() if worth != 1.0} == contradicted


def test_a_question_without_examples_rates_nothing() -> None:
    assert rate_by_examples(Question("q", "def f():\n    ...", "f()", extra={"entry_point": "f"}), "    return") is None


def test_tasks_of_code_bring_them_along(tmp_path: Path) -> None:
    row = {"task_id": "HumanEval/0", "prompt": TEXT, "entry_point": "total", "test": "def check(candidate):\n    1 / 0"}
    (tmp_path / "humaneval.jsonl").write_text(json.dumps(row) + "\n")
    task = open_task("humaneval", tmp_path)
    asked = task.asked(task.questions()[0])
    assert asked.by_examples is not None
    assert asked.oracle is not None
    assert (asked.by_examples("    return sum(numbers)"), asked.oracle("    return sum(numbers)")) == (1.0, 0.0)
    maths = open_task("starter-maths")
    question = maths.questions()[0]
    assert maths.asked(question).by_examples is None
    oracle = maths.asked(question).oracle
    assert oracle is not None
    assert (oracle(question.reference), oracle("none")) == (1.0, 0.0)

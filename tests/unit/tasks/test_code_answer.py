"""Code found in a model's text, and scored by its tests."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.tasks import code_answer
from joulewise.tasks.code_answer import defines, extract_code, fault_of_tests, score_code
from joulewise.tasks.sandbox import Limits, run_python
from joulewise.tasks.task import Question, Score

STUB = 'from math import floor\n\ndef half(n):\n    """Return half of n, rounded down."""\n'
QUESTION = Question("q", STUB, "assert half(5) == 2\nassert half(-1) == -1\n", None, {"entry_point": "half"})
WHOLE = "def half(n):\n    return floor(n / 2)"
BODY = "    return floor(n / 2)"

RIGHT = {
    "a whole function": WHOLE,
    "a body": BODY,
    "a body at the margin": "return floor(n / 2)",
    "a body of several lines at the margin": "if n < 0:\n    return floor(n / 2)\nreturn n // 2",
    "a body, then prose": f"\n{BODY}\n\nThis rounds down.\n",
    "a body, then example calls": f"{BODY}\n\nassert half(5) == 3\nprint(half(input()))",
    "a fenced function": f"Here you are:\n\n```python\n{WHOLE}\n```\nIt rounds down.",
    "a fenced function without a language": f"```\n{WHOLE}\n```",
    "tildes": f"~~~py\n{WHOLE}\n~~~",
    "a fenced body": f"```python\n{BODY}\n```",
    "an indented fence": "1. So:\n\n   ```python\n   def half(n):\n       return n // 2\n   ```\n",
    "a fence that is not closed": f"```python\n{WHOLE}",
    "a fence that was never opened": f"{WHOLE}\n```\n",
    "the function before a block": f"{WHOLE}\n\nFor instance:\n```python\nhalf(3)\n```\n",
    "a torn fence": f"```python\n{WHOLE}\n`",
    "the function not in the first block": f"```\npip install it\n```\n\n```python\n{WHOLE}\n```\n```\nhalf(3)\n```",
    "a better second attempt": f"```python\ndef half(n):\n    return 0\n```\nNo:\n```python\n{WHOLE}\n```",
    "helpers and imports": "import math\nK = 2\ndef f(x):\n    return math.floor(x)\ndef half(n):\n    return f(n / K)",
    "helpers below": "def half(n):\n    return f(n / K)\n\nK: int = 2\n\ndef f(x):\n    return floor(x)\nThat is it.",
    "failing examples after the function": f"{WHOLE}\n\nassert half(5) == 3\nprint(half(7))",
    "a future import": f"from __future__ import annotations\n{WHOLE}",
    "a decorator": f"import functools\n@functools.cache\n{WHOLE}",
    "the stub again": STUB + BODY,
    "a script below": f"{WHOLE}\n\nif __name__ == '__main__':\n    half(input())",
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_code_is_found(name: str) -> None:
    score = score_code(QUESTION, RIGHT[name])
    assert score == Score(1.0, True, score.extracted, "tests_passed", None)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("", "no code"),
        (" \n\t\n", "no code"),
        ("```python\n```", "no code"),
        ("I cannot do that.", "SyntaxError"),
        ("def half(n):\n    return n / 2", "AssertionError"),
        ("def halve(n):\n    return n // 2", "AssertionError"),
        ("```python\nclass Solution:\n    def half(self, n):\n        return n // 2\n```", "AssertionError"),
        ("def half(n):\n    return", "AssertionError"),
        ("def half(n):\n    return bytearray(10 ** 10)", "out of memory"),
        ("def half(n):\n    raise SystemExit(0)", "SystemExit"),
        ("import os\nos._exit(0)\ndef half(n): pass", "ended early"),
        ("def half(n):\n    '''", "SyntaxError"),
        ("def half(n):\n    return \ud800", "UnicodeEncodeError"),
        ("    print('x' * 10 ** 7)", "too much output"),
    ],
)
def test_wrong_code_says_how_it_failed(text: str, note: str) -> None:
    score = score_code(QUESTION, text)
    assert (score.value, score.correct, score.metric, score.note) == (0.0, False, "tests_passed", note)
    assert (score.extracted is None) == (note == "no code")


def test_an_endless_answer_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_answer, "run_python", partial(run_python, limits=Limits(wall_s=0.5)))
    assert score_code(QUESTION, "def half(n):\n    while True: pass").note == "timed out"


def test_without_an_entry_point_the_first_block_or_the_text_is_run() -> None:
    question = Question("q", "Make x three.", "assert x == 3")
    assert score_code(question, "x = 3").correct
    assert score_code(question, "So:\n```python\nx = 3\n```\nor\n```python\nx = 4\n```").correct
    assert score_code(question, "x = 4").note == "AssertionError"
    assert score_code(question, "").note == "no code"


def test_the_extracted_code_is_what_is_kept() -> None:
    assert extract_code(f"So:\n```python\n{WHOLE}\n\nprint(half(3))\n```", "half") == WHOLE + "\n"
    assert extract_code("return 1\n", "half") == "    return 1"
    assert extract_code("```\nx = 1\n\n```") == "x = 1"


@given(st.text(alphabet="`~def half(n):\n\t retun\\'\"#@=[]é", max_size=200), st.sampled_from([None, "half"]))
@settings(deadline=None)
def test_no_text_keeps_code_from_being_looked_for(text: str, entry_point: str | None) -> None:
    code = extract_code(text, entry_point)
    assert code is None or code.strip()
    if entry_point and code and defines(code, entry_point):
        assert extract_code(code, entry_point) == code.rstrip(), "what was found is found again"


@pytest.mark.parametrize(
    ("tests", "fault"),
    [("", "holds no test"), ("# none", "holds no test"), ("assert (", "not valid Python"), ("\0", "not valid Python")],
)
def test_tests_that_cannot_be_run(tests: str, fault: str) -> None:
    assert fault in str(fault_of_tests(tests))
    assert fault_of_tests("assert half(2) == 1") is None

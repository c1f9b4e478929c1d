"""The answer that a text with steps states: nothing is guessed from the steps."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_custom_task import YAML, write

from joulewise.errors import UserError
from joulewise.tasks import open_task
from joulewise.tasks.math_answer import extract_math, stated_math
from joulewise.tasks.scorers import SCORERS, extract_letter, same_value, stated_exact, stated_letter


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 and 4 make 7. The answer is 7 apples.", "7"),
        ("So \\boxed{-2}, as I said.", "-2"),
        ("The answer is 3. No: the answer is 4.", "4"),
        ("Answer: 1/3", "1/3"),
        ("The answer is 2x + 1", "2x + 1"),
        ("The answer is x", "x"),
        ("3 and 4 make 7", None),
        ("First 3 apples, then 4, and so", None),
        ("The answer is unclear", None),
        ("答案 7", None),
        ("", None),
    ],
)
def test_math(text: str, number: str | None) -> None:
    assert extract_math(stated_math(text)) == number


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("A) is hot. The answer is B.", "B"),
        ("The answer is b) blood", "B"),
        ("B", "B"),
        ("A) Mercury is the first. B) Venus is", None),
        ("b) Paris", None),
        ("The answer is Paris", None),
        ("The answer is DNA", None),
        ("The answer is A or B", None),
        ("", None),
    ],
)
def test_letter(text: str, letter: str | None) -> None:
    assert extract_letter(stated_letter(text)) == letter


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("Steps.\nThe answer is Ōsaka.\nDone", "Ōsaka"),
        ("answer: a; the answer is: b", "b"),
        ("The answers are many", ""),
        ("Tokyo", ""),
    ],
)
def test_exact(text: str, rest: str) -> None:
    assert stated_exact(text) == rest


@example("\\BOXED{. /}")
@given(st.text() | st.from_regex(r"(The answer is |Answer: |\\boxed\{)[-+]?[0-9A-Dx/., ]{1,12}\}?"))
def test_what_is_stated_is_stated_for_good(text: str) -> None:
    for name in ("math", "letter"):
        stated = SCORERS[name].stated
        assert stated is not None
        once = stated(text)
        assert stated(once) == once


@given(st.fractions(max_denominator=60), st.fractions(max_denominator=60), st.integers(1, 9), st.integers(1, 9))
def test_numbers_that_samples_give_are_equal_in_value_without_math_verify(
    one: Fraction, other: Fraction, by: int, then: int
) -> None:
    texts = [f"{x.numerator * n}/{x.denominator * n}" for x, n in ((one, by), (other, then))]
    found = [extract_math(f"The answer is {text}.") for text in texts]
    assert found[0] is not None
    assert found[1] is not None
    with patch("joulewise.tasks.scorers.equal_in_value", side_effect=AssertionError):
        assert same_value(found[0], found[1]) == (one == other)


def test_a_task_s_own_prompt_for_steps(tmp_path: Path) -> None:
    more = 'cot_prompt: "{country}? Think, and end with: The answer is, and the city."\n'
    task = open_task(write(tmp_path, YAML + more))
    asked = task.asked(task.questions()[1])
    assert asked.stepwise is not None
    assert asked.stepwise[0].content.startswith("Japan? Think")
    assert asked.stated("Hm. The answer is Tokyo.") == "Tokyo"


def test_a_task_without_one_has_no_steps(tmp_path: Path) -> None:
    task = open_task(write(tmp_path))
    assert task.asked(task.questions()[0]).stepwise is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("cot_prompt: '{capital}, step by step'\n", "it shows {capital}, which is the right answer"),
        ("cot_prompt: step by step\n", "no {field} placeholder"),
        ("cot_prompt: '{land}, step by step'\n", "cot_prompt: no line of"),
    ],
)
def test_a_wrong_prompt_for_steps_is_refused(tmp_path: Path, more: str, words: str) -> None:
    with pytest.raises(UserError, match=words.replace("{", r"\{")):
        open_task(write(tmp_path, YAML + more))


def test_a_prompt_for_steps_needs_an_answer_that_can_be_found(tmp_path: Path) -> None:
    text = YAML.replace("exact", "rouge") + "cot_prompt: '{country}, step by step'\n"
    with pytest.raises(UserError, match="the scorer 'rouge' cannot tell an answer from the steps"):
        open_task(write(tmp_path, text))


@pytest.mark.parametrize("name", ["starter-maths", "starter-choice"])
def test_starter_tasks_ask_for_steps_in_the_paper_s_words(name: str) -> None:
    task = open_task(name)
    for question in task.questions():
        asked = task.asked(question)
        assert asked.turns == task.turns(question)
        assert asked.stepwise is not None
        content = asked.stepwise[0].content
        assert question.text in content
        assert "Let's think step by step." in content
        assert "only" not in content.removeprefix(question.text).rpartition("\n\n")[2]
        assert task.score(question, asked.stated(f"Steps. The answer is {question.reference}.")).correct


def test_open_answers_have_no_steps() -> None:
    task = open_task("starter-summarisation")
    assert task.asked(task.questions()[0]).stepwise is None

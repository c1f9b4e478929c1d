"""Two right answers, answers outside ASCII, answers inside other words: in task files and in what models write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.errors import UserError
from joulewise.tasks import open_task
from joulewise.tasks.math_answer import extract_math
from joulewise.tasks.scorers import SCORERS, extract_letter, score_exact, score_letter, score_math
from joulewise.tasks.scripts import apart

pytest.importorskip("math_verify", reason="needs the extra 'score'")


def write(folder: Path, scorer: str, *rows: tuple[str, object]) -> str:
    lines = [json.dumps({"asked": asked, "right": right}, ensure_ascii=False) + "\n" for asked, right in rows]
    (folder / "task.jsonl").write_text("".join(lines), encoding="utf-8")
    text = "name: mine\nquestions: task.jsonl\nprompt: '{asked}'\nreference: right\nmax_new_tokens: 8\n"
    (folder / "mine.yaml").write_text(f"{text}scorer: {scorer}\n")
    return str(folder / "mine.yaml")


@pytest.mark.parametrize(
    ("scorer", "right", "message"),
    [
        ("letter", "A, B", "not one of the letters"),
        ("letter", "AB", "not one of the letters"),
        ("letter", ["A", "B"], "must be text or a number, found list"),
        ("math", "4 or 5", "names several numbers"),
        ("math", "x=4 or x=5", "names several numbers"),
        ("math", "4; 5", "names several numbers"),
        ("math", "12 apples in 3 bags", "names several numbers"),
        ("math", [4, 5], "found list"),
        ("exact", ["Paris", "Lyon"], "found list"),
    ],
)
def test_a_question_with_two_right_answers_is_told(tmp_path: Path, scorer: str, right: object, message: str) -> None:
    path = write(tmp_path, scorer, ("One?", "A" if scorer == "letter" else "1"), ("Two?", right))
    with pytest.raises(UserError, match=rf"task\.jsonl:2: the field 'right' .*{message}.*--skip-bad"):
        open_task(path)
    told: list[str] = []
    assert len(open_task(path, skip_bad=told.append).questions()) == 1
    assert len(told) == 1


def test_a_reference_may_be_an_expression_of_several_numbers() -> None:
    for reference in ("4/5", "2x + 1", "(4, 5)", "3 + 4 = 7", "12 apples", "1,200"):
        assert SCORERS["math"].fault(reference) is None, reference


def test_one_question_in_two_lines_with_two_answers_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, "exact", ("Where?", "Oslo"), ("Who?", "I"), ("Where?", "Rome"))
    with pytest.raises(UserError, match=r"task\.jsonl:3: asks what .*task\.jsonl:1 asks and has another right answer"):
        open_task(path)
    same = write(tmp_path, "exact", ("Where?", "Oslo"), ("Where?", "Oslo"))
    assert len(open_task(same).questions()) == 2


def test_summaries_may_have_several_references(tmp_path: Path) -> None:
    pytest.importorskip("rouge_score", reason="needs the extra 'score'")
    assert len(open_task(write(tmp_path, "rouge", ("Long.", "Short."), ("Long.", "Brief."))).questions()) == 2


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("答案是B", "B"),
        ("選Ｂ。", "B"),
        ("정답은 B입니다", "B"),
        ("答えはBです", "B"),
        ("คำตอบคือ B", "B"),
        ("Ⓑ", "B"),
        ("Ответ: B", "B"),
        ("Ответ: В", None),  # the letter is Cyrillic
        ("Ответ: АБ", None),
        ("答案是BC", None),
        ("B\u0308", None),  # another letter than B
        ("ÆB", None),
    ],
)
def test_letters_among_other_scripts(text: str, letter: str | None) -> None:
    assert extract_letter(text) == letter
    assert score_letter("B", text).correct is (letter == "B")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("答案是12", "12"),
        ("正解は１２です", "12"),
        ("12個", "12"),
        ("الجواب ١٢", "12"),
        ("١٢", "12"),
        ("คำตอบคือ๑๒", None),
        ("B2B公司", None),
    ],
)
def test_numbers_among_other_scripts(text: str, number: str | None) -> None:
    assert extract_math(text) == number
    assert score_math("12", text).correct is (number == "12")


@pytest.mark.parametrize("answer", ["Straße", "東京", "Ελλάδα", "naïve", "Ñandú", "🙂", "ﷺ"])
def test_references_outside_ascii(tmp_path: Path, answer: str) -> None:
    task = open_task(write(tmp_path, "exact", ("What?", answer)))
    question = task.questions()[0]
    assert question.reference == answer
    assert task.score(question, f" {answer}\n").correct
    assert not task.score(question, f"{answer}n").correct
    assert score_exact(answer, "").extracted is None


@given(st.sampled_from("ABCD"), st.text("abcdxyzäèЖßñ", min_size=1), st.booleans())
def test_no_letter_and_no_digit_is_taken_from_inside_a_word(letter: str, rest: str, first: bool) -> None:
    word = letter + rest if first else rest + letter
    assert extract_letter(f"It is {word} there") is None
    assert extract_math(f"It is {rest}7{rest} there") is None


@given(st.text("abcABC 0123.,!äЖ\n"))
def test_texts_with_spaces_between_words_stay_as_they_are(text: str) -> None:
    assert apart(text) == text

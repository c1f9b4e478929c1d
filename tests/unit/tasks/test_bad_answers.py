"""Answers in other scripts, and answers that stand inside other words: found as they should be, or not at all."""

from __future__ import annotations

import unicodedata

import pytest

from joulewise.engines.engine import Generation, Request
from joulewise.reasoning import Asked, Vote
from joulewise.tasks.math_answer import extract_math, stated_math
from joulewise.tasks.scorers import SCORERS, extract_exact, extract_letter, stated_exact, stated_letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is Ｂ", "B"),  # full width
        ("答えは Ⓒ です", "C"),
        ("**B** — la réponse", "B"),
        ("The answer is Ä", None),
        ("The answer is A\u0308", None),  # the same letter in two characters
        ("The answer is В", None),  # Cyrillic
        ("The answer is DNA", None),
        ("The answer is Because", None),
        ("BCD", None),
        ("C++ and B-side", None),
        ("vitamin B12", None),
        ("unanswer: B", "B"),  # the first capital that stands alone, by the last rule
    ],
)
def test_letters(text: str, letter: str | None) -> None:
    assert extract_letter(text) == letter


@pytest.mark.parametrize("text", ["The answer is DNA", "The answer is Ä", "unanswer: B and so", "answers: B12"])
def test_a_letter_inside_a_word_is_not_stated(text: str) -> None:
    assert stated_letter(text) == ""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is ٧", "7"),
        ("The answer is ７", "7"),
        ("Résultat : la answer is 7 €", "7"),
        ("The answer is −3", "-3"),
        ("H2O and CO2", None),
        ("see x86 and mp3", None),
        ("ｘ２", None),
    ],
)
def test_numbers(text: str, number: str | None) -> None:
    assert extract_math(text) == number


@pytest.mark.parametrize("text", ["unanswered is 3", "The answers is 3", "The answer isn't 3", "The answer island 3"])
def test_a_mark_inside_a_word_is_none(text: str) -> None:
    assert (stated_math(text), stated_exact(text)) == ("", "")


def test_equal_texts_in_other_characters_vote_for_one_answer() -> None:
    texts = [f"{unicodedata.normalize(form, 'Ōsaka')}{end}" for form, end in (("NFC", ""), ("NFD", " "))]
    assert extract_exact(texts[0]) == extract_exact(texts[1]) == "ōsaka"
    said = iter([*texts, "京都"])

    def ask(request: Request) -> Generation:
        return Generation(next(said), (1,), 1, "eos", 0.0, 1.0)

    scorer = SCORERS["exact"]
    answer = Vote().answer(Asked(((),), extract=scorer.extract, same=scorer.same), Request((), 4), ask)
    assert answer.votes == ("ōsaka", "ōsaka")

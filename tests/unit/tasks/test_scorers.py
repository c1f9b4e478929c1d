"""The scorers: tables of cases, and what holds for any text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulewise.errors import EnvironmentFault
from joulewise.tasks.scorers import (
    SCORERS,
    extract_letter,
    score_exact,
    score_letter,
    score_math,
    score_rouge,
)
from joulewise.tasks.task import Question, Score


@pytest.mark.parametrize(
    ("reference", "text", "correct"),
    [
        ("18", "The answer is 18.", True),
        ("18", "The answer is 18.00 dollars.", True),
        ("1,234", "#### 1234", True),
        ("-7", "It was −7 degrees.", True),
        ("0.5", "\\boxed{\\frac{1}{2}}", True),
        ("18", "The answer is 19.", False),
        ("18", "The answer is -18.", False),
        ("18", "I do not know.", False),
        ("18", "", False),
        ("blue", "blue", False),
    ],
)
def test_math(reference: str, text: str, correct: bool) -> None:
    score = score_math(reference, text)
    assert (score.correct, score.value, score.metric) == (correct, float(correct), "math_match")


def test_math_asks_math_verify_where_spellings_differ() -> None:
    pytest.importorskip("math_verify", reason="needs the extra 'score'")
    assert score_math("7", "Answer: 10 - 3") == Score(1.0, True, "10 - 3", "math_match")
    assert score_math("\\sqrt{12}", "\\boxed{2\\sqrt{3}}").correct
    assert not score_math("\\sqrt{12}", "\\boxed{2\\sqrt{2}}").correct


def test_math_compares_decimals_without_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(reference: str, answer: str) -> bool:
        raise AssertionError("not needed")

    monkeypatch.setattr("joulewise.tasks.scorers.equal_in_value", refuse)
    assert score_math("18", "19").correct is False
    assert score_math("1/3", "\\boxed{\\frac{1}{3}}").correct is True


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        # one letter
        ("B", "B"),
        ("b", "B"),
        (" (B)\n", "B"),
        ("**B**", "B"),
        ("B.", "B"),
        ("`D`", "D"),
        ("$\\boxed{C}$", "C"),
        ("Ｂ", "B"),
        ("Ⓑ", "B"),
        # statements; the last counts
        ("Answer: B", "B"),
        ("answer: b", "B"),
        ("The correct answer is (C).", "C"),
        ("The correct answer is D) The heart", "D"),
        ("The correct option is a) blood", "A"),
        ("The letter is B.", "B"),
        ("The answer is $\\boxed{C}$.", "C"),
        ("The answer is \\textbf{D}", "D"),
        ("The answer is: option C", "C"),
        ("The answer is:\n\nB", "B"),
        ('Answer: "B"', "B"),
        ("答案：B", "B"),
        ("A) Shark\n\nThe correct answer is D", "D"),
        ("A, B, C and D are possible; the answer is C", "C"),
        ("The answer is A. No, the answer is B.", "B"),
        # at the start
        ("B. Paris", "B"),
        ("b) Paris", "B"),
        ("A) Mercury", "A"),
        ("A: Mercury", "A"),
        # the first capital that stands alone
        ("I think B", "B"),
        ("Option B is correct", "B"),
        ("A is correct", "A"),
        ("A because it is hot", "A"),
        ("A dog. So C it is", "C"),
        ("<b>C</b>", "C"),
        # no answer
        ("", None),
        ("A dog is an animal", None),
        ("The answer is A dog", None),
        ("The answer is a dog", None),
        ("Paris", None),
        ("E", None),
        # never inside a word
        ("BAD CAB DNA", None),
        ("ABCD", None),
        ("Answer: AB", None),
        ("Answer: Dublin", None),
        ("D-day", None),
        ("U.S.A.", None),
        ("C++", None),
        ("C#", None),
        ("A's", None),
        ("D’accord", None),
        ("D'accord", None),
        ("B2", None),
        ("ÀB", None),
        ("Äpfel", None),
        ("A\u0308", None),
        ("ﬁB", None),
        ("Вот", None),  # the first letter is Cyrillic
        # two letters are no answer
        ("A or B", None),
        ("A/B", None),
        ("B, C", None),
        ("Answer: A and B", None),
        ("Answer: (A) or (B)", None),
    ],
)
def test_letter(text: str, letter: str | None) -> None:
    assert extract_letter(text) == letter


def test_a_letter_that_cannot_be_extracted_is_wrong() -> None:
    assert score_letter("A", "Paris") == Score(0.0, False, None, "letter_match", "no answer found")
    assert score_letter("b", "B") == Score(1.0, True, "B", "letter_match")
    assert score_letter("A", "B") == Score(0.0, False, "B", "letter_match")


@given(st.text(alphabet="ABCDabcdxyzäèЖ", min_size=2))
def test_no_letter_is_taken_from_a_word(word: str) -> None:
    assert extract_letter(word) is None


def test_rouge_known_answer() -> None:
    pytest.importorskip("rouge_score", reason="needs the extra 'score'")
    # Longest common subsequence "the cat the mat" of 6 and 5 words: P = 4/5, R = 4/6, F1 = 8/11.
    score = score_rouge("The cat sat on the mat", "the cat, the red mat!")
    assert score.value == pytest.approx(8 / 11)
    assert (score.correct, score.extracted, score.metric) == (None, None, "rouge_l")
    assert score_rouge("The cat sat", "").value == 0.0
    assert score_rouge("cats running", "cat runs").value == 1.0, "stemmed"


def test_rouge_counts_words_of_any_script() -> None:
    pytest.importorskip("rouge_score", reason="needs the extra 'score'")
    assert score_rouge("Кошка сидит на ковре", "кошка спит на ковре").value == pytest.approx(0.75)


ASCII_TEXT = st.text(alphabet="abcdefghijklmnopqrstuvwxyzABC 0123456789.,!?-'\n", max_size=200)


@given(ASCII_TEXT, ASCII_TEXT)
@settings(deadline=None)
def test_rouge_equals_rouge_score_on_plain_english(reference: str, text: str) -> None:
    rouge = pytest.importorskip("rouge_score.rouge_scorer", reason="needs the extra 'score'")
    theirs = rouge.RougeScorer(["rougeL"], use_stemmer=True).score(reference, text)["rougeL"].fmeasure
    assert score_rouge(reference, text).value == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("reference", "text", "correct"),
    [
        ("New York", " new\n york ", True),
        ("Straße", "STRASSE", True),
        ("café", "cafe\u0301", True),
        ("New York", "New York City", False),
        ("New York", "", False),
    ],
)
def test_exact(reference: str, text: str, correct: bool) -> None:
    assert score_exact(reference, text).correct is correct


def test_exact_extracts_nothing_from_an_empty_text() -> None:
    assert score_exact("yes", " \n") == Score(0.0, False, None, "exact_match", "no answer found")


@pytest.mark.parametrize("name", sorted(set(SCORERS) - {"code"}))  # code: test_code_answer.py
@given(text=st.text(alphabet=st.characters(exclude_categories=())))
@example(text="\ud800 Answer: \udfff")
@example(text="Answer: " + "(" * 5000)
@example(text="1" * 5000)
@example(text="\\boxed{" * 500)
@settings(deadline=None, max_examples=60)
def test_no_text_is_an_error(name: str, text: str) -> None:
    reference = {"math": "18", "letter": "A", "rouge": "A short text.", "exact": "yes"}[name]
    score = SCORERS[name].score(Question("q", "", reference), text)
    assert 0.0 <= score.value <= 1.0
    assert score.metric == SCORERS[name].metric
    if score.correct is not None:
        assert score.value == float(score.correct)
        assert score.extracted is not None or not score.correct


@pytest.mark.parametrize("name", ["rouge", "exact", "letter"])
@given(reference=st.text())
@settings(deadline=None, max_examples=60)
def test_a_sound_reference_scores_one_itself(name: str, reference: str) -> None:
    if SCORERS[name].fault(reference) is None:
        assert SCORERS[name].score(Question("q", "", reference), reference).value == pytest.approx(1.0)


@given(reference=st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=3))
def test_a_number_scores_one_itself(reference: object) -> None:
    assert SCORERS["math"].fault(str(reference)) is None
    assert score_math(str(reference), str(reference)).value == 1.0


@pytest.mark.parametrize(
    ("name", "reference", "fault"),
    [
        ("math", "blue", "not a number"),
        ("math", "", "not a number"),
        ("letter", "E", "not one of the letters"),
        ("letter", "AB", "not one of the letters"),
        ("rouge", "…!", "no word"),
        ("exact", "  ", "empty"),
    ],
)
def test_references_that_cannot_be_scored(name: str, reference: str, fault: str) -> None:
    assert fault in str(SCORERS[name].fault(reference))


def test_a_missing_package_is_named_with_the_extra() -> None:
    scorer = replace(SCORERS["exact"], modules=("json", "no_such_package_here"))
    with pytest.raises(EnvironmentFault, match=r"task t: .*'no_such_package_here'.*pip install 'joulewise\[score\]'"):
        scorer.check_installed("t")
    SCORERS["exact"].check_installed("t")


def test_a_machine_that_cannot_score_is_refused_with_the_way_out() -> None:
    scorer = replace(SCORERS["code"], unavailable=lambda: "no sandbox here; run it elsewhere")
    with pytest.raises(EnvironmentFault, match=r"task t: no sandbox here; run it elsewhere"):
        scorer.check_installed("t")

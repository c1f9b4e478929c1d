"""Finding the answer to a maths question in a text."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.tasks.math_answer import MAX_LENGTH, canonical_reference, extract_math


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # marked
        ("The answer is 18.", "18"),
        ("the answer: 18", "18"),
        ("ANSWER = 18", "18"),
        ("Answer:\n\n**18**", "18"),
        ("The final answer is: **$42**.", "42"),
        ("The answer to the question is 5 apples in 2 bags", "5"),
        ("Answer: 12. This is more than 7.", "12"),
        ("#### -5", "-5"),
        ("She has 3 * 4 = 12.\n#### 12\nI hope that 100 % of this helps.", "12"),
        ("\\boxed{18}", "18"),
        ("The answer is $\\boxed{18}$.", "18"),
        ("\\boxed{18 \\text{ apples}}", "18"),
        ("\\boxed{\\frac{1}{2}}", "0.5"),
        ("\\boxed{1\\frac{1}{2}}", "1.5"),
        ("\\boxed{2\\sqrt{3}}", "2\\sqrt{3}"),
        ("\\(18\\)", "18"),
        # of several marked answers the last counts; an empty one is passed over
        ("Answer: 3. No, wait. Answer: 4", "4"),
        ("So 5 x 3 = 15. Answer:", "15"),
        # of an equation the right-hand side counts, of a sentence the first number
        ("The answer is 3 + 4 = 7.", "7"),
        ("The answer is 3 apples + 4 apples = 7 apples.", "7"),
        ("Answer: x = 7", "7"),
        ("The answer is 12 because 5+3=8", "12"),
        ("Answer: 12 (3 each)", "12"),
        # expressions
        ("Answer: 2x + 1", "2x + 1"),
        ("Answer: pi/2", "pi/2"),
        ("Answer: 10 - 3", "10 - 3"),
        ("(3, 4)", "(3, 4)"),
        ("x^2", "x^2"),
        # without a mark: the last number
        ("He has 5 red and 3 blue.", "3"),
        ("So, the total is 3 * 4 = 12 dollars.", "12"),
        # numbers
        ("Answer: $1,234.50", "1234.5"),
        ("It costs 1,234,567 euros", "1234567"),
        ("1\\,234", "1234"),
        ("\\boxed{1{,}234}", "1234"),
        ("It is 3, 5 or 7", "7"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("US$5", "5"),
        ("€7", "7"),
        ("The temperature is −7 degrees", "-7"),
        ("It is –7 degrees", "-7"),
        ("It is minus 7 degrees", "-7"),
        ("It is 5–7 degrees", "7"),
        ("from 10 minus 3", "3"),
        ("Answer: .5", "0.5"),
        ("It is 6.40", "6.4"),
        ("25%", "25"),
        ("Answer: 25 \\%", "25"),
        ("Answer: 3/4 of the cake", "0.75"),
        ("1 1/2", "1.5"),
        ("1/3", "1/3"),
        ("Answer: 5m", "5"),
        ("Answer: 70 km/h", "70"),
        ("٣", "3"),
        # nothing
        ("", None),
        ("I do not know.", None),
        ("H2O", None),
        ("1/0", None),
        ("9" * 5000, None),
        ("Answer: " + "9" * 5000, None),
        ("\\boxed{" * 50, None),
    ],
)
def test_extraction(text: str, answer: str | None) -> None:
    assert extract_math(text) == answer


@given(st.text())
def test_any_text_is_read_without_error(text: str) -> None:
    answer = extract_math(text)
    assert answer is None or 0 < len(answer) <= 4 * MAX_LENGTH


@given(st.text(alphabet="0123456789 ,.-+=/*^(){}\\$%#:xanswerboxedfracis\n", max_size=80))
def test_any_text_of_mathematical_characters_is_read_without_error(text: str) -> None:
    extract_math(text)


@given(st.integers(-(10**12), 10**12))
def test_an_integer_is_found_however_it_is_written(number: int) -> None:
    for text in (f"{number}", f"{number:,}", f"The answer is {number:,}.", f"\\boxed{{{number}}}", f"#### {number}"):
        assert extract_math(text) == str(number)


@given(st.fractions(min_value=-1000, max_value=1000, max_denominator=64))
def test_a_fraction_keeps_its_value(number: Fraction) -> None:
    answer = extract_math(f"Answer: {number}")
    assert answer is not None
    assert Fraction(answer) == number


@pytest.mark.parametrize("reference", ["18", "-0.5", "1,234", "1/3", "2\\sqrt{3}", "(3, 4)", "2x", "\\pi", "x = 5"])
def test_the_reference_is_found_in_its_own_text(reference: str) -> None:
    assert canonical_reference(reference) is not None
    assert extract_math(reference) == canonical_reference(reference)


def test_a_reference_of_words_is_none() -> None:
    assert canonical_reference("blue sky") is None

"""Finding the answer to a maths question in a model's text, and writing it in one way."""

from __future__ import annotations

import re
from decimal import Decimal, localcontext
from fractions import Fraction

from joulewise.tasks.scripts import apart

MAX_LENGTH = 200
"""Longer answers count as none."""

_UNSIGNED = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    # A minus after a word or bracket is an operator; digits within a word ("H2O") are no number.
    rf"(?P<sign>(?<![\w)\]}}.])[-+])?(?<![\w./])(?:(?P<whole>\d+)\s+(?=\d+/\d))?(?P<number>{_UNSIGNED})"
    r"(?:\s?/\s?(?P<below>\d+)(?!\d|/|\.\d))?"
)
_MARK = re.compile(r"\\f?boxed\s*\{|####|\banswer\b[^.\n\d]{0,40}?(?:\bis\b|:|=)\s*:?", re.IGNORECASE)
_EQUATION = re.compile(rf"\D*(?:{_UNSIGNED})\s*[^\W\d]*\s*(?:[+*/×÷=^-]|x(?=\s*\d))")
_OPERATOR = re.compile(r"\\[A-Za-z]|[\^√+*/×÷(,-]|\d\s?[xyzn]\b")
_ALTERNATIVES = re.compile(r";|\bor\b", re.IGNORECASE)
_WORD = re.compile(r"(?<!\\)\b(?!(?:pi|sqrt|sin|cos|tan|log|ln|exp)\b)[^\W\d_]{2,}")
_SYMBOL = re.compile(r"[A-Za-z]|pi|\\[a-z]+")
_UNIT = re.compile(r"\)?\s*(?:%|(?![xyzn]\b)[^\d\\^=+*×÷(,]*)")


def extract_math(text: str) -> str | None:
    """The answer that ``text`` gives: a number in plain digits, or an expression as it stands; None if there is none.

    1. The last marked answer: ``\\boxed{…}``, ``#### …``, ``Answer: …``, ``answer is …`` (to the end of the sentence).
       Of an equation in it the right-hand side counts ("3 + 4 = 7": 7); else an expression is taken whole ("2x + 1"),
       and of a sentence the first number ("12 apples in 3 bags": 12).
    2. Without a mark, a text that is an expression and nothing else, or the last number of the text.

    In numbers, thousands commas, currency signs, percent signs and units are dropped; "1/2", "1 1/2" and "\\frac{1}{2}"
    are numbers; a minus counts where it stands directly before a number and not directly after another.
    """
    clean = _clean(text)
    answer = _marked(clean)
    if answer is not None:
        return answer
    if _is_expression(clean.strip()):
        return _value(clean)
    numbers = (_canonical(match) for match in reversed(list(_NUMBER.finditer(clean))))
    return next((number for number in numbers if number is not None), None)


def stated_math(text: str) -> str:
    """The answer by the first of these rules alone, marked anew; empty where ``text`` marks none."""
    answer = _marked(_clean(text))
    told = f"Answer: {answer}"
    # Marks alone, such as ". /" in a box, are no answer to whoever reads on.
    return told if answer is not None and _marked(_clean(told)) == answer else ""


def canonical_reference(reference: str) -> str | None:
    """A reference in the form in which ``extract_math`` gives answers; None if it is no number or expression."""
    return _value(_clean(reference))


def ambiguous_reference(reference: str) -> bool:
    """Whether a reference names several numbers and is no expression of them: "4 or 5", "12 apples in 3 bags"."""
    segment = _clean(reference).strip()
    several = len(_NUMBER.findall(segment)) > 1
    return several and (
        _ALTERNATIVES.search(segment) is not None or ("=" not in segment and not _is_expression(segment))
    )


def _marked(clean: str) -> str | None:
    for mark in reversed(list(_MARK.finditer(clean))):
        boxed = mark[0].endswith("{")
        answer = _value(_braced(clean, mark.end()) if boxed else _sentence(clean[mark.end() :]))
        if answer is not None:
            return answer
    return None


def _clean(text: str) -> str:
    """Write minus signs in one way; drop bold marks, LaTeX spacing, currency signs and the like."""
    text = apart(text)
    text = re.sub(r"−|(?<![^\s(:])–(?=\d)|(?<!\d )\b(?:minus|negative)\s+(?=[$€£¥₹]?\d)", "-", text)
    text = text.replace("**", "").replace("__", "").replace("{,}", ",").replace("\\%", "%").replace("\\$", "$")
    text = re.sub(r"(?<=\d)\\,(?=\d{3})", "", text)
    text = re.sub(r"\\[,!;: ()\[\]]|\\(?:left|right|displaystyle)(?![A-Za-z])|\\text\s*\{[^{}]*\}", " ", text)
    text = re.sub(r"\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}", r" \1/\2", text)
    return re.sub(r"(-?)[$€£¥₹]\s?(-?)", r" \1\2", text)


def _braced(text: str, start: int) -> str:
    """From ``start``, just after an opening brace, to the brace that closes it."""
    depth = 1
    for i, char in enumerate(text[start : start + MAX_LENGTH], start):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[start:i]
    return ""


def _sentence(text: str) -> str:
    """The first sentence of the first line that is not blank."""
    line = text.lstrip().split("\n", 1)[0]
    return re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0]


def _value(segment: str) -> str | None:
    """The number or expression that a marked answer, or a reference, stands for."""
    segment = segment.strip(" \t\n_`'\"").rstrip(".,;:!? ")
    left, equals, right = segment.rpartition("=")
    if equals and (not _WORD.search(left) or _EQUATION.match(segment)):
        return _value(right)
    number = _NUMBER.match(segment.lstrip("("))
    if number and _UNIT.fullmatch(segment.lstrip("("), number.end()):
        return _canonical(number)
    if _is_expression(segment) or _SYMBOL.fullmatch(segment):
        return " ".join(segment.split())
    first = _NUMBER.search(segment)
    return _canonical(first) if first else None


def _is_expression(text: str) -> bool:
    return (
        0 < len(text) <= MAX_LENGTH
        and "\n" not in text
        and _OPERATOR.search(text) is not None
        and _WORD.search(text) is None
    )


def _canonical(number: re.Match[str]) -> str | None:
    """A number in plain digits where its decimals end, else as a fraction: ``1234``, ``-0.5``, ``1/3``."""
    if len(number[0]) > MAX_LENGTH or (number["below"] and not int(number["below"])):
        return None
    value = Fraction(Decimal(number["number"].replace(",", ""))) / int(number["below"] or 1) + int(number["whole"] or 0)
    value = -value if number["sign"] == "-" else value
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    if denominator != 1:
        return str(value)
    with localcontext(prec=3 * MAX_LENGTH):
        return format(Decimal(value.numerator) / value.denominator, "f")

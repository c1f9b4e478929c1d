"""Scorers: what a model's text is worth against a reference (``docs/tasks.md``)."""

from __future__ import annotations

import operator
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from joulewise.errors import EnvironmentFault
from joulewise.tasks import code_answer, sandbox
from joulewise.tasks.math_answer import ambiguous_reference, canonical_reference, extract_math, stated_math
from joulewise.tasks.math_equality import equal_in_value
from joulewise.tasks.own_examples import rate_by_examples
from joulewise.tasks.scripts import apart
from joulewise.tasks.task import Question, Score

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer


@dataclass(frozen=True, slots=True)
class Scorer:
    """A way to score a model's text against a question's reference.

    Args:
        metric: as in ``Score.metric``.
        score: takes the question and the model's text; never raises for anything a model may write.
        fault: why a reference cannot be scored against, as the end of a sentence; None if it can.
        modules: what must be installed (extra ``score``).
        unavailable: why this machine cannot score so, with the way out; None if it can.
        stated: the answer that a text with steps states, as a text that this scorer takes; empty where it states none.
            None where nothing can be told from the rest of a text.
        extract: the answer that a text gives; None where it gives none. None itself where nothing is extracted that
            could be compared with another answer.
        same: whether two extracted answers are equal.
        by_examples: what an answer is worth by the examples that the question itself shows, from 0 to 1; None where it
            shows none. None itself where questions have no such examples.
    """

    metric: str
    score: Callable[[Question, str], Score]
    fault: Callable[[str], str | None]
    modules: tuple[str, ...] = ()
    unavailable: Callable[[], str | None] = lambda: None
    stated: Callable[[str], str] | None = None
    extract: Callable[[str], str | None] | None = None
    same: Callable[[str, str], bool] = operator.eq
    by_examples: Callable[[Question, str], float | None] | None = None

    def check_installed(self, task: str) -> None:
        """Make sure that scoring will not fail for want of a package or of a sandbox.

        Raises:
            EnvironmentFault: one is not installed, or there is no sandbox.
        """
        missing = [name for name in self.modules if find_spec(name) is None]
        if missing:
            raise EnvironmentFault(
                f"task {task}: its scorer needs the package '{missing[0]}', which is not installed: "
                "pip install 'joulewise[score]'"
            )
        reason = self.unavailable()
        if reason:
            raise EnvironmentFault(f"task {task}: {reason}")


def score_math(reference: str, text: str) -> Score:
    """1 where the number or expression found in ``text`` (see ``extract_math``) equals the reference in value.

    Of two numbers the digits decide; of anything else math-verify, with a time limit.
    """
    extracted = extract_math(text)
    right = canonical_reference(reference)
    correct = extracted is not None and right is not None and same_value(right, extracted)
    return Score(float(correct), correct, extracted, "math_match", _not_found(extracted))


def same_value(one: str, other: str) -> bool:
    """Whether two answers of ``extract_math`` are equal in value."""
    if one == other or (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other)):
        return one == other
    return equal_in_value(one, other)


def score_letter(reference: str, text: str) -> Score:
    """1 where the letter found in ``text`` (see ``extract_letter``) is the reference."""
    extracted = extract_letter(text)
    correct = extracted == reference.strip().upper()
    return Score(float(correct), correct, extracted, "letter_match", _not_found(extracted))


def score_rouge(reference: str, text: str) -> Score:
    """ROUGE-L F1: the longest common subsequence of stemmed words, as a part of both texts (Lin, 2004, section 3.1).

    As ``rouge-score`` with stemming, but words of any script count: its own tokenizer drops letters outside a to z.
    There is no right or wrong, and nothing is extracted.
    """
    return Score(float(_rouge().score(reference, text)["rougeL"].fmeasure), None, None, "rouge_l")


def score_exact(reference: str, text: str) -> Score:
    """1 where both texts are the same but for white space and case."""
    extracted = extract_exact(text)
    correct = extracted == _normalised(reference)
    return Score(float(correct), correct, extracted, "exact_match", _not_found(extracted))


def extract_exact(text: str) -> str | None:
    """The whole text without case and superfluous white space; None where nothing is left."""
    return _normalised(text) or None


def _not_found(extracted: str | None) -> str | None:
    return "no answer found" if extracted is None else None


_NUMBER = re.compile(r"-?\d+(?:\.\d+|/\d+)?")
"""As ``extract_math`` writes one: a fraction only where its decimals do not end, and then in lowest terms."""
_STANDALONE = r"(?<![\w'’+#&@/.\-])([A-D])(?![\w\u0300-\u036f+#&@/\-]|['’.]\w)"
_SOLE_LETTER = re.compile(r"[^\w+#]*([A-D])[^\w+#\u0300-\u036f]*", re.IGNORECASE)
_STATEMENT = re.compile(
    r"(?i:\b(?:answer|option|choice|letter)\s*(?:is|was|:|=)\s*:?\s*(?:the\s+)?(?:(?:option|choice|letter|answer)\s+)?)"
    rf"[\s(\[\"'“‘]*(?:{_STANDALONE}|([a-d])(?=[)\]]|\.?\s*(?:\n|$)))"
)
_ANSWER = re.compile(r"\banswer\s*(?:is\b|:)\s*:?", re.IGNORECASE)
_LOWER_START = re.compile(r"\W*([a-d])[).:](?!\w)")
_FIRST_CAPITAL = re.compile(_STANDALONE)
_NEXT_WORD = re.compile(r"\s+(\w+)")
_SECOND_LETTER = re.compile(rf"[)\]]?\s*(?:,|/|&|\band\b|\bor\b)\s*[(\[]?{_STANDALONE}")
_NOT_AFTER_ARTICLE = {"is", "was", "because", "since", "as", "and", "or", "would", "seems"}


def extract_letter(text: str) -> str | None:
    """The letter A to D that ``text`` gives as its answer. The first of these rules that finds one decides:

    1. The text is one letter, whatever its case and the marks around it.
    2. The last statement such as "answer is B", "Answer: (B)", "option: b)".
    3. A small letter with a bracket, full stop or colon at the start: "b) Paris".
    4. The first capital A to D that stands alone.

    A capital "A" before a small word is an article, not an answer ("A dog"), unless that word is one such as "is" or
    "because". A letter joined to a second one ("A or B", "B, C") is no answer.
    """
    clean = _plain(text)
    if match := _SOLE_LETTER.fullmatch(clean):
        return match[1].upper()
    found = _last_statement(clean) or _LOWER_START.match(clean)
    if found is None:
        found = next((m for m in _FIRST_CAPITAL.finditer(clean) if not _is_article(clean, m)), None)
    return _letter(clean, found)


def stated_letter(text: str) -> str:
    """The letter by the first two of these rules alone; empty where they find none."""
    clean = _plain(text)
    return _letter(clean, _SOLE_LETTER.fullmatch(clean) or _last_statement(clean)) or ""


def stated_exact(text: str) -> str:
    """What follows the last "answer is" or "answer:" on its line, a full stop at the end aside; empty without one."""
    *_, said = ("", *_ANSWER.split(text)[1:])
    return said.partition("\n")[0].strip().removesuffix(".")


def _plain(text: str) -> str:
    # NFKC turns full-width and circled letters into plain ones and joins letters with their accents.
    return apart(re.sub(r"\\[A-Za-z]+\{|[*`$]", "", unicodedata.normalize("NFKC", text)))


def _last_statement(clean: str) -> re.Match[str] | None:
    statements = [m for m in _STATEMENT.finditer(clean) if not _is_article(clean, m)]
    return statements[-1] if statements else None


def _letter(clean: str, found: re.Match[str] | None) -> str | None:
    if found is None or _SECOND_LETTER.match(clean, found.end()):
        return None
    return next(group for group in found.groups() if group).upper()


def _is_article(text: str, found: re.Match[str]) -> bool:
    following = _NEXT_WORD.match(text, found.end())
    return (
        found[1] == "A"
        and following is not None
        and following[1][0].islower()
        and following[1] not in _NOT_AFTER_ARTICLE
    )


@cache
def _rouge() -> RougeScorer:
    from nltk.stem.porter import PorterStemmer  # type: ignore[import-untyped]
    from rouge_score.rouge_scorer import RougeScorer

    stemmer = PorterStemmer()

    class Words:
        def tokenize(self, text: str) -> list[str]:
            # Words of three letters and fewer stay as they are, as in rouge-score.
            return [stemmer.stem(w) if len(w) > 3 else w for w in _words(text)]

    return RougeScorer(["rougeL"], tokenizer=Words())


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFC", text).lower())


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _math_fault(reference: str) -> str | None:
    if ambiguous_reference(reference):
        return "names several numbers, so that more than one answer would be right"
    return None if canonical_reference(reference) else "is not a number or an expression"


def _letter_fault(reference: str) -> str | None:
    return None if reference.strip().upper() in ("A", "B", "C", "D") else "is not one of the letters A to D"


def _rouge_fault(reference: str) -> str | None:
    return None if _words(reference) else "holds no word"


def _exact_fault(reference: str) -> str | None:
    return None if _normalised(reference) else "is empty"


def _by_reference(score: Callable[[str, str], Score]) -> Callable[[Question, str], Score]:
    return lambda question, text: score(question.reference, text)


SCORERS: dict[str, Scorer] = {
    "math": Scorer(
        "math_match",
        _by_reference(score_math),
        _math_fault,
        ("math_verify", "antlr4"),
        stated=stated_math,
        extract=extract_math,
        same=same_value,
    ),
    "letter": Scorer(
        "letter_match", _by_reference(score_letter), _letter_fault, stated=stated_letter, extract=extract_letter
    ),
    "rouge": Scorer("rouge_l", _by_reference(score_rouge), _rouge_fault, ("rouge_score", "nltk")),
    "exact": Scorer(
        "exact_match", _by_reference(score_exact), _exact_fault, stated=stated_exact, extract=extract_exact
    ),
    "code": Scorer(
        code_answer.METRIC,
        code_answer.score_code,
        code_answer.fault_of_tests,
        (),
        sandbox.unavailable,
        by_examples=rate_by_examples,
    ),
}
"""The registry: ``scorer`` of a custom task -> how it scores."""

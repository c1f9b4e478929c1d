"""The examples that a code question itself shows: how many of them an answer gets right (``docs/tasks.md``)."""

from __future__ import annotations

import doctest
import secrets

from joulewise.tasks.code_answer import program
from joulewise.tasks.sandbox import run_python
from joulewise.tasks.task import Question

_CHECK = """
def _rate(examples, mark):
    import contextlib, doctest, io
    right = 0
    for source, want in examples:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(source, "<example>", "single"), globals())
        except Exception:
            continue
        right += doctest.OutputChecker().check_output(want, printed.getvalue(), doctest.NORMALIZE_WHITESPACE)
    print(f"\\n{mark}{right}")
_rate(%r, %r)
"""


def shown_examples(text: str) -> list[tuple[str, str]]:
    """The ``>>>`` examples in a question's text: what is called, and what that prints."""
    try:
        found = doctest.DocTestParser().get_examples(text)
    except ValueError:  # lines that are not indented alike
        return []
    return [(e.source, e.want) for e in found if e.want and e.exc_msg is None]


def rate_by_examples(question: Question, text: str) -> float | None:
    """The share of the question's own examples that the code in ``text`` gets right, run in the sandbox.

    The tests that the answer is scored by take no part. None where the question shows no example.

    Raises:
        EnvironmentFault: the sandbox cannot be set up (any more).
    """
    examples = shown_examples(question.text)
    if not examples:
        return None
    parts = program(question, text)
    if parts is None:
        return 0.0
    # What the answer prints cannot hold a mark that it does not know.
    mark = secrets.token_hex(16)
    outcome = run_python([*parts, _CHECK % (examples, mark)])
    _, _, right = outcome.output.rpartition(f"\n{mark}")
    return int(right) / len(examples) if outcome.passed and right.strip().isdecimal() else 0.0

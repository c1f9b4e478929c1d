"""The examples that a code question itself shows: how many of them an answer gets right (``docs/tasks.md``)."""

from __future__ import annotations

import ast
import doctest
import secrets

from joulewise.tasks.code_answer import program
from joulewise.tasks.sandbox import run_python
from joulewise.tasks.task import Question

_CHECK = """
def _rate(examples, mark):
    import ast, contextlib, doctest, io
    def same(want, got):
        if doctest.OutputChecker().check_output(want, got, doctest.NORMALIZE_WHITESPACE):
            return True
        try:
            return ast.literal_eval(want.strip()) == ast.literal_eval(got.strip())
        except (ValueError, SyntaxError):
            return False
    right = 0
    for source, want in examples:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(source, "<example>", "single"), globals())
        except Exception:  # in the sandbox: whatever an answer's code raises, this example is not got right
            continue
        right += same(want, printed.getvalue())
    print(f"\\n{mark}{right}")
_rate(%r, %r)
"""


def shown_examples(text: str) -> list[tuple[str, str]]:
    """The ``>>>`` examples in the docstrings of a question's text: what is called, and what that prints.

    Of one that prints nothing but compares (``>>> f(1) == 2``), that it is so is what it would print.
    """
    try:
        functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        docstrings = [ast.get_docstring(function) or "" for function in functions]
        found = [example for doc in docstrings for example in doctest.DocTestParser().get_examples(doc)]
    except (SyntaxError, ValueError):  # no Python, or lines of an example that are not indented alike
        return []
    shown = [(e.source, e.want or ("True\n" if _compares(e.source) else "")) for e in found if e.exc_msg is None]
    return [(source, want) for source, want in shown if want]


def _compares(source: str) -> bool:
    try:
        return isinstance(ast.parse(source.strip(), mode="eval").body, ast.Compare)
    except SyntaxError:
        return False


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

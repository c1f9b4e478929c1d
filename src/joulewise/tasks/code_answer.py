"""The code in a model's text, and whether it passes the tests (``docs/tasks.md``, "code")."""

from __future__ import annotations

import ast
import re
import textwrap

from joulewise.tasks.sandbox import run_python
from joulewise.tasks.task import Question, Score

METRIC = "tests_passed"

_FENCED = re.compile(r"^[ \t]*(```|~~~)[^\n]*\n(.*?)(?:^[ \t]*\1|\Z)", re.DOTALL | re.MULTILINE)
_STARTS_CODE = re.compile(r"(?:from|import|def|async\s+def|class)\s|@")
_GOES_ON = re.compile(rf"{_STARTS_CODE.pattern}|#|[)\]}}]|\w+(?:\s*:[^=\n]+)?\s*=(?!=)")


def score_code(question: Question, text: str) -> Score:
    """1 where the code found in ``text`` (see ``extract_code``) passes the question's tests in the sandbox.

    ``question.reference`` holds the tests: Python that raises if something is wrong. Where ``question.extra`` names an
    ``entry_point``, a function, ``question.text`` is the start of that function: whatever it needs above, its signature
    and its docstring. ``Score.note`` says how it failed.

    Raises:
        EnvironmentFault: the sandbox cannot be set up (any more).
    """
    parts = program(question, text)
    if parts is None:
        return Score(0.0, False, None, METRIC, "no code")
    outcome = run_python([*parts, question.reference])
    code = extract_code(text, question.extra.get("entry_point"))
    return Score(float(outcome.passed), outcome.passed, code, METRIC, outcome.reason)


def program(question: Question, text: str) -> list[str] | None:
    """The parts of a program that defines what the question asks for; None where there is no code in ``text``."""
    entry_point = question.extra.get("entry_point")
    code = extract_code(text, entry_point)
    if code is None:
        return None
    if entry_point is None:
        return [code]
    if defines(code, entry_point):
        return [question.text, code]
    return [f"{question.text.rstrip()}\n{code}\n"]


def extract_code(text: str, entry_point: str | None = None) -> str | None:
    """The code in ``text``; None if there is none. It is found, never run or parsed, here.

    1. The last fenced block that defines ``entry_point`` at its left margin; otherwise the whole text, if that does;
       otherwise the first block; without a block, the whole text. A fence that is not closed ends with the text.
    2. If that defines ``entry_point``: from the first definition, decorator or import at the left margin to before the
       first other thing at the margin that follows the function (prose, example calls).
    3. Otherwise it is taken for the function's body, indented by four, up to where the indentation ends.

    Without an ``entry_point``: the first block, or the whole text.
    """
    blocks = [textwrap.dedent(match[2]) for match in _FENCED.finditer(text)]
    first_block = next((block for block in blocks if block.strip()), "" if blocks else text)
    if entry_point is None:
        return first_block.rstrip() or None
    code = next((c for c in (*reversed(blocks), text) if defines(c, entry_point)), first_block)
    lines = code.rstrip().split("\n")
    if defines(code, entry_point):
        first = next(i for i, line in enumerate(lines) if _STARTS_CODE.match(line))
        function = next(i for i, line in enumerate(lines) if defines(line, entry_point))
        return "\n".join(lines[first : _end(lines, function + 1, _GOES_ON)])
    if not code.strip():
        return None
    first = next(i for i, line in enumerate(lines) if line.strip())
    if lines[first][0].isspace():
        lines = lines[: _end(lines, first, None)]
    return textwrap.indent(textwrap.dedent("\n".join(lines[first:])), "    ")


def defines(code: str, name: str) -> bool:
    """Whether a line of ``code`` starts to define the function ``name`` at the left margin."""
    return re.search(rf"^(?:async\s+)?def\s+{re.escape(name)}\s*\(", code, re.MULTILINE) is not None


def fault_of_tests(tests: str) -> str | None:
    """Why ``tests`` cannot be run, as the end of a sentence; None if they can."""
    try:
        body = ast.parse(tests).body
    except (SyntaxError, ValueError) as error:
        return f"is not valid Python ({error})"
    return None if body else "holds no test"


def _end(lines: list[str], start: int, may_follow: re.Pattern[str] | None) -> int:
    """The first line from ``start`` on that is not indented and does not match ``may_follow``."""
    for number in range(start, len(lines)):
        line = lines[number]
        if line.strip() and not line[0].isspace() and not (may_follow and may_follow.match(line)):
            return number
    return len(lines)

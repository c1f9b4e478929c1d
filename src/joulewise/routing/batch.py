"""Questions that are asked, and files of them: JSON lines."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulewise.errors import EnvironmentFault, UserError
from joulewise.tasks.asked import AnswerKind, answer_kind
from joulewise.whole_file import whole_file

_KEYS = ("query", "domain", "reference", "id")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question.

    Args:
        query: its text.
        domain: its field, where it is known.
        reference: the right answer, where it is known.
        name: its id.
        answer: how it is asked; None: by its text.
    """

    query: str
    domain: str | None = None
    reference: str | None = None
    name: str | None = None
    answer: AnswerKind | None = None

    @property
    def kind(self) -> AnswerKind:
        """How it is asked."""
        return answer_kind(self.query, self.reference) if self.answer is None else self.answer


def read_batch(file: Path, domain: str | None = None, answer: AnswerKind | None = None) -> list[Asked]:
    """The questions of a file of JSON lines.

    Raises:
        UserError: it cannot be read, a line is no question (with its place), two have one id, or there is none.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    return parse_batch(data, str(file), domain, answer)


def parse_batch(data: bytes, file: str, domain: str | None = None, answer: AnswerKind | None = None) -> list[Asked]:
    """The questions of JSON lines; ``file`` is what they are called. Raises as ``read_batch``."""
    found: list[Asked] = []
    names: set[str] = set()
    try:
        # At line feeds alone: a question may hold other characters that end lines.
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} cannot be read as UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row: Any = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f'{where}: not JSON ({error.msg}); write a line such as {{"query": "..."}}') from error
        query = row.get("query") if isinstance(row, dict) else None
        if not isinstance(query, str) or not query.strip():
            raise UserError(f'{where}: no text under \'query\'; write a line such as {{"query": "..."}}')
        for key in row:
            if key not in _KEYS and (meant := difflib.get_close_matches(key, _KEYS, 1)):
                raise UserError(f"{where}: the field '{key}' is not known; did you mean '{meant[0]}'?")
        name = str(row.get("id", f"line-{number}"))
        if name in names:
            raise UserError(f"{where}: a second question with the id '{name}'; give each its own, or leave ids out")
        names.add(name)
        told, reference = row.get("domain", domain), row.get("reference")
        found.append(Asked(query, told and str(told), None if reference is None else str(reference), name, answer))
    if not found:
        raise UserError(f"{file}: it holds no question")
    return found


def write_batch(asked: Sequence[Asked], file: Path) -> Path:
    """Questions as the file of JSON lines that ``read_batch`` reads; its path.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    rows = [{"id": one.name, "query": one.query, "domain": one.domain, "reference": one.reference} for one in asked]
    lines = [json.dumps({key: value for key, value in row.items() if value is not None}) for row in rows]
    try:
        with whole_file(file) as part:
            part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"{file}: cannot be written ({error.strerror}); make room") from error
    return file

"""Outcomes to learn from: which option answered which query how well. From CSV and JSON lines."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from joulewise.errors import UserError

QUERY_NAMES = ("query", "question", "prompt")
DOMAIN_NAMES = ("domain", "subject", "category")
FIGURES = {"prompt_tokens": 1e9, "output_tokens": 1e9, "energy_j": 1e12, "first_token_s": 1e8, "total_s": 1e8}
"""What a row of one option may tell besides, and the most that can be: of one answer, in tokens, joules and seconds."""
_LEAST = 1e-9
"""A figure above 0 and below this is none of an answer; fits to it would overflow."""
_WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


class Outcome(NamedTuple):
    """How one option answered one query; ``figures`` holds those of ``FIGURES`` that are known."""

    query: str
    option: str
    score: float
    domain: str | None
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Outcomes:
    """Queries, and how well each option answered them.

    Args:
        queries: the texts.
        options: names of the options.
        correct: ``(queries, options)``, from 0 (wrong) to 1 (right); NaN where an option was not asked.
        domains: by query the name of its field or route, None where not known.
    """

    queries: tuple[str, ...]
    options: tuple[str, ...]
    correct: npt.NDArray[np.float64]
    domains: tuple[str | None, ...]

    def take(self, rows: npt.NDArray[np.int64]) -> Outcomes:
        """The outcomes of some queries, by their positions."""
        chosen = rows.tolist()
        queries, domains = tuple(self.queries[i] for i in chosen), tuple(self.domains[i] for i in chosen)
        return Outcomes(queries, self.options, self.correct[rows], domains)


def gather(rows: Iterable[tuple[str, str, float, str | None]]) -> Outcomes:
    """Outcomes of (query, option, score, domain); of a pair that occurs repeatedly, the mean.

    Raises:
        UserError: there is no row.
    """
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    queries: dict[tuple[str, str | None], int] = {}
    options: dict[str, int] = {}
    for query, option, score, domain in rows:
        place = queries.setdefault((query, domain), len(queries)), options.setdefault(option, len(options))
        total, n = sums.get(place, (0.0, 0))
        sums[place] = total + score, n + 1
    if not sums:
        raise UserError("There are no outcomes: give rows with a query, an option and whether it was right.")
    correct = np.full((len(queries), len(options)), math.nan)
    for place, (total, n) in sums.items():
        correct[place] = total / n
    return Outcomes(tuple(q for q, _ in queries), tuple(options), correct, tuple(d for _, d in queries))


def read_outcomes(path: os.PathLike[str] | str, options: Sequence[str] | None = None) -> Outcomes:
    """Outcomes from a ``.csv`` or ``.jsonl`` file.

    Each row has ``query`` (or ``question``, ``prompt``) and, if known, ``domain`` (or ``subject``, ``category``), and
    either ``option`` with ``correct`` (or ``score``), or one column an option, in JSON lines under ``scores``. Right
    and wrong are true and false, or a number from 0 to 1; an empty cell is an option that was not asked. Beside
    ``option`` may stand ``prompt_tokens``, ``output_tokens``, ``energy_j``, ``first_token_s`` and ``total_s``.

    Args:
        options: of a file with a column an option, the columns to take; None: all that are not query or domain.

    Raises:
        UserError: the file cannot be read, or a row cannot be understood (with its line).
    """
    return gather(row[:4] for row in read_rows(Path(path), options))


def read_rows(path: Path, options: Sequence[str] | None = None) -> Iterator[Outcome]:
    """The rows of such a file; raises as ``read_outcomes`` does."""
    reader = {".csv": _csv_rows, ".jsonl": _json_rows}.get(path.suffix.lower())
    if reader is None:
        raise UserError(f"{path}: outcomes are read from .csv and .jsonl files; convert it or rename it.")
    try:
        for line, row in reader(path):
            yield from _read(row, f"{path}, line {line}", options)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}.") from error


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(1 << 24)
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        names = list(reader.fieldnames or ())
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{path}, line 1: two columns are called {twice[0]}; give each its own name.")
        try:
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(f"{path}, line {reader.line_num}: the row has not as many fields as the header.")
                yield reader.line_num, row
        except csv.Error as error:
            raise UserError(f"{path}, line {reader.line_num}: not CSV: {error}.") from error


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}, line {number}: not JSON: {error.msg}.") from error
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number}: a row is an object with a query and its outcomes.")
            yield number, row


def _read(row: Mapping[str, Any], where: str, options: Sequence[str] | None) -> Iterator[Outcome]:
    query = next((row[name] for name in QUERY_NAMES if name in row), None)
    if not isinstance(query, str) or not query.strip():
        raise UserError(f"{where}: no text under any of {', '.join(QUERY_NAMES)}.")
    domain = next((row[name] for name in DOMAIN_NAMES if row.get(name)), None)
    domain = None if domain is None else str(domain)
    if "option" in row:
        name = "correct" if "correct" in row else "score"
        figures = {
            f: _figure(row[f], f"{where}, field {f}", most)
            for f, most in FIGURES.items()
            if row.get(f) not in (None, "")
        }
        if not str(row["option"] or "").strip():
            raise UserError(f"{where}, field option: it is empty; name the option that was asked.")
        yield Outcome(query, str(row["option"]), _score(row.get(name), f"{where}, field {name}"), domain, figures)
        return
    scores = row.get("scores", row)
    if not isinstance(scores, dict):
        raise UserError(f"{where}, field scores: an object of option and score.")
    for option in options or [name for name in scores if name not in (*QUERY_NAMES, *DOMAIN_NAMES)]:
        if scores.get(option) not in (None, ""):
            yield Outcome(query, option, _score(scores[option], f"{where}, field {option}"), domain, {})


def _figure(value: object, where: str, most: float) -> float:
    try:
        found = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):  # of an integer with hundreds of digits
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise UserError(f"{where}: a number of at least 0; leave it empty where it is not known.")
    if found > most or 0 < found < _LEAST:
        raise UserError(
            f"{where}: {found:g} is no figure of one answer (0, or from {_LEAST:g} to {most:g}); correct it, or leave "
            "it empty where it is not known."
        )
    return found


def _score(value: object, where: str) -> float:
    if isinstance(value, str):
        text = value.strip().lower()
        try:
            value = _WORDS[text] if text in _WORDS else float(text)
        except ValueError:
            value = None
    if not isinstance(value, (bool, int, float)) or not 0 <= value <= 1:
        raise UserError(f"{where}: right and wrong are true and false, or a number from 0 to 1.")
    return float(value)

"""Outcomes to learn from: which option answered which query how well. From ledgers, CSV and JSON lines."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joulewise.errors import UserError

QUERY_NAMES = ("query", "question", "prompt")
DOMAIN_NAMES = ("domain", "subject", "category")
_WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


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
        raise UserError(
            "There are no outcomes to learn from: give rows with a query, an option and whether it was right."
        )
    correct = np.full((len(queries), len(options)), math.nan)
    for place, (total, n) in sums.items():
        correct[place] = total / n
    return Outcomes(tuple(q for q, _ in queries), tuple(options), correct, tuple(d for _, d in queries))


def read_outcomes(path: os.PathLike[str] | str, options: Sequence[str] | None = None) -> Outcomes:
    """Outcomes from a ``.csv`` or ``.jsonl`` file.

    Each row has ``query`` (or ``question``, ``prompt``) and, if known, ``domain`` (or ``subject``, ``category``), and
    either ``option`` with ``correct`` (or ``score``), or one column an option, in JSON lines under ``scores``. Right
    and wrong are true and false, or a number from 0 to 1; an empty cell is an option that was not asked.

    Args:
        options: of a file with a column an option, the columns to take; None: all that are not query or domain.

    Raises:
        UserError: the file cannot be read, or a row cannot be understood (with its line).
    """
    path = Path(path)
    reader = {".csv": _csv_rows, ".jsonl": _json_rows}.get(path.suffix.lower())
    if reader is None:
        raise UserError(f"{path}: outcomes are read from .csv and .jsonl files; convert it or rename it.")
    try:
        return gather(found for line, row in reader(path) for found in _read(row, f"{path}, line {line}", options))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}.") from error


def ledger_outcomes(
    runs: os.PathLike[str] | str | Iterable[os.PathLike[str] | str], questions: Mapping[tuple[str, str], str]
) -> Outcomes:
    """Outcomes from run folders: an option is engine/decoding/reasoning, its score the Trials' mean.

    Args:
        questions: by (task, question_id) the question's text, which ledgers do not hold.

    Raises:
        UserError: a run that ``load`` refuses, a question without a text, or no scored Trial.
    """
    from joulewise.ledger import load

    names = ("task", "question_id", "engine", "decoding", "reasoning", "correct", "score", "status", "category")
    table = load(runs).arrow.select(names).to_pylist()

    def rows() -> Iterator[tuple[str, str, float, str | None]]:
        for trial in table:
            value = trial["score"] if trial["correct"] is None else float(trial["correct"])
            if trial["status"] != "ok" or value is None:
                continue
            key = trial["task"], trial["question_id"]
            if key not in questions:
                raise UserError(f"The text of question {key[1]} of task {key[0]} is not given; ledgers do not hold it.")
            option = f"{trial['engine']}/{trial['decoding']}/{trial['reasoning']}"
            yield questions[key], option, value, trial["category"] or trial["task"]

    return gather(rows())


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(1 << 24)
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
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


def _read(
    row: Mapping[str, Any], where: str, options: Sequence[str] | None
) -> Iterator[tuple[str, str, float, str | None]]:
    query = next((row[name] for name in QUERY_NAMES if name in row), None)
    if not isinstance(query, str):
        raise UserError(f"{where}: no text under any of {', '.join(QUERY_NAMES)}.")
    domain = next((row[name] for name in DOMAIN_NAMES if row.get(name)), None)
    domain = None if domain is None else str(domain)
    if "option" in row:
        name = "correct" if "correct" in row else "score"
        yield query, str(row["option"]), _score(row.get(name), f"{where}, field {name}"), domain
        return
    scores = row.get("scores", row)
    if not isinstance(scores, dict):
        raise UserError(f"{where}, field scores: an object of option and score.")
    for option in options or [name for name in scores if name not in (*QUERY_NAMES, *DOMAIN_NAMES)]:
        if scores.get(option) not in (None, ""):
            yield query, option, _score(scores[option], f"{where}, field {option}"), domain


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

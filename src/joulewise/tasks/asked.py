"""One's own questions without more ado: a JSON Lines file of queries, as ``joulewise ask`` writes it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from joulewise.errors import UserError
from joulewise.tasks import prompts
from joulewise.tasks.prompt_task import PromptTask
from joulewise.tasks.rows import Row, TaskContext, TaskOptions, parse_options, questions, read_jsonl
from joulewise.tasks.scorers import SCORERS, Scorer
from joulewise.tasks.task import Question, Score, Task

AnswerKind = Literal["text", "number", "letter"]

_OPTION = re.compile(r"^\s*\(?([A-D])[).:]\s", re.MULTILINE)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def _score_text(reference: str, text: str) -> Score:
    """1 where the reference stands in the text, as whole words, whatever its case."""
    words = r"\s+".join(map(re.escape, reference.split()))
    correct = re.search(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE) is not None
    return Score(float(correct), correct, reference if correct else None, "contains")


_SCORERS: dict[AnswerKind, Scorer] = {
    "text": replace(SCORERS["exact"], metric="contains", score=lambda q, text: _score_text(q.reference, text)),
    "number": SCORERS["math"],
    "letter": SCORERS["letter"],
}


class AskedOptions(TaskOptions):
    """The file, and what its answers are.

    Args:
        file: JSON Lines: ``query``, and if known ``domain``, ``reference`` (the right answer) and ``id``.
        answer: how all of them are asked and compared: as they are (``text``: the right answer must stand in the
            model's), for a ``number``, or for the ``letter`` of one of their options.
        max_new_tokens: the token budget, used where the plan names none.
    """

    file: Path
    answer: AnswerKind = "text"
    max_new_tokens: int = Field(512, ge=1)


def answer_kind(query: str, reference: str | None = None) -> AnswerKind:
    """``letter`` where a query has options A, B and so on, each on a line of its own; ``number`` where the right answer
    is known to be one; else ``text``.
    """
    found = _OPTION.findall(query)
    if found[:2] == ["A", "B"] and len(found) == len(set(found)):
        return "letter"
    return "number" if reference is not None and _NUMBER.fullmatch(reference.strip()) else "text"


def reference_fault(answer: AnswerKind, reference: str) -> str | None:
    """Why nothing can be scored against such a right answer, as the end of a sentence; None where it can."""
    return _SCORERS[answer].fault(reference)


def open_asked(context: TaskContext) -> Task:
    """The questions of a file; those without a reference have no score.

    Raises:
        UserError: no such file, or a row that is none, with its line.
    """
    options = parse_options(AskedOptions, context, "asked")
    if not options.file.is_file():
        raise UserError(f"task asked: no file {options.file}; name one with a query on each line in options: file")
    scorer = _SCORERS[options.answer]

    def question(row: Row, where: str, number: int) -> Question:
        query, reference = row.get("query"), row.get("reference")
        if not isinstance(query, str) or not query.strip():
            raise UserError(f"{where}: no text under 'query'")
        if reference is not None and (fault := scorer.fault(str(reference))):
            raise UserError(f"{where}: the field 'reference' {fault} (answers of the kind '{options.answer}')")
        domain = row.get("domain")
        return Question(
            str(row.get("id", f"row-{number}")),
            query,
            "" if reference is None else str(reference),
            None if domain is None else str(domain),
        )

    ask = {"text": lambda q: q.text, "number": prompts.short_maths, "letter": prompts.choice}[options.answer]
    steps = {"text": prompts.steps, "number": prompts.maths_steps, "letter": prompts.choice_steps}[options.answer]
    return PromptTask(
        name="asked",
        third_party=False,
        source=f"questions of {options.file.name}",
        max_new_tokens=options.max_new_tokens,
        items=questions(context, read_jsonl(options.file), question),
        prompt=ask,
        scorer=_if_known(scorer),
        stepwise=steps,
    )


def _if_known(scorer: Scorer) -> Scorer:
    """The same, and no score where the right answer is not known."""

    def score(question: Question, text: str) -> Score:
        if question.reference:
            return scorer.score(question, text)
        extracted = None if scorer.extract is None else scorer.extract(text)
        return Score(None, None, extracted, "unscored")

    return replace(scorer, score=score)

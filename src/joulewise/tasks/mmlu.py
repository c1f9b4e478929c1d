"""MMLU: multiple-choice questions on 57 subjects (Hendrycks et al., 2021, arXiv 2009.03300)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, Field

from joulewise.errors import UserError
from joulewise.tasks import prompts
from joulewise.tasks.prompt_task import PromptTask
from joulewise.tasks.rows import (
    HubDataset,
    Row,
    Rows,
    TaskContext,
    TaskOptions,
    find_rows,
    parse_options,
    questions,
    validated,
)
from joulewise.tasks.scorers import SCORERS
from joulewise.tasks.task import Question, Task
from joulewise.yaml_file import suggest


class MmluOptions(TaskOptions):
    """``subjects``: the subjects to ask; all if empty."""

    subjects: tuple[str, ...] = ()


class _Row(BaseModel):
    subject: str
    index: int
    question: str
    choices: tuple[str, ...] = Field(min_length=4, max_length=4)
    answer: Literal["A", "B", "C", "D"]


def open_mmlu(context: TaskContext) -> Task:
    """MMLU's test split from ``mmlu.jsonl.gz`` or ``cais/mmlu``.

    Question ids are ``<subject>-test-<row within the subject>``; the category is the subject.

    Raises:
        UserError: the data file is missing or broken, or an option is wrong.
        EnvironmentFault: the hub's data set cannot be had, or a package is missing.
    """
    wanted = parse_options(MmluOptions, context, "mmlu").subjects
    local, rows = find_rows(context, "mmlu", "mmlu.jsonl.gz", HubDataset("cais/mmlu", "all", "test"))
    if local:
        rows = [(where, row) for where, row in rows if isinstance(row, UserError) or row.get("split") == "test"]
    else:
        rows = list(_hub_rows_as_local(rows))
    test = questions(context, rows, _question)
    subjects = sorted({str(question.category) for question in test})
    for subject in wanted:
        if subject not in subjects:
            raise UserError(f"task mmlu: option 'subjects': no subject '{subject}'{suggest(subject, subjects)}")
    return PromptTask(
        name="mmlu",
        third_party=True,
        source="MMLU, test split (Hendrycks et al., 2021; MIT); prompt by Joulewise",
        max_new_tokens=16,
        items=tuple(question for question in test if not wanted or question.category in wanted),
        prompt=prompts.choice,
        scorer=SCORERS["letter"],
    )


def _question(fields: Row, where: str, _number: int) -> Question:
    row = validated(_Row, fields, where)
    return Question(
        question_id=f"{row.subject}-test-{row.index}",
        text=prompts.with_options(row.question, row.choices),
        reference=row.answer,
        category=row.subject,
        extra={"choices": row.choices},
    )


def _hub_rows_as_local(rows: Rows) -> Iterator[tuple[str, Row | UserError]]:
    """The hub's rows carry the answer's number and no index within the subject."""
    seen: Counter[str] = Counter()
    for where, row in rows:
        if isinstance(row, UserError):
            yield where, row
            continue
        answer = row.get("answer")
        letter = "ABCD"[answer] if isinstance(answer, int) and 0 <= answer < 4 else answer
        subject = str(row.get("subject"))
        yield where, {**row, "index": seen[subject], "answer": letter}
        seen[subject] += 1

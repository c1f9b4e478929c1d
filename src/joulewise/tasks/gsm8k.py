"""GSM8K: grade-school maths word problems (Cobbe et al., 2021, arXiv 2110.14168)."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

from pydantic import BaseModel

from joulewise.errors import UserError
from joulewise.tasks import prompts
from joulewise.tasks.prompt_task import Example, PromptTask
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

MOST_EXAMPLES = 32
"""So many of the train split's first questions can be shown before a question of the test split."""


class Gsm8kOptions(TaskOptions):
    """What a plan may choose.

    Args:
        split: the questions to ask.
    """

    split: Literal["test", "train"] = "test"


class _Row(BaseModel):
    question: str
    answer: str


def open_gsm8k(context: TaskContext) -> Task:
    """GSM8K from ``gsm8k_<split>.jsonl`` or ``openai/gsm8k``.

    Question ids are ``<split>-<row>``; the reference is the number after ``####``.

    Raises:
        UserError: a data file is missing or broken, or an option is wrong.
        EnvironmentFault: the hub's data set cannot be had, or a package is missing.
    """
    split = parse_options(Gsm8kOptions, context, "gsm8k").split

    def question(fields: Row, where: str, number: int) -> Question:
        row = validated(_Row, fields, where)
        return Question(f"{split}-{number}", row.question, _reference(row.answer, where))

    @cache
    def examples() -> tuple[Example, ...]:
        if split == "train":
            return ()  # its questions are asked
        return tuple(_example(row, where) for where, row in _rows(context, "train")[:MOST_EXAMPLES])

    return PromptTask(
        name="gsm8k",
        third_party=True,
        source=f"GSM8K, {split} split (Cobbe et al., 2021; MIT); prompt by Joulewise",
        max_new_tokens=200,
        items=questions(context, _rows(context, split), question),
        prompt=prompts.stepwise_maths,
        scorer=SCORERS["math"],
        stepwise=prompts.maths_steps,
        examples=lambda _: examples(),
    )


def _rows(context: TaskContext, split: str) -> Rows:
    return find_rows(context, "gsm8k", f"gsm8k_{split}.jsonl", HubDataset("openai/gsm8k", "main", split))


def _example(fields: Row | UserError, where: str) -> Example:
    """A question with its published solution, without the calculator's notes, in the form that the prompt asks for."""
    if isinstance(fields, UserError):
        raise fields
    row = validated(_Row, fields, where)
    steps, _, number = re.sub(r"<<[^>]*>>", "", row.answer).rpartition("####")
    answer = f"{steps.strip()}\nThe answer is {number.strip()}."
    return Question(where, row.question, _reference(row.answer, where)), answer


def _reference(answer: str, where: str) -> str:
    _, mark, number = answer.rpartition("####")
    reference = number.strip().replace(",", "")
    fault = SCORERS["math"].fault(reference)
    if not mark or fault:
        raise UserError(f"{where}: the field 'answer' does not end in '#### ' and a number")
    return reference

"""MT-Bench: 80 open questions of two turns (Zheng et al., 2023, arXiv 2306.05685). A judge may grade them afterwards
(``joulewise judge``); without one they tell energy alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from joulewise.engines.engine import Message
from joulewise.reasoning.reasoning import Asked
from joulewise.tasks.rows import (
    HubDataset,
    Row,
    TaskContext,
    TaskOptions,
    find_rows,
    parse_options,
    questions,
    validated,
)
from joulewise.tasks.task import Question, Score, Task

Category = Literal["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
FIRST_ID = 81
"""The first question's number as published; the numbers are consecutive."""


class MtBenchOptions(TaskOptions):
    """What a plan may choose.

    Args:
        categories: the categories to ask; all if empty.
    """

    categories: tuple[Category, ...] = ()


class _Row(BaseModel):
    question_id: int
    category: Category
    turns: Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]


@dataclass(frozen=True, slots=True)
class MtBench:
    """A ``Task`` whose second turn refers to the model's own answer to the first."""

    items: tuple[Question, ...]
    name: str = "mt_bench"
    third_party: bool = True
    source: str = "MT-Bench questions (Zheng et al., 2023; Apache-2.0), as published; graded by a judge or not at all"
    metric: str = "unscored"
    max_new_tokens: int = 200

    def questions(self) -> Sequence[Question]:
        """All questions, in the published order."""
        return self.items

    def turns(self, question: Question) -> tuple[tuple[Message, ...], ...]:
        """Two turns of one user message each."""
        return tuple((Message("user", text),) for text in question.extra["turns"])

    def asked(self, question: Question) -> Asked:
        """The turns alone: an open conversation has no one answer."""
        return Asked(self.turns(question))

    def score(self, question: Question, text: str) -> Score:
        """No score: the published one needs a judge, a far larger model, that is asked after the run."""
        return Score(value=None, correct=None, extracted=None, metric=self.metric)


def open_mt_bench(context: TaskContext) -> Task:
    """MT-Bench from ``mt_bench_questions.jsonl`` or ``HuggingFaceH4/mt_bench_prompts``.

    Question ids are the published numbers, 81 to 160; the category is the row's.

    Raises:
        UserError: the data file is missing or broken, or an option is wrong.
        EnvironmentFault: the hub's data set cannot be had, or a package is missing.
    """
    wanted = parse_options(MtBenchOptions, context, "mt_bench").categories
    hub = HubDataset("HuggingFaceH4/mt_bench_prompts", "default", "train", _as_local)
    items = questions(context, find_rows(context, "mt_bench", "mt_bench_questions.jsonl", hub), _question)
    return MtBench(tuple(q for q in items if not wanted or q.category in wanted))


def _question(fields: Row, where: str, _number: int) -> Question:
    row = validated(_Row, fields, where)
    return Question(str(row.question_id), row.turns[0], "", row.category, {"turns": row.turns})


def _as_local(rows: Iterable[Row]) -> Iterator[Row]:
    """The hub's rows, in the published order, call the turns ``prompt`` and carry a hash in place of the number."""
    for number, row in enumerate(rows, FIRST_ID):
        yield {**row, "question_id": number, "turns": row.get("prompt")}

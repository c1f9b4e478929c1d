"""CNN/DailyMail: news articles with summaries (Hermann et al., 2015; See et al., 2017, arXiv 1704.04368)."""

from __future__ import annotations

from pydantic import BaseModel

from joulewise.errors import UserError
from joulewise.tasks import prompts
from joulewise.tasks.prompt_task import PromptTask
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
from joulewise.tasks.scorers import SCORERS
from joulewise.tasks.task import Question, Task


class _Row(BaseModel):
    id: str
    article: str
    highlights: str
    origin: str = "cnn_dailymail_3.0.0_test"


def open_cnn_dm(context: TaskContext) -> Task:
    """CNN/DailyMail's test articles from ``cnn_dm.jsonl`` or ``abisee/cnn_dailymail`` 3.0.0.

    Question ids are the data set's own; the category is the row's origin.

    Raises:
        UserError: the data file is missing or broken.
        EnvironmentFault: the hub's data set cannot be had, or a package is missing.
    """
    parse_options(TaskOptions, context, "cnn_dm")
    rows = find_rows(context, "cnn_dm", "cnn_dm.jsonl", HubDataset("abisee/cnn_dailymail", "3.0.0", "test"))
    return PromptTask(
        name="cnn_dm",
        third_party=True,
        source="CNN/DailyMail 3.0.0, test split (See et al., 2017; articles are the property of CNN and the "
        "Daily Mail); prompt by Joulewise",
        max_new_tokens=200,
        items=questions(context, rows, _question),
        prompt=prompts.news_summary,
        scorer=SCORERS["rouge"],
    )


def _question(fields: Row, where: str, _number: int) -> Question:
    row = validated(_Row, fields, where)
    fault = SCORERS["rouge"].fault(row.highlights)
    if fault:
        raise UserError(f"{where}: the field 'highlights' {fault}")
    return Question(row.id, row.article, row.highlights, row.origin)

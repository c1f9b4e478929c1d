"""HumanEval: 164 Python functions to be written (Chen et al., 2021, arXiv 2107.03374)."""

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
    task_id: str
    prompt: str
    entry_point: str
    test: str


def open_humaneval(context: TaskContext) -> Task:
    """HumanEval from ``humaneval.jsonl`` or ``openai/openai_humaneval``. Answers are run in the sandbox.

    Question ids are the published ones, ``HumanEval/0`` to ``HumanEval/163``; the reference is the published test with
    the call of it.

    Raises:
        UserError: the data file is missing or broken, or an option is given.
        EnvironmentFault: there is no sandbox, the hub's data set cannot be had, or a package is missing.
    """
    parse_options(TaskOptions, context, "humaneval")
    SCORERS["code"].check_installed("humaneval")
    hub = HubDataset("openai/openai_humaneval", "openai_humaneval", "test")
    return PromptTask(
        name="humaneval",
        third_party=True,
        source="HumanEval (Chen et al., 2021; MIT); prompt by Joulewise",
        max_new_tokens=400,
        items=questions(context, find_rows(context, "humaneval", "humaneval.jsonl", hub), _question),
        prompt=prompts.code,
        scorer=SCORERS["code"],
    )


def _question(fields: Row, where: str, _number: int) -> Question:
    row = validated(_Row, fields, where)
    tests = f"{row.test}\n\ncheck({row.entry_point})\n"
    fault = SCORERS["code"].fault(tests)
    if fault:
        raise UserError(f"{where}: the field 'test' {fault}")
    return Question(row.task_id, row.prompt, tests, None, {"entry_point": row.entry_point})

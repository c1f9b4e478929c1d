"""The project's own starter questions: maths, summarisation, multiple choice, code. Apache-2.0 like the project."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from joulewise.errors import EnvironmentFault
from joulewise.tasks import prompts, sandbox
from joulewise.tasks.prompt_task import Example, PromptTask
from joulewise.tasks.rows import TaskContext, TaskOptions, parse_options
from joulewise.tasks.scorers import SCORERS
from joulewise.tasks.task import Question, Task

_SOURCE = "Joulewise starter questions and prompt (Apache-2.0)"


def open_starter_maths(context: TaskContext) -> Task:
    """Arithmetic and short word problems with exact answers."""
    parse_options(TaskOptions, context, "starter-maths")
    items = tuple(Question(r["id"], r["question"], r["answer"], r["category"]) for r in _rows("starter_maths"))
    rows = _rows("starter_maths_examples")
    shown = [(Question(r["id"], r["question"], r["answer"], r["category"]), r["shown"]) for r in rows]
    return PromptTask(
        "starter-maths",
        False,
        _SOURCE,
        96,
        items,
        prompts.short_maths,
        SCORERS["math"],
        prompts.maths_steps,
        lambda _: shown,
    )


def open_starter_summarisation(context: TaskContext) -> Task:
    """Short passages to be summarised in a sentence or two."""
    parse_options(TaskOptions, context, "starter-summarisation")
    items = tuple(Question(r["id"], r["passage"], r["summary"], r["category"]) for r in _rows("starter_summarisation"))
    return PromptTask("starter-summarisation", False, _SOURCE, 96, items, prompts.summary, SCORERS["rouge"])


def open_starter_choice(context: TaskContext) -> Task:
    """Multiple-choice questions with four options."""
    parse_options(TaskOptions, context, "starter-choice")
    items = tuple(map(_choice, _rows("starter_choice")))
    shown = choice_examples()
    return PromptTask(
        "starter-choice",
        False,
        _SOURCE,
        16,
        items,
        prompts.choice,
        SCORERS["letter"],
        prompts.choice_steps,
        lambda _: shown,
    )


def choice_examples() -> list[Example]:
    """Answered multiple-choice questions to be shown before others; none of them is ever asked."""
    return [(question, question.reference) for question in map(_choice, _rows("starter_choice_examples"))]


def _choice(row: dict[str, Any]) -> Question:
    text = prompts.with_options(row["question"], row["choices"])
    return Question(row["id"], text, row["answer"], row["category"], {"choices": tuple(row["choices"])})


def open_starter_code(context: TaskContext) -> Task:
    """Small Python functions to be completed; answers are run in the sandbox.

    Raises:
        EnvironmentFault: there is no sandbox.
    """
    parse_options(TaskOptions, context, "starter-code")
    reason = sandbox.unavailable()
    if reason:
        raise EnvironmentFault(
            f"task starter-code: {reason}. To leave it out, write the other starter tasks instead of 'starter': "
            "starter-maths, starter-summarisation, starter-choice"
        )
    items = tuple(
        Question(r["id"], r["stub"], r["tests"], r["category"], {"entry_point": r["entry_point"]})
        for r in _rows("starter_code")
    )
    return PromptTask("starter-code", False, _SOURCE, 160, items, prompts.code, SCORERS["code"])


def _rows(stem: str) -> list[dict[str, Any]]:
    text = files("joulewise.tasks").joinpath("data", f"{stem}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]

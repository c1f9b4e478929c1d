"""What is asked? Questions, prompts, scorers; the registry of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from joulewise.errors import UserError
from joulewise.tasks.asked import AskedOptions, open_asked
from joulewise.tasks.cnn_dm import open_cnn_dm
from joulewise.tasks.custom import open_custom
from joulewise.tasks.gsm8k import Gsm8kOptions, open_gsm8k
from joulewise.tasks.harness import PREFIX as LM_EVAL
from joulewise.tasks.harness import LmEvalOptions, harness_label, open_harness
from joulewise.tasks.humaneval import open_humaneval
from joulewise.tasks.mmlu import MmluOptions, open_mmlu
from joulewise.tasks.mt_bench import MtBenchOptions, open_mt_bench
from joulewise.tasks.rows import TaskContext, TaskOptions
from joulewise.tasks.starter import (
    open_starter_choice,
    open_starter_code,
    open_starter_maths,
    open_starter_summarisation,
)
from joulewise.tasks.task import Question, Score, Task
from joulewise.yaml_file import suggest

TASKS: dict[str, Callable[[TaskContext], Task]] = {
    "starter-maths": open_starter_maths,
    "starter-summarisation": open_starter_summarisation,
    "starter-choice": open_starter_choice,
    "starter-code": open_starter_code,
    "gsm8k": open_gsm8k,
    "humaneval": open_humaneval,
    "mmlu": open_mmlu,
    "cnn_dm": open_cnn_dm,
    "mt_bench": open_mt_bench,
    "asked": open_asked,
}
"""The registry: name in a plan -> opens the task. A new task is one file and one line here."""

OPTIONS: dict[str, type[TaskOptions]] = {
    "gsm8k": Gsm8kOptions,
    "mmlu": MmluOptions,
    "mt_bench": MtBenchOptions,
    "asked": AskedOptions,
}
"""The options of the tasks that have some, so that a plan's faults are told before anything is opened."""

JUDGED = frozenset({"mt_bench"})
"""Tasks whose answers a judge may grade after the run (``joulewise judge``): ledgers keep the answers' texts for it."""

GROUPS: dict[str, list[str]] = {"starter": ["starter-maths", "starter-summarisation", "starter-choice", "starter-code"]}
"""Names that stand for several tasks."""


def task_names() -> list[str]:
    """The names of all tasks that have questions of their own, groups left out."""
    return [name for name in TASKS if name != "asked"]


def options_of(name: str) -> type[TaskOptions]:
    """The options of a task, by its name in a plan."""
    return LmEvalOptions if name.startswith(LM_EVAL) else OPTIONS.get(name, TaskOptions)


def unknown_task(name: str) -> str | None:
    """Why ``name`` is neither a shipped task nor one of lm-eval, with the nearest that is; None if it is one."""
    if name in TASKS or name.startswith(LM_EVAL):
        return None
    return f"unknown task '{name}'{suggest(name, [*TASKS, *GROUPS])} (a custom task is named by its .yaml file)"


def open_task(
    name_or_path: str,
    data_dir: Path | None = None,
    options: Mapping[str, object] | None = None,
    skip_bad: Callable[[str], None] | None = None,
) -> Task:
    """Open a task: read and check its questions.

    Args:
        name_or_path: a shipped task's name, the YAML file (``.yaml`` or ``.yml``) of a custom one, or ``lm_eval:`` and
            the name or YAML file of a task of lm-eval.
        data_dir: the folder with third-party data files; None takes the one that the environment variable
            ``JOULEWISE_DATA`` names, or, without it, the hub.
        options: the task's own options.
        skip_bad: told of every broken line of a data file, which is then left out; None refuses the first one.

    Raises:
        UserError: no such task, or questions that are missing or broken.
        EnvironmentFault: a package is not installed, or a hub's data set cannot be fetched.
    """
    context = TaskContext(data_dir, options or {}, skip_bad)
    if name_or_path.startswith(LM_EVAL):
        return open_harness(name_or_path, context)
    if name_or_path.endswith((".yaml", ".yml")):
        if options:
            raise UserError(f"task {name_or_path}: a custom task has no options; its YAML file says everything")
        task = open_custom(Path(name_or_path), context)
        if task.name in TASKS or task.name in GROUPS:
            raise UserError(f"{name_or_path}: name: '{task.name}' is a shipped task; choose another name")
        return task
    if name_or_path in GROUPS:
        raise UserError(f"'{name_or_path}' stands for several tasks: {', '.join(GROUPS[name_or_path])}; open one")
    if fault := unknown_task(name_or_path):
        raise UserError(fault)
    return TASKS[name_or_path](context)


__all__ = [
    "GROUPS",
    "JUDGED",
    "LM_EVAL",
    "OPTIONS",
    "TASKS",
    "Question",
    "Score",
    "Task",
    "TaskContext",
    "harness_label",
    "open_task",
    "options_of",
    "task_names",
    "unknown_task",
]

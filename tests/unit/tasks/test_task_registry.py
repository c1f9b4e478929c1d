"""The registry of tasks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from joulewise.errors import UserError
from joulewise.tasks import GROUPS, OPTIONS, TASKS, open_task, task_names


def test_names_and_groups() -> None:
    assert task_names() == [
        "starter-maths",
        "starter-summarisation",
        "starter-choice",
        "starter-code",
        "gsm8k",
        "humaneval",
        "mmlu",
        "cnn_dm",
        "mt_bench",
    ]
    assert GROUPS == {"starter": ["starter-maths", "starter-summarisation", "starter-choice", "starter-code"]}
    assert set(OPTIONS) <= set(TASKS)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown task 'gsm8'; did you mean 'gsm8k'"):
        open_task("gsm8")
    with pytest.raises(UserError, match=r"unknown task 'zzz'; known: .*mmlu"):
        open_task("zzz")
    with pytest.raises(UserError, match="'starter' stands for several tasks: starter-maths, "):
        open_task("starter")


def test_the_registry_loads_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "datasets", "math_verify", "sympy", "rouge_score", "nltk", "pyarrow", "numpy"}
    code = f"import sys, joulewise.tasks; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"

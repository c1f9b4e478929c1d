"""Plans and tasks for runs with the scripted engine (the fixtures `scripted` and `meter`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from joulewise.plan import Plan


class Stop(BaseException):
    """Stands for a kill: nothing in the runner may catch it."""


def questions_task(folder: Path, prompts: list[str], name: str = "words") -> str:
    lines = [json.dumps({"id": f"q{i}", "text": p, "answer": "1"}) for i, p in enumerate(prompts)]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    task = folder / f"{name}.yaml"
    task.write_text(
        f"name: {name}\nquestions: {name}.jsonl\nid: id\nprompt: '{{text}}'\nreference: answer\nscorer: exact\n"
        "max_new_tokens: 8\n"
    )
    return str(task)


def make_plan(task: str | list[str], **more: Any) -> Plan:
    return Plan.model_validate(
        {
            "name": "test",
            "engines": [{"kind": "transformers", "name": "toy", "draft": "x"}],
            "decodings": ["vanilla", {"kind": "coga", "tokens": 5}, "prompt_lookup"],
            "tasks": [task] if isinstance(task, str) else task,
            "idle_baseline_s": 0,
            **more,
        }
    )

"""``joulewise run --dry-run``: what a plan would do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from joulewise import estimate
from joulewise.environment import gpus
from joulewise.plan import Plan
from joulewise.schedule import check_supported, open_tasks, schedule

SET_UP_S = 15.0
"""Loading an engine and the libraries under it, roughly."""


def dry_run(plan: Plan, data_dir: Path | None, limit: int | None, json_output: bool) -> None:
    """Print the cells, the number of generations and an estimate of time."""
    from rich.console import Console
    from rich.table import Table

    questions = open_tasks(plan, data_dir, limit)
    check_supported(plan)
    jobs = schedule(plan, questions)
    on_gpu = bool(gpus())
    bandwidth_b_s = estimate.memory_bandwidth_b_s()
    rows: list[dict[str, Any]] = []
    set_up_s: dict[str, float | None] = {}
    for cell in plan.cells():
        task, asked = questions[cell.task.label]
        count = len(asked) * plan.repeats
        tokens = plan.stop.tokens or cell.task.max_new_tokens or task.max_new_tokens
        size = estimate.model_size(cell.engine, on_gpu and cell.engine.device != "cpu")
        seconds = None
        if size is not None:
            step_s = estimate.seconds_per_token(size, on_gpu and cell.engine.device != "cpu", bandwidth_b_s)
            cost = estimate.relative_cost(cell.decoding, cell.engine.draft, size.layers)
            seconds = count * tokens * step_s * cost
        rows.append({"cell": cell.cell_id, "generations": count, "max_new_tokens": tokens, "estimate_s": seconds})
        set_up_s[cell.engine.label] = SET_UP_S + plan.idle_baseline_s
    whole = estimate.total({r["cell"]: r["estimate_s"] for r in rows} | set_up_s)
    result = {
        "plan": plan.name,
        "cells": rows,
        "generations": len(jobs),
        "excluded": [e.model_dump() for e in plan.exclude],
        "estimate_s": whole,
    }
    if json_output:
        typer.echo(json.dumps(result, indent=2))
        return
    console = Console()
    table = Table(box=None)
    table.add_column("cell", overflow="fold")
    for column in ("generations", "tokens each, at most", "about"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(row["cell"], str(row["generations"]), str(row["max_new_tokens"]), _time(row["estimate_s"]))
    console.print(table)
    for exclusion in plan.exclude:
        labels = "/".join((exclusion.engine, exclusion.decoding, exclusion.reasoning, exclusion.task))
        console.print(f"excluded: {labels}" + (f" ({exclusion.reason})" if exclusion.reason else ""), markup=False)
    console.print(f"{len(rows)} cells, {len(jobs)} generations, about {_time(whole)} in all.")
    console.print(
        "The time is rough (within a factor of two or three): from the model's size and this machine's memory, every "
        "answer at its full length. Nothing was run."
        if whole is not None
        else "No estimate: the model is not at hand, so its size is not known before it is loaded. Nothing was run."
    )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )

"""``joulewise run --dry-run``: what a plan would do."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from joulewise import estimate
from joulewise.cli.at_hand import check_models
from joulewise.counted import counted
from joulewise.decoding import Vanilla
from joulewise.energy.card_setting import CardSetting, cards_of, check_held
from joulewise.energy.sources import nvml
from joulewise.engines import open_engine
from joulewise.engines.engine import Request
from joulewise.engines.spec import ModelSpec
from joulewise.environment import gpus
from joulewise.errors import JoulewiseError, UserError
from joulewise.plan import Cell, Plan
from joulewise.schedule import Faults, Skipped, not_compared, open_what_can_be, unanswerable, unreplayable, unsupported

SET_UP_S = 15.0
"""Loading an engine and the libraries under it, roughly."""


def dry_run(plan: Plan, data_dir: Path | None, limit: int | None, skip_bad: bool, json_output: bool) -> None:
    """Print the cells, the number of generations and an estimate of time; cells that cannot run are among them.

    Raises:
        UserError: some cells cannot be run, as far as can be seen offline and without loading a model; why, each fault
            by its number in what was printed.
    """
    skipped = Skipped()
    questions, faults = open_what_can_be(plan, data_dir, limit, skipped.add if skip_bad else None)
    engines = {}
    for spec in plan.engines:
        try:
            engines[spec.label] = open_engine(spec)
        except JoulewiseError as error:
            faults.setdefault(str(error), []).extend(c for c in plan.cells() if c.engine.label == spec.label)
    lacking, remarks = check_models(plan)
    no_device, elsewhere = _devices_lacking(plan)
    for found in (
        unanswerable(plan, questions),
        unsupported(plan, engines),
        not_compared(plan, engines, questions),
        unreplayable(plan),
        lacking,
        no_device,
        _not_held(plan),
    ):
        for told, cells in found.items():
            faults.setdefault(told, []).extend(cells)
    warnings = [*skipped.told(), *remarks, *elsewhere, *_without_vanilla(plan)]
    if plan.target is not None:
        most = plan.target.max_repeats
        ends = "its budget of seconds is spent" if most is None else f"each question was asked {counted(most, 'time')}"
        warnings.append(
            f"the figures are of {counted(plan.repeats, 'repeat')}; for its target the plan may go on until {ends}"
        )
    on_gpu = bool(gpus())
    bandwidth_b_s = estimate.memory_bandwidth_b_s()
    rows: list[dict[str, Any]] = []
    set_up_s: dict[str, float | None] = {}
    for cell in plan.cells():
        row: dict[str, Any] = {"cell": cell.cell_id, "generations": 0, "max_new_tokens": None, "estimate_s": None}
        row["faults"] = [told for told, cells in faults.items() if cell in cells]
        rows.append(row)
        if row["faults"]:
            continue
        task, asked = questions[cell.task.label]
        budget = plan.stop.tokens or cell.task.max_new_tokens or task.max_new_tokens
        template = cell.reasoning.settings(Request((), budget, plan.stop.rule == "fixed"))
        limits = cell.reasoning.most_tokens(template)
        if asked and task.asked(asked[0]).continuations:
            limits = (1,)  # one forward
        turns = sum(len(task.turns(question)) for question in asked) * plan.repeats
        row["generations"], row["max_new_tokens"] = turns * len(limits), max(limits)
        if cell.load is not None:
            # How many requests a server answers in the time, nobody knows before.
            row["generations"], row["stretch_s"] = plan.repeats, cell.load.duration_s
            row["estimate_s"] = plan.repeats * cell.load.duration_s
            set_up_s[cell.engine.label] = SET_UP_S + 2 * plan.idle_baseline_s
            continue
        device_is_gpu = on_gpu and not (isinstance(cell.engine, ModelSpec) and cell.engine.device == "cpu")
        size = estimate.model_size(cell.engine, device_is_gpu)
        if size is not None:
            step_s = estimate.seconds_per_token(size, device_is_gpu, bandwidth_b_s)
            cost = estimate.relative_cost(cell.decoding, cell.engine.draft, size.layers)
            row["estimate_s"] = turns * sum(limits) * step_s * cost
        set_up_s[cell.engine.label] = SET_UP_S + 2 * plan.idle_baseline_s
    whole = estimate.total({r["cell"]: r["estimate_s"] for r in rows if not r["faults"]} | set_up_s)
    result = {
        "plan": plan.name,
        "cells": rows,
        "generations": sum(r["generations"] for r in rows),
        "excluded": [e.model_dump() for e in plan.exclude],
        "estimate_s": whole,
        "warnings": warnings,
    }
    numbers = {told: f"({number})" for number, told in enumerate(faults, 1)}
    if json_output:
        typer.echo(json.dumps(result, indent=2))
    else:
        _show(plan, result, numbers)
    if faults:
        lame = sum(bool(row["faults"]) for row in rows)
        head = f"{lame:,} of {counted(len(rows), 'cell')} cannot run:"
        raise UserError("\n".join([head, *(f"{number} {told}" for told, number in numbers.items())]))


def _show(plan: Plan, result: Mapping[str, Any], numbers: Mapping[str, str]) -> None:
    rows = result["cells"]
    _show_cells(plan.cells(), rows, numbers)
    for exclusion in plan.exclude:
        labels = "/".join((exclusion.engine, exclusion.decoding, exclusion.reasoning, exclusion.task))
        labels += f"/{exclusion.load}" if plan.loads else ""
        typer.echo(f"excluded: {labels}" + (f" ({exclusion.reason})" if exclusion.reason else ""))
    for warning in result["warnings"]:
        typer.echo(f"Warning: {warning}")
    able = sum(not row["faults"] for row in rows)
    if not able:
        typer.echo(f"{counted(len(rows), 'cell')}, none of which can run. Nothing was run.")
        return
    cells = counted(len(rows), "cell") + (f", {able:,} of which can run" if able < len(rows) else "")
    generations = counted(result["generations"], "Trial") + " under load"
    if not plan.loads:
        generations = counted(result["generations"], "generation")
    typer.echo(f"{cells}, {generations}, {_time(result['estimate_s'])} in all. Nothing was run.")
    typer.echo(
        "The time is that of the loads, without starts of servers."
        if plan.loads
        else "The time is rough (within a factor of two or three), with every answer at its full length."
        if result["estimate_s"] is not None
        else "No estimate: a model is not at hand, so its size is not known before it is loaded."
    )


def _devices_lacking(plan: Plan) -> tuple[Faults, list[str]]:
    """Engines that name a GPU which is not here, and those that want several where there is none.

    The former is a fault. A plan for large models is written on machines that could never run it: the latter is told.
    """
    named = [e for e in plan.engines if isinstance(e, ModelSpec) and e.device not in ("auto", "cpu")]
    if not named or find_spec("torch") is None:
        return Faults(), []
    import torch  # takes a second or two, so only where a GPU is named

    count = torch.cuda.device_count()
    here = f"torch sees {count} here" if count else "torch sees none here"
    faults, elsewhere = Faults(), []
    for engine in named:
        if int(engine.device.partition(":")[2] or 0) >= count:
            told = f"engine {engine.label}: device: {engine.device} needs a GPU, and {here}: use device: cpu or auto"
            if engine.device == "balanced":
                elsewhere.append(told)
            else:
                faults[told] = [cell for cell in plan.cells() if cell.engine.label == engine.label]
    return faults, elsewhere


def _not_held(plan: Plan) -> Faults:
    """Power limits and clocks that the GPUs here do not take. Nothing is changed."""
    faults = Faults()
    for engine in plan.engines:
        setting = CardSetting(engine.power_limit_w, engine.locked_sm_clock_hz)
        if not setting:
            continue
        metered = nvml.discover().sources
        try:
            check_held(setting, cards_of(getattr(engine, "gpus", None), [source.spec for source in metered]))
        except JoulewiseError as error:
            cells = [cell for cell in plan.cells() if cell.engine.label == engine.label]
            faults[f"engine {engine.label}: {error}"] = cells
        finally:
            for source in metered:
                source.close()
    return faults


def _show_cells(cells: Sequence[Cell], rows: Sequence[Mapping[str, Any]], numbers: Mapping[str, str]) -> None:
    """A line a cell below its engine's name, in columns; one that cannot run with the numbers of its faults."""
    names = [f"{cell.decoding.label}/{cell.reasoning.label}/{cell.task_label}" for cell in cells]
    counts = [
        "cannot run"
        if row["faults"]
        else f"{row['generations']:,} x {row['stretch_s']:g} s"
        if "stretch_s" in row
        else f"{row['generations']:,} x {counted(row['max_new_tokens'], 'token')}"
        for row in rows
    ]
    times = [" ".join(numbers[told] for told in row["faults"]) or _time(row["estimate_s"]) for row in rows]
    name_width, count_width, time_width = (max(map(len, column)) for column in (names, counts, times))
    fits = name_width + count_width + time_width + 6 <= shutil.get_terminal_size().columns
    for engine, group in itertools.groupby(zip(cells, names, counts, times, strict=True), lambda row: row[0].engine):
        typer.echo(engine.label)
        for _, name, count, time in group:
            figures = f"  {count:>{count_width}}  {time:>{time_width}}"
            typer.echo(f"  {name:<{name_width}}{figures}" if fits else f"  {name}\n    {figures}")


def _without_vanilla(plan: Plan) -> list[str]:
    """A warning where cells have no baseline."""
    cells = plan.cells()
    lacking = [c.cell_id for c in cells if replace(c, decoding=Vanilla()) not in cells]
    if not lacking:
        return []
    return [
        f"there is no vanilla to compare {len(lacking)} of {counted(len(cells), 'cell')} with, such as {lacking[0]}: "
        "no saving "
        "will be told of them, and their outputs will not be checked; add `vanilla` to the decodings"
    ]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "unknown time"
    return "about " + (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )

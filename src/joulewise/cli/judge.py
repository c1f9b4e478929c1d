"""``joulewise judge``."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulewise.cli.named_file import named_file
from joulewise.counted import counted

if TYPE_CHECKING:
    from joulewise.judge.grade import Judged
    from joulewise.judge.record import Call


def judge(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with answers to mt_bench.")],
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="Base of an OpenAI-compatible address: http://localhost:8000/v1")
    ],
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="The judge's name there.")],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Where the questions lie, with published judge prompts and reference answers if they are to be used. "
            "Default: $JOULEWISE_DATA.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="CELL", help="Compare every other cell's answers with this one's, in both orders."
        ),
    ] = None,
    key_env: Annotated[
        str, typer.Option("--key-env", metavar="NAME", help="The environment variable that holds the key, if any.")
    ] = "JOULEWISE_JUDGE_KEY",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="At most so many judgements this time.")
    ] = None,
    tries: Annotated[int, typer.Option("--tries", min=1, max=20, metavar="N", help="Requests for one grade.")] = 3,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1.0, metavar="SECONDS", help="So long one reply may take.")
    ] = 120.0,
    measure: Annotated[
        bool, typer.Option("--measure", help="The judge runs on this machine: measure the joules of its calls.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Let a model grade the open answers of a finished run, each turn from 1 to 10.

    The run itself needs no judge. What was judged is kept in RUN/judgements.jsonl and is not asked again: after a
    fault, or for answers that stayed unjudged, give the same command once more. Reports then show the grades.

    Exit codes: 0; 2 where the judge could not be used, graded nothing, or was down so that the rest was left; what was
    judged is kept.
    """
    from joulewise.cli.progress import show_progress
    from joulewise.energy import discover
    from joulewise.judge.client import Judge
    from joulewise.judge.grade import judge_run

    data_dir = named_file(data, "--data", "the folder's name")
    grader = Judge(url, model, (os.environ.get(key_env) or "").strip() or None, timeout, tries=tries)
    with ExitStack() as open_:
        meter = open_.enter_context(discover()) if measure else None
        on_progress = open_.enter_context(show_progress())
        result = judge_run(
            run,
            grader,
            data_dir=data_dir,
            against=against,
            limit=limit,
            meter=meter,
            on_progress=on_progress,
        )
    for note in result.notes:
        typer.echo(note, err=True)
    summary = _summary(result, against is not None)
    typer.echo(json.dumps(summary, indent=2) if json_output else "\n".join(_lines(summary, model)))
    if result.stopped is not None:
        typer.echo(f"Left for another time: {result.stopped}. The same command goes on.", err=True)
        if limit is None:
            raise typer.Exit(2)
    if result.asked and all(judgement.status == "unjudged" for judgement in result.judgements):
        typer.echo(f"No answer was graded: {result.judgements[-1].reason}. Ask another judge with --model.", err=True)
        raise typer.Exit(2)


def _summary(result: Judged, pairs: bool) -> dict[str, Any]:
    """By cell and category what the judge said, and what it took."""
    cells: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for judgement in result.judgements:
        trial = result.answers[judgement.trial_id].trial
        said = judgement.verdict if pairs else judgement.rating
        for category in ("all", trial.category or "none"):
            cells[trial.cell_id][category].append(said)
    calls = [call for judgement in result.judgements for call in judgement.calls]
    return {
        "cells": {
            cell: {category: (_verdicts if pairs else _ratings)(said) for category, said in found.items()}
            for cell, found in cells.items()
        },
        "unjudged": sum(judgement.status == "unjudged" for judgement in result.judgements),
        "asked_this_time": result.asked,
        "stopped": result.stopped,
        "judge": {
            "calls": len(calls),
            "prompt_tokens": _sum([call.prompt_tokens for call in calls]),
            "output_tokens": _sum([call.output_tokens for call in calls]),
            "duration_s": sum(call.duration_s or 0.0 for call in calls),
            "energy_j": _joules(calls),
        },
    }


def _ratings(said: Sequence[float | None]) -> dict[str, Any]:
    known = [rating for rating in said if rating is not None]
    return {"rating": fmean(known) if known else None, "judged": len(known), "unjudged": len(said) - len(known)}


def _verdicts(said: Sequence[str | None]) -> dict[str, Any]:
    return {name: said.count(name) for name in ("win", "tie", "loss")} | {"unjudged": said.count(None)}


def _sum(counts: Sequence[int | None]) -> int | None:
    """None where a count is not known: a part is no sum."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _joules(calls: Sequence[Call]) -> float | None:
    """None where some joules are not known."""
    parts = [part.energy_j for call in calls for part in call.energy or ()]
    known = [energy_j for energy_j in parts if energy_j is not None]
    return sum(known) if calls and all(call.energy for call in calls) and len(known) == len(parts) else None


def _lines(summary: dict[str, Any], model: str) -> list[str]:
    lines = []
    for cell, categories in summary["cells"].items():
        lines.append(cell)
        width = max(map(len, categories))
        for category, found in categories.items():
            left = f", {found['unjudged']} unjudged" if found["unjudged"] else ""
            if "rating" in found:
                mean = "no grade" if found["rating"] is None else f"{found['rating']:.2f} of 10"
                turns = f"{found['judged']} turn" + ("s" if found["judged"] != 1 else "")
                lines.append(f"  {category:<{width}}  {mean} ({turns}{left})")
            else:
                counts = ", ".join(f"{found[name]} {name}" for name in ("win", "tie", "loss"))
                lines.append(f"  {category:<{width}}  {counts}{left}")
    took = summary["judge"]
    tokens = [
        f"{'unknown' if took[name] is None else format(took[name], ',')} {word}"
        for name, word in (("prompt_tokens", "prompt"), ("output_tokens", "output"))
    ]
    joules = "unknown joules" if took["energy_j"] is None else f"{took['energy_j']:,.0f} J on this machine"
    lines.append(
        f"The judge {model}, apart from the run: {counted(took['calls'], 'call')}, {' and '.join(tokens)} tokens, "
        f"{took['duration_s']:.0f} s, {joules}."
    )
    return lines

"""``joulewise export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from joulewise.cli.named_file import named_file
from joulewise.counted import counted
from joulewise.errors import UserError


def export(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, as `joulewise run` makes them.")],
    trials: Annotated[
        str | None, typer.Option("--trials", metavar="FILE", help="Write one row per Trial: tokens, joules, scores.")
    ] = None,
    timeline: Annotated[
        str | None,
        typer.Option("--timeline", metavar="FILE", help="Write one row per reading of a counter or power sensor."),
    ] = None,
) -> None:
    """Write runs as tables for other programs.

    FILE ends in .parquet or .csv. Column names carry their units. Several runs go into one table, with their names.

    Example: joulewise export runs/demo-20260131-130000 --trials trials.csv --timeline timeline.parquet
    """
    trials_file, timeline_file = (
        named_file(text, option, "the file's name") for text, option in ((trials, "--trials"), (timeline, "--timeline"))
    )
    targets = [target for target in (trials_file, timeline_file) if target is not None]
    if not targets:
        raise UserError("nothing to write: say what and where with --trials FILE or --timeline FILE")
    if trials_file == timeline_file:
        raise UserError(f"{trials}: --trials and --timeline cannot go to the same file")

    from joulewise.export.tables import check_suffix, write_timeline, write_trials
    from joulewise.ledger import load

    for target in targets:
        check_suffix(target)
    table = load(list({folder.resolve(): folder for folder in runs}.values()))
    for warning in table.warnings:
        typer.echo(warning, err=True)
    there = set(table.arrow["run"].unique().to_pylist())
    for run, folder in table.folders.items():
        if trials_file is not None and there and run not in there:
            typer.echo(f"{folder}: no Trial yet, so none of it is in {trials}", err=True)
    if trials_file is not None:
        typer.echo(f"Trials: {trials} ({counted(write_trials(table, trials_file), 'row')})", err=True)
    if timeline_file is not None:
        typer.echo(f"Timeline: {timeline} ({counted(write_timeline(table, timeline_file), 'row')})", err=True)

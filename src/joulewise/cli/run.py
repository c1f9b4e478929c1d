"""``joulewise run``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli.named_file import named_file
from joulewise.counted import counted

if TYPE_CHECKING:
    from joulewise.plan import Plan
    from joulewise.run_result import RunResult


def run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan: a YAML file, such as plans/demo.yaml.")],
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="The run folder. Default: runs/NAME-DATE-TIME.", metavar="DIR")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Where third-party data sets lie. Default: $JOULEWISE_DATA.", metavar="DIR"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out (or the plan's latest).")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="At most so many questions a task.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave broken lines of task files out, and tell which.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print cells, generations and an estimate of time, and which cells cannot run; run nothing.",
        ),
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Run a plan: every question in every cell of its grid, each Trial with its joules, into a run folder.

    Ctrl-C ends the run after the Trial in flight (twice: at once); --resume goes on. The run folder holds the ledger,
    and in the end report.html. The main tables are printed in the end; `joulewise report` prints all of them.

    Exit codes: 0, also where some Trials failed (standard error says how many and why); 1 where an engine could not be
    loaded and the others' cells were run; 2 where every Trial failed, or nothing could be run, or, in a dry run, some
    cell could not; 130 where the run was stopped.
    """
    from joulewise.ledger import latest_run_folder, new_run_folder
    from joulewise.plan import load_plan

    named, data_dir = (named_file(t, o, "the folder's name") for t, o in ((out, "--out"), (data, "--data")))
    loaded = load_plan(plan)
    folder = named or (latest_run_folder(loaded) if resume else new_run_folder(loaded))
    if dry_run:
        from joulewise.cli.dry_run import dry_run as show
        from joulewise.ledger import check_folder

        check_folder(folder, loaded, resume)
        show(loaded, data_dir, limit, skip_bad, json_output)
        return
    go_on = f"joulewise run {plan} --out {folder} --resume"
    try:
        result = _run(loaded, folder, data_dir, resume, limit, skip_bad)
    except KeyboardInterrupt:
        typer.echo(f"Stopped in the middle of a Trial; every finished one is kept. Go on with: {go_on}", err=True)
        raise typer.Exit(130) from None
    if json_output:
        typer.echo(json.dumps({**vars(result), "folder": str(result.folder)}))
    if result.interrupted:
        typer.echo(f"Stopped after {result.done} of {counted(result.total, 'Trial')}. Go on with: {go_on}", err=True)
    if result.done:
        from joulewise.cli.report import show_runs
        from joulewise.report.text import failures

        summary = show_runs([folder], quiet=json_output, brief=True)
        if told := failures(summary.runs[0]):
            typer.echo(told, err=True)
    if result.different:
        differ = "differs" if result.different == 1 else "differ"
        typer.echo(
            f"{counted(result.different, 'output')} of lossless decodings {differ} from vanilla's beyond near-ties: "
            "distrust them.",
            err=True,
        )
    for label, error in result.not_loaded.items():
        typer.echo(f"{label} could not be loaded, and none of its cells was run: {error}", err=True)
    if result.not_loaded:
        typer.echo(f"Once it can be, run them with: {go_on}", err=True)
    if result.interrupted:
        raise typer.Exit(130)
    if 0 < result.failed == result.done:
        raise typer.Exit(2)
    if result.not_loaded:
        raise typer.Exit(1)


def _run(plan: Plan, folder: Path, data: Path | None, resume: bool, limit: int | None, skip_bad: bool) -> RunResult:
    from joulewise.cli.progress import show_progress
    from joulewise.energy import discover
    from joulewise.runner import run as run_plan

    with discover() as meter, show_progress() as on_progress:
        return run_plan(
            plan,
            folder,
            meter=meter,
            data_dir=data,
            resume=resume,
            limit=limit,
            skip_bad=skip_bad,
            on_progress=on_progress,
        )

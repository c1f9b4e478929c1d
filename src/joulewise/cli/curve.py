"""``joulewise curve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from joulewise.cli.named_file import output_file
from joulewise.cli.report import POLLUTED_HELP, STDOUT, write_file
from joulewise.errors import UserError

MOST_TOKENS, MOST_RUNNING = 10_000_000, 100_000
"""No prediction beyond: a thousand times what models read, and servers run, today."""


def curve(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder to fit; or a curve file, to predict from it.")
    ],
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="LABEL", help="Which engine, where the run has several.")
    ] = None,
    decoding: Annotated[
        str | None,
        typer.Option("--decoding", metavar="LABEL", help="Which decoding. Default: vanilla, or the only one."),
    ] = None,
    component: Annotated[
        str | None,
        typer.Option(
            "--component",
            metavar="gpu|cpu|dram|total",
            help="Whose joules. Default: the GPU where it alone is measured, else the total.",
        ),
    ] = None,
    prediction: Annotated[
        list[str] | None,
        typer.Option(
            "--predict",
            metavar="P,O[,B]",
            help="Tell the joules of a request of P prompt and O output tokens, with B running (1 if left out); may be "
            "repeated.",
        ),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the curve file; - is standard output.")
    ] = None,
    without_polluted: Annotated[bool, typer.Option("--without-polluted", help=POLLUTED_HELP)] = False,
) -> None:
    """Fit joules as a function of prompt tokens, output tokens and load, and tell how far to trust it.

    One model and decoding on one device, from measured joules alone. The held-out error is always told: each question
    predicted from the others.
    """
    from joulewise.analysis.curve_file import curve_json, read_curve
    from joulewise.report.curve import describe, predict

    file = output_file(json_file, "--json", "joulewise curve RUN")
    asked = [_request(text) for text in prediction or ()]
    notes: tuple[str, ...] = ()
    if run.is_dir() or run.suffix != ".json":
        from joulewise.analysis.curve_points import run_points
        from joulewise.analysis.curves import fit_curve
        from joulewise.ledger import load

        choices: dict[str, Any] = {"engine": engine, "decoding": decoding, "component": component}  # checked there
        table = load(run)
        found = run_points(table, without_polluted=without_polluted, **choices)
        fitted, origin = fit_curve(found.points, by=found.by), found.origin
        notes = (*table.warnings, *found.notes)
    else:
        for name, given in (("--engine", engine), ("--decoding", decoding), ("--component", component)):
            if given is not None:
                raise UserError(f"{name} chooses what of a run is fitted, and {run} is fitted already; leave it out")
        fitted, origin = read_curve(run)
    if file != STDOUT:
        typer.echo(describe(fitted, origin, notes), nl=False)
        for request in asked:
            typer.echo()
            typer.echo(predict(fitted, *request), nl=False)
    elif asked:
        raise UserError("--json - and --predict would both go to standard output; give --json a file")
    if file is not None:
        write_file(curve_json(fitted, origin), file, "JSON", "joulewise curve RUN")


def _request(text: str) -> tuple[float, float, float]:
    """Prompt tokens, output tokens and running requests of ``P,O[,B]``."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    most = (MOST_TOKENS, MOST_TOKENS, MOST_RUNNING)[: len(values)]
    right = all(1.0 <= value <= limit for value, limit in zip(values, most, strict=False))  # NaN is not
    if len(values) not in (2, 3) or not right or not all(value.is_integer() for value in values[:2]):
        raise UserError(
            f"--predict {text}: write prompt tokens and output tokens as whole numbers from 1 to {MOST_TOKENS:,} and, "
            f"if wanted, running requests from 1 to {MOST_RUNNING:,}, such as 512,128 or 512,128,8"
        )
    return values[0], values[1], values[2] if len(values) == 3 else 1.0

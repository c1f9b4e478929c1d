"""``joulewise compare``: the gate of a CI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from joulewise.cli.named_file import output_file
from joulewise.cli.report import POLLUTED_HELP, STDOUT
from joulewise.cli.shares import share
from joulewise.errors import EnvironmentFault, UserError
from joulewise.whole_file import whole_file


def compare(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The run folder to compare with.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The run folder of the change.")],
    metric: Annotated[
        str, typer.Option("--metric", metavar="NAME", help="What is compared; a wrong name prints them all.")
    ] = "energy_per_output_token_j",
    component: Annotated[
        str | None,
        typer.Option(
            "--component",
            metavar="gpu|cpu|dram|total",
            help="Whose joules. Default: the GPU where it alone is measured, else the total.",
        ),
    ] = None,
    fail_above: Annotated[
        str, typer.Option("--fail-above", metavar="PERCENT", help="The rise that is allowed: 5%, or 0.05.")
    ] = "5%",
    on_unclear: Annotated[
        str, typer.Option("--on-unclear", metavar="pass|fail", help='Whether "cannot tell" passes or fails.')
    ] = "pass",
    also_base: Annotated[
        list[Path] | None, typer.Option("--also-base", metavar="DIR", help="A further run of BASE; may be repeated.")
    ] = None,
    also_new: Annotated[
        list[Path] | None, typer.Option("--also-new", metavar="DIR", help="A further run of NEW; may be repeated.")
    ] = None,
    run_to_run: Annotated[
        str | None,
        typer.Option(
            "--run-to-run",
            metavar="PERCENT",
            help="Standard deviation of one run to the next. Default: as seen in several runs a side; else 1% on the "
            "same card, 10% elsewhere.",
        ),
    ] = None,
    allow_different: Annotated[
        bool,
        typer.Option("--allow-different", help="Compare runs of another plan, device, driver or power limit."),
    ] = False,
    without_polluted: Annotated[bool, typer.Option("--without-polluted", help=POLLUTED_HELP)] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print everything as JSON on standard output.")] = False,
    markdown: Annotated[
        str | None,
        typer.Option("--markdown", metavar="FILE", help="Write a comment for a pull request; - is standard output."),
    ] = None,
) -> None:
    """Compare two runs of one plan, and fail if the change costs more joules than allowed.

    Exit codes: 0 passed, or cannot tell; 1 the interval says that the metric rose by more than the limit (or cannot
    tell, with --on-unclear fail); 2 the runs cannot be compared.
    """
    from joulewise.api import compare as compare_runs
    from joulewise.report.compare import headline, print_comparison, to_json, to_markdown

    page = output_file(markdown, "--markdown", "joulewise compare BASE NEW")
    if json_output and markdown == "-":
        raise UserError("--json and --markdown - both print on standard output; give --markdown a file")
    choices: dict[str, Any] = {"component": component, "on_unclear": on_unclear}  # compare_runs checks them
    comparison = compare_runs(
        [base, *(also_base or ())],
        [new, *(also_new or ())],
        metric=metric,
        fail_above=share(fail_above, "--fail-above"),
        allow_different=allow_different,
        run_to_run=None if run_to_run is None else share(run_to_run, "--run-to-run"),
        without_polluted=without_polluted,
        **choices,
    )
    if page is not None and page != STDOUT:
        _write(page, to_markdown(comparison))
    if json_output:
        typer.echo(json.dumps(to_json(comparison), indent=1, ensure_ascii=False, allow_nan=False))
    elif markdown == "-":
        typer.echo(to_markdown(comparison), nl=False)
    else:
        print_comparison(comparison)
    if json_output or markdown == "-":
        typer.echo(headline(comparison), err=True)
    raise typer.Exit(comparison.exit_code)


def _write(file: Path, text: str) -> None:
    try:
        with whole_file(file) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"{file}: cannot be written ({error.strerror}); name another with --markdown") from error

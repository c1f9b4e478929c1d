"""``joulewise report``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.errors import EnvironmentFault

if TYPE_CHECKING:
    from joulewise.report.summary import Summary

SEVERAL = "joulewise-report.html"
"""The page's name, in the current folder, where it is about several runs."""


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, as `joulewise run` makes them.")],
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help=f"Where to write the page. Default: report.html in the run folder; of several runs, {SEVERAL} here.",
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print all figures as JSON, and write no page unless --html asks for it.")
    ] = False,
    price_per_kwh: Annotated[
        float | None, typer.Option("--price-per-kwh", min=0.0, help="Show the price of 1,000 output tokens.")
    ] = None,
    currency: Annotated[str, typer.Option("--currency", help="The currency of that price, for display.")] = "",
    without_polluted: Annotated[
        bool,
        typer.Option("--without-polluted", help="Leave out Trials during which other processes used the CPU."),
    ] = False,
) -> None:
    """Show what runs cost: savings, joules per token and answer, drafts; as tables and as a page to forward.

    Everything comes from the ledgers. Several runs are shown side by side and never averaged.
    """
    show_runs(
        runs,
        html=html,
        json_output=json_output,
        price_per_kwh=price_per_kwh,
        currency=currency,
        without_polluted=without_polluted,
    )


def show_runs(
    runs: Sequence[Path],
    *,
    html: Path | None = None,
    json_output: bool = False,
    price_per_kwh: float | None = None,
    currency: str = "",
    without_polluted: bool = False,
    quiet: bool = False,
) -> None:
    """Print a report of runs and write its page.

    Args:
        runs: run folders; one that is named twice counts once.
        quiet: print nothing on standard output, only write the page.
        html, json_output, price_per_kwh, currency, without_polluted: as the command's options.

    Raises:
        UserError: not a run folder, or a broken ledger.
        EnvironmentFault: the page cannot be written, or was asked for by name and its extra is not installed.
    """
    from joulewise.ledger import load
    from joulewise.report.summary import summarise, to_json
    from joulewise.report.terminal import print_summary

    folders = list({folder.resolve(): folder for folder in runs}.values())
    summary = summarise(
        load(folders), price_per_kwh=price_per_kwh, currency=currency, without_polluted=without_polluted
    )
    if json_output and not quiet:
        typer.echo(json.dumps(to_json(summary), indent=1, ensure_ascii=False, allow_nan=False))
    elif not quiet:
        print_summary(summary)
    if json_output and html is None:
        return
    page = html or (folders[0] / "report.html" if len(folders) == 1 else Path(SEVERAL))
    try:
        _write_page(summary, page)
    except EnvironmentFault as fault:
        if html is not None:
            raise
        typer.echo(f"No page: {fault}", err=True)
    else:
        typer.echo(f"Page: {page}", err=True)


def _write_page(summary: Summary, page: Path) -> None:
    from joulewise.report.html import render

    try:
        page.write_text(render(summary), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(
            f"{page}: the page cannot be written ({error.strerror}); say where with --html FILE"
        ) from error

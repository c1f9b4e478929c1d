"""``joulewise report``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli.meter import CARBON_HELP
from joulewise.cli.named_file import output_file
from joulewise.cli.shares import share
from joulewise.errors import EnvironmentFault, UserError
from joulewise.whole_file import whole_file

if TYPE_CHECKING:
    from joulewise.report.summary import Summary

SEVERAL = "joulewise-report.html"
"""The page's name, in the current folder, where it is about several runs."""

POLLUTED_HELP = (
    "Leave out Trials during which other processes used the CPU; those of which that is not known stay, and are told."
)

STDOUT = Path("-")
"""A FILE that stands for standard output."""


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, as `joulewise run` makes them.")],
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help=f"Where to write the page. Default: report.html in the run folder; of several runs, {SEVERAL} here.",
        ),
    ] = None,
    markdown: Annotated[
        str | None,
        typer.Option("--markdown", metavar="FILE", help="Write the tables as Markdown, for a pull request."),
    ] = None,
    latex: Annotated[
        str | None, typer.Option("--latex", metavar="FILE", help="Write the tables as LaTeX (booktabs), for a paper.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
    price_per_kwh: Annotated[
        float | None, typer.Option("--price-per-kwh", min=0.0, help="Show the price of 1,000 output tokens.")
    ] = None,
    currency: Annotated[str, typer.Option("--currency", help="The currency of that price, for display.")] = "",
    carbon: Annotated[
        str | None, typer.Option("--carbon", metavar="GRID", help=CARBON_HELP.format("of answers and tokens"))
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="CELL",
            help="ENGINE/DECODING/REASONING that all others are held against. Default: each engine's direct answers.",
        ),
    ] = None,
    reach: Annotated[
        str | None, typer.Option("--reach", metavar="PERCENT", help="Tell the cheapest cell with such an accuracy.")
    ] = None,
    worth: Annotated[
        float, typer.Option("--worth", metavar="POINTS", help="Points of accuracy that a kilojoule must buy.")
    ] = 0.0,
    pass_at: Annotated[
        str | None,
        typer.Option(
            "--pass-at", metavar="K,K", help="For which k to tell pass@k of sampled programs. Default: 1,5,10,100."
        ),
    ] = None,
    without_polluted: Annotated[
        bool,
        typer.Option("--without-polluted", help=POLLUTED_HELP),
    ] = False,
) -> None:
    """Show what runs cost: savings, joules per token and answer, drafts; as tables and as a page to forward.

    Everything comes from the ledgers. Several runs are shown side by side and never averaged. FILE may be -, standard
    output. With --json, --markdown or --latex, the page is written only if --html asks for it.
    """
    show_runs(
        runs,
        html=output_file(html, "--html", "joulewise report RUN"),
        markdown=output_file(markdown, "--markdown", "joulewise report RUN"),
        latex=output_file(latex, "--latex", "joulewise report RUN"),
        json_output=json_output,
        price_per_kwh=price_per_kwh,
        currency=currency,
        carbon=carbon,
        baseline=baseline,
        reach=None if reach is None else share(reach, "--reach", "60%", "0.6", most=1.0),
        worth=worth,
        pass_at=None if pass_at is None else _whole_numbers(pass_at),
        without_polluted=without_polluted,
    )


def _whole_numbers(text: str) -> tuple[int, ...]:
    """The k of ``--pass-at``.

    Raises:
        UserError: something else than whole numbers from 1 on.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UserError(f"--pass-at {text}: give whole numbers from 1 on, such as 1,10,100")
    return tuple(map(int, parts))


def show_runs(
    runs: Sequence[Path],
    *,
    html: Path | None = None,
    markdown: Path | None = None,
    latex: Path | None = None,
    json_output: bool = False,
    price_per_kwh: float | None = None,
    currency: str = "",
    carbon: str | None = None,
    baseline: str | None = None,
    reach: float | None = None,
    worth: float = 0.0,
    pass_at: Sequence[int] | None = None,
    without_polluted: bool = False,
    quiet: bool = False,
    brief: bool = False,
) -> Summary:
    """Print a report of runs and write its page.

    Args:
        runs: run folders; one that is named twice counts once.
        quiet: print nothing on standard output, only write files.
        brief: print the main tables, then the result in words and the command that prints everything.
        html, markdown, latex, json_output, price_per_kwh, currency, carbon, baseline, reach, worth, pass_at,
            without_polluted: as the command's options, ``reach`` as a share; None: the command's default.

    Returns:
        What was shown.

    Raises:
        UserError: not a run folder, one without any Trial, a broken ledger, or options that do not go together.
        EnvironmentFault: a file cannot be written, or the page was asked for by name and its extra is not installed.
    """
    to_stdout = [
        name for name, file in (("--html", html), ("--markdown", markdown), ("--latex", latex)) if file == STDOUT
    ]
    to_stdout += ["--json"] if json_output else []
    if len(to_stdout) > 1:
        raise UserError(f"{' and '.join(to_stdout)} would both go to standard output; give all but one of them a file")
    if currency and price_per_kwh is None:
        raise UserError(f"--currency {currency} says nothing without a price; give it with --price-per-kwh")

    from joulewise.analysis.pass_at_k import KS
    from joulewise.analysis.tradeoffs import Wishes
    from joulewise.energy.carbon import grid
    from joulewise.ledger import load
    from joulewise.report.summary import cells_of, summarise, to_json

    at_time = None if carbon is None else grid(carbon)
    folders = list({folder.resolve(): folder for folder in runs}.values())
    table = load(folders)
    if folders and not table.arrow.num_rows:
        raise UserError(
            f"{', '.join(map(str, folders))}: no Trial was run, so there is nothing to report; run the plan again with "
            f"--out {folders[0]}"
        )
    cells = cells_of(table, without_polluted=without_polluted)
    summary = summarise(
        table,
        price_per_kwh=price_per_kwh,
        currency=currency,
        without_polluted=without_polluted,
        grid=at_time,
        wishes=Wishes(baseline, reach, worth),
        ks=pass_at or KS,
        cells=cells,
    )
    if pass_at is not None and not summary.pass_at_k:
        raise UserError(
            "--pass-at is about programs that were sampled several times a question; here no task has any: sample them "
            "with repeats and a temperature in the plan"
        )
    if json_output and not quiet:
        typer.echo(json.dumps(to_json(summary), indent=1, ensure_ascii=False, allow_nan=False))
    elif not quiet and not to_stdout:
        from joulewise.report.terminal import print_brief, print_summary

        (print_brief if brief else print_summary)(summary)
        if brief:
            typer.echo(f"\nAll tables: {shlex.join(['joulewise', 'report', *map(str, folders)])}")
    if markdown is not None:
        from joulewise.report import markdown as as_markdown

        write_file(as_markdown.render(summary), markdown, "Markdown", "joulewise report RUN")
    if latex is not None:
        from joulewise.report import latex as as_latex

        write_file(as_latex.render(summary), latex, "LaTeX", "joulewise report RUN")
    if html is None and (json_output or markdown is not None or latex is not None):
        return summary
    page = html or (folders[0] / "report.html" if len(folders) == 1 else Path(SEVERAL).absolute())
    try:
        from joulewise.report.html import render
        from joulewise.report.trials import trial_blocks

        text = render(summary, trial_blocks(cells, summary, table.folders))
    except EnvironmentFault as fault:
        if html is not None:
            raise
        typer.echo(f"No page: {fault}", err=True)
    else:
        write_file(text, page, "Page", "joulewise report RUN")
    return summary


def write_file(text: str, file: Path, what: str, command: str) -> None:
    """Write an output file, whole or not at all, or standard output for ``-``, and say so.

    Args:
        text: what to write.
        file: where to.
        what: ``Page``, or another format by name, whose option has that name.
        command: that has the option.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    if file == STDOUT:
        typer.echo(text, nl=False)
        return
    try:
        with whole_file(file) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        option = "--html" if what == "Page" else f"--{what.lower()}"
        raise EnvironmentFault(
            f"{file}: cannot be written ({error.strerror}); make room, or name another place with "
            f"`{command} {option} FILE`"
        ) from error
    typer.echo(f"{what}: {file}", err=True)

"""``joulewise explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from joulewise.cli.named_file import output_file
from joulewise.cli.report import POLLUTED_HELP, STDOUT, write_file
from joulewise.errors import UserError


def explain(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, as `joulewise run` makes them.")],
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Write the report's page, which has this and a chart."),
    ] = None,
    markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE", help="Write it as Markdown; - is standard output.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
    without_polluted: Annotated[
        bool,
        typer.Option("--without-polluted", help=POLLUTED_HELP),
    ] = False,
) -> None:
    """Tell why a decoding saves time or energy or not: what it needs, what it reaches, what would have to change.

    For every decoding that speculates, against vanilla on the same task: how many tokens a round must keep to break
    even in seconds, in joules and in joules above idle power. Then which number of draft tokens is best, and, where
    the engine tells phases apart, where the seconds and the joules go. Runs without a single successful Trial are
    refused, and runs that lack vanilla, or all that speculates of what was planned. Where vanilla is all that was
    planned there is nothing to explain, which is said.
    """
    from joulewise.ledger import load
    from joulewise.report.explain import refusal, sentences, to_json
    from joulewise.report.summary import cells_of, sections, summarise

    command = "joulewise explain RUN"
    page, text = output_file(html, "--html", command), output_file(markdown, "--markdown", command)
    to_stdout = [name for name, file in (("--html", page), ("--markdown", text)) if file == STDOUT]
    to_stdout += ["--json"] if json_output else []
    if len(to_stdout) > 1:
        raise UserError(f"{' and '.join(to_stdout)} would both go to standard output; give all but one of them a file")
    table = load(list({folder.resolve(): folder for folder in runs}.values()))
    cells = cells_of(table, without_polluted=without_polluted)
    summary = summarise(table, without_polluted=without_polluted, cells=cells)
    if (why := refusal(summary)) is not None:
        raise UserError(why)
    if to_stdout and not summary.explanations:  # a file says it where nobody may look
        for told in dict.fromkeys(sentence for section in sections(summary) for sentence in sentences(section)):
            typer.echo(told, err=True)
    if json_output:
        typer.echo(json.dumps(to_json(summary), indent=1, ensure_ascii=False, allow_nan=False))
    elif not to_stdout:
        from joulewise.report.terminal import print_explanation

        print_explanation(summary)
    if text is not None:
        from joulewise.report.markdown import render_explanation

        write_file(render_explanation(summary), text, "Markdown", "joulewise explain RUN")
    if page is not None:
        from joulewise.report.html import render
        from joulewise.report.trials import trial_blocks

        write_file(render(summary, trial_blocks(cells, summary, table.folders)), page, "Page", "joulewise explain RUN")

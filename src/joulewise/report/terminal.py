"""The report in a terminal: readable at 80 columns, and in a pipe."""

from __future__ import annotations

from itertools import groupby
from typing import IO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from joulewise.report import claims as claim_words
from joulewise.report import operating as curve_words
from joulewise.report import platforms as platform_words
from joulewise.report import under_load as load_words
from joulewise.report.card_settings import setting_grids
from joulewise.report.explain import explain_grids, sentences
from joulewise.report.grid import Grid, Shown
from joulewise.report.grids import grids
from joulewise.report.run_facts import RunFacts
from joulewise.report.summary import Summary, sections
from joulewise.report.text import (
    HOW_TO_READ,
    claims_caveat,
    doubtful,
    explanation_notes,
    headlines,
    nothing_to_show,
    results,
    run_lines,
    trial_notes,
    trust_notes,
)
from joulewise.report.tradeoffs import TITLE, findings, tradeoff_grids
from joulewise.report.tradeoffs import notes as tradeoff_notes

_STYLES = {
    "saves": "green",
    "saves energy": "green",
    "faster": "green",
    "costs": "red",
    "costs energy": "red",
    "slower": "red",
    "not lossless": "red",
    "optimal": "green",
    "better": "green",
    "worse": "red",
    "fewer joules": "green",
    "more joules": "red",
    "confirmed": "green",
    "contradicted": "red",
    "too few": "yellow",
    "modelled": "yellow",
}
_WIDEST = 110
_BLOCKS = "▁▂▃▄▅▆▇█"


def print_summary(summary: Summary, file: IO[str] | None = None) -> None:
    """Print the tables of a report.

    Args:
        summary: what to print.
        file: where to; standard output if left out. What is not a terminal gets 80 columns and no colours.
    """
    console = _console(file)
    for run in summary.runs:
        _print_run(console, run, summary)
        for section in sections(summary):
            if section.run == run.name:
                console.print()
                console.print(Text(f"{section.model} ({section.engine}), {section.reasoning}", style="bold"))
                for line in headlines(section, run):
                    _note(console, line)
                for grid in grids(section, summary):
                    _print_grid(console, grid)
        _print_tradeoffs(console, run, summary)
        _print_platforms(console, run, summary)
        _print_loads(console, run, summary)
        for grid in setting_grids([one for one in summary.settings if one.run == run.name]):
            _print_grid(console, grid)
        _print_curves(console, run, summary)
        _print_claims(console, run, summary)
    console.print()
    for note in (*(f"Note: {warning}" for warning in summary.warnings), HOW_TO_READ):
        _note(console, note)


def print_brief(summary: Summary, file: IO[str] | None = None) -> None:
    """Print what matters most of a report: savings, or where there are none the ways of answering, or joules; verdicts.

    Args:
        summary: what to print.
        file: as for ``print_summary``, which prints everything.
    """
    console = _console(file)
    for run in summary.runs:
        _print_run(console, run, summary, brief=True)
        ways = [tradeoff for tradeoff in summary.tradeoffs if tradeoff.run == run.name]
        found = [section for section in sections(summary) if section.run == run.name]
        saving = [section for section in found if section.savings]
        for section in saving or ([] if ways else found):
            console.print()
            console.print(Text(f"{section.model} ({section.engine}), {section.reasoning}", style="bold"))
            for grid in grids(section, summary)[:1]:
                _print_grid(console, grid)
        for grid in () if saving else tradeoff_grids(ways)[:1]:
            _print_grid(console, grid)
        _print_loads(console, run, summary)
        claims = claim_words.claim_words([claim for claim in summary.claims if claim.run == run.name])
        if claims:
            console.print()
            console.print(Text(claim_words.TITLE, style="bold"))
        for words in claims:
            _print_verdict(console, words)
        if claims and (caveat := claims_caveat(run, summary)) is not None:
            _note(console, f"Caveat: {caveat}")
    console.print()
    for note in (*(f"Note: {warning}" for warning in summary.warnings), HOW_TO_READ):
        _note(console, note)
    print_result(summary, file)


def print_result(summary: Summary, file: IO[str] | None = None) -> None:
    """Print what came out, in words alone; nothing where nothing can be held against anything."""
    console = _console(file)
    found = [section for section in sections(summary) if section.savings]
    for section in found:
        name = f", {section.engine}, {section.reasoning}" if len(found) > 1 else ""
        console.print()
        console.print(Text(f"Result{name}: {' '.join(results(section))}"))
    for tradeoff in summary.tradeoffs:
        console.print()
        console.print(Text(f"Result, {tradeoff.task}: {' '.join(findings(tradeoff))}"))
    for run in summary.runs if found or summary.tradeoffs else ():
        if (doubt := doubtful(run, summary)) is not None:
            _note(console, doubt)


def print_explanation(summary: Summary, file: IO[str] | None = None) -> None:
    """Print why decodings pay or not: sentences first, then the tables behind them.

    Args:
        summary: what to print.
        file: as for ``print_summary``.
    """
    console = _console(file)
    for run in summary.runs:
        console.rule(Text(f"Run {run.name}", style="bold"), align="left", style="dim")
        for note in explanation_notes(run, summary):
            _note(console, note)
        for section in sections(summary):
            if section.run == run.name:
                console.print()
                console.print(Text(f"{section.model} ({section.engine}), {section.reasoning}", style="bold"))
                for line in sentences(section):
                    console.print(Text(f"- {line}"))
                for grid in explain_grids(section):
                    _print_grid(console, grid)
    for warning in summary.warnings:
        _note(console, f"Note: {warning}")


def _console(file: IO[str] | None) -> Console:
    console = Console(file=file, highlight=False)
    console.width = min(console.width, _WIDEST)
    return console


_LESS = ("", "Started", "Left out", "Idle power", "Counter check", "Software", "Commit")
"""What of a run is not told in brief: these facts, and what goes on from the line above."""


def _print_run(console: Console, run: RunFacts, summary: Summary, brief: bool = False) -> None:
    console.rule(Text(f"Run {run.name}", style="bold"), align="left", style="dim")
    facts = Table.grid(padding=(0, 2))
    for name, told in [line for line in run_lines(run) if not (brief and line[0] in _LESS)]:
        facts.add_row(Text(name, style="dim"), Text(told))
    console.print(facts)
    nothing = nothing_to_show(run, summary)
    for note in (*trust_notes(run), *trial_notes(run, summary), *([nothing] if nothing else [])):
        _note(console, note)


def _print_tradeoffs(console: Console, run: RunFacts, summary: Summary) -> None:
    found = [tradeoff for tradeoff in summary.tradeoffs if tradeoff.run == run.name]
    if not found:
        return
    console.print()
    console.print(Text(TITLE, style="bold"))
    for tradeoff in found:
        console.print(Padding(Text(tradeoff.task, style="italic"), (0, 0, 0, 1)))
        for line in findings(tradeoff):
            console.print(Padding(Text(f"- {line}"), (0, 0, 0, 1)))
    for note in tradeoff_notes(found):
        _note(console, note)
    for grid in tradeoff_grids(found):
        _print_grid(console, grid)


def _print_platforms(console: Console, run: RunFacts, summary: Summary) -> None:
    found = [one for one in summary.platforms if one.run == run.name]
    if not found:
        return
    console.print()
    console.print(Text(platform_words.TITLE, style="bold"))
    for one in found:
        console.print(Padding(Text(platform_words.name(one, found), style="italic"), (0, 0, 0, 1)))
        for line in platform_words.findings(one):
            console.print(Padding(Text(f"- {line}"), (0, 0, 0, 1)))
    for grid in platform_words.platform_grids(found):
        _print_grid(console, grid)


def _print_loads(console: Console, run: RunFacts, summary: Summary) -> None:
    found = [one for one in summary.under_load if one.run == run.name]
    if not found:
        return
    console.print()
    console.print(Text(load_words.TITLE, style="bold"))
    for one in found:
        console.print(Padding(Text(load_words.name(one), style="italic"), (0, 0, 0, 1)))
        for line in load_words.findings(one):
            console.print(Padding(Text(f"- {line}"), (0, 0, 0, 1)))
    for grid in load_words.load_grids(found):
        _print_grid(console, grid)
    _note(console, load_words.HOW_TO_READ)


def _print_curves(console: Console, run: RunFacts, summary: Summary) -> None:
    found = [one for one in summary.curves if one.run == run.name]
    if not found:
        return
    console.print()
    console.print(Text(curve_words.TITLE, style="bold"))
    for one in found:
        for line in curve_words.briefly(one):
            _note(console, line)


def _print_claims(console: Console, run: RunFacts, summary: Summary) -> None:
    found = [claim for claim in summary.claims if claim.run == run.name]
    touched = claim_words.claim_words(found, claims_caveat(run, summary))
    if not touched:
        return
    console.print()
    console.print(Text(claim_words.TITLE, style="bold"))
    for words in touched:
        _print_verdict(console, words)
        for line in claim_words.lines(words):
            _note(console, f"- {line}")
    others = claim_words.not_touched(found)
    for note in (*([others] if others else []), claim_words.HOW_TO_READ):
        _note(console, note)


def _print_verdict(console: Console, words: claim_words.ClaimWords) -> None:
    head = Text(f"{words.statement}: ")
    head.append(words.verdict, style=_STYLES.get(words.verdict, ""))
    console.print(Padding(head, (0, 0, 0, 1)))


def _print_grid(console: Console, grid: Grid) -> None:
    console.print()
    console.print(Text(grid.title, style="bold"))
    console.print(_table(grid))
    for task, rows in groupby(grid.rows, key=lambda row: row.task):
        # A table of its own for each task, or a long task's name would take its room from the figures.
        table = _table(grid, heading=False)
        for row in rows:
            n = [f"{row.n or 0:,}"] if grid.counts_questions else []
            table.add_row(Text(row.decoding), *n, *(_cell(f) for f in row.figures))
        console.print(Padding(Text(task, style="italic"), (0, 0, 0, 1)))
        console.print(table)
    console.print()
    for note in grid.notes:
        _note(console, note)


def _table(grid: Grid, heading: bool = True) -> Table:
    """An empty table of a grid: the same widths with its heading and without."""
    table = Table(
        box=SIMPLE_HEAD if heading else None, show_header=heading, show_edge=False, padding=(0, 1), expand=True
    )
    longest = max(len(row.decoding) for row in grid.rows)
    table.add_column(grid.of, width=min(24, max(8, longest)), overflow="fold")
    if grid.counts_questions:
        width = max(len(f"{row.n or 0:,}") for row in grid.rows)
        table.add_column("n", justify="right", width=width, style="dim")
    for column in grid.columns:
        table.add_column(column, ratio=1)
    return table


def _cell(shown: Shown) -> Text:
    text = Text(_spark(shown.bars) if shown.bars else shown.main)
    if shown.detail:
        text.append(f"\n{shown.detail}", style="dim")
    if shown.mark:
        text.append(f"\n{shown.mark}", style=_STYLES.get(shown.mark, ""))
    return text


def _spark(counts: tuple[int, ...]) -> str:
    """A histogram as a row of blocks; an empty bin is a dot."""
    most = max(counts)
    return "".join(_BLOCKS[(count * 8 - 1) // most] if count else "·" for count in counts)


def _note(console: Console, text: str) -> None:
    console.print(Padding(Text(text), (0, 0, 0, 2)))

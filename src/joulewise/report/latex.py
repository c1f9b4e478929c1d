r"""The report's tables as LaTeX with booktabs: to be ``\input`` in a paper."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from joulewise.analysis.operating import OperatingCurve
from joulewise.report import claims as claim_words
from joulewise.report import operating as curve_words
from joulewise.report import platforms as platform_words
from joulewise.report import under_load as load_words
from joulewise.report.card_settings import setting_grids
from joulewise.report.grid import Grid, Shown
from joulewise.report.grids import grids
from joulewise.report.markdown import MODELLED, has_modelled, words
from joulewise.report.summary import Summary, sections
from joulewise.report.text import (
    claims_caveat,
    gain_note,
    headlines,
    nothing_to_show,
    run_lines,
    trial_notes,
    trust_notes,
)
from joulewise.report.tradeoffs import findings, tradeoff_grids
from joulewise.report.tradeoffs import notes as tradeoff_notes

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",
    "*": "{*}",
    "–": "--",
    "†": r"\textsuperscript{\dag}",
    "≥": r"$\ge$",
    "γ": r"$\gamma$",
    "…": r"\ldots{}",
}

_WIDEST = 16
"""Characters in a line of a figure's cell: five such columns fit the text width of an article."""


def render(summary: Summary) -> str:
    """The tables of a report, each a ``table*`` with caption and label; what was run stands above them as comments.

    Args:
        summary: what to show.
    """
    return "\n".join(_lines(summary)) + "\n"


def escaped(text: str) -> str:
    """Text that means itself; ``γ_t`` becomes a symbol with an index; what is not ASCII stays (UTF-8)."""
    apart = re.sub("-(?=-)", "-\N{WORD JOINER}", " ".join(text.split()))  # "--" would become a dash
    parts = re.split(r"(γ_[A-Za-z]+)", apart)
    return "".join(
        rf"$\gamma_{{\mathrm{{{part[2:]}}}}}$" if i % 2 else "".join(_SPECIAL.get(c, c) for c in part)
        for i, part in enumerate(parts)
    )


def _lines(summary: Summary) -> Iterator[str]:
    yield from _comment(f"Made by Joulewise {summary.joulewise} from the ledgers alone.")
    yield r"% Needs \usepackage{booktabs}, \usepackage[T1]{fontenc} and \usepackage{textcomp}."
    for number, run in enumerate(summary.runs, 1):
        yield "%"
        yield from _comment(f"Run {run.name}")
        for name, told in run_lines(run):
            yield from _comment(f"{name}: {told}")
        for note in (*trust_notes(run), *trial_notes(run, summary)):
            yield from _comment(note)
        nothing = nothing_to_show(run, summary)
        if nothing:
            yield rf"\par\noindent {escaped(f'Run {run.name}: {nothing}')}\par"
        for place, section in enumerate((s for s in sections(summary) if s.run == run.name), 1):
            for line in headlines(section, run):
                yield from _comment(line)
            for grid in grids(section, summary):
                gain = gain_note(run) if grid.absolute else None
                where = f"{section.model} ({section.engine}), {section.reasoning}, run {section.run}"
                yield from _table(grid, where, f"{number}-{place}", [*grid.notes, *([gain] if gain else [])])
        found = [tradeoff for tradeoff in summary.tradeoffs if tradeoff.run == run.name]
        for tradeoff in found:
            for line in findings(tradeoff):
                yield from _comment(f"{tradeoff.task}: {line}")
        for note in tradeoff_notes(found):
            yield from _comment(note)
        for grid in tradeoff_grids(found):
            gain = gain_note(run) if grid.absolute else None
            yield from _table(grid, f"run {run.name}", str(number), [*grid.notes, *([gain] if gain else [])])
        platforms = [one for one in summary.platforms if one.run == run.name]
        for one in platforms:
            for line in platform_words.findings(one):
                yield from _comment(f"{platform_words.name(one, platforms)}: {line}")
        settings = setting_grids([one for one in summary.settings if one.run == run.name])
        for grid in (*platform_words.platform_grids(platforms), *settings):
            yield from _table(grid, f"run {run.name}", str(number), list(grid.notes))
        loads = [one for one in summary.under_load if one.run == run.name]
        for load in loads:
            for line in load_words.findings(load):
                yield from _comment(f"{load_words.name(load)}: {line}")
        for grid in load_words.load_grids(loads):
            yield from _table(grid, f"run {run.name}", str(number), [*grid.notes, load_words.HOW_TO_READ])
        curves = [one for one in summary.curves if one.run == run.name]
        for curve in curves:
            for line in curve_words.briefly(curve):
                yield from _comment(line)
        for grid in curve_words.operating_grids([one for one in curves if isinstance(one, OperatingCurve)]):
            gain = gain_note(run) if grid.absolute else None
            yield from _table(grid, f"run {run.name}", str(number), [*grid.notes, *([gain] if gain else [])])
        found_claims = [one for one in summary.claims if one.run == run.name]
        for claim in claim_words.claim_words(found_claims, claims_caveat(run, summary)):
            for line in (f"{claim.statement}: {claim.verdict}", *claim_words.lines(claim)):
                yield from _comment(line)
        others, claimed = claim_words.not_touched(found_claims), claim_words.claim_grid(found_claims)
        if claimed.rows:
            yield from _table(claimed, f"run {run.name}", str(number), [*claimed.notes, *([others] if others else [])])
    for warning in summary.warnings:
        yield from _comment(warning)


def _comment(text: str) -> Iterator[str]:
    yield f"% {' '.join(text.split())}"


def _table(grid: Grid, where: str, place: str, notes: list[str]) -> Iterator[str]:
    columns = [*(["n"] if grid.counts_questions else []), *grid.columns]
    name = re.sub(r"[^a-z]+", "-", grid.title.lower()).strip("-")
    # In one column table* is table; in two it has the width that these columns need.
    yield from ("", r"\begin{table*}[tbp]", r"\centering\footnotesize\setlength{\tabcolsep}{3pt}")
    stop = "" if grid.title.endswith("?") else "."
    yield rf"\caption{{{escaped(f'{grid.title}{stop} {where}.')}}}"
    yield rf"\label{{tab:joulewise-{place}-{name}}}\par\smallskip"
    yield rf"\begin{{tabular}}{{l{'r' * grid.counts_questions}{'l' * len(grid.columns)}}}"
    yield r"\toprule"
    yield from _rows([_wrapped(heading) for heading in (grid.of, *columns)])
    for task, rows in groupby(grid.rows, key=lambda row: row.task):
        yield r"\midrule"
        yield rf"\multicolumn{{{len(columns) + 1}}}{{l}}{{\textit{{{escaped(task)}}}}} \\"
        for row in rows:
            n = [[f"{row.n or 0:,}"]] if grid.counts_questions else []
            yield from _rows([[row.decoding], *n, *map(_figure, row.figures)])
    yield from (r"\bottomrule", r"\end{tabular}")
    if has_modelled([grid]):
        notes = [MODELLED, *notes]
    if notes:
        yield r"\par\smallskip\begin{minipage}{\linewidth}"
        yield from (rf"{escaped(note)}\par" for note in notes)
        yield r"\end{minipage}"
    yield r"\end{table*}"


def _rows(cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Cells of several lines, top to top: each line is a row of the tabular."""
    for i in range(max(map(len, cells))):
        yield rf"{' & '.join(escaped(cell[i]) if i < len(cell) else '' for cell in cells)} \\"


def _figure(shown: Shown) -> list[str]:
    """A figure, its interval and its verdict, one below the other; ``†`` stands for modelled."""
    if shown.bars:
        return _wrapped(re.sub(r"(?<=\d:) ", "\N{NO-BREAK SPACE}", words(shown)))
    modelled = shown.mark == "modelled"
    lines = (shown.main + "†" * modelled, shown.detail, None if modelled else shown.mark)
    return [line for whole in lines if whole for line in _wrapped(whole)]


def _wrapped(text: str) -> list[str]:
    return wrap(text, _WIDEST, break_long_words=False, break_on_hyphens=False) or [""]

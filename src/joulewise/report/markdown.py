"""The report as Markdown: tables that a code host shows in a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from joulewise.analysis.claims import Claim
from joulewise.analysis.load_saving import UnderLoad
from joulewise.analysis.operating import NoCurve, OperatingCurve
from joulewise.analysis.platforms import TwoWay
from joulewise.analysis.tradeoffs import Tradeoff
from joulewise.report import claims as claim_words
from joulewise.report import operating as curve_words
from joulewise.report import platforms as platform_words
from joulewise.report import under_load as load_words
from joulewise.report.card_settings import setting_grids
from joulewise.report.explain import explain_grids, sentences
from joulewise.report.grid import Grid, Shown
from joulewise.report.grids import grids
from joulewise.report.summary import Summary, sections
from joulewise.report.text import (
    HOW_TO_READ,
    claims_caveat,
    explanation_notes,
    headlines,
    nothing_to_show,
    run_lines,
    trial_notes,
    trust_notes,
)
from joulewise.report.tradeoffs import TITLE, findings, tradeoff_grids
from joulewise.report.tradeoffs import notes as tradeoff_notes

MODELLED = "† Modelled, not measured: computed from time or utilisation, so that no verdict on energy can be given."
"""What the mark behind a modelled figure says."""


def render(summary: Summary) -> str:
    """The report as Markdown.

    Args:
        summary: what to show.
    """
    return "\n".join(_lines(summary)) + "\n"


def render_explanation(summary: Summary) -> str:
    """Why decodings pay or not, as Markdown.

    Args:
        summary: what to show.
    """
    return "\n".join(_explanation_lines(summary)) + "\n"


def words(shown: Shown) -> str:
    """A figure, its interval and its verdict on one line; ``†`` stands for modelled."""
    if shown.bars:
        return ", ".join(f"{accepted}: {rounds:,}" for accepted, rounds in enumerate(shown.bars))
    modelled = shown.mark == "modelled"
    parts = (shown.main + "†" * modelled, f"({shown.detail})" if shown.detail else None, shown.mark)
    return " ".join(part for part in (parts[:2] if modelled else parts) if part)


def has_modelled(found: Iterable[Grid]) -> bool:
    """Whether a modelled figure is in any of these tables."""
    return any(shown.mark == "modelled" for grid in found for row in grid.rows for shown in row.figures)


def _lines(summary: Summary) -> Iterator[str]:
    yield "# Joulewise report"
    for run in summary.runs:
        yield from ("", f"## Run {_escaped(run.name)}", "")
        yield from (f"- {_escaped(f'{n}: {told}')}" if n else f"  - {_escaped(told)}" for n, told in run_lines(run))
        nothing = nothing_to_show(run, summary)
        for note in (*trust_notes(run), *trial_notes(run, summary), *([nothing] if nothing else [])):
            yield from ("", f"> {_escaped(note)}")
        for section in sections(summary):
            if section.run == run.name:
                yield from ("", f"### {_escaped(f'{section.model} ({section.engine}), {section.reasoning}')}", "")
                yield from (f"- {_escaped(line)}" for line in headlines(section, run))
                found = grids(section, summary)
                for grid in found:
                    yield from _table(grid)
                if has_modelled(found):
                    yield from ("", MODELLED)
        yield from _tradeoff_lines([tradeoff for tradeoff in summary.tradeoffs if tradeoff.run == run.name])
        yield from _platform_lines([one for one in summary.platforms if one.run == run.name])
        yield from _load_lines([one for one in summary.under_load if one.run == run.name])
        for grid in setting_grids([one for one in summary.settings if one.run == run.name]):
            yield from _table(grid)
        yield from _curve_lines([one for one in summary.curves if one.run == run.name])
        yield from _claim_lines(
            [claim for claim in summary.claims if claim.run == run.name], claims_caveat(run, summary)
        )
    for warning in summary.warnings:
        yield from ("", f"> {_escaped(warning)}")
    yield from ("", "---", "", _escaped(HOW_TO_READ), "")
    left_out = "; polluted Trials left out, those of unknown pollution not" if summary.without_polluted else ""
    yield f"Made by Joulewise {summary.joulewise} from the ledgers alone{left_out}."


def _tradeoff_lines(several: Sequence[Tradeoff]) -> Iterator[str]:
    if not several:
        return
    yield from ("", f"### {TITLE}")
    for found in several:
        yield from ("", f"**{_escaped(found.task)}**", "", *(f"- {_escaped(line)}" for line in findings(found)))
    for note in tradeoff_notes(several):
        yield from ("", f"> {_escaped(note)}")
    tables = tradeoff_grids(several)
    for grid in tables:
        yield from _table(grid)
    if has_modelled(tables):
        yield from ("", MODELLED)


def _platform_lines(found: Sequence[TwoWay]) -> Iterator[str]:
    if not found:
        return
    yield from ("", f"### {platform_words.TITLE}")
    for one in found:
        yield from ("", f"**{_escaped(platform_words.name(one, found))}**", "")
        yield from (f"- {_escaped(line)}" for line in platform_words.findings(one))
    tables = platform_words.platform_grids(found)
    for grid in tables:
        yield from _table(grid)
    if has_modelled(tables):
        yield from ("", MODELLED)


def _load_lines(found: Sequence[UnderLoad]) -> Iterator[str]:
    if not found:
        return
    yield from ("", f"### {load_words.TITLE}")
    for one in found:
        yield from ("", f"**{_escaped(load_words.name(one))}**", "")
        yield from (f"- {_escaped(line)}" for line in load_words.findings(one))
    tables = load_words.load_grids(found)
    for grid in tables:
        yield from _table(grid)
    if has_modelled(tables):
        yield from ("", MODELLED)
    yield from ("", f"> {_escaped(load_words.HOW_TO_READ)}")


def _curve_lines(found: Sequence[OperatingCurve | NoCurve]) -> Iterator[str]:
    if not found:
        return
    yield from ("", f"### {curve_words.TITLE}")
    for one in found:
        if isinstance(one, NoCurve):
            yield from ("", f"> {_escaped(curve_words.why_none(one))}")
        else:
            yield from ("", f"**{_escaped(curve_words.name(one))}**", "")
            yield from (f"- {_escaped(line)}" for line in curve_words.sentences(one))
            yield from ("", f"> {_escaped(curve_words.notes(one))}")
    for grid in curve_words.operating_grids([one for one in found if isinstance(one, OperatingCurve)]):
        yield from _table(grid)


def _claim_lines(found: Sequence[Claim], caveat: str | None) -> Iterator[str]:
    touched = claim_words.claim_words(found, caveat)
    if not touched:
        return
    yield from ("", f"### {_escaped(claim_words.TITLE)}", "")
    for claim in touched:
        yield f"- {_escaped(claim.statement)}: **{claim.verdict}**"
        yield from (f"  - {_escaped(line)}" for line in claim_words.lines(claim))
    others = claim_words.not_touched(found)
    for note in (*([others] if others else []), claim_words.HOW_TO_READ):
        yield from ("", f"> {_escaped(note)}")


def _explanation_lines(summary: Summary) -> Iterator[str]:
    yield "# Why it pays or not"
    for run in summary.runs:
        yield from ("", f"## Run {_escaped(run.name)}")
        for note in explanation_notes(run, summary):
            yield from ("", f"> {_escaped(note)}")
        for section in sections(summary):
            if section.run == run.name:
                yield from ("", f"### {_escaped(f'{section.model} ({section.engine}), {section.reasoning}')}", "")
                yield from (f"- {_escaped(line)}" for line in sentences(section))
                found = explain_grids(section)
                for grid in found:
                    yield from _table(grid)
                if has_modelled(found):
                    yield from ("", MODELLED)
    for warning in summary.warnings:
        yield from ("", f"> {_escaped(warning)}")


def _table(grid: Grid) -> Iterator[str]:
    columns = ["task", grid.of, *(["n"] if grid.counts_questions else []), *grid.columns]
    yield from ("", f"**{_escaped(grid.title)}**", "")
    yield _row(columns)
    yield _row(["---:" if column == "n" else "---" for column in columns], plain=True)
    for row in grid.rows:
        n = [f"{row.n or 0:,}"] if grid.counts_questions else []
        yield _row([row.task, row.decoding, *n, *(words(shown) for shown in row.figures)])
    for note in grid.notes:
        yield from ("", _escaped(note))


def _row(cells: Iterable[str], plain: bool = False) -> str:
    return f"| {' | '.join(cell if plain else _escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    """Text that means itself: no markup, no HTML, no mention, on one line.

    The characters that only mean something at the start of a line are harmless after "- " and "> " but for numbers.
    """
    one_line = " ".join(text.split())
    escaped = re.sub(r"([\\`*_{}\[\]<>#|~$!@&])", r"\\\1", one_line)
    return re.sub(r"^(\d+)([.)])(?=\s)", r"\1\\\2", re.sub(r"^([-+=])", r"\\\1", escaped))

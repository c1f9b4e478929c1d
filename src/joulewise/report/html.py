"""The report as one HTML file: no network, whole without scripts; for a phone, a screen and paper."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from joulewise.analysis.load_saving import UnderLoad
from joulewise.analysis.operating import NoCurve, OperatingCurve
from joulewise.analysis.platforms import TwoWay
from joulewise.analysis.tradeoffs import Tradeoff
from joulewise.counted import counted
from joulewise.errors import EnvironmentFault
from joulewise.report import chart
from joulewise.report import claims as claim_words
from joulewise.report import operating as curve_words
from joulewise.report import platforms as platform_words
from joulewise.report import under_load as load_words
from joulewise.report.bars import Bar, Histogram, energy_bars, histograms
from joulewise.report.break_even_chart import break_even_chart
from joulewise.report.card_settings import setting_grids
from joulewise.report.curve_charts import curve_charts
from joulewise.report.explain import explain_grids, sentences
from joulewise.report.grid import Grid
from joulewise.report.grids import component_grids, grids
from joulewise.report.run_facts import RunFacts
from joulewise.report.summary import Section, Summary, sections
from joulewise.report.text import (
    COMPONENT_NAMES,
    HOW_TO_READ,
    claims_caveat,
    figure,
    headlines,
    nothing_to_show,
    origin_phrase,
    run_lines,
    short_model,
    trial_notes,
    trust_notes,
)
from joulewise.report.tradeoff_charts import budget_chart, frontier_chart
from joulewise.report.tradeoffs import TITLE, curve_name, findings, fine_grids, tradeoff_grids
from joulewise.report.tradeoffs import notes as tradeoff_notes
from joulewise.report.trials import MOST, TrialBlock

_KINDS = {
    "saves": "good",
    "saves energy": "good",
    "faster": "good",
    "costs": "bad",
    "costs energy": "bad",
    "slower": "bad",
    "not lossless": "bad",
    "optimal": "good",
    "better": "good",
    "worse": "bad",
    "fewer joules": "good",
    "more joules": "bad",
    "confirmed": "good",
    "contradicted": "bad",
    "too few": "soft",
    "modelled": "soft",
}
"""What the marks look like."""

_VERDICTS = {"tie": "near-tie", "not_checked": "not checked"}
"""Words for the lossless check's verdicts that are not words themselves."""


@dataclass(frozen=True, slots=True)
class _Panel:
    """One chart: a task's name and its SVG."""

    task: str
    svg: str


@dataclass(frozen=True, slots=True)
class _SectionView:
    section: Section
    headlines: list[str]
    grids: tuple[Grid, ...]
    components: tuple[Grid, ...]
    panels: list[_Panel]
    bars: dict[str, list[Bar]]
    histograms: dict[str, list[Histogram]]
    trials: tuple[TrialBlock, ...]
    energy_name: str
    modelled: bool
    why: list[str]
    why_panels: list[_Panel]
    why_grids: tuple[Grid, ...]


@dataclass(frozen=True, slots=True)
class _TradeoffView:
    task: str
    findings: list[str]
    frontier: str | None
    modelled: bool
    budgets: list[_Panel]
    fine: tuple[Grid, ...]


@dataclass(frozen=True, slots=True)
class _CurveView:
    name: str
    sentences: list[str]
    panels: list[_Panel]
    notes: str
    points: int
    drawn: int


@dataclass(frozen=True, slots=True)
class _RunView:
    run: RunFacts
    lines: list[tuple[str, str]]
    trust: list[str]
    trials: list[str]
    nothing: str | None
    sections: list[_SectionView]
    tradeoffs: list[_TradeoffView]
    tradeoff_notes: list[str]
    tradeoff_grids: tuple[Grid, ...]
    platforms: list[TwoWay]
    setting_grids: tuple[Grid, ...]
    loads: list[UnderLoad]
    load_panels: list[_Panel]
    curves: list[_CurveView]
    no_curves: list[str]
    swept: bool
    curve_grids: tuple[Grid, ...]
    claims: list[claim_words.ClaimWords]
    claims_not_touched: str | None
    polluted: str | None
    contents: list[tuple[str, str]]


def render(summary: Summary, trials: Sequence[TrialBlock] = ()) -> str:
    """The page.

    Args:
        summary: what to show.
        trials: the cells' Trials, for the table in which a figure can be traced to its ledger lines.

    Raises:
        EnvironmentFault: the extra ``report`` is not installed.
    """
    try:
        import jinja2
        import markupsafe
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise EnvironmentFault(
            f"the page needs the package {error.name}; install it with: pip install 'joulewise[report]'"
        ) from error

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("joulewise.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def subscripts(text: str) -> markupsafe.Markup:
        return markupsafe.Markup(re.sub(r"γ_(\w+)", r"γ<sub>\1</sub>", str(markupsafe.escape(text))))

    def code(text: str) -> markupsafe.Markup:
        return markupsafe.Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(text))))

    environment.filters["subscripts"] = subscripts
    environment.filters["code"] = code
    environment.filters["figure"] = figure
    environment.filters["counted"] = counted
    environment.filters["short_model"] = short_model
    numbers = count(1)
    runs = [_run_view(run, summary, trials, numbers) for run in summary.runs]
    script = (Path(__file__).parent / "templates" / "report.js").read_text(encoding="utf-8").strip()
    return environment.get_template("report.html.j2").render(
        summary=summary,
        runs=runs,
        anchors={block.key: f"cell-{i}" for i, block in enumerate(trials, 1)},
        verdicts=_VERDICTS,
        most=MOST,
        how_to_read=HOW_TO_READ,
        component_names=COMPONENT_NAMES,
        origin_phrase=origin_phrase,
        kinds=_KINDS,
        svg=markupsafe.Markup,
        tradeoff_title=TITLE,
        curve_title=curve_words.TITLE,
        curve_how_to_read=curve_words.HOW_TO_READ,
        claims=claim_words,
        platforms=platform_words,
        loads=load_words,
        script=markupsafe.Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _run_view(run: RunFacts, summary: Summary, trials: Sequence[TrialBlock], numbers: Iterator[int]) -> _RunView:
    found = [_section_view(s, run, summary, trials, numbers) for s in sections(summary) if s.run == run.name]
    nothing = nothing_to_show(run, summary)
    several = [tradeoff for tradeoff in summary.tradeoffs if tradeoff.run == run.name]
    curves = [one for one in summary.curves if isinstance(one, OperatingCurve) and one.run == run.name]
    none = [one for one in summary.curves if isinstance(one, NoCurve) and one.run == run.name]
    claims = [claim for claim in summary.claims if claim.run == run.name]
    loads = [one for one in summary.under_load if one.run == run.name]
    platforms = [one for one in summary.platforms if one.run == run.name]
    swept, caveat = bool(none) or any(one.curve.held_out.by == "point" for one in curves), claims_caveat(run, summary)
    touched = claim_words.claim_words(claims, caveat)
    chapters = [
        (True, "what", "What was run, and on what"),
        (True, "trust", "How far to trust it"),
        (bool(several), "tradeoffs", TITLE),
        (bool(platforms), "platforms", platform_words.TITLE),
        (bool(loads), "loads", load_words.TITLE),
        (swept, "curves", curve_words.TITLE),
        (bool(touched), "claims", claim_words.TITLE),
        *((True, f"part-{i}", _part_name(part.section)) for i, part in enumerate(found, 1)),
        (bool(curves) and not swept, "curves", curve_words.TITLE),
    ]
    return _RunView(
        run,
        run_lines(run),
        trust_notes(run),
        trial_notes(run, summary),
        nothing,
        found,
        [_tradeoff_view(tradeoff, numbers) for tradeoff in several],
        tradeoff_notes(several),
        tradeoff_grids(several),
        platforms,
        setting_grids([one for one in summary.settings if one.run == run.name]),
        loads,
        _load_panels(loads, numbers),
        [_curve_view(one, numbers) for one in curves],
        [curve_words.why_none(one) for one in none],
        swept,
        curve_words.operating_grids(curves),
        touched,
        claim_words.not_touched(claims),
        caveat and caveat[0].upper() + caveat[1:],
        [(place, name) for there, place, name in chapters if there],
    )


def _part_name(section: Section) -> str:
    return f"{short_model(section.model)} ({section.engine}), {section.reasoning}"


def _load_panels(loads: Sequence[UnderLoad], numbers: Iterator[int]) -> list[_Panel]:
    """Saving against load, a panel a task and kind of load."""
    panels = []
    for one in loads:
        for kind in dict.fromkeys(cost.kind for cost in one.costs if cost.level is not None):
            svg = load_words.saving_chart(one, kind, f"chart{next(numbers)}")
            if svg is not None:
                panels.append(_Panel(load_words.name(one), svg))
    return panels


def _tradeoff_view(found: Tradeoff, numbers: Iterator[int]) -> _TradeoffView:
    frontier, budgets = None, []
    if found.groups:
        title = f"{found.task}: {found.measure} against joules per answer"
        frontier = frontier_chart(found, title=title, prefix=f"chart{next(numbers)}")
        for curve in found.curves:
            title = f"{curve_name(curve, found)}: {found.measure} against joules per answer"
            svg = budget_chart(curve, found, title=title, prefix=f"chart{next(numbers)}")
            if svg is not None:
                budgets.append(_Panel(curve_name(curve, found), svg))
    return _TradeoffView(found.task, findings(found), frontier, not found.measured, budgets, fine_grids(found))


def _curve_view(found: OperatingCurve, numbers: Iterator[int]) -> _CurveView:
    panels = [_Panel(caption, svg) for caption, svg in curve_charts(found, lambda: f"chart{next(numbers)}")]
    told, notes = curve_words.sentences(found), curve_words.notes(found)
    return _CurveView(curve_words.name(found), told, panels, notes, found.points, len(found.shown))


def _section_view(
    section: Section, run: RunFacts, summary: Summary, trials: Sequence[TrialBlock], numbers: Iterator[int]
) -> _SectionView:
    component = section.component
    energy_name = f"{COMPONENT_NAMES[component]} energy"
    series = {name: i for i, name in enumerate(dict.fromkeys(s.key.decoding for s in section.savings))}
    tasks: dict[str, list[chart.Point]] = {}
    for saving in section.savings:
        energy = (saving.gpu if component == "gpu" else saving.total).ratio
        if saving.time.ratio.value is not None and energy.value is not None:
            name = saving.key.decoding
            point = chart.Point(name, series[name], saving.time.ratio, energy, energy.provenance == "modelled")
            tasks.setdefault(saving.key.task, []).append(point)
    points = [point for found in tasks.values() for point in found]
    limit = chart.reach(points)
    panels = [
        _Panel(
            task,
            chart.scatter(
                found,
                title=f"{task}: speed against {energy_name}, {short_model(section.model)}",
                energy_name=energy_name,
                limit=limit,
                prefix=f"chart{next(numbers)}",
            ),
        )
        for task, found in tasks.items()
    ]
    return _SectionView(
        section,
        headlines(section, run),
        grids(section, summary),
        component_grids(section),
        panels,
        energy_bars(section),
        histograms(section),
        tuple(block for block in trials if block.key.head == _head(section)),
        energy_name,
        any(point.modelled for point in points),
        sentences(section) if section.explanations else [],
        _why_panels(section, series, numbers),
        explain_grids(section),
    )


def _why_panels(section: Section, series: Mapping[str, int], numbers: Iterator[int]) -> list[_Panel]:
    """Cost per token against acceptance length, a panel a task."""
    panels = []
    for task in dict.fromkeys(e.key.task for e in section.explanations):
        svg = break_even_chart(
            [e for e in section.explanations if e.key.task == task],
            series,
            title=f"{task}: cost per token against acceptance length, {short_model(section.model)}",
            prefix=f"chart{next(numbers)}",
        )
        if svg is not None:
            panels.append(_Panel(task, svg))
    return panels


def _head(section: Section) -> tuple[str, str, str, str]:
    return (section.run, section.engine, section.model, section.reasoning)

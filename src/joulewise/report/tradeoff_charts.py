"""Accuracy against joules per answer as inline SVG: the frontier of a task, and what more thinking buys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from joulewise.analysis.budget_advice import BudgetCurve
from joulewise.analysis.cells import CellKey
from joulewise.analysis.tradeoffs import Tradeoff
from joulewise.report.chart import FAINT, INK, SERIES, Box, Point, draw, draw_labels, draw_point, log_ticks, spot
from joulewise.report.text import COMPONENT_NAMES, interval, value
from joulewise.report.tradeoffs import way

MOST_NAMED = 12
"""With more points than this, those on the frontier alone have their names beside them."""


def frontier_chart(found: Tradeoff, *, title: str, prefix: str) -> str | None:
    """Every cell of a task, and a step line through those on the frontier.

    Args:
        found: the task's cells.
        title, prefix: as for ``chart.scatter``.

    Returns:
        an ``<svg>`` element; None where accuracy or joules are not known.
    """
    keys = [cell.key for cell in found.whole.cells]
    points = _points(found, keys)
    if points is None:
        return None
    optimal = {place.key for place in found.places if place.optimal}
    line = sorted(_spot(p) for key, p in zip(keys, points, strict=True) if key in optimal)
    named = points if len(points) <= MOST_NAMED else [p for k, p in zip(keys, points, strict=True) if k in optimal]

    def paint(axes: Any) -> None:
        _frame(axes, points, found, log=True)
        steps = [at for (x, y), (right, up) in pairwise(line) for at in ((x, y), (right, y), (right, up))]
        if steps:
            axes.plot(*zip(*steps, strict=True), color=INK, linewidth=1, linestyle=(0, (4, 3)))
        _paint(axes, points, named, steps)

    told = [
        f"{_told(point)}{', on the frontier' if key in optimal else ''}"
        for key, point in zip(keys, points, strict=True)
    ]
    return draw(paint, prefix, title, f"{'; '.join(told)}.")


def budget_chart(curve: BudgetCurve, found: Tradeoff, *, title: str, prefix: str) -> str | None:
    """One way of thinking in its sizes, joined by a line; arguments and result as for ``frontier_chart``."""
    points = _points(found, curve.keys, lambda key: key.reasoning)
    if points is None:
        return None

    def paint(axes: Any) -> None:
        _frame(axes, points, found, log=False)
        spots = [_spot(point) for point in points]
        axes.plot(*zip(*spots, strict=True), color=SERIES[0], linewidth=1, alpha=0.6)
        _paint(axes, points, points, spots)

    return draw(paint, prefix, title, f"{'; '.join(map(_told, points))}.")


def _points(
    found: Tradeoff, keys: Sequence[CellKey], name: Callable[[CellKey], str] | None = None
) -> list[Point] | None:
    """Accuracy in per cent over joules per answer; each of its own colour, or named by ``name`` and all alike."""
    cells = {cell.key: cell for cell in found.whole.cells}
    points = []
    for i, key in enumerate(keys):
        good, energy = cells[key].quality.scaled(100.0), cells[key].energy_per_answer_j
        if good.value is None or energy.value is None:
            return None
        label, series = (way(key, found), i) if name is None else (name(key), 0)
        points.append(Point(label, series, energy, good, energy.provenance == "modelled"))
    return points


def _spot(point: Point) -> tuple[float, float]:
    assert point.speed.value is not None
    assert point.energy.value is not None
    return point.speed.value, point.energy.value


def _frame(axes: Any, points: Sequence[Point], found: Tradeoff, *, log: bool) -> None:
    joules = [_spot(point)[0] for point in points]
    tops = [end for p in points for end in (p.energy.value, p.energy.upper) if end is not None]
    floors = [end for p in points for end in (p.energy.value, p.energy.lower) if end is not None]
    room = max(2.0, 0.08 * (max(tops) - min(floors)))
    axes.set_ylim(max(0.0, min(floors) - room), min(100.0, max(tops) + room) if max(tops) < 100.0 else 100.0 + room)
    bars = [end for p in points for end in (p.speed.lower, p.speed.upper) if end is not None and end > 0.0]
    if log:
        ends = min(*joules, *(end * 1.5 for end in bars)) / 1.6, max(*joules, *(end / 1.5 for end in bars)) * 1.6
        axes.set(xscale="log", xlim=ends)
        log_ticks(axes.xaxis, ends)
    else:
        axes.set_xlim(0.0, max(1.2 * max(joules), 1.03 * max(joules + bars)))
    axes.tick_params(which="both", colors=INK, length=3)
    for spine in axes.spines.values():
        spine.set_color(FAINT)
    name = "J" if found.component == "total" else f"{COMPONENT_NAMES[found.component]} J"
    axes.set_xlabel(f"{name} per answer{' (modelled)' if points[0].modelled else ''}", color=INK)
    axes.set_ylabel(f"{found.measure}, %", color=INK)


def _paint(axes: Any, points: Sequence[Point], named: Sequence[Point], line: Sequence[tuple[float, float]]) -> None:
    for point in points:
        draw_point(axes, point)
    spots = [spot(axes, *at) for at in line]
    crossed = [Box(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1) for (a, b), (c, d) in pairwise(spots)]
    draw_labels(axes, named, crossed)


def _told(point: Point) -> str:
    between = [f" ({found})" if (found := interval(q)) else "" for q in (point.energy, point.speed)]
    return f"{point.label}: {value(point.energy)} %{between[0]} at {value(point.speed)} J{between[1]}"

"""Cost per token against acceptance length as inline SVG: how far a decoding is from where it begins to pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from joulewise.analysis.explain import Explanation
from joulewise.report.chart import (
    FAINT,
    FONT,
    INK,
    SERIES,
    WARN,
    Box,
    Point,
    draw,
    draw_labels,
    draw_point,
    frame_box,
    spot,
)
from joulewise.report.text import COMPONENT_NAMES, figure, interval, value


def break_even_chart(found: Sequence[Explanation], series: Mapping[str, int], *, title: str, prefix: str) -> str | None:
    """Draw one panel: a curve for each decoding's rounds, its point on it, and plain decoding as a level line.

    Joules where every decoding's are known, else milliseconds.

    Args:
        found: decodings of one task.
        series: picks each decoding's colour and marker.
        title, prefix: as for ``chart.scatter``.

    Returns:
        an ``<svg>`` element; None where neither is known.
    """
    joules = all(e.gross.per_token.value is not None for e in found)
    unit, factor = ("J", 1.0) if joules else ("ms", 1000.0)
    known = [(e, be) for e in found if (be := e.gross if joules else e.time).per_token.value is not None]
    if not known:
        return None
    step = (known[0][1].step.value or 0.0) * factor
    points = [
        Point(
            e.key.decoding,
            series[e.key.decoding],
            be.length,
            be.per_token.scaled(factor),
            be.per_token.provenance == "modelled",
        )
        for e, be in known
    ]
    needed = [be.needed.value for _, be in known]
    lengths, costs = ([p.speed.value or 0.0 for p in points], [p.energy.value or 0.0 for p in points])
    # A threshold far beyond what is reached would press everything to the left.
    right = 1.0 + 1.15 * (max(*lengths, *(n for n in needed if n is not None and n < 3.0 * max(lengths)), 2.0) - 1.0)
    top = 1.25 * max(*costs, step)

    def paint(axes: Any) -> None:
        axes.set(xlim=(1.0, right), ylim=(0.0, top))
        axes.tick_params(colors=INK, length=3)
        for spine in axes.spines.values():
            spine.set_color(FAINT)
        what = f"{COMPONENT_NAMES[known[0][0].component]} {unit}" if joules else unit
        axes.set_xlabel("tokens kept per round", color=INK)
        axes.set_ylabel(f"{what} per token", color=INK)
        axes.fill_between([1.0, right], step, top, color=WARN, linewidth=0)
        axes.axhline(step, color=INK, linestyle=(0, (4, 3)), linewidth=1)
        axes.annotate(
            "plain decoding", (right, step), xytext=(-4, 3), textcoords="offset points", ha="right", color=INK
        )
        across = np.linspace(1.0, right, 100)
        for (_, be), point in zip(known, points, strict=True):
            of_round = (be.round.value or 0.0) * factor
            beside = (point.energy.value or 0.0) - of_round / (point.speed.value or 1.0)
            colour = SERIES[point.series % len(SERIES)]
            axes.plot(across, of_round / across + beside, color=colour, linewidth=1, alpha=0.6)
            draw_point(axes, point)
        _, level = spot(axes, 1.0, step)
        frame = frame_box(axes)
        words_there = Box(frame.right - 85, level, frame.right, level + 1.5 * FONT)
        draw_labels(axes, points, [Box(frame.left, level - 2, frame.right, level + 2), words_there])

    told = [
        f"{p.label}: {value(p.speed)} tokens per round at {value(p.energy)} {unit} per token"
        f"{_between(p)}, {'breaks even at ' + figure(n) if n is not None else 'never breaks even'}"
        for p, n in zip(points, needed, strict=True)
    ]
    return draw(paint, prefix, title, f"plain decoding: {figure(step)} {unit} per token; {'; '.join(told)}.")


def _between(point: Point) -> str:
    found = interval(point.energy)
    return f" ({found})" if found else ""

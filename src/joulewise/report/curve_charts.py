"""An operating curve as inline SVG: predicted against measured, residuals, and joules at the margin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from joulewise.analysis.intervals import Floats
from joulewise.analysis.operating import OperatingCurve, Seen
from joulewise.counted import counted
from joulewise.report.chart import FAINT, INK, MARKERS, PAPER, SERIES, draw, factor_ticks, log_ticks
from joulewise.report.curve import errors
from joulewise.report.text import figure

_AXES = {"prompt_tokens": "prompt tokens", "output_tokens": "output tokens", "running": "requests at a time"}
_LEAST_LIMIT, _MOST_LIMIT = 1.25, 10.0
"""The axis of residuals goes at least and at most so many times up and down; what lies beyond stands on its edge."""


def curve_charts(found: OperatingCurve, next_prefix: Callable[[], str]) -> Iterator[tuple[str, str]]:
    """The panels of one curve: captions and ``<svg>`` elements.

    Args:
        found: the curve.
        next_prefix: gives what makes the ids of an SVG unique within the page.
    """
    of = f"{found.origin.model}, {found.origin.engine}"
    caption = "Predicted against measured"
    yield caption, _against(found, f"{caption}: {of}", next_prefix())
    for axis, name in _AXES.items():
        if len({getattr(seen, axis) for seen in found.shown}) > 1:
            caption = f"Residuals against {name}"
            yield caption, _residuals(found, axis, f"{caption}: {of}", next_prefix())
    caption = "Successive output tokens"
    yield caption, _successive(found, f"{caption}: {of}", next_prefix())
    if found.curve.region.running[0] < found.curve.region.running[1]:
        caption = "Joules over the load"
        yield caption, _over_load(found, f"{caption}: {of}", next_prefix())


def _against(found: OperatingCurve, title: str, prefix: str) -> str:
    both = [value for seen in found.shown for value in (seen.energy_j, seen.told_j)]
    ends = min(both) / 1.5, max(both) * 1.5

    def paint(axes: Any) -> None:
        _frame(axes, "J measured", "J predicted from the others")
        axes.plot(ends, ends, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
        _scatter(axes, found, lambda seen: seen.energy_j, lambda seen: seen.told_j)
        axes.set(xlim=ends, ylim=ends)
        for axis in (axes.xaxis, axes.yaxis):
            log_ticks(axis, ends)
        if len({seen.running for seen in found.shown}) > 1:
            _legend(axes, "lower right")

    return draw(
        paint, prefix, title, f"{counted(found.points, 'point')}; held-out error {errors(found.curve.held_out.inside)}."
    )


def _residuals(found: OperatingCurve, axis: str, title: str, prefix: str) -> str:
    values: list[float] = [getattr(seen, axis) for seen in found.shown]
    ends = min(values) / 1.2, max(values) * 1.2
    widest = max(max(seen.told_j / seen.energy_j, seen.energy_j / seen.told_j) for seen in found.shown)
    limit = min(max(1.1 * widest, _LEAST_LIMIT), _MOST_LIMIT)
    thirds = [one for one in found.curve.residuals if one.of == axis]

    def paint(axes: Any) -> None:
        _frame(axes, _AXES[axis], "predicted over measured")
        axes.axhline(1.0, color=FAINT, linewidth=1)
        _scatter(
            axes,
            found,
            lambda seen: getattr(seen, axis),
            lambda seen: min(max(seen.told_j / seen.energy_j, 1.0 / limit), limit),
        )
        for one in thirds:
            axes.hlines(1.0 + one.median, one.low / 1.1, one.high * 1.1, color=INK, linewidth=2, zorder=4)
        axes.set(xlim=ends, ylim=(1.0 / limit, limit))
        if axis == "running":
            _plain_ticks(axes.xaxis, values)
        else:
            log_ticks(axes.xaxis, ends)
        _plain_ticks(axes.yaxis, factor_ticks(limit))

    told = [
        f"{one.low:,.6g} to {one.high:,.6g}: {one.median:+.1%} over {counted(one.points, 'point')}" for one in thirds
    ]
    return draw(paint, prefix, title, f"Median error with its sign by {_AXES[axis]}: {'; '.join(told)}.")


def _successive(found: OperatingCurve, title: str, prefix: str) -> str:
    curve = found.curve
    first, last = max(1.0, curve.region.output_tokens[0]), curve.region.output_tokens[1]
    least = curve.region.running[0]
    numbers = np.unique(np.round(np.geomspace(first, last, 60)))
    prompts = [p for p in dict.fromkeys(curve.region.prompt_tokens) if p]
    each = {p: np.array([curve.output_token_j(p, i, least) for i in numbers]) for p in prompts}
    mean = {p: np.array([curve.energy_j(p, i, least) / i for i in numbers]) for p in prompts}

    def paint(axes: Any) -> None:
        _frame(axes, "output tokens", "J per output token")
        for place, p in enumerate(prompts):
            colour = SERIES[place]
            axes.plot(numbers, each[p], color=colour, linewidth=1.6, label=f"number i, behind {p:,.0f}")
            axes.plot(
                numbers, mean[p], color=colour, linewidth=1.3, linestyle=(0, (4, 3)), label=f"average, behind {p:,.0f}"
            )
        _finish(axes, (first, last), [*each.values(), *mean.values()])

    told = [
        f"Behind {counted(p, 'prompt token')} output token {first:,.0f} costs {figure(each[p][0])} J and {last:,.0f} "
        f"{figure(each[p][-1])} J; {last:,.0f} of them {figure(mean[p][-1])} J each on average"
        for p in prompts
    ]
    return draw(paint, prefix, title, f"{'. '.join(told)}.")


def _over_load(found: OperatingCurve, title: str, prefix: str) -> str:
    curve, p, o = found.curve, found.middle[0].prompt_tokens, found.middle[0].output_tokens
    ends = curve.region.running
    loads = np.geomspace(*ends, 60)
    mean = np.array([curve.energy_j(p, o, b) for b in loads])
    before = np.geomspace(ends[0], max(ends[1] - 1.0, ends[0]), 60)
    more = np.array([curve.another_request_j(p, o, b) for b in before])

    def paint(axes: Any) -> None:
        _frame(axes, "requests at a time", "J per request")
        axes.plot(loads, mean, color=SERIES[0], linewidth=1.6, label="average")
        axes.plot(before, more, color=SERIES[1], linewidth=1.3, linestyle=(0, (4, 3)), label="one more")
        _finish(axes, ends, [mean, more])
        _plain_ticks(axes.xaxis, [seen.running for seen in found.shown])

    told = (
        f"{p:,.0f} prompt and {counted(o, 'output token')}: {figure(mean[0])} J at {ends[0]:,.0f} and "
        f"{figure(mean[-1])} J "
        f"at {counted(ends[1], 'request')} at a time; one more costs {figure(more[0])} to {figure(more[-1])} J in all."
    )
    return draw(paint, prefix, title, told)


def _frame(axes: Any, x: str, y: str) -> None:
    axes.set_position((0.19, 0.13, 0.76, 0.82))  # room for joules of four digits
    axes.set(xscale="log", yscale="log")
    axes.tick_params(which="both", colors=INK, length=3)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    for spine in axes.spines.values():
        spine.set_color(FAINT)


def _finish(axes: Any, ends: tuple[float, float], lines: Sequence[Floats]) -> None:
    known = [value for line in lines for value in line if value > 0.0]
    heights = (min(known, default=1.0) / 1.5, max(known, default=1.0) * 3.0)
    axes.set(xlim=ends, ylim=heights)
    log_ticks(axes.xaxis, ends)
    log_ticks(axes.yaxis, heights)
    _legend(axes, "upper right")


def _plain_ticks(axis: Any, values: Sequence[float]) -> None:
    """A tick for each different value and no other."""
    different = sorted(set(values))
    axis.get_figure().axes[0].minorticks_off()
    axis.set_ticks(different, [f"{value:,.6g}" for value in different])


def _legend(axes: Any, where: str) -> None:
    axes.legend(loc=where, frameon=False, labelcolor=INK, fontsize=9, handlelength=1.8, borderaxespad=0.3)


def _scatter(axes: Any, found: OperatingCurve, x: Callable[[Seen], float], y: Callable[[Seen], float]) -> None:
    """Points by their load, hollow where the curve was continued beyond the others."""
    loads = sorted({seen.running for seen in found.shown})
    for place, load in enumerate(loads):
        colour = SERIES[place % len(SERIES)]
        for inside in (True, False):
            mine = [seen for seen in found.shown if (seen.running, seen.inside) == (load, inside)]
            if mine:
                axes.plot(
                    [x(seen) for seen in mine],
                    [y(seen) for seen in mine],
                    marker=MARKERS[place % len(MARKERS)],
                    markersize=4,
                    color=colour,
                    markerfacecolor=colour if inside else PAPER,
                    markeredgewidth=1,
                    linestyle="none",
                    alpha=0.8,
                    zorder=3,
                    label=f"{load:,.6g} at a time" if inside else None,
                )

"""Speed against energy as inline SVG: whether a faster decoding is also a cheaper one, at a glance."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from joulewise.analysis.intervals import Quantity
from joulewise.counted import counted
from joulewise.report.text import interval, value

# Colours are set by the page, so that they follow its light and dark scheme: matplotlib draws with these stand-ins.
INK, FAINT, WARN, PAPER = "#010101", "#020202", "#030303", "#040404"
SERIES = ("#110001", "#110002", "#110003", "#110004", "#110005", "#110006")
_VARIABLES = {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    WARN: "var(--costs-soft)",
    PAPER: "var(--paper)",
    **{colour: f"var(--series-{i})" for i, colour in enumerate(SERIES, 1)},
}
MARKERS = "osD^vPX"  # one more than there are colours, so that no pair comes twice soon
_SIDE = 330.0  # points: drawn at about its own size on a phone
FONT = 11.0


@dataclass(frozen=True, slots=True)
class Point:
    """One decoding on one task.

    Args:
        label: stands beside the point.
        series: picks colour and marker.
        speed: gamma_t, or what else is shown from left to right.
        energy: gamma of the energy, or what else is shown upwards.
        modelled: drawn hollow.
    """

    label: str
    series: int
    speed: Quantity
    energy: Quantity
    modelled: bool


def reach(points: Sequence[Point]) -> float:
    """How far from 1 the axes must go, as a factor, to show these points and, within reason, their intervals."""
    values = [abs(math.log(q.value)) for p in points for q in (p.speed, p.energy) if q.value]
    ends = [abs(math.log(e)) for p in points for q in (p.speed, p.energy) for e in (q.lower, q.upper) if e]
    widest = 1.3 * max(values, default=0.0)
    return math.exp(max(math.log(1.25), widest, min(1.08 * max(ends, default=0.0), 2.0 * widest)))


def scatter(points: Sequence[Point], *, title: str, energy_name: str, limit: float, prefix: str) -> str:
    """Draw one panel.

    Args:
        points: those with both figures known.
        title: the panel's name.
        energy_name: what the vertical axis shows.
        limit: the axes go from ``1 / limit`` to ``limit``.
        prefix: makes the ids of this SVG unique within the page.

    Returns:
        an ``<svg>`` element with a title, a description in words, real text, and the page's colour variables.
    """

    def paint(axes: Any) -> None:
        _frame(axes, limit, energy_name)
        for point in points:
            draw_point(axes, point)
        x, y = spot(axes, 1, 1)
        frame = frame_box(axes)
        lines = [Box(x, frame.bottom, x, frame.top), Box(frame.left, y, frame.right, y)]
        lines.append(Box(frame.right - 80, frame.bottom, frame.right, frame.bottom + 2.6 * FONT))  # the corner's words
        draw_labels(axes, points, lines)

    return draw(paint, prefix, title, _describe(points, energy_name))


def draw(paint: Callable[[Any], None], prefix: str, title: str, description: str) -> str:
    """A panel as an ``<svg>`` element.

    Args:
        paint: draws on matplotlib's axes, in the colours of this module.
        prefix, title: as for ``scatter``.
        description: what the panel shows, in words.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": prefix, "font.size": FONT, "text.parse_math": False}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(_SIDE / 72, _SIDE / 72))
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0.15, 0.13, 0.82, 0.82))
        paint(axes)
        out = io.BytesIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return _inline(out.getvalue(), prefix, title, description)


def _frame(axes: Any, limit: float, energy_name: str) -> None:
    axes.set(xscale="log", yscale="log", xlim=(1 / limit, limit), ylim=(1 / limit, limit))
    axes.minorticks_off()
    for axis in (axes.xaxis, axes.yaxis):
        ticks = factor_ticks(limit)
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.tick_params(colors=INK, length=3)
    axes.set_xlabel("speed (right: faster)", color=INK)
    axes.set_ylabel(f"{energy_name} (up: saves)", color=INK)
    for spine in axes.spines.values():
        spine.set_color(FAINT)
    axes.fill_between([1, limit], 1 / limit, 1, color=WARN, linewidth=0)
    axes.plot([1 / limit, limit], [1 / limit, limit], color=FAINT, linestyle=(0, (4, 3)), linewidth=1)
    axes.axhline(1, color=FAINT, linewidth=1)
    axes.axvline(1, color=FAINT, linewidth=1)
    axes.annotate(
        "faster, yet\ncosts energy", (0.98, 0.02), xycoords="axes fraction", ha="right", va="bottom", color=INK
    )


def factor_ticks(limit: float) -> list[float]:
    """Where an axis of factors, from ``1 / limit`` to ``limit``, has its ticks."""
    for least, ticks in (
        (8.0, [0.1, 0.2, 0.5, 1, 2, 5, 10]),
        (3.0, [0.25, 0.5, 1, 2, 4]),
        (1.8, [0.5, 0.67, 1, 1.5, 2]),
        (1.35, [0.7, 0.8, 1, 1.25, 1.5]),
    ):
        if limit >= least:
            return [tick for tick in ticks if 1 / limit <= tick <= limit]
    return [tick for tick in (0.8, 0.9, 1, 1.1, 1.2) if 1 / limit <= tick <= limit]


def log_ticks(axis: Any, ends: tuple[float, float]) -> None:
    """Plain numbers on a logarithmic axis that goes from one end to the other; more of them where it is short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if ends[1] / ends[0] < _SHORT else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:,g}"))
    axis.set_minor_formatter(NullFormatter())


_SHORT = 50.0
"""Up to this factor an axis has ticks at 1, 2 and 5, and not at powers of ten alone."""


def draw_point(axes: Any, point: Point) -> None:
    """A decoding's marker and its two intervals."""
    x, y = point.speed, point.energy
    colour = SERIES[point.series % len(SERIES)]
    sides = (x, y, axes.hlines, axes.get_xlim()), (y, x, axes.vlines, axes.get_ylim())
    for along, across, bar, (floor, ceiling) in sides:
        if along.lower is not None:
            bar(across.value, max(along.lower, floor / 2), along.upper or 2 * ceiling, color=colour, linewidth=1.3)
    axes.plot(
        [x.value],
        [y.value],
        marker=MARKERS[point.series % len(MARKERS)],
        markersize=7,
        color=colour,
        markerfacecolor=PAPER if point.modelled else colour,
        markeredgewidth=1.5,
        linestyle="none",
        zorder=3,
    )


def spot(axes: Any, x: float, y: float) -> tuple[float, float]:
    """Where a figure's point lies, in points."""
    left, bottom = axes.transData.transform((x, y)) * 72 / axes.figure.dpi
    return float(left), float(bottom)


def frame_box(axes: Any) -> Box:
    """The axes' frame, in points."""
    return Box(*(axes.bbox.extents * 72 / axes.figure.dpi))


def draw_labels(axes: Any, points: Sequence[Point], taken: Sequence[Box]) -> None:
    """Names beside the points, moved up or down to where they cover no point, no other name, no edge, nor ``taken``."""
    frame = frame_box(axes)
    spots = [spot(axes, p.speed.value or 0.0, p.energy.value or 0.0) for p in points]
    taken = [*(Box(x - 6, y - 6, x + 6, y + 6) for x, y in spots), *taken]
    taken += [box for point in points for box in _bars(axes, point, 72 / axes.figure.dpi)]
    names: list[Box] = []
    for point, (x, y) in zip(points, spots, strict=True):
        boxes = [
            _label_box(point.label, x, y, side, step).moved_into(frame)
            for step in (0.6, -0.6, 1.6, -1.6, 2.6, -2.6, 3.6, -3.6, 4.6, -4.6, 6.6, -6.6, 8.6, -8.6)
            for side in (1, -1)
        ]
        inside = [box for box in boxes if box.within(frame)] or boxes
        # Names over one another cannot be read; one over a bar can.
        covered = [
            (sum(box.overlaps(name) for name in names), sum(box.overlaps(other) for other in taken)) for box in inside
        ]
        box = inside[covered.index(min(covered))]
        names.append(box)
        at = (point.speed.value, point.energy.value)
        if abs((box.bottom + box.top) / 2 - y) > 1.2 * FONT:  # below all names, so that it strikes none out
            end = (min(max(x, box.left), box.right) - x, (box.bottom if box.bottom > y else box.top) - y)
            line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 4}
            axes.annotate("", at, xytext=end, textcoords="offset points", arrowprops=line, zorder=3)
        axes.annotate(
            point.label,
            at,
            xytext=(box.left - x, box.bottom - y),
            textcoords="offset points",
            color=INK,
            va="bottom",
            bbox={"boxstyle": "square,pad=0.05", "facecolor": PAPER, "edgecolor": "none"},  # a bar behind it is hidden
            zorder=4,
        )


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, in points."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )

    def moved_into(self, frame: Box) -> Box:
        """Moved sideways until it lies in the frame, as far as it fits."""
        by = max(min(self.left, frame.right - (self.right - self.left)), frame.left) - self.left
        return Box(self.left + by, self.bottom, self.right + by, self.top)

    def within(self, frame: Box) -> bool:
        return (
            frame.left <= self.left
            and self.right <= frame.right
            and frame.bottom <= self.bottom
            and self.top <= frame.top
        )


def _bars(axes: Any, point: Point, scale: float) -> list[Box]:
    """Where a point's interval bars run; those without an end are left out."""
    boxes = []
    x, y = point.speed, point.energy
    for first, last in (
        ((x.lower, y.value), (x.upper, y.value)),
        ((x.value, y.lower), (x.value, y.upper)),
    ):
        if None not in (*first, *last):
            left, bottom = axes.transData.transform(first) * scale
            right, top = axes.transData.transform(last) * scale
            boxes.append(Box(left - 1, bottom - 1, right + 1, top + 1))
    return boxes


def _label_box(label: str, x: float, y: float, side: int, step: float) -> Box:
    """Where a name may stand: to the right (``side`` 1) or left of its point, ``step`` lines up."""
    width, height = 0.6 * FONT * len(label), 1.2 * FONT
    left = x + 8 if side > 0 else x - 8 - width
    bottom = y - height / 2 + step * height
    return Box(left, bottom, left + width, bottom + height)


def _describe(points: Sequence[Point], energy_name: str) -> str:
    told = []
    for point in points:
        figures = (
            f"{name} {value(q)}{_between(q)}" for name, q in (("speed", point.speed), (energy_name, point.energy))
        )
        told.append(f"{point.label}: {', '.join(figures)}, {counted(point.energy.n_questions, 'question')}")
    return "; ".join(told) + "."


def _between(quantity: Quantity) -> str:
    found = interval(quantity)
    return f" ({found})" if found else ""


def _inline(svg: bytes, prefix: str, title: str, description: str) -> str:
    """Matplotlib's file as part of a page: no prologue, namespaces or metadata; unique ids; the page's colours."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = _plain(element.tag)
        element.attrib = {_plain(name): _attribute(_plain(name), text, prefix) for name, text in element.attrib.items()}
    for child in list(root):
        # The style sheet among the definitions would apply to the whole page, which has its own.
        if child.tag == "metadata" or child.find("style") is not None:
            root.remove(child)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-labelledby": f"{prefix}-title {prefix}-desc"}
    for position, (tag, text) in enumerate((("title", title), ("desc", description))):
        child = ElementTree.Element(tag, {"id": f"{prefix}-{tag}"})
        child.text = text
        root.insert(position, child)
    return ElementTree.tostring(root, encoding="unicode")


def _plain(name: str) -> str:
    return name.rpartition("}")[2]


def _attribute(name: str, text: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}-{text}"
    if name == "href":
        return f"#{prefix}-{text.removeprefix('#')}"
    text = text.replace("url(#", f"url(#{prefix}-")
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return re.sub(r"font-family: [^;]*;? ?", "", text)

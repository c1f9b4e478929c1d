"""Bars for the page: joules per answer with their intervals, and how many draft tokens a round accepts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from joulewise.analysis.acceptance import Acceptance
from joulewise.analysis.cells import CellKey
from joulewise.analysis.intervals import Quantity
from joulewise.report.grid import NO_INTERVAL
from joulewise.report.summary import Section
from joulewise.report.text import interval, value


@dataclass(frozen=True, slots=True)
class Bar:
    """One cell's joules per answer, in per cent of the widest of its task; ``low``, ``high``: the interval, if any."""

    key: CellKey
    width: float
    low: float | None
    high: float | None
    figure: str
    detail: str | None
    modelled: bool


@dataclass(frozen=True, slots=True)
class Column:
    """Rounds that accepted so many draft tokens; ``height`` in per cent of the highest column."""

    accepted: int
    rounds: int
    height: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cell's rounds by how many draft tokens they accepted; ``length``: its acceptance length in words."""

    key: CellKey
    length: str
    columns: tuple[Column, ...]


def energy_bars(section: Section) -> dict[str, list[Bar]]:
    """Joules per answer by task, for every cell in which they are known."""
    tasks: dict[str, list[tuple[CellKey, Quantity]]] = {}
    for cost in section.costs:
        quantity = cost.component(section.component).energy_per_answer_j
        if quantity.value is not None:
            tasks.setdefault(cost.key.task, []).append((cost.key, quantity))
    return {task: list(_bars(found)) for task, found in tasks.items()}


def _bars(found: list[tuple[CellKey, Quantity]]) -> Iterable[Bar]:
    # A wide interval must not press all bars to the left: it may be cut off at twice the longest bar.
    longest = max(q.value or 0.0 for _, q in found)
    end = min(2.0 * longest, max(longest, *(q.upper or 0.0 for _, q in found)))
    for key, q in found:
        low, high = q.lower, (end if q.unbounded else q.upper)
        yield Bar(
            key,
            100.0 * (q.value or 0.0) / end,
            None if low is None else 100.0 * low / end,
            None if low is None or high is None else min(100.0, 100.0 * high / end),
            f"{value(q)} J",
            interval(q) or NO_INTERVAL,
            q.provenance == "modelled",
        )


def histograms(section: Section) -> dict[str, list[Histogram]]:
    """The acceptance histograms by task, of the cells that speculated."""
    tasks: dict[str, list[Histogram]] = {}
    for acceptance in section.acceptance:
        if acceptance.histogram:
            tasks.setdefault(acceptance.key.task, []).append(_histogram(acceptance))
    return tasks


def _histogram(acceptance: Acceptance) -> Histogram:
    most = max(acceptance.histogram)
    columns = (Column(i, n, 100.0 * n / most) for i, n in enumerate(acceptance.histogram))
    return Histogram(acceptance.key, value(acceptance.length), tuple(columns))

"""A table of a report as words: figures with their intervals, in rows, with what belongs under them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from joulewise.analysis.cells import CellKey
from joulewise.analysis.intervals import Quantity
from joulewise.analysis.per_token import NO_RIGHT_OR_WRONG
from joulewise.report.text import common_reason, interval, value

NO_INTERVAL = "no interval"


@dataclass(frozen=True, slots=True)
class Shown:
    """One figure in words.

    Args:
        main: the figure.
        detail: its interval, or that it has none.
        mark: a verdict, or ``modelled``.
        n: number of questions behind it; None where it is a plain count.
        bars: a histogram in place of a figure.
        why: why the figure or its interval is not known; it stands under the table.
    """

    main: str
    detail: str | None = None
    mark: str | None = None
    n: int | None = None
    bars: tuple[int, ...] = ()
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of the plan's grid.

    Args:
        key: which.
        n: questions behind every figure of the row that does not say otherwise.
        figures: column by column.
        names: what the row stands under and what it is called; None is the cell's task and decoding.
    """

    key: CellKey
    n: int | None
    figures: tuple[Shown, ...]
    names: tuple[str, str] | None = None

    @property
    def task(self) -> str:
        """What the row stands under: the cell's task, or a part of it."""
        return self.names[0] if self.names else self.key.task

    @property
    def decoding(self) -> str:
        """What the row is called: the cell's decoding, or where several reasonings stand side by side, more."""
        return self.names[1] if self.names else self.key.decoding


@dataclass(frozen=True, slots=True)
class Grid:
    """One table.

    Args:
        title: what it shows.
        columns: headings of the figures (task, decoding and n apart).
        rows: by task and decoding.
        notes: what belongs under it.
        absolute: whether joules stand in it, and not only their ratios.
        of: what its rows are.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    absolute: bool = False
    of: str = "decoding"

    @property
    def counts_questions(self) -> bool:
        """Whether its figures rest on samples of questions; else they are plain counts."""
        return any(row.n is not None for row in self.rows)


@dataclass(frozen=True, slots=True)
class Column:
    """A column before it is laid out; ``unknown``: why nothing in it is known, where that is so for one reason."""

    heading: str
    figures: tuple[Shown, ...]
    unknown: str | None = None


def quantity_column(heading: str, quantities: Sequence[Quantity], factor: float = 1.0) -> Column:
    """A column of quantities, each times ``factor``."""
    figures = tuple(in_words(q, "modelled" if q.provenance == "modelled" else None, factor) for q in quantities)
    return Column(heading, figures, common_reason(quantities))


def in_words(quantity: Quantity, mark: str | None, factor: float = 1.0) -> Shown:
    """A quantity, times ``factor``, with its interval and a mark."""
    if quantity.reason == NO_RIGHT_OR_WRONG:
        return Shown("–")
    detail, why = interval(quantity, factor), None
    if quantity.unbounded and quantity.value is None:
        detail = quantity.reason
    elif detail is None:
        detail, why = (None if quantity.value is None else NO_INTERVAL), quantity.reason
    return Shown(value(quantity, factor), detail, mark, quantity.n_questions or None, why=why)


def lay_out(
    title: str,
    keys: Sequence[CellKey],
    columns: Iterable[Column],
    notes: Iterable[str] = (),
    names: Sequence[tuple[str, str]] | None = None,
) -> Grid:
    """Lay columns out in rows; a column of nothing but unknowns becomes a note.

    Args:
        names: as in ``Row``, row by row.
    """
    columns = tuple(columns)
    shown = [column for column in columns if column.unknown is None]
    rows = []
    for i, key in enumerate(keys):
        figures = [column.figures[i] for column in shown]
        n = max((f.n for f in figures if f.n is not None), default=None)
        rows.append(Row(key, n, tuple(_with_n(f, n) for f in figures), names[i] if names else None))
    unknown = tuple(
        f"{column.heading}: unknown ({column.unknown})." for column in columns if column.unknown is not None
    )
    return Grid(title, tuple(column.heading for column in shown), tuple(rows), (*unknown, *_whys(rows), *notes))


def _whys(rows: Iterable[Row]) -> list[str]:
    """Why figures or intervals are missing: every reason once, with its rows where there are several reasons."""
    missing: dict[str, dict[str, dict[str, None]]] = {}
    for row in rows:
        for f in row.figures:
            if f.why is not None:
                word = f.main.capitalize() if f.detail is None else "No interval"
                missing.setdefault(word, {}).setdefault(f.why, {})[f"{row.task}, {row.decoding}"] = None
    notes = []
    for word, reasons in missing.items():
        for why, where in reasons.items():
            among = f" ({_few(tuple(where))})" if len(reasons) > 1 else ""
            notes.append(f"{word}{among}: {why}.")
    return notes


def _few(names: Sequence[str]) -> str:
    return "; ".join(names[:3]) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")


def _with_n(shown: Shown, n: int | None) -> Shown:
    """The figure with its number of questions, where that is not the row's."""
    if shown.n in (None, n):
        return shown
    return replace(shown, detail=f"{shown.detail}, n = {shown.n}" if shown.detail else f"n = {shown.n}")

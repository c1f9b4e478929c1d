"""Single Trials for the page, and the ledger lines that they stand on: from a figure back to its raw readings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from joulewise.analysis.cells import Cell, CellKey, natural_order
from joulewise.energy.reading import ComponentName
from joulewise.ledger import LEDGER
from joulewise.report.summary import Summary, sections

MOST = 2000
"""Trials on a page."""


@dataclass(frozen=True, slots=True)
class RawReading:
    """What one source's counter said at both ends of a window, in joules; ``fault``: why it cannot be trusted."""

    source: str
    start_j: float | None
    end_j: float | None
    fault: str | None


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """A Trial's line as the ledger has it: times in seconds on the monotonic clock."""

    attempt: int
    started_at: str
    start_s: float
    end_s: float
    readings: tuple[RawReading, ...]


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One Trial.

    Args:
        question: its id, with ``(repeat n)`` from the second on.
        energy_j, lower_j, upper_j: of the block's component, with the meter's 95 % interval.
        accepted, drafted: draft tokens; None where nothing speculated.
        note: why it failed, or how its answer did.
        polluted: whether other processes used the CPU meanwhile; None where that is not known.
        verdict: of the lossless check; None where there was none.
        line, check_line: numbers of its lines in the ledger; None where it was read from none.
        ledger: the line itself; None likewise.
    """

    question: str
    ok: bool
    energy_j: float | None
    lower_j: float | None
    upper_j: float | None
    provenance: str | None
    duration_s: float
    output_tokens: int
    accepted: int | None
    drafted: int | None
    score: float | None
    correct: bool | None
    note: str | None
    polluted: bool | None
    verdict: str | None
    sequence: int
    line: int | None
    check_line: int | None
    ledger: LedgerLine | None = None


@dataclass(frozen=True, slots=True)
class TrialBlock:
    """A cell's Trials.

    Args:
        key: which cell.
        component: whose joules its rows show.
        total: how many there are.
        rows: those that are shown.
        command: a shell command that prints all their lines when run in the run's folder.
    """

    key: CellKey
    component: ComponentName
    total: int
    rows: tuple[TrialRow, ...]
    command: str


def trial_blocks(
    cells: Iterable[Cell], summary: Summary, folders: Mapping[str, Path], most: int = MOST
) -> tuple[TrialBlock, ...]:
    """The Trials of all cells, with their ledger lines.

    Args:
        cells: those that ``summary`` is about.
        folders: of the runs, by name; where one is missing, its Trials come without their ledger lines.
        most: so many Trials are shown; if there are more, each cell has an equal part of them, those that failed,
            were polluted or differ from vanilla first.
    """
    components = {(s.run, s.engine, s.model, s.reasoning): s.component for s in sections(summary)}
    cells = tuple(cells)
    share = _share([cell.rows.num_rows + cell.failed.num_rows for cell in cells], most)
    blocks = [_block(cell, components[cell.key.head], share) for cell in cells]
    for run, folder in folders.items():
        ours = [block for block in blocks if block.key.run == run]
        lines = _read_lines(folder / LEDGER, {row.line for block in ours for row in block.rows if row.line is not None})
        blocks = [_with_lines(block, lines) if block.key.run == run else block for block in blocks]
    return tuple(blocks)


def _share(sizes: Sequence[int], most: int) -> int:
    """The largest equal part for each cell with which all parts together are at most ``most``."""
    left, share = most, 0
    for done, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - done)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def _block(cell: Cell, component: ComponentName, share: int) -> TrialBlock:
    table = pa.concat_tables([cell.rows, cell.failed])
    flags = zip(*(table[name].to_pylist() for name in ("status", "polluted", "check_status")), strict=True)
    remarkable = [flag not in _PLAIN for flag in flags]
    chosen: Sequence[int] = range(table.num_rows)
    if len(chosen) > share:
        chosen = sorted(chosen, key=lambda i: not remarkable[i])[:share]
    questions, repeats = table["question_id"], table["repeat"]
    order = sorted(chosen, key=lambda i: (natural_order(questions[i].as_py()), repeats[i].as_py()))
    if len(order) < table.num_rows:
        order.sort(key=lambda i: not remarkable[i])
    rows = [_row(values, component) for values in table.take(order).to_pylist()]
    text = f'"cell_id":{json.dumps(table["cell_id"][0].as_py(), ensure_ascii=False)}'
    return TrialBlock(cell.key, component, table.num_rows, tuple(rows), f"grep -nF {shlex.quote(text)} {LEDGER}")


_PLAIN = {("ok", polluted, status) for polluted in (False, None) for status in (None, "identical", "not_checked")}
"""Status, pollution and verdict of Trials about which there is nothing to say."""


def _row(values: Mapping[str, Any], component: ComponentName) -> TrialRow:
    speculated = bool(values["rounds"])
    repeat = values["repeat"]
    return TrialRow(
        question=values["question_id"] + (f" (repeat {repeat + 1})" if repeat else ""),
        ok=values["status"] == "ok",
        energy_j=values[f"{component}_energy_j"],
        lower_j=values[f"{component}_lower_j"],
        upper_j=values[f"{component}_upper_j"],
        provenance=values[f"{component}_provenance"],
        duration_s=values["duration_s"],
        output_tokens=values["output_tokens"],
        accepted=values["accepted_tokens"] if speculated else None,
        drafted=values["drafted_tokens"] if speculated else None,
        score=values["score"],
        correct=values["correct"],
        note=values["error"] or values["score_note"],
        polluted=bool(values["polluted"]) or (None if values["other_cpu_cores"] is None else False),
        verdict=values["check_status"],
        sequence=values["sequence"],
        line=values["ledger_line"],
        check_line=values["check_line"],
    )


def _read_lines(path: Path, wanted: set[int]) -> dict[int, LedgerLine]:
    if not wanted:
        return {}
    with path.open("rb") as file:
        return {number: _ledger_line(line) for number, line in enumerate(file, start=1) if number in wanted}


def _ledger_line(line: bytes) -> LedgerLine:
    trial = json.loads(line)
    ends = {reading["source_id"]: reading for reading in trial["readings_end"]}
    readings = [
        RawReading(
            source=start["source_id"],
            start_j=start["energy_j"],
            end_j=ends.get(start["source_id"], {}).get("energy_j"),
            fault=start["fault"] or ends.get(start["source_id"], {}).get("fault"),
        )
        for start in trial["readings_start"]
    ]
    return LedgerLine(trial["attempt"], trial["started_at"], trial["start_s"], trial["end_s"], tuple(readings))


def _with_lines(block: TrialBlock, lines: Mapping[int, LedgerLine]) -> TrialBlock:
    rows = (row if row.line is None else replace(row, ledger=lines.get(row.line)) for row in block.rows)
    return replace(block, rows=tuple(rows))

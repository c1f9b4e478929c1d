"""Rows into cells: the Trials of one configuration of the grid, sorted, so that no result depends on their order.

A *unit* is a question with all its repeats: what the bootstrap draws.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from joulewise.analysis.intervals import Floats
from joulewise.energy.reading import ComponentName
from joulewise.table import COMPONENTS, RunTable

VANILLA = "vanilla"
"""Label of the decoding that every saving is measured against."""

Integers: TypeAlias = npt.NDArray[np.int64]

Unit: TypeAlias = tuple[str, str]
"""Question id and content hash: an edited question is another question."""

Components: TypeAlias = Mapping[tuple[str, str, str, str], ComponentName]
"""Whose joules to tell, by ``CellKey.head``."""

_KEYS = ("run", "engine", "model", "reasoning", "task", "decoding")


@dataclass(frozen=True, slots=True)
class CellKey:
    """Which cell, of which run."""

    run: str
    engine: str
    model: str
    reasoning: str
    task: str
    decoding: str

    @property
    def head(self) -> tuple[str, str, str, str]:
        """Run, engine, model and reasoning: what one set of tables is about."""
        return (self.run, self.engine, self.model, self.reasoning)

    @property
    def group(self) -> tuple[str, ...]:
        """Everything but the decoding: cells that share it are fair pairs (design, rule 5)."""
        return (*self.head, self.task)


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """The Trials of one cell.

    Args:
        key: which cell.
        rows: the ``ok`` Trials in ``SCHEMA``, sorted by question and repeat.
        failed: the others.
        questions: the number of each ok Trial's question, shape ``(Trials,)``: the same number for the same question in
            all cells of one ``split``, rising as the rows are sorted.
        failed_questions: likewise for the failed Trials.
    """

    key: CellKey
    rows: pa.Table
    failed: pa.Table
    questions: Integers
    failed_questions: Integers

    def numbers(self, column: str) -> Floats:
        """A numeric or boolean column of the ok Trials, nan for null."""
        values = pc.cast(self.rows[column], pa.float64()).to_numpy()
        return np.asarray(values, dtype=np.float64)

    def texts(self, column: str) -> list[str | None]:
        """A text column of the ok Trials."""
        return list(self.rows[column].to_pylist())

    def provenances(self, component: str) -> set[str | None]:
        """All provenances of a component's joules; None stands for "not there"."""
        return set(self.texts(f"{component}_provenance"))

    def units(self) -> list[Unit]:
        """The question of each ok Trial."""
        return _units(self.rows)

    def all_units(self) -> set[Unit]:
        """Every question that was tried, failed ones included."""
        return set(self.units()) | set(_units(self.failed))


def split(table: RunTable) -> tuple[Cell, ...]:
    """The cells of a table, by run, engine, reasoning, task and decoding (vanilla first, numbers in their order)."""
    arrow = table.arrow.combine_chunks()
    if not arrow.num_rows:
        return ()
    order = [(name, "ascending") for name in (*_KEYS, "question_id", "question_hash", "repeat", "trial_id")]
    arrow = arrow.sort_by(order)
    questions = _ranks(arrow["question_id"]) * arrow.num_rows + _ranks(arrow["question_hash"])
    key_codes = np.column_stack([_ranks(arrow[name]) for name in _KEYS])
    starts = [0, *(np.flatnonzero((key_codes[1:] != key_codes[:-1]).any(axis=1)) + 1), arrow.num_rows]
    cells = []
    for start, end in itertools.pairwise(starts):
        part = arrow.slice(start, end - start)
        key = CellKey(*(part[name][0].as_py() for name in _KEYS))
        ok = pc.equal(part["status"], "ok")
        is_ok, numbers = ok.to_numpy(), questions[start:end]
        cells.append(Cell(key, part.filter(ok), part.filter(pc.invert(ok)), numbers[is_ok], numbers[~is_ok]))
    return tuple(sorted(cells, key=lambda cell: _reading_order(cell.key)))


def _ranks(column: pa.ChunkedArray) -> Integers:
    """A number for each text, in the order of the texts."""
    encoded = column.combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_pylist()
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[sorted(range(len(values)), key=values.__getitem__)] = np.arange(len(values))
    found: Integers = ranks[encoded.indices.to_numpy()]
    return found


def dense(questions: Integers) -> tuple[npt.NDArray[np.intp], int]:
    """Question numbers renumbered from 0 without gaps, in their order, and how many questions there are."""
    found, codes = np.unique(questions, return_inverse=True)
    return codes, len(found)


def unit_codes(units: Sequence[Unit]) -> tuple[npt.NDArray[np.intp], int]:
    """A number from 0 for each Trial's question, and how many questions there are."""
    codes = {unit: code for code, unit in enumerate(sorted(set(units)))}
    return np.array([codes[unit] for unit in units], dtype=np.intp), len(codes)


def sum_by_unit(codes: npt.NDArray[np.intp], n: int, *columns: Floats) -> Floats:
    """Columns of Trials (each of shape ``(trials,)``) summed within each question: shape ``(n, len(columns))``."""
    return np.column_stack([np.bincount(codes, weights=column, minlength=n) for column in columns])


def exact_sum(column: Floats) -> float:
    """A sum that does not depend on the order of its terms."""
    return math.fsum(column.tolist())


def parts_of(component: ComponentName, provenances: Callable[[str], set[str | None]]) -> list[str]:
    """The components that a figure is the sum of: itself, or for a total those that the machine has.

    Args:
        component: what the figure is about.
        provenances: gives all provenances of a component's joules.
    """
    if component != "total":
        return [component]
    return [part for part in COMPONENTS if part != "total" and provenances(part) - {None}]


def why_no_energy(component: ComponentName, provenances: set[str | None]) -> str:
    """Why no Trial has joules of this component, one clause."""
    name = {"gpu": "GPU", "cpu": "CPU", "dram": "memory", "total": "total"}[component]
    if provenances == {None} and component != "total":
        return f"no {name} was metered here"
    return f"the {name} joules could not be read"


def nothing_to_divide(column: str) -> str:
    """Why a ratio cannot be formed when this column sums to 0 (or less), one clause."""
    if column.endswith("_energy_j"):
        return "the meter read 0 J: the Trials are too short for it"
    return {"output_tokens": "no tokens were put out", "duration_s": "no time passed"}.get(column, f"no {column}")


def _units(rows: pa.Table) -> list[Unit]:
    return list(zip(rows["question_id"].to_pylist(), rows["question_hash"].to_pylist(), strict=True))


def _reading_order(key: CellKey) -> list[Any]:
    """Runs, engines, reasonings and tasks by name; vanilla first; ``coga-5`` before ``coga-20``."""
    return [natural_order(part) for part in key.group] + [key.decoding != VANILLA, natural_order(key.decoding)]


def natural_order(text: str) -> list[tuple[int, int, str]]:
    """A sort key under which numbers inside names count as numbers."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]

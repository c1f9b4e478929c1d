"""A run as a typed table: one row per Trial. Everything after the ledger is a pure function of such a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from joulewise.energy.reading import Z95
from joulewise.records import Check, Trial

if TYPE_CHECKING:
    import pandas
    import polars

COMPONENTS = ("gpu", "cpu", "dram", "total")

_ENERGY_FIELDS = [
    ("energy_j", pa.float64()),
    ("lower_j", pa.float64()),
    ("upper_j", pa.float64()),
    ("independent_j", pa.float64()),
    ("gain_j", pa.float64()),
    ("offset_j", pa.float64()),
    ("provenance", pa.string()),
]

SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("trial_id", pa.string()),
        ("cell_id", pa.string()),
        ("engine", pa.string()),
        ("model", pa.string()),
        ("decoding", pa.string()),
        ("reasoning", pa.string()),
        ("task", pa.string()),
        ("question_id", pa.string()),
        ("question_hash", pa.string()),
        ("category", pa.string()),
        ("repeat", pa.int32()),
        ("sequence", pa.int32()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("started_at", pa.string()),
        ("duration_s", pa.float64()),
        ("prompt_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("wasted_tokens", pa.int64()),
        ("output_hash", pa.string()),
        ("rounds", pa.int64()),
        ("drafted_tokens", pa.int64()),
        ("accepted_tokens", pa.int64()),
        ("accepted_per_round", pa.list_(pa.int32())),
        ("drafted_per_round", pa.list_(pa.int32())),
        ("score", pa.float64()),
        ("correct", pa.bool_()),
        ("extracted", pa.string()),
        ("metric", pa.string()),
        ("score_note", pa.string()),
        ("other_cpu_cores", pa.float64()),
        ("polluted", pa.bool_()),
        ("check_status", pa.string()),
        ("check_first_difference", pa.int64()),
        ("check_gap", pa.float64()),
        ("check_control", pa.float64()),
        ("check_note", pa.string()),
        ("ledger_line", pa.int64()),
        ("check_line", pa.int64()),
    ]
    + [(f"{c}_{name}", kind) for c in COMPONENTS for name, kind in _ENERGY_FIELDS]
)
"""Columns of a run's table. ``<component>_provenance`` is null where the machine has no such component (no GPU) and
``unknown`` where it has one that could not be read; ``<component>_energy_j`` is null in both cases. Uncertainties
(``independent_j``, ``gain_j``, ``offset_j``) are standard uncertainties; ``lower_j`` and ``upper_j`` a 95 % interval.
``ledger_line`` and ``check_line`` are the numbers (from 1) of the Trial's and its verdict's line in ``ledger.jsonl``.
``output_hash`` holds the hashes of a Trial's generations, joined by ``+``.
"""


@dataclass(frozen=True)
class RunTable:
    """One run, or several side by side, ready for analysis.

    Args:
        arrow: rows as ``SCHEMA`` says; of a Trial that was run again, the last attempt only.
        plans: by run name, the plan as it was run (plain data).
        environments: by run name, what it ran on (plain data; see ``environment.py``).
        folders: by run name, the folder it was read from.
        warnings: what was noticed while reading (a torn last line, say).
    """

    arrow: pa.Table
    plans: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a pandas DataFrame (extra ``pandas``)."""
        return self.arrow.to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """The rows as a polars DataFrame (extra ``polars``)."""
        import polars

        frame = polars.from_arrow(self.arrow)
        assert isinstance(frame, polars.DataFrame)
        return frame


_BATCH = 4096
"""Trials held as Python values at a time: a ledger may be larger than the memory."""

_Columns: TypeAlias = dict[str, Any]


def rows_to_arrow(run: str, records: Iterable[tuple[int, Trial | Check]]) -> pa.Table:
    """The table of one run's Trials.

    Args:
        run: the run's name.
        records: line numbers and lines in the order of the ledger; of two Trials (or Checks) with the same ``trial_id``
            the later one counts.
    """
    rows: dict[str, int] = {}
    checks: dict[str, tuple[int, Check]] = {}
    batches: list[pa.RecordBatch] = []
    trials: list[tuple[int, Trial]] = []
    for number, record in records:
        if isinstance(record, Check):
            checks[record.trial_id] = number, record
            continue
        rows[record.trial_id] = len(batches) * _BATCH + len(trials)
        trials.append((number, record))
        if len(trials) == _BATCH:
            batches.append(_batch(run, trials))
            trials = []
    batches.append(_batch(run, trials))
    table = pa.Table.from_batches(batches)
    if len(rows) < table.num_rows:
        table = table.take(list(rows.values()))
    columns = dict(zip(table.column_names, table.columns, strict=True)) | _check_columns([checks.get(i) for i in rows])
    return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _batch(run: str, trials: Sequence[tuple[int, Trial]]) -> pa.RecordBatch:
    """Everything but the verdicts."""
    plain = [name for name in SCHEMA.names if name in Trial.model_fields]
    columns: _Columns = {name: [getattr(trial, name) for _, trial in trials] for name in plain}
    rounds = [[r for g in trial.generations for r in g.rounds] for _, trial in trials]
    drafted, accepted = ([[r[i] for r in found] for found in rounds] for i in (0, 1))
    columns |= {
        name: [sum(getattr(g, name) for g in trial.generations) for _, trial in trials]
        for name in ("prompt_tokens", "output_tokens", "wasted_tokens")
    }
    columns |= {
        "run": [run] * len(trials),
        "ledger_line": [number for number, _ in trials],
        "duration_s": [trial.duration_s for _, trial in trials],
        "output_hash": ["+".join(g.output_hash for g in trial.generations) or None for _, trial in trials],
        "rounds": [len(found) for found in rounds],
        "drafted_tokens": [sum(found) for found in drafted],
        "accepted_tokens": [sum(found) for found in accepted],
        "drafted_per_round": drafted,
        "accepted_per_round": accepted,
        **_energy_columns([trial for _, trial in trials]),
    }
    fields = [field for field in SCHEMA if field.name in columns]
    arrays = [pa.array(columns[f.name], f.type, from_pandas=True) for f in fields]  # from_pandas: nan is null
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _check_columns(checks: Sequence[tuple[int, Check] | None]) -> _Columns:
    columns: _Columns = {"check_line": [None if found is None else found[0] for found in checks]}
    for name in ("status", "first_difference", "gap", "control", "note"):
        columns[f"check_{name}"] = [None if found is None else getattr(found[1], name) for found in checks]
    return {name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()}


def _energy_columns(trials: Sequence[Trial]) -> _Columns:
    """Joules by component and in total, as ``ComponentEnergy`` and ``sum_components`` define them, column by column."""
    records = [{str(part.component): part for part in trial.energy} for trial in trials]
    columns: _Columns = {}
    sums = []
    for component in COMPONENTS[:-1]:
        parts = [found.get(component) for found in records]
        energy, start, end, sampling, gain, offset = (
            np.array([None if part is None else getattr(part, name) for part in parts], dtype=np.float64)
            for name in ("energy_j", "start_edge_j", "end_edge_j", "sampling_j", "gain_j", "offset_j")
        )
        figures = np.stack([energy, np.sqrt(start**2 + end**2 + sampling**2), gain, offset])
        provenances = np.array([None if part is None else part.provenance for part in parts], dtype=object)
        columns |= _component_columns(component, figures, provenances)
        sums.append((figures, provenances))
    there = np.stack([p != None for _, p in sums])  # noqa: E711 (element by element)
    figures = np.stack([f for f, _ in sums], axis=1)  # (figure, component, Trial)
    figures[1] **= 2
    known = np.where(there, figures, 0.0).sum(axis=1)
    known[1] **= 0.5
    # A partial sum is not a total.
    unknown, modelled = np.isnan(known[0]), np.stack([p == "modelled" for _, p in sums]).any(axis=0)
    known[1:, unknown] = 0.0
    known[:, ~there.any(axis=0)] = np.nan
    provenances = np.where(unknown, "unknown", np.where(modelled, "modelled", "measured")).astype(object)
    provenances[~there.any(axis=0)] = None
    return columns | _component_columns("total", known, provenances)


def _component_columns(component: str, figures: npt.NDArray[np.float64], provenances: Any) -> _Columns:
    """``figures``: joules, their independent, gain and offset uncertainties, shape ``(4, Trials)``; nan for null."""
    energy, independent, gain, offset = figures
    half = Z95 * np.hypot(independent, gain + offset)
    return {
        f"{component}_energy_j": energy,
        f"{component}_lower_j": np.maximum(0.0, energy - half),
        f"{component}_upper_j": energy + half,
        f"{component}_independent_j": independent,
        f"{component}_gain_j": gain,
        f"{component}_offset_j": offset,
        f"{component}_provenance": provenances,
    }

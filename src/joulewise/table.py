"""A run as a typed table: one row per Trial. Everything after the ledger is a pure function of such a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from joulewise.energy.reading import Z95
from joulewise.engines.engine import PHASES
from joulewise.errors import EnvironmentFault
from joulewise.records import Check, GenerationRecord, LoadRecord, SpreadRecord, TallyRecord, Trial

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

_COUNTS = ("sent", "answered", "failed", "cut_off", "left_out", "most_in_flight", "requests", "whole", "ended")
_SPREAD = pa.struct([(name, pa.int64() if name == "count" else pa.float64()) for name in SpreadRecord.model_fields])
_LOAD_TYPES = {name: pa.string() for name in ("label", "kind", "file")} | {
    name: pa.int64() for name in (*_COUNTS, "prompt_tokens", "good")
}
LOAD = pa.struct(
    [
        (name, _SPREAD if field.annotation is SpreadRecord else _LOAD_TYPES.get(name, pa.float64()))
        for name, field in LoadRecord.model_fields.items()
    ]
)
"""The column ``load``: a ``LoadRecord``."""

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
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
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
        ("generation_count", pa.int64()),
        ("prefill_s", pa.float64()),
        *((f"phase_{phase}_s", pa.float64()) for phase in PHASES),
        ("score", pa.float64()),
        ("correct", pa.bool_()),
        ("extracted", pa.string()),
        ("metric", pa.string()),
        ("score_note", pa.string()),
        ("note", pa.string()),
        ("other_cpu_cores", pa.float64()),
        ("polluted", pa.bool_()),
        ("running", pa.int32()),
        ("probe_of", pa.string()),
        ("load", LOAD),
        ("check_status", pa.string()),
        ("check_first_difference", pa.int64()),
        ("check_gap", pa.float64()),
        ("check_control", pa.float64()),
        ("check_note", pa.string()),
        ("ledger_line", pa.int64()),
        ("check_line", pa.int64()),
    ]
    + [(f"{c}_{name}", kind) for c in COMPONENTS for name, kind in _ENERGY_FIELDS]
    + [(f"{c}_prefill_j", pa.float64()) for c in COMPONENTS]
    + [(f"{c}_prefill_edges_j", pa.float64()) for c in COMPONENTS[:-1]]
)
"""Columns of a run's table. ``<component>_provenance`` is null where the machine has no such component (no GPU) and
``unknown`` where it has one that could not be read; ``<component>_energy_j`` is null in both cases. Uncertainties
(``independent_j``, ``gain_j``, ``offset_j``) are standard uncertainties; ``lower_j`` and ``upper_j`` a 95 % interval.
``start_s`` and ``end_s`` are on the monotonic clock of the run's timeline.
``ledger_line`` and ``check_line`` are the numbers (from 1) of the Trial's and its verdict's line in ``ledger.jsonl``.
``output_hash`` holds the hashes of a Trial's generations, joined by ``+``.
``prefill_s`` and ``<component>_prefill_j`` go up to the first token; ``<component>_prefill_edges_j`` is the latter's
standard uncertainty, gain and offset apart. They, and ``phase_<phase>_s`` (``PHASES``), are sums over a Trial's
generations, null where one of these does not tell.
``rounds``, ``drafted_tokens`` and ``accepted_tokens`` are null where a server speculated and does not tell; the lists
by round are empty where it tells totals alone.
``probe_of``: where a Trial was probed from the thought of another, that one's ``trial_id``; else null.
``running``: of a sweep's Trial: how many of its generations, all alike, ran side by side; else null.
``load``: how a stretch under load went (``LoadRecord``); ``prompt_tokens``, ``output_tokens`` and ``generation_count``
are then of its steady part. Null of a Trial whose requests ran one after the other.
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
        """The rows as a pandas DataFrame.

        Raises:
            EnvironmentFault: the extra ``pandas`` is not installed.
        """
        _require("pandas")
        return self.arrow.to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """The rows as a polars DataFrame.

        Raises:
            EnvironmentFault: the extra ``polars`` is not installed.
        """
        _require("polars")
        import polars

        frame = polars.from_arrow(self.arrow)
        assert isinstance(frame, polars.DataFrame)
        return frame


_BATCH = 4096
"""Trials whose columns are Python lists at a time: a ledger may be larger than the memory."""

_PLAIN = (*(name for name in SCHEMA.names if name in Trial.model_fields), "duration_s")
_MEASURED = ("provenance", "energy_j", "start_edge_j", "end_edge_j", "sampling_j", "gain_j", "offset_j")
VERDICT = ("status", "first_difference", "gap", "control", "note")
_NOT_THERE = (None,) * len(_MEASURED)
_plain, _measured, _verdict = (attrgetter(*names) for names in (_PLAIN, _MEASURED, VERDICT))

_Columns: TypeAlias = dict[str, Any]


def _require(extra: str) -> None:
    if find_spec(extra) is None:
        raise EnvironmentFault(
            f"{extra} is not installed: pip install 'joulewise[{extra}]' (the Arrow table needs none)"
        )


def rows_to_arrow(run: str, records: Iterable[tuple[int, Trial | Check]]) -> pa.Table:
    """The table of one run's Trials.

    Args:
        run: the run's name.
        records: line numbers and lines in the order of the ledger; of two Trials (or Checks) with the same ``trial_id``
            the later one counts.
    """
    last: dict[str, int] = {}
    checks: dict[str, tuple[Any, ...]] = {}
    batches: list[pa.RecordBatch] = []
    rows: list[tuple[Any, ...]] = []
    rounds: list[int] = []
    for number, record in records:
        if isinstance(record, Check):
            checks[record.trial_id] = (number, *_verdict(record))
            continue
        # Taken apart at once: records that pile up cost more time in the garbage collector than everything else here.
        last[record.trial_id] = len(batches) * _BATCH + len(rows)
        rows.append(_row(number, record, rounds))
        if len(rows) == _BATCH:
            batches.append(_batch(run, rows, rounds))
            rows, rounds = [], []
    if rows:
        batches.append(_batch(run, rows, rounds))
    if not batches:
        return SCHEMA.empty_table()
    table = pa.Table.from_batches(batches)
    if len(last) < table.num_rows:
        table = table.take(list(last.values()))
    columns = dict(zip(table.column_names, table.columns, strict=True)) | _check_columns([checks.get(i) for i in last])
    return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _row(number: int, trial: Trial, rounds: list[int]) -> tuple[Any, ...]:
    """A Trial's values, rounds apart: those go, drafted and accepted in turn, to the end of ``rounds``."""
    generations, load = trial.generations, trial.load
    for generation in generations:
        rounds.extend(chain.from_iterable(generation.rounds))
    gpu = cpu = dram = _NOT_THERE
    for part in trial.energy:
        if part.component == "gpu":
            gpu = _measured(part)
        elif part.component == "cpu":
            cpu = _measured(part)
        elif part.component == "dram":
            dram = _measured(part)
    return (
        number,
        *_plain(trial),
        load.prompt_tokens if load is not None else sum([g.prompt_tokens for g in generations]),
        round(load.output_tokens) if load is not None else sum([g.output_tokens for g in generations]),
        sum([g.wasted_tokens for g in generations]),
        "+".join([g.output_hash for g in generations]) or None,
        sum([len(g.rounds) for g in generations]),
        trial.tally,
        load.requests if load is not None else len(generations),
        _sum([None if g.first_token_s is None else g.first_token_s - g.start_s for g in generations]),
        *_phases(generations),
        *_prefills(generations),
        *gpu,
        *cpu,
        *dram,
    )


def _sum(parts: Sequence[float | None]) -> float | None:
    """None where nothing is summed, or something that is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _phases(generations: Sequence[GenerationRecord]) -> list[float | None]:
    found = [g.phases_s for g in generations]
    return [_sum([None if known is None else known.get(phase, 0.0) for known in found]) for phase in PHASES]


def _prefills(generations: Sequence[GenerationRecord]) -> list[float | None]:
    joules: list[dict[str, float | None]] = []
    edges: list[dict[str, float | None]] = []
    for g in generations:
        parts = g.prefill_energy or ()
        joules.append({part.component: part.energy_j for part in parts})
        edges.append({p.component: None if p.energy_j is None else p.value().independent_j for p in parts})
    return [_sum([known.get(component) for known in of]) for of in (joules, edges) for component in COMPONENTS[:-1]]


_PREFILLS = tuple(f"{component}_prefill_j" for component in COMPONENTS)
_OTHERS = (
    *("prompt_tokens", "output_tokens", "wasted_tokens", "output_hash", "rounds", "tally"),
    *("generation_count", "prefill_s"),
    *(f"phase_{phase}_s" for phase in PHASES),
    *_PREFILLS[:-1],
    *(f"{component}_prefill_edges_j" for component in COMPONENTS[:-1]),
)


def _batch(run: str, rows: Sequence[tuple[Any, ...]], rounds: Sequence[int]) -> pa.RecordBatch:
    """Everything but the verdicts."""
    names = ("ledger_line", *_PLAIN, *_OTHERS)
    values = list(zip(*rows, strict=True))
    columns: _Columns = dict(zip(names, values, strict=False))
    columns |= {"run": [run] * len(rows), **energy_columns(values[len(names) :])}
    kinds = [columns[f"{component}_provenance"] for component in COMPONENTS[:-1]]
    columns["total_prefill_j"] = prefill_total(kinds, [columns[name] for name in _PREFILLS[:-1]])
    columns["load"] = [None if load is None else load.model_dump() for load in columns["load"]]
    tallies: Sequence[TallyRecord | None] = columns.pop("tally")
    ends = np.cumsum([0, *columns["rounds"]], dtype=np.int32)
    columns["rounds"] = with_tally(columns["rounds"], [t if t is None else (t.rounds,) for t in tallies])
    for name, of_round in zip(("drafted", "accepted"), np.array(rounds, dtype=np.int32).reshape(-1, 2).T, strict=True):
        columns[f"{name}_per_round"] = pa.ListArray.from_arrays(ends, np.ascontiguousarray(of_round))
        sums = np.concatenate([[0], np.cumsum(of_round)])
        told = [t if t is None else (getattr(t, name),) for t in tallies]
        columns[f"{name}_tokens"] = with_tally(sums[ends[1:]] - sums[ends[:-1]], told)
    fields = [f for f in SCHEMA if f.name in columns]
    arrays = [
        column if isinstance(column := columns[f.name], pa.Array) else pa.array(column, f.type, from_pandas=True)
        for f in fields  # from_pandas: nan is null
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def with_tally(counts: Sequence[int] | Any, tallies: Sequence[tuple[int | None] | None]) -> Sequence[int | None] | Any:
    """Counts by the single rounds, shape ``(Trials,)``, or what a server counted; null where it does not tell.

    Args:
        counts: by the rounds.
        tallies: what was counted; None for a Trial without a server's count.
    """
    if not any(tallies):
        return counts
    return [int(count) if told is None else told[0] for count, told in zip(counts, tallies, strict=True)]


def _check_columns(checks: Sequence[tuple[Any, ...] | None]) -> _Columns:
    names = ("check_line", *(f"check_{name}" for name in VERDICT))
    values = zip(*(found or (None,) * len(names) for found in checks), strict=True)
    return {name: pa.array(column, SCHEMA.field(name).type) for name, column in zip(names, values, strict=True)}


def energy_columns(values: Sequence[Sequence[Any]]) -> _Columns:
    """Joules by component and in total, as ``ComponentEnergy`` and ``sum_components`` define them, column by column.

    Args:
        values: of each component (the total apart) ``_MEASURED``, one after the other, each of shape ``(Trials,)``.
    """
    columns: _Columns = {}
    parts, kinds = [], []
    for i, component in enumerate(COMPONENTS[:-1]):
        kind, *joules = values[i * len(_MEASURED) : (i + 1) * len(_MEASURED)]
        energy, start, end, sampling, gain, offset = (
            pa.array(column, pa.float64()).to_numpy(zero_copy_only=False) for column in joules
        )
        figures = np.stack([energy, np.sqrt(start**2 + end**2 + sampling**2), gain, offset])
        columns |= _component_columns(component, figures, kind)
        parts.append(figures)
        kinds.append(kind)
    there = np.array(kinds, dtype=object) != None  # noqa: E711 (element by element)
    figures = np.where(there, np.stack(parts, axis=1), 0.0)  # (figure, component, Trial)
    total = figures.sum(axis=1)
    total[1] = np.sqrt((figures[1] ** 2).sum(axis=0))
    unknown, nothing = np.isnan(total[0]), ~there.any(axis=0)  # a partial sum is not a total
    total[1:, unknown] = 0.0
    total[:, nothing] = np.nan
    modelled = (np.array(kinds, dtype=object) == "modelled").any(axis=0)
    provenances = np.where(modelled, "modelled", "measured").astype(object)
    provenances[unknown] = "unknown"
    provenances[nothing] = None
    return columns | _component_columns("total", total, provenances)


def prefill_total(kinds: Sequence[Any], prefills: Sequence[Any]) -> npt.NDArray[np.float64]:
    """The prefills' joules of all components that are there; nan where one is not known, or where none is there.

    Args:
        kinds: each component's provenances, shape ``(Trials,)``; None where it is not there.
        prefills: its prefills' joules, likewise.
    """
    there = np.array(kinds, dtype=object) != None  # noqa: E711 (element by element)
    figures = np.array(prefills, dtype=np.float64)
    total: npt.NDArray[np.float64] = np.where(there, figures, 0.0).sum(axis=0)
    total[~there.any(axis=0)] = np.nan
    return total


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

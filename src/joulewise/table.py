"""A run as a typed table: one row per Trial. Everything after the ledger is a pure function of such a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from joulewise.records import Check, EnergyRecord, Trial

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
    ]
    + [(f"{c}_{name}", kind) for c in COMPONENTS for name, kind in _ENERGY_FIELDS]
)
"""Columns of a run's table. ``<component>_provenance`` is null where the machine has no such component (no GPU) and
``unknown`` where it has one that could not be read; ``<component>_energy_j`` is null in both cases. Uncertainties
(``independent_j``, ``gain_j``, ``offset_j``) are standard uncertainties; ``lower_j`` and ``upper_j`` a 95 % interval.
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


def rows_to_arrow(run: str, trials: Iterable[Trial], checks: Mapping[str, Check]) -> pa.Table:
    """The table of one run's Trials.

    Args:
        run: the run's name.
        trials: in the order of the ledger; of two with the same ``trial_id`` the later one counts.
        checks: the verdicts by ``trial_id``.
    """
    last = {t.trial_id: t for t in trials}
    return pa.Table.from_pylist([_row(run, t, checks.get(t.trial_id)) for t in last.values()], schema=SCHEMA)


def _row(run: str, trial: Trial, check: Check | None) -> dict[str, Any]:
    rounds = [r for g in trial.generations for r in g.rounds]
    row: dict[str, Any] = {
        name: getattr(trial, name) for name in SCHEMA.names if name in Trial.model_fields or name == "duration_s"
    }
    row |= {
        "run": run,
        "prompt_tokens": sum(g.prompt_tokens for g in trial.generations),
        "output_tokens": sum(g.output_tokens for g in trial.generations),
        "wasted_tokens": sum(g.wasted_tokens for g in trial.generations),
        "rounds": len(rounds),
        "drafted_tokens": sum(d for d, _ in rounds),
        "accepted_tokens": sum(a for _, a in rounds),
        "drafted_per_round": [d for d, _ in rounds],
        "accepted_per_round": [a for _, a in rounds],
    }
    if check is not None:
        row |= {
            "check_status": check.status,
            "check_first_difference": check.first_difference,
            "check_gap": check.gap,
            "check_control": check.control,
            "check_note": check.note,
        }
    parts: Sequence[EnergyRecord] = trial.energy
    if parts:
        parts = (*parts, EnergyRecord.of(trial.window().total))
    for part in parts:
        value = part.value()
        row |= {
            f"{part.component}_energy_j": value.energy_j,
            f"{part.component}_lower_j": value.lower_j,
            f"{part.component}_upper_j": value.upper_j,
            f"{part.component}_independent_j": value.independent_j,
            f"{part.component}_gain_j": value.gain_j,
            f"{part.component}_offset_j": value.offset_j,
            f"{part.component}_provenance": value.provenance,
        }
    return row

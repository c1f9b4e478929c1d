"""Tables of Trials with known answers, for the tests of analysis and report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from joulewise.energy.reading import ComponentEnergy, sum_components
from joulewise.table import SCHEMA, RunTable


def part(
    component: str, energy_j: float | None, provenance: str = "measured", gain: float = 0.0, offset_j: float = 0.0
) -> ComponentEnergy:
    """One component's joules; ``gain`` is relative."""
    if energy_j is None:
        return ComponentEnergy(component, "unknown", None, note="could not be read")
    return ComponentEnergy(component, provenance, energy_j, gain_j=gain * energy_j, offset_j=offset_j)


def row(
    decoding: str = "vanilla",
    question: str = "q1",
    *,
    energy: Iterable[ComponentEnergy] = (),
    duration_s: float = 1.0,
    output_tokens: int = 10,
    **other: Any,
) -> dict[str, Any]:
    """One Trial as a row of ``SCHEMA``: ok, 20 prompt tokens, one output token a round for any decoding but vanilla."""
    engine, reasoning, task = (
        other.get(k, d) for k, d in (("engine", "e"), ("reasoning", "direct"), ("task", "maths"))
    )
    repeat = other.get("repeat", 0)
    speculates = decoding != "vanilla"
    cell = f"{engine}/{decoding}/{reasoning}/{task}"
    values: dict[str, Any] = {
        "run": "r",
        "trial_id": f"{cell}|{question}|{repeat}",
        "cell_id": cell,
        "engine": engine,
        "model": "m",
        "decoding": decoding,
        "reasoning": reasoning,
        "task": task,
        "question_id": question,
        "question_hash": "0" * 16,
        "repeat": repeat,
        "sequence": 0,
        "status": "ok",
        "started_at": "2026-11-30T10:00:00+00:00",
        "duration_s": duration_s,
        "prompt_tokens": 20,
        "output_tokens": output_tokens,
        "wasted_tokens": 0,
        "rounds": output_tokens if speculates else 0,
        "drafted_tokens": 5 * output_tokens if speculates else 0,
        "accepted_tokens": 0,
        "accepted_per_round": [0] * output_tokens if speculates else [],
        "drafted_per_round": [5] * output_tokens if speculates else [],
        "other_cpu_cores": 0.0,
        "polluted": False,
    } | other
    parts = list(energy)
    for entry in [*parts, sum_components("total", parts)] if parts else []:
        for name in ("energy_j", "lower_j", "upper_j", "independent_j", "gain_j", "offset_j", "provenance"):
            values[f"{entry.component}_{name}"] = getattr(entry, name)
    return values


def table(rows: Iterable[Mapping[str, Any]], **other: Any) -> RunTable:
    """A RunTable of rows."""
    return RunTable(pa.Table.from_pylist(list(rows), schema=SCHEMA), **other)

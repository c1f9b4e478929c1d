"""The points of a curve from a run: measured joules of single requests of one engine and decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joulewise.analysis.begun import GO_ON, not_begun
from joulewise.analysis.cells import VANILLA, unit_codes
from joulewise.analysis.curves import Points
from joulewise.analysis.pollution_share import pollution_share
from joulewise.counted import counted
from joulewise.energy.reading import ComponentName
from joulewise.errors import UserError
from joulewise.table import COMPONENTS, RunTable

_NOTES = 3
"""So many different notes of Trials are told, the most frequent first."""
_NAMES = {"gpu": "the GPU", "cpu": "the CPU", "dram": "memory", "total": "all components together"}


@dataclass(frozen=True, slots=True)
class Origin:
    """What a curve is of.

    Args:
        model: its name in the plan.
        engine: the engine's label.
        versions: of the engine's packages, by name.
        dtype: of the weights; None where the run does not say.
        device: whose joules, by name; None where the run does not say.
        component: which joules.
        decoding: its label.
        measured_at: when the run began, ISO 8601; None where the run does not say.
    """

    model: str
    engine: str
    versions: Mapping[str, str]
    dtype: str | None
    device: str | None
    component: ComponentName
    decoding: str
    measured_at: str | None


@dataclass(frozen=True, slots=True, eq=False)
class RunPoints:
    """A run's points, what they are of, what was left out, one sentence each, and what is held out together."""

    origin: Origin
    points: Points
    notes: tuple[str, ...]
    by: str


def run_points(
    table: RunTable,
    *,
    engine: str | None = None,
    decoding: str | None = None,
    component: ComponentName | None = None,
    without_polluted: bool = False,
) -> RunPoints:
    """The points of one engine and decoding of a run.

    A Trial of a sweep holds batches of equal requests, and its point is one of these, at the load of its batches. Other
    Trials ran alone, at a load of 1; those of several requests (votes, turns) are left out: their ledger line tells the
    sums of their tokens alone.

    Args:
        table: one run.
        engine: the engine's label; None where the run has one alone.
        decoding: its label; None takes vanilla, or the only one.
        component: whose joules; None takes the GPU where it alone is measured, else the total.
        without_polluted: leave out Trials during which other processes used the CPU.

    Raises:
        UserError: no such engine or decoding, vanilla not begun, nothing measured, or joules that are modelled.
    """
    if component is not None and component not in COMPONENTS:
        raise UserError(f"--component {component}: no such component; choose one of {', '.join(COMPONENTS)}")
    rows = table.arrow.filter(pc.equal(table.arrow["status"], "ok"))
    if not rows.num_rows:
        raise UserError("the run has no successful Trial: a curve needs measured requests")
    engine = _choose(rows["engine"].unique().to_pylist(), engine, "engine")
    rows = rows.filter(pc.equal(rows["engine"], engine))
    decodings = rows["decoding"].unique().to_pylist()
    if decoding is None and VANILLA not in decodings:
        _require_none_waiting(table, engine, decodings)
    decoding = _choose(decodings, decoding or (VANILLA if VANILLA in decodings else None), "decoding")
    rows = rows.filter(pc.equal(rows["decoding"], decoding))
    component = component or component_of(rows)
    _require_measured(rows, component)

    notes = []
    single = pc.or_(pc.equal(rows["generation_count"], 1), rows["running"].is_valid())
    wanted = [(single, "of several requests (votes or turns)")]
    wanted.append(
        (pc.greater(pc.fill_null(rows[f"{component}_energy_j"], 0.0), 0.0), "of no joules that could be read")
    )
    wanted.append((pc.greater(pc.fill_null(rows["output_tokens"], 0), 0), "without any output token"))
    disturbed = pollution_share(rows)
    if without_polluted:
        wanted.append((pc.invert(pc.fill_null(rows["polluted"], False)), "polluted by other processes"))
        disturbed = replace(disturbed, polluted=0)  # told with what else is left out
    keep = np.ones(rows.num_rows, dtype=bool)
    for condition, words in wanted:
        good = np.asarray(pc.fill_null(condition, False).to_numpy(), dtype=bool)
        if lost := int(np.count_nonzero(keep & ~good)):
            notes.append(f"left out: {lost:,} of {counted(rows.num_rows, 'Trial')}, {words}")
        keep &= good
    rows = rows.filter(pa.array(keep))
    if not rows.num_rows:
        raise UserError(f"no Trial of {decoding} on {engine} can carry a curve: {'; '.join(notes)}")

    def numbers(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.asarray(pc.cast(rows[name], pa.float64()).to_numpy(), dtype=np.float64)

    requests = numbers("generation_count")
    energy = numbers(f"{component}_energy_j") / requests
    own, gain, offset = (
        np.nan_to_num(numbers(f"{component}_{name}_j")) / requests for name in ("independent", "gain", "offset")
    )
    told = Counter(filter(None, rows["note"].to_pylist()))
    notes += [f"in {n:,} of {counted(rows.num_rows, 'Trial')}: {note}" for note, n in told.most_common(_NOTES)]
    notes += [note.rstrip(".") for note in disturbed.notes(without_polluted)]
    notes.append(
        f"one Trial's joules are known to {np.median(own / energy) * 100:.2g} % (median; the meter's own part)"
    )
    units = list(zip(rows["question_id"].to_pylist(), rows["question_hash"].to_pylist(), strict=True))
    points = Points(
        numbers("prompt_tokens") / requests,
        numbers("output_tokens") / requests,
        np.nan_to_num(numbers("running"), nan=1.0),
        energy,
        unit_codes(units)[0].astype(np.int64),
        float((gain + offset).sum() / energy.sum()),
    )
    run, model = rows["run"][0].as_py(), rows["model"][0].as_py()
    origin = _origin(table.environments.get(run, {}), model, engine, component, decoding)
    return RunPoints(origin, points, tuple(notes), "question" if rows["running"].null_count else "point")


def _require_none_waiting(table: RunTable, engine: str, decodings: Sequence[str]) -> None:
    """Take nothing else for vanilla, which is what a curve is of, where it was planned and not begun."""
    waiting = [key for run in table.plans for key in not_begun(table, run) if key.decoding == VANILLA]
    if any(key.engine == engine for key in waiting):
        raise UserError(
            f"the run was stopped before any Trial of vanilla on {engine}, which a curve is of unless told otherwise: "
            f"{GO_ON}, or name another decoding with --decoding: {', '.join(sorted(decodings))}"
        )


def _choose(found: Sequence[str], wanted: str | None, option: str) -> str:
    if wanted is None and len(found) == 1:
        return found[0]
    if wanted is not None and wanted in found:
        return wanted
    what = f"the run has several {option}s" if wanted is None else f"--{option} {wanted}: the run has no such {option}"
    raise UserError(f"{what}; name one with --{option}: {', '.join(sorted(found))}")


def component_of(rows: pa.Table) -> ComponentName:
    """Whose joules a run tells best: the GPU's where they alone are measured, else all components'."""
    measured = {c: set(rows[f"{c}_provenance"].unique().to_pylist()) == {"measured"} for c in ("gpu", "total")}
    return "gpu" if measured["gpu"] and not measured["total"] else "total"


def _require_measured(rows: pa.Table, component: str) -> None:
    kinds = set(rows[f"{component}_provenance"].unique().to_pylist())
    if "modelled" in kinds:
        raise UserError(
            f"the joules of {_NAMES[component]} are modelled, if only in part, and a curve of them would "
            "only give that model back; measure where there is a counter (`joulewise doctor` tells), or choose what "
            "was measured with --component"
        )
    if "measured" not in kinds:
        raise UserError(
            f"the joules of {_NAMES[component]} are unknown in this run; choose what was measured with --component"
        )


def _origin(environment: Mapping[str, Any], model: str, engine: str, component: ComponentName, decoding: str) -> Origin:
    sources = [s for s in environment.get("sources", ()) if component in ("total", s.get("component"))]
    told: Mapping[str, Any] = next((e for e in environment.get("engines", ()) if e.get("label") == engine), {})
    names = [str(source["device"]) for source in sources if source.get("device")]
    devices = [name if names.count(name) == 1 else f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return Origin(
        model,
        engine,
        {str(name): str(version) for name, version in told.get("versions", {}).items() if version},
        told.get("dtype"),
        ", ".join(devices) or None,
        component,
        decoding,
        environment.get("started_at"),
    )

"""What was run, on what, and where its joules come from: read from the plan, the environment and the Trials.

An environment is plain data that other versions may have written: every key is optional, and what is not there is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from joulewise.analysis.begun import not_begun
from joulewise.analysis.cells import CellKey, natural_order
from joulewise.analysis.gpus import metered_gpus
from joulewise.analysis.intervals import joint_provenance
from joulewise.analysis.per_token import COMPONENTS
from joulewise.analysis.pollution_share import PollutionShare, pollution_share
from joulewise.counted import counted
from joulewise.energy.calibration import gain_words
from joulewise.energy.reading import ComponentName, Provenance
from joulewise.table import RunTable


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one component's joules come from.

    Args:
        component: which.
        provenance: over the run's ok Trials: that of the weakest; None where no Trial has such a component.
        trials: number of ok Trials by provenance.
        sources: device and method of each source, in words.
        notes: what a reader must know: about a source, or why one could not be read and what can be done about it.
        gain_unknown: a measuring source's gain is not known, so that the intervals of absolute joules leave it out.
    """

    component: ComponentName
    provenance: Provenance | None
    trials: Mapping[str, int]
    sources: tuple[str, ...]
    notes: tuple[str, ...]
    gain_unknown: bool


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What generated, as the engine told it. ``drafts``: by decoding, what drafted; ``versions``: by package."""

    label: str
    model: str | None
    model_class: str | None
    parameters: int | None
    dtype: str | None
    devices: tuple[str, ...]
    drafts: Mapping[str, str]
    notes: tuple[str, ...]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class IdlePower:
    """What a component drew at rest with an engine's weights resident, in watts."""

    engine: str | None
    component: str
    power_w: float
    provenance: str | None


@dataclass(frozen=True, slots=True)
class CounterCheck:
    """One device's counter against its power readings over the run (``cross_check.json``).

    Args:
        device: its name.
        counter_j, trace_j: what the counter gained, and what the power readings integrate to.
        gap: how far the latter lies above the former, relative.
        duration_s: the time that was compared.
    """

    device: str
    counter_j: float
    trace_j: float
    gap: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What one run was.

    Args:
        name: the run's name in this report.
        plan, description: the plan's.
        started_at: ISO 8601, UTC.
        machine, gpus: in words; of the GPUs those that were metered, or all where that is not known.
        other_gpus: how many more the machine has.
        software: versions by name: the packages', and those that only the engines tell.
        commit: of the checkout it ran from, with ``(changed)`` where that had local changes.
        questions: number of questions by task.
        excluded: what the plan leaves out and why, in words.
        target: the plan's target for the relative half-width of every cell's joules per output token, if it has one.
        planned: number of Trials that the plan asks for (within ``--limit``); None if not recorded.
        not_loaded: engines that could not be loaded, by label, and why.
        not_begun: the plan's cells that have no Trial at all, those of such engines apart.
        trials, ok, failed: how many there are.
        polluted: ok Trials during which other processes used the CPU above the plan's limit.
        pollution_unknown: ok Trials for which that is not known; they count as clean.
        errors: why Trials failed and how many did, the most frequent first.
    """

    name: str
    plan: str | None
    description: str | None
    started_at: str | None
    machine: str | None
    gpus: tuple[str, ...]
    other_gpus: int
    software: Mapping[str, str]
    commit: str | None
    engines: tuple[EngineFacts, ...]
    origins: tuple[Origin, ...]
    idle: tuple[IdlePower, ...]
    counter_checks: tuple[CounterCheck, ...]
    questions: Mapping[str, int]
    excluded: tuple[str, ...]
    planned: int | None
    not_loaded: Mapping[str, str]
    not_begun: tuple[CellKey, ...]
    target: float | None
    trials: int
    ok: int
    failed: int
    polluted: int
    pollution_unknown: int
    errors: tuple[tuple[str, int], ...]

    def origin(self, component: ComponentName) -> Origin:
        """Where a component's joules come from."""
        return next(origin for origin in self.origins if origin.component == component)

    @property
    def pollution(self) -> PollutionShare:
        """How many Trials other processes disturbed."""
        return PollutionShare(self.ok, self.polluted, self.pollution_unknown)

    @property
    def modelled(self) -> tuple[ComponentName, ...]:
        """The components (the total apart) that are modelled."""
        return tuple(o.component for o in self.origins if o.provenance == "modelled" and o.component != "total")


def run_facts(name: str, table: RunTable) -> RunFacts:
    """The facts of one run of a table."""
    rows = table.arrow.filter(pc.equal(table.arrow["run"], name))
    rows = rows.filter(rows["probe_of"].is_null())
    ok = rows.filter(pc.equal(rows["status"], "ok"))
    failed = rows.filter(pc.not_equal(rows["status"], "ok"))
    disturbed = pollution_share(rows)
    errors = Counter(error or "no reason recorded" for error in failed["error"].to_pylist())
    plan, environment = table.plans.get(name, {}), table.environments.get(name, {})
    machine, git = _mapping(environment.get("machine")), _mapping(environment.get("git"))
    gpus, others = metered_gpus({**environment, "machine": machine})
    engines = tuple(_engine(engine) for engine in _mappings(environment.get("engines")))
    alone = rows.filter(rows["load"].is_null())  # under load questions come again and again
    asked = alone.group_by("task").aggregate([("question_id", "count_distinct")]).to_pylist()
    commit, planned = _text(git.get("commit")), environment.get("planned_trials")
    lacking = {
        str(one["engine"]): str(one.get("error"))
        for one in _mappings(environment.get("not_loaded"))
        if _text(one.get("engine"))
    }
    target = _mapping(plan.get("target")).get("relative_half_width")
    return RunFacts(
        name=name,
        plan=_text(plan.get("name")),
        description=_text(plan.get("description")),
        started_at=_text(environment.get("started_at")) or pc.min(rows["started_at"]).as_py(),
        machine=_machine(machine),
        gpus=tuple(map(_gpu, gpus)),
        other_gpus=others,
        software=_software(environment, engines),
        commit=f"{commit} (changed)" if commit and git.get("changed") else commit,
        engines=engines,
        origins=tuple(_origin(component, ok, environment) for component in COMPONENTS),
        idle=tuple(_idle(environment)),
        counter_checks=tuple(_counter_checks(environment)),
        questions={a["task"]: a["question_id_count_distinct"] for a in sorted(asked, key=_task_order)},
        excluded=tuple(_excluded(one) for one in _mappings(plan.get("exclude"))),
        target=target if isinstance(target, float) else None,
        planned=planned if isinstance(planned, int) else None,
        not_loaded=lacking,
        not_begun=tuple(key for key in not_begun(table, name) if key.engine not in lacking),
        trials=rows.num_rows,
        ok=ok.num_rows,
        failed=failed.num_rows,
        polluted=disturbed.polluted,
        pollution_unknown=disturbed.unknown,
        errors=tuple(sorted(errors.items(), key=lambda item: (-item[1], item[0]))),
    )


def _excluded(exclusion: Mapping[str, Any]) -> str:
    """The patterns that leave cells out, those that match everything apart, with the reason."""
    names = [_text(exclusion.get(part)) for part in ("engine", "decoding", "reasoning", "task")]
    cells = ", ".join(name for name in names if name not in (None, "*"))
    reason = _text(exclusion.get("reason"))
    return f"{cells} ({reason})" if reason else cells


def _task_order(count: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    return natural_order(count["task"])


def _origin(component: ComponentName, ok: pa.Table, environment: Mapping[str, Any]) -> Origin:
    counts = pc.value_counts(ok[f"{component}_provenance"]).to_pylist()
    kinds = {count["values"]: count["counts"] for count in counts if count["values"] is not None}
    sources = [s for s in _mappings(environment.get("sources")) if s.get("component") == component]
    absent = [a for a in _mappings(environment.get("absent")) if a.get("component") == component and a.get("present")]
    told = [_text(s.get("note")) for s in sources]
    told += [gain_words(s) for s in sources if s.get("provenance") == "measured" and isinstance(s.get("gain"), float)]
    told += [" ".join(_sentence(a[key]) for key in ("reason", "remedy") if a.get(key)) for a in absent]
    return Origin(
        component=component,
        provenance=joint_provenance(kinds) if kinds else None,
        trials=dict(sorted(kinds.items())),
        sources=tuple(dict.fromkeys(f"{s.get('device', '?')}: {s.get('method', '?')}" for s in sources)),
        notes=tuple(dict.fromkeys(note for note in told if note)),
        gain_unknown=any(s.get("provenance") == "measured" and s.get("gain") is None for s in sources),
    )


def _engine(engine: Mapping[str, Any]) -> EngineFacts:
    parameters = engine.get("parameters")
    return EngineFacts(
        label=_text(engine.get("label")) or "?",
        model=_text(engine.get("model")),
        model_class=_text(engine.get("model_class")),
        parameters=parameters if isinstance(parameters, int) else None,
        dtype=_text(engine.get("dtype")),
        devices=_texts(engine.get("devices")),
        drafts={str(decoding): str(draft) for decoding, draft in _mapping(engine.get("drafts")).items()},
        notes=_texts(engine.get("notes")),
        versions={
            str(name): str(version)
            for name, version in _mapping(engine.get("versions")).items()
            if version and version != "unknown"
        },
    )


def _software(environment: Mapping[str, Any], engines: Sequence[EngineFacts]) -> dict[str, str]:
    """Versions by name: Python's and the packages', then what only the engines name, each told once."""
    versions = {"python": environment.get("python"), **_mapping(environment.get("packages"))}
    software = {package: str(version) for package, version in versions.items() if version}
    more: dict[str, dict[str, None]] = {}
    for engine in engines:
        for name, version in engine.versions.items():
            if name not in software:
                more.setdefault(name, {})[version] = None
    return software | {name: " and ".join(found) for name, found in more.items()}


def _idle(environment: Mapping[str, Any]) -> list[IdlePower]:
    return [
        IdlePower(_text(entry.get("engine")), str(entry.get("component", "?")), power, _text(entry.get("provenance")))
        for entry in _mappings(environment.get("idle"))
        if isinstance(power := entry.get("power_w"), (int, float))
    ]


def _counter_checks(environment: Mapping[str, Any]) -> list[CounterCheck]:
    devices = {s.get("source_id"): _text(s.get("device")) for s in _mappings(environment.get("sources"))}
    found = []
    for entry in _mappings(environment.get("cross_check")):
        names = ("counter_j", "trace_j", "gap", "duration_s")
        figures = [float(f) for name in names if isinstance(f := entry.get(name), (int, float))]
        if len(figures) == len(names):
            source_id = entry.get("source_id")
            found.append(CounterCheck(devices.get(source_id) or str(source_id), *figures))
    return found


def _machine(machine: Mapping[str, Any]) -> str | None:
    cores, memory = machine.get("cores"), machine.get("memory_gb")
    told = [
        _text(machine.get("cpu")),
        counted(cores, "core") if isinstance(cores, int) else None,
        memory and f"{memory} GB of memory",
    ]
    return ", ".join(t for t in told if t) or None


def _gpu(gpu: Mapping[str, Any]) -> str:
    driver, limit, error = gpu.get("driver"), gpu.get("power_limit_w"), gpu.get("error")
    told = [
        _text(gpu.get("name")) or "GPU",
        driver and f"driver {driver}",
        f"power limit {limit:g} W" if isinstance(limit, (int, float)) else None,
        _text(gpu.get("uuid")),
        error and f"cannot be asked: {error}",
    ]
    return ", ".join(t for t in told if t)


def _sentence(text: Any) -> str:
    words = str(text).strip()
    words = words[:1].upper() + words[1:]
    return words if words.endswith((".", "!", "?")) else f"{words}."


def _text(value: Any) -> str | None:
    return str(value) if value not in (None, "") else None


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(v) for v in value) if isinstance(value, (list, tuple)) else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, (list, tuple)) else []

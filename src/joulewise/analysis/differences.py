"""In what do the runs of two sides differ? What forbids a comparison, and what is to be shown beside it.

A difference *refuses* where it changes what was asked or what it ran on; library versions and the like are as a rule
the very change under test, and are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from joulewise.analysis.gpus import metered_gpus
from joulewise.errors import UserError
from joulewise.plan import Plan
from joulewise.table import COMPONENTS, RunTable
from joulewise.yaml_file import in_words

_PARTS = ("engines", "decodings", "reasonings", "tasks")
_ASIDE = {"name", "description", "idle_baseline_s", "target", "pollution", "exclude", *_PARTS}
"""Fields of a plan that change no Trial, or that are compared cell by cell."""

_ENGINE_REFUSES = ("parameters", "dtype", "devices", "quant")
"""Beginnings of what an engine tells of itself that make it another engine; the rest is shown."""

ABSENT = "not recorded"

ENVIRONMENT = "environment"
"""The difference that is about whether it is recorded at all."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which BASE and NEW differ.

    Args:
        what: its name.
        base, new: its value on either side, in words; several values where a side's own runs differ.
        refuses: whether it forbids a comparison that was not asked for with ``allow_different``.
    """

    what: str
    base: str
    new: str
    refuses: bool


def differences(base: RunTable, new: RunTable) -> tuple[Difference, ...]:
    """Everything in which the runs differ: plan, machine, engines, questions. What refuses comes first."""
    sides = [_facts_of_side(base), _facts_of_side(new)]
    names = {name: refuses for side in sides for facts in side for name, (_, refuses) in facts.items()}
    found = []
    for name, refuses in names.items():
        head = name.rpartition(": ")[0]
        if head and not all(any(n.startswith(head) for facts in side for n in facts) for side in sides):
            continue  # an engine, say, that only one side has: told among the cells
        values = [[facts.get(name, (ABSENT, refuses))[0] for facts in side] for side in sides]
        missing = name == ENVIRONMENT and ABSENT in values[0] + values[1]
        if len({v for side in values for v in side}) > 1 or missing:
            told = [" / ".join(dict.fromkeys(side)) for side in values]
            found.append(Difference(name, told[0], told[1], refuses))
    found += [*_cells(base, new), *_questions(base, new)]
    return tuple(sorted(found, key=lambda d: not d.refuses))


def same_cards(tables: Iterable[RunTable]) -> bool:
    """Whether all runs were metered on the same GPUs, by UUID. Without a GPU no machine can be told from another."""
    seen = {
        tuple(sorted(str(g.get("uuid")) for g in metered_gpus(environment)[0]))
        for table in tables
        for environment in _environments(table)
    }
    cards = seen.pop() if len(seen) == 1 else ()
    return bool(cards) and "None" not in cards


def unrecorded(table: RunTable) -> list[str]:
    """The runs without a record of what they ran on, by name."""
    return [n for n, environment in zip(runs_of(table), _environments(table), strict=True) if not _machine(environment)]


_RECORDED = ("trial_id", "started_at", "start_s", "duration_s", "output_hash", *(f"{c}_energy_j" for c in COMPONENTS))


def shared_trials(one: pa.Table, other: pa.Table) -> int:
    """How many Trials of the one are also in the other: not asked again but the same recording, or a copy of it."""
    both = [t.filter(pc.is_in(t["started_at"], u["started_at"])) for t, u in ((one, other), (other, one))]
    trials = [set(zip(*(t[name].to_pylist() for name in _RECORDED), strict=True)) for t in both]
    return len(trials[0] & trials[1])


def greedy(table: RunTable) -> bool:
    """Whether every run chose its tokens greedily, so that equal inputs should give equal outputs."""
    return all(plan.get("sampling", {}).get("temperature") == 0 for plan in table.plans.values())


_Facts = Mapping[str, tuple[str, bool]]


def _facts_of_side(table: RunTable) -> list[_Facts]:
    return [
        _plan_facts(name, table.plans.get(name, {})) | _environment_facts(environment)
        for name, environment in zip(runs_of(table), _environments(table), strict=True)
    ]


def runs_of(table: RunTable) -> list[str]:
    """The names of a side's runs."""
    return list(table.plans) or sorted(table.arrow["run"].unique().to_pylist())


def _environments(table: RunTable) -> list[Mapping[str, Any]]:
    return [table.environments.get(name, {}) for name in runs_of(table)]


def _machine(environment: Mapping[str, Any]) -> Mapping[str, Any]:
    return environment.get("machine") or {}


def _plan(name: str, data: Mapping[str, Any]) -> Plan:
    try:
        return Plan.model_validate(data)
    except ValidationError as error:
        raise UserError(
            f"{name}: its plan cannot be read ({in_words(error.errors()[0])}); restore plan.yaml"
        ) from error


def _plan_facts(name: str, data: Mapping[str, Any]) -> dict[str, tuple[str, bool]]:
    plan = _plan(name, data)
    told: dict[str, Any] = {}
    for field, value in plan.model_dump(mode="json", exclude=_ASIDE).items():
        told |= {f"{field}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {field: value}
    for kind in _PARTS:
        for part in getattr(plan, kind):
            # A custom task is named by a path, which differs from checkout to checkout; its questions are compared.
            told |= {
                f"{kind[:-1]} {part.label}: {field}": value
                for field, value in part.model_dump(mode="json").items()
                if field not in ("name", "label")
            }
    return {f"plan: {what}": (_word(value), True) for what, value in told.items()}


def _environment_facts(environment: Mapping[str, Any]) -> dict[str, tuple[str, bool]]:
    machine, git = _machine(environment), environment.get("git") or {}
    if not machine:
        return {ENVIRONMENT: (ABSENT, True)}  # what is not recorded is not "none"
    gpus, _ = metered_gpus(environment)

    def cards(key: str) -> str:
        return ", ".join(sorted(str(gpu.get(key, "unknown")) for gpu in gpus)) or "none"

    facts = {
        ENVIRONMENT: ("recorded", True),
        "GPU": (cards("name"), True),
        "GPU driver": (cards("driver"), True),
        "GPU power limit (W)": (cards("power_limit_w"), True),
        "CPU": (str(machine.get("cpu")), True),
        "CPU cores": (str(machine.get("cores")), True),
        "GPU UUID": (cards("uuid"), False),
        "python": (str(environment.get("python")), False),
        "commit": (str(git.get("commit"))[:12] + (" (changed)" if git.get("changed") else ""), False),
    }
    facts |= {f"package {n}": (str(v), False) for n, v in (environment.get("packages") or {}).items()}
    for component in ("gpu", "cpu", "dram"):
        methods = [str(s.get("method")) for s in environment.get("sources") or [] if s.get("component") == component]
        facts[f"{component} joules"] = (", ".join(sorted(set(methods))) or "none", False)
    for engine in environment.get("engines") or []:
        for key, value in engine.items():
            if key == "devices":
                value = sorted(str(device).split(":")[0] for device in value)  # cuda:0 or cuda:1: the UUID tells
            if key not in ("label", "model", "engine"):
                refuses = str(key).startswith(_ENGINE_REFUSES)
                items = value.items() if isinstance(value, Mapping) else [(None, value)]
                for inner, told in items:
                    if told is None:
                        continue  # not there, as in a record from before this was told
                    name = f"engine {engine.get('label')}: {key}" + ("" if inner is None else f" {inner}")
                    facts[name] = (_word(told), refuses)
    return facts


def _cells(base: RunTable, new: RunTable) -> list[Difference]:
    asked = [{c.cell_id for n in runs_of(t) for c in _plan(n, t.plans.get(n, {})).cells()} for t in (base, new)]
    only = [_some(sorted(asked[i] - asked[1 - i])) for i in (0, 1)]
    return [Difference("cells in one plan only", only[0], only[1], True)] if asked[0] != asked[1] else []


def _questions(base: RunTable, new: RunTable) -> list[Difference]:
    """Edited questions, and samples of which neither holds the other; a shorter run of the same sample is none."""
    found = []
    sides = [_asked(base), _asked(new)]
    for task in sorted(set(sides[0]) & set(sides[1])):
        ours, theirs = sides[0][task], sides[1][task]
        edited = sorted(q for q in set(ours) & set(theirs) if ours[q] != theirs[q])
        if edited:
            words = f"{len(edited)} with another text: {_some(edited)}"
            found.append(Difference(f"questions of {task}", words, "the same ids, other hashes", True))
        elif (ours_only := set(ours) - set(theirs)) and (theirs_only := set(theirs) - set(ours)):
            told = [f"{len(only)} that the other lacks" for only in (ours_only, theirs_only)]
            found.append(Difference(f"questions of {task}", told[0], told[1], True))
    return found


def _asked(table: RunTable) -> dict[str, dict[str, frozenset[str]]]:
    """By task and question id, the hashes with which it was asked."""
    rows = table.arrow.select(["task", "question_id", "question_hash"])
    grouped = rows.group_by(["task", "question_id"]).aggregate([("question_hash", "distinct")])
    asked: dict[str, dict[str, frozenset[str]]] = {}
    for task in pc.unique(grouped["task"]).to_pylist():
        part = grouped.filter(pc.equal(grouped["task"], task))
        hashes = part["question_hash_distinct"].to_pylist()
        asked[task] = dict(zip(part["question_id"].to_pylist(), map(frozenset, hashes), strict=True))
    return asked


def _some(names: list[str]) -> str:
    return (", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")) or "none"


def _word(value: Any) -> str:
    return "none" if value is None else str(value)

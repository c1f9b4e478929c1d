"""What should be run? A Plan (a YAML file) and the Cells of its grid."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from joulewise.decoding import DECODINGS, Decoding
from joulewise.engines.engine import Sampling
from joulewise.engines.spec import EngineSpec
from joulewise.errors import UserError
from joulewise.reasoning import REASONINGS, Direct, Reasoning
from joulewise.yaml_file import load_yaml, suggest


class PlanPart(BaseModel):
    """Base of everything in a plan: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _shorthand(registry: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Let a bare name stand for ``{kind: name}``."""

    def expand(value: Any) -> Any:
        if isinstance(value, str):
            if value not in registry:
                raise ValueError(f"unknown name{suggest(value, list(registry))}")
            return {"kind": value}
        if isinstance(value, dict) and "kind" not in value:
            raise ValueError(f"the key 'kind' is missing; known kinds: {', '.join(registry)}")
        return value

    return expand


def _union(registry: Mapping[str, Any]) -> Any:
    classes = tuple(registry.values())
    union = Annotated[Union[classes], Field(discriminator="kind")] if len(classes) > 1 else classes[0]  # noqa: UP007
    names = Literal[tuple(registry)]  # type: ignore[valid-type]
    return Annotated[union, BeforeValidator(_shorthand(registry), json_schema_input_type=Union[union, names])]  # noqa: UP007


if TYPE_CHECKING:
    AnyDecoding = Decoding
    AnyReasoning = Reasoning
else:
    AnyDecoding = _union(DECODINGS)
    AnyReasoning = _union(REASONINGS)


class TaskSpec(PlanPart):
    """One task of the grid.

    Args:
        name: a task's name (``joulewise doctor`` lists them) or a custom task's YAML file, relative to the plan.
        questions: a random sample of so many questions; all if left out. The sample of a smaller number is contained in
            that of a larger one.
        max_new_tokens: at most so many output tokens under the stop rule ``natural``; if left out, the task's budget.
    """

    name: str
    questions: int | None = Field(None, ge=1)
    max_new_tokens: int | None = Field(None, ge=1)

    @property
    def label(self) -> str:
        """The task's name in tables: for a custom task, its file's stem."""
        return Path(self.name).stem if self.name.endswith((".yaml", ".yml")) else self.name


class Stop(PlanPart):
    """When an answer ends.

    Args:
        rule: ``natural``: at the end-of-sequence token or the task's budget (energy per answer). ``fixed``: after
            exactly ``tokens`` tokens, end-of-sequence ignored (energy per token at equal length).
        tokens: for the rule ``fixed``.
    """

    rule: Literal["natural", "fixed"] = "natural"
    tokens: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Stop:
        if self.rule == "fixed" and self.tokens is None:
            raise ValueError("the rule 'fixed' needs 'tokens', the number of tokens of every answer")
        if self.rule == "natural" and self.tokens is not None:
            raise ValueError("'tokens' belongs to the rule 'fixed'; use 'max_new_tokens' of a task for a budget")
        return self


class Exclusion(PlanPart):
    """Cells to leave out: all those whose labels match every pattern given (``*`` and ``?`` as in a shell)."""

    engine: str = "*"
    decoding: str = "*"
    reasoning: str = "*"
    task: str = "*"
    reason: str | None = None


class Pollution(PlanPart):
    """What to do when other programs use the CPU during a Trial.

    Args:
        limit_cores: above so many cores' worth of others' CPU time the Trial is flagged as polluted.
        reruns: how often a polluted Trial is run again; the last attempt counts.
    """

    limit_cores: float = Field(0.1, gt=0)
    reruns: int = Field(0, ge=0, le=10)


class SamplingSpec(PlanPart):
    """How the next token is chosen. ``temperature`` 0 is greedy."""

    temperature: float = Field(0.0, ge=0.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=0)

    def value(self) -> Sampling:
        """As the engines take it."""
        return Sampling(self.temperature, self.top_p, self.top_k)


class Plan(PlanPart):
    """A grid of engines x decodings x reasonings x tasks, and how it is run.

    Args:
        name: the run folder's name begins with it.
        description: one sentence for the report.
        engines: who generates; each names a model.
        decodings: how tokens are produced; ``vanilla`` is the baseline of every saving.
        reasonings: how an answer is thought out.
        tasks: what is asked.
        exclude: cells to leave out.
        seed: of question samples, orders and sampling.
        repeats: how often each question is asked in each cell.
        sampling: greedy if left out.
        stop: when an answer ends.
        warm_up: generations per decoding before anything is measured.
        idle_baseline_s: seconds of idling with the weights loaded, measured before the first Trial; 0 leaves it out.
        order: ``interleaved``: question by question, the cells of one engine in random order, so that drift in
            temperature and clocks falls on all cells alike. ``sequential``: cell by cell.
        pollution: what to do when other programs use the CPU.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str | None = None
    engines: tuple[EngineSpec, ...] = Field(min_length=1)
    decodings: tuple[AnyDecoding, ...] = Field(min_length=1)
    reasonings: tuple[AnyReasoning, ...] = Field((Direct(),), min_length=1)
    tasks: tuple[TaskSpec, ...] = Field(min_length=1)
    exclude: tuple[Exclusion, ...] = ()
    seed: int = 0
    repeats: int = Field(1, ge=1)
    sampling: SamplingSpec = SamplingSpec()
    stop: Stop = Stop()
    warm_up: int = Field(1, ge=0)
    idle_baseline_s: float = Field(5.0, ge=0.0)
    order: Literal["interleaved", "sequential"] = "interleaved"
    pollution: Pollution = Pollution()

    @field_validator("tasks", mode="before")
    @classmethod
    def _expand_tasks(cls, value: Any) -> Any:
        """Let a bare name stand for ``{name: ...}`` and a group (``starter``) for its tasks."""
        from joulewise.tasks import expand

        if not isinstance(value, (list, tuple)):
            return value
        tasks: list[Any] = []
        for item in value:
            spec = {"name": item} if isinstance(item, str) else item
            name = spec.get("name") if isinstance(spec, dict) else None
            names = expand(name) if isinstance(name, str) else [name]
            tasks += [{**spec, "name": n} if len(names) > 1 else spec for n in names]
        return tasks

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        for what in ("engines", "decodings", "reasonings", "tasks"):
            labels = [part.label for part in getattr(self, what)]
            twice = sorted({label for label in labels if labels.count(label) > 1})
            if twice:
                hint = "; give each a 'name'" if what == "engines" else ""
                raise ValueError(f"two {what} have the label '{twice[0]}'{hint}")
        everything = list(self._grid())
        for i, exclusion in enumerate(self.exclude):
            if not any(_matches(exclusion, cell) for cell in everything):
                raise ValueError(f"exclude[{i}] matches no cell; labels are like {everything[0].cell_id}")
        if not self.cells():
            raise ValueError("every cell is excluded")
        return self

    def _grid(self) -> Iterable[Cell]:
        for engine in self.engines:
            for task in self.tasks:
                for reasoning in self.reasonings:
                    for decoding in self.decodings:
                        yield Cell(engine, decoding, reasoning, task)

    def cells(self) -> tuple[Cell, ...]:
        """The grid without what is excluded."""
        return tuple(c for c in self._grid() if not any(_matches(e, c) for e in self.exclude))

    @property
    def content_hash(self) -> str:
        """SHA-256 (16 hex digits) of everything that the plan says."""
        whole = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Cell:
    """Engine x decoding x reasoning x task: one configuration of the grid."""

    engine: EngineSpec
    decoding: Decoding
    reasoning: Reasoning
    task: TaskSpec

    @property
    def cell_id(self) -> str:
        """``engine/decoding/reasoning/task`` by label."""
        return f"{self.engine.label}/{self.decoding.label}/{self.reasoning.label}/{self.task.label}"


def _matches(exclusion: Exclusion, cell: Cell) -> bool:
    return all(
        fnmatch.fnmatchcase(getattr(cell, part).label, getattr(exclusion, part))
        for part in ("engine", "decoding", "reasoning", "task")
    )


def load_plan(path: Path) -> Plan:
    """Read a plan.

    Paths of custom tasks in it are taken relative to the plan's folder.

    Raises:
        UserError: with file, line and field of every fault.
    """
    plan = load_yaml(path, Plan)
    return plan.model_copy(update={"tasks": tuple(_anchored(t, path.parent) for t in plan.tasks)})


def _anchored(task: TaskSpec, folder: Path) -> TaskSpec:
    if not task.name.endswith((".yaml", ".yml")):
        return task
    return task.model_copy(update={"name": str((folder / task.name).resolve())})


def plan_schema() -> dict[str, Any]:
    """The JSON schema of plan files, for editors."""
    return Plan.model_json_schema()


__all__ = ["Cell", "Plan", "UserError", "load_plan", "plan_schema"]

"""What should be run? A Plan (a YAML file) and the Cells of its grid."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from joulewise.decoding import DECODINGS, Decoding
from joulewise.docstring import parse_docstring
from joulewise.engines.endpoint_spec import Hertz, Watts
from joulewise.engines.engine import Request, Sampling
from joulewise.engines.spec import EngineSpec, ModelSpec
from joulewise.errors import UserError
from joulewise.reasoning import REASONINGS, Direct, Reasoning
from joulewise.traffic.loads import Loads, Stretch
from joulewise.yaml_file import NAME, FaultAt, load_yaml, suggest


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


def _is_custom(task: str) -> bool:
    return task.endswith((".yaml", ".yml"))


def _named(task: Any, index: int) -> Any:
    if isinstance(task, str):
        return {"name": task}
    if isinstance(task, dict) and "lm_eval" in task and "name" not in task:
        inner = task["lm_eval"]
        if not isinstance(inner, str) or not inner:
            raise FaultAt((index, "lm_eval"), "must be the name of a task of lm-eval, such as arc_easy")
        return {"name": f"lm_eval:{inner}"} | {key: value for key, value in task.items() if key != "lm_eval"}
    return task


def _task_label(spec: dict[str, Any]) -> str:
    from joulewise.tasks import LM_EVAL, harness_label
    from joulewise.tasks.custom import CustomTask

    name: str = spec["name"]
    if name.startswith(LM_EVAL):
        return harness_label(name)
    if not _is_custom(name):
        return name
    path = Path(name)
    return load_yaml(path, CustomTask).name if path.is_file() else path.stem


class TaskSpec(PlanPart):
    """One task of the grid.

    Args:
        name: a task's name (docs/tasks.md lists them), a custom task's YAML file, relative to the plan, or ``lm_eval:``
            and the name or YAML file of a task of lm-eval.
        label: its name in tables; if left out, the task's own.
        questions: a random sample of so many questions, with the task's categories in proportion; all if left out. The
            sample of a smaller number is contained in that of a larger one.
        max_new_tokens: at most so many output tokens under the stop rule ``natural``; if left out, the task's budget.
        options: the task's own options, such as ``{split: train}`` of ``gsm8k``.
    """

    name: str
    label: str = Field(default_factory=_task_label, pattern=NAME)
    questions: int | None = Field(None, ge=1)
    max_new_tokens: int | None = Field(None, ge=1)
    options: dict[str, Any] = {}

    @field_validator("name")
    @classmethod
    def _exists(cls, name: str, info: ValidationInfo) -> str:
        """In a plan file: take a custom task's path relative to it, and make sure that the task is there."""
        from joulewise.tasks import GROUPS, LM_EVAL, unknown_task

        if not info.context:
            return name
        if not _is_custom(name):
            if name not in GROUPS and (fault := unknown_task(name)):
                raise ValueError(fault)
            return name
        prefix = LM_EVAL if name.startswith(LM_EVAL) else ""
        path = (info.context["folder"] / name.removeprefix(prefix)).resolve()
        if not path.is_file():
            raise ValueError(f"no file {path}; a task of one's own is named by its YAML file, relative to the plan")
        return f"{prefix}{path}"

    @field_validator("options")
    @classmethod
    def _known(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """In a plan file: make sure that the task has these options."""
        from joulewise.tasks import options_of
        from joulewise.tasks.rows import option_fault

        name = info.data.get("name")
        if info.context and name is not None and (fault := option_fault(options_of(name), options)):
            raise FaultAt(*fault)
        return options


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
    load: str = "*"
    reason: str | None = None


class Pollution(PlanPart):
    """What to do when other programs use the CPU during a Trial.

    Args:
        limit_cores: above so many cores' worth of others' CPU time the Trial is flagged as polluted.
        reruns: how often a polluted Trial is run again; the last attempt counts.
    """

    limit_cores: float = Field(0.1, gt=0)
    reruns: int = Field(0, ge=0, le=10)


class Target(PlanPart):
    """How narrow the interval of every cell's joules per output token is to become.

    Once every question has been asked ``repeats`` times, all cells of a task go on, question by question as before,
    until the interval of each is narrow enough (after two repeats at the earliest) or the budget is spent. The
    interval is that of the measurement: what other questions would cost, and the sensor's gain, are no part of it, as
    repeats do not tell them.

    Args:
        relative_half_width: half of the 95 % interval over the figure; 0.05 is 5 %.
        max_repeats: each question is asked at most so often.
        max_s: no further repeat begins once a cell's Trials have taken so many seconds.
    """

    relative_half_width: float = Field(gt=0.0, lt=1.0)
    max_repeats: int | None = Field(None, ge=2)
    max_s: float | None = Field(None, gt=0.0)

    @model_validator(mode="after")
    def _ends(self) -> Target:
        if self.max_repeats is None and self.max_s is None:
            raise ValueError("needs a budget: 'max_repeats', 'max_s' or both")
        return self


class SloSpec(PlanPart):
    """What is good enough under load (a service-level objective); what is left out asks nothing.

    Args:
        to_first_s: at most so long to the first token, from when the request was due.
        per_token_s: at most so long a token after that, on average over the answer.
        total_s: at most so long to the end of the answer, from when the request was due.
    """

    to_first_s: float | None = Field(None, gt=0.0)
    per_token_s: float | None = Field(None, gt=0.0)
    total_s: float | None = Field(None, gt=0.0)


class SamplingSpec(PlanPart):
    """How the next token is chosen. ``temperature`` 0 is greedy."""

    temperature: float = Field(0.0, ge=0.0, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=0)

    def value(self) -> Sampling:
        """As the engines take it."""
        return Sampling(self.temperature, self.top_p, self.top_k)


def _distinct(what: str, labels: Iterable[tuple[int, str]], way_out: str) -> None:
    """Labels, each with its place in the list, must differ."""
    seen: set[str] = set()
    for place, label in labels:
        if label in seen:
            raise FaultAt((place,), f"two {what} have the label '{label}'; {way_out}")
        seen.add(label)


class Plan(PlanPart):
    """A grid of engines x decodings x reasonings x tasks (x loads), and how it is run.

    Args:
        name: the run folder's name begins with it.
        description: one sentence for the report.
        power_limit_w: hold this machine's GPUs at each of these power limits in turn, and put them back afterwards:
            every engine that names none itself becomes one for each. It needs the right to (root, as a rule).
        locked_sm_clock_hz: likewise each of these locked SM clocks.
        engines: who generates; each names a model.
        decodings: how tokens are produced; ``vanilla`` is the baseline of every saving.
        reasonings: how an answer is thought out.
        tasks: what is asked.
        exclude: cells to leave out.
        seed: of question samples, orders and sampling.
        repeats: how often each question is asked in each cell.
        target: go on repeating until the measurement is that narrow; left out, ``repeats`` is all.
        sampling: greedy if left out.
        stop: when an answer ends.
        warm_up: generations per decoding before anything is measured.
        idle_baseline_s: seconds of idling with the weights loaded, measured before an engine's first Trial and again
            after its last; 0 leaves it out, and net joules with it.
        order: ``interleaved``: question by question, the cells of one engine in random order, so that drift in
            temperature and clocks falls on all cells alike. ``sequential``: cell by cell.
        pollution: what to do when other programs use the CPU.
        loads: under which loads servers are measured: the questions are asked again and again, many at once, and a
            Trial is one such stretch. Left out: each question is asked by itself.
        slo: which requests under load count as served well enough; left out, all that were answered.
    """

    name: str = Field(pattern=NAME)
    description: str | None = None
    power_limit_w: tuple[Watts, ...] = ()
    locked_sm_clock_hz: tuple[Hertz, ...] = ()
    engines: tuple[EngineSpec, ...] = Field(min_length=1)
    decodings: tuple[AnyDecoding, ...] = Field(min_length=1)
    reasonings: tuple[AnyReasoning, ...] = Field((Direct(),), min_length=1)
    tasks: tuple[TaskSpec, ...] = Field(min_length=1)
    exclude: tuple[Exclusion, ...] = ()
    seed: int = 0
    repeats: int = Field(1, ge=1)
    target: Target | None = None
    sampling: SamplingSpec = SamplingSpec()
    stop: Stop = Stop()
    warm_up: int = Field(1, ge=0)
    idle_baseline_s: float = Field(5.0, ge=0.0)
    order: Literal["interleaved", "sequential"] = "interleaved"
    pollution: Pollution = Pollution()
    loads: tuple[Loads, ...] = ()
    slo: SloSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_no_task(cls, data: Any) -> Any:
        """Tell a custom task's file by its keys: each of them would be a fault of its own."""
        if isinstance(data, dict) and {"questions", "prompt"} <= data.keys() and "engines" not in data:
            raise ValueError("this is a task's file, not a plan; name it under 'tasks' in a plan")
        return data

    @field_validator("tasks", mode="before")
    @classmethod
    def _bare_names(cls, value: Any) -> Any:
        """Let a bare name stand for ``{name: ...}``, and ``{lm_eval: gsm8k}`` for ``{name: lm_eval:gsm8k}``."""
        if not isinstance(value, (list, tuple)):
            return value
        return [_named(item, index) for index, item in enumerate(value)]

    @field_validator("tasks")
    @classmethod
    def _groups(cls, value: tuple[TaskSpec, ...]) -> tuple[TaskSpec, ...]:
        """Let a group (``starter``) stand for its tasks."""
        from joulewise.tasks import GROUPS

        tasks = {
            i: [spec.model_copy(update={"name": n, "label": n}) for n in GROUPS.get(spec.name, [])] or [spec]
            for i, spec in enumerate(value)
        }
        _distinct("tasks", [(i, spec.label) for i, members in tasks.items() for spec in members], "give each a 'label'")
        return tuple(spec for members in tasks.values() for spec in members)

    @field_validator("engines")
    @classmethod
    def _held(cls, engines: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        """Each engine once for every setting of the GPUs. A plan that was read back is spread out already."""
        for name in ("power_limit_w", "locked_sm_clock_hz"):
            values = info.data.get(name)
            if not values:
                continue
            own = [engine for engine in engines if getattr(engine, name) is not None]
            others = [engine for engine in engines if getattr(engine, name) is None]
            engines = (*own, *(engine.model_copy(update={name: value}) for value in values for engine in others))
        for i, engine in enumerate(engines):
            held = engine.power_limit_w is not None or engine.locked_sm_clock_hz is not None
            if held and engine.kind == "endpoint" and engine.server is None and engine.meter != "here":
                raise FaultAt(
                    (i,),
                    "the GPUs of a server at a 'url' may be another machine's, and are not set: start it with "
                    "'server', say 'meter: here', or leave out power limits and clocks",
                )
        return engines

    @field_validator("engines", "decodings", "reasonings")
    @classmethod
    def _distinct_labels(cls, value: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        way_out = "give each a 'name'" if info.field_name == "engines" else "remove one"
        labels = [(i, label) for i, part in enumerate(value) for label in (part.label, *getattr(part, "probed", ()))]
        _distinct(str(info.field_name), labels, way_out)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        everything = list(self._grid())
        for i, exclusion in enumerate(self.exclude):
            if not any(matches(exclusion, cell) for cell in everything):
                raise FaultAt(("exclude", i), f"matches no cell; labels are like {everything[0].cell_id}")
        if not self.cells():
            raise FaultAt(("exclude",), "every cell is excluded")
        for i, engine in enumerate(self.engines):
            quantised = isinstance(engine, ModelSpec) and engine.draft_quantisation != "none"
            if quantised and not any(d.needs_draft for d in self.decodings):
                raise FaultAt(
                    ("engines", i, "draft_quantisation"), "no decoding of this plan has a draft; leave it out"
                )
        if self.target is not None and (most := self.target.max_repeats) is not None and most < self.repeats:
            raise FaultAt(("target", "max_repeats"), f"is less than 'repeats' ({self.repeats})")
        self._check_loads()
        return self

    def _check_loads(self) -> None:
        """Loads go with servers alone, and with reasonings that ask one request."""
        if not self.loads:
            if self.slo is not None:
                raise FaultAt(("slo",), "is about requests under load, and the plan has no 'loads'; add them")
            return
        stretches = [(i, stretch.label) for i, loads in enumerate(self.loads) for stretch in loads.each()]
        try:
            _distinct("loads", stretches, "leave one out")
        except FaultAt as fault:
            raise FaultAt(("loads", *fault.place), str(fault)) from None
        for i, engine in enumerate(self.engines):
            if engine.kind != "endpoint":
                raise FaultAt(
                    ("engines", i, "kind"),
                    f"'loads' puts many requests at once on a server, and the engine {engine.kind} is none: serve its "
                    "model by an engine of kind endpoint, or leave out 'loads'",
                )
        for i, reasoning in enumerate(self.reasonings):
            if reasoning.together or len(reasoning.most_tokens(Request((), 1))) > 1:
                raise FaultAt(
                    ("reasonings", i), f"{reasoning.label} asks several requests a question, and 'loads' sends one each"
                )
        if self.target is not None:
            raise FaultAt(("target",), "goes on question by question, and 'loads' asks none by itself; use 'repeats'")

    def _grid(self) -> Iterable[Cell]:
        loads: list[Stretch | None] = [stretch for loads in self.loads for stretch in loads.each()]
        for engine in self.engines:
            for task in self.tasks:
                for load in loads or [None]:
                    for reasoning in self.reasonings:
                        for decoding in self.decodings:
                            yield Cell(engine, decoding, reasoning, task, load)

    def cells(self) -> tuple[Cell, ...]:
        """The grid without what is excluded."""
        return tuple(c for c in self._grid() if not any(matches(e, c) for e in self.exclude))

    @property
    def content_hash(self) -> str:
        """SHA-256 (16 hex digits) of everything that the plan says."""
        whole = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Cell:
    """Engine x decoding x reasoning x task (x load): one configuration of the grid."""

    engine: EngineSpec
    decoding: Decoding
    reasoning: Reasoning
    task: TaskSpec
    load: Stretch | None = None

    @property
    def task_label(self) -> str:
        """The task's label; under load ``task/load``, so that loads are never pooled."""
        return self.task.label if self.load is None else f"{self.task.label}/{self.load.label}"

    @property
    def cell_id(self) -> str:
        """``engine/decoding/reasoning/task`` by label, and under load ``.../task/load``."""
        return f"{self.engine.label}/{self.decoding.label}/{self.reasoning.label}/{self.task_label}"


def matches(exclusion: Exclusion, cell: Cell) -> bool:
    """Whether an exclusion leaves a cell out."""
    return _fits(exclusion, {p: part.label for p in _PARTS if (part := getattr(cell, p)) is not None})


def excluded_by(exclusions: Iterable[Exclusion], labels: Mapping[str, str]) -> Exclusion | None:
    """The first that leaves a cell out; None where none does.

    Args:
        exclusions: a plan's.
        labels: the cell's, by ``engine``, ``decoding``, ``reasoning`` and ``task``; where it has one, ``load``.
    """
    return next((exclusion for exclusion in exclusions if _fits(exclusion, labels)), None)


_PARTS = ("engine", "decoding", "reasoning", "task", "load")


def _fits(exclusion: Exclusion, labels: Mapping[str, str]) -> bool:
    return all(fnmatch.fnmatchcase(labels.get(part, ""), getattr(exclusion, part)) for part in _PARTS)


def load_plan(path: Path) -> Plan:
    """Read a plan.

    Paths of custom tasks in it are taken relative to the plan's folder.

    Raises:
        UserError: with file, line and field of every fault.
    """
    way_out = "examples are in the folder plans/ of Joulewise's sources; `joulewise schema` prints what a plan may say"
    return load_yaml(path, Plan, {"folder": path.parent}, where_missing=way_out)


def plan_schema() -> dict[str, Any]:
    """The JSON schema of plan files, for editors, each key with what its docstring says."""
    schema = Plan.model_json_schema()
    for part in (schema, *schema["$defs"].values()):
        doc = parse_docstring(part["description"])
        part["description"] = doc.summary.replace("``", "`")
        for name, text in doc.arguments.items():
            if name in part["properties"]:
                part["properties"][name]["description"] = text.replace("``", "`")
    return schema


__all__ = ["Cell", "Plan", "UserError", "excluded_by", "load_plan", "plan_schema"]

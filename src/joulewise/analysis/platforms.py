"""What does the platform do to joules and seconds, and what the quantisation? A two-way table of one model's cells.

``docs/platforms.md`` has the formulas and says how often the intervals hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from joulewise.analysis.cells import VANILLA, Cell, CellKey, Components
from joulewise.analysis.intervals import Floats, Quantity, unknown_quantity
from joulewise.analysis.log_figures import LogFigures, log_figures
from joulewise.analysis.per_token import CellCost
from joulewise.energy.card_setting import CardSetting
from joulewise.energy.reading import ComponentName
from joulewise.plan import Plan, excluded_by
from joulewise.table import RunTable

UNQUANTISED = "unquantised"
"""Of an engine that was not loaded, where the plan does not say in which dtype."""

NOT_TOLD = "the server does not tell what its weights are in, nor does the plan: say it with `quantisation`"
APART = "no chain of cells links it to the baseline"
ON_NO_RING = "it takes four cells, two platforms by two quantisations, to tell an interaction"

_EXACT = 1e-9


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine stands in the table.

    Args:
        platform: ``transformers``, ``native``, or a server's name.
        quantisation: as the engine told it, or the dtype of unquantised weights; None where nobody tells.
        model: whose weights these are: the plan's ``base_model``, else its ``model``.
        setting: the power limit and clock that the plan set, in words; empty where it set none.
    """

    platform: str
    quantisation: str | None
    model: str
    setting: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """What one platform, or one quantisation, does on average over the other: factors to the baseline's.

    Args:
        name: which.
        energy, time: of joules and of seconds per output token; below 1 it takes less.
    """

    name: str
    energy: Quantity
    time: Quantity


@dataclass(frozen=True, slots=True)
class TwoWayCell:
    """One platform in one quantisation.

    Args:
        platform, quantisation: which.
        key: the run's cell; None where there is none.
        missing: why it is not in the table's figures; None where it is.
        energy, time: factors to the baseline's joules and seconds per output token.
        energy_interaction, time_interaction: the same over what the effects of its platform and its quantisation
            alone would give.
        score: accuracy, or the mean score where nothing is right or wrong.
        prompt_tokens, output_tokens: per answer; None without one.
    """

    platform: str
    quantisation: str
    key: CellKey | None
    missing: str | None
    energy: Quantity
    time: Quantity
    energy_interaction: Quantity
    time_interaction: Quantity
    score: Quantity
    prompt_tokens: float | None = None
    output_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """By how much two quantisations differ, against by how much two platforms do, in joules per output token.

    Args:
        quantisations, platforms: the two of each.
        quantisation, platform: the factors, each at least 1.
        p_quantisation, p_platform: the chance of such figures if that one's factor were not the larger; None where not
            known, or where joules are not measured.
    """

    quantisations: tuple[str, str]
    platforms: tuple[str, str]
    quantisation: Quantity
    platform: Quantity
    p_quantisation: float | None
    p_platform: float | None


@dataclass(frozen=True, slots=True)
class TwoWay:
    """One task of one model, plainly decoded with one reasoning, over platforms and quantisations.

    Args:
        run, model, task, reasoning, setting: which.
        component: whose joules.
        baseline: platform and quantisation that all is held against.
        platforms, quantisations: their effects, the baseline's first.
        cells: every platform in every quantisation.
        others: engines that stand where another does, or nowhere, and why.
        steps: every two quantisations against every two platforms.
    """

    run: str
    model: str
    task: str
    reasoning: str
    setting: str
    component: ComponentName
    baseline: tuple[str, str]
    platforms: tuple[Effect, ...]
    quantisations: tuple[Effect, ...]
    cells: tuple[TwoWayCell, ...]
    others: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]


def two_way_tables(
    table: RunTable, cells: Sequence[Cell], components: Components, costs: Sequence[CellCost]
) -> tuple[TwoWay, ...]:
    """The two-way table of every run, model, task and reasoning with two platforms or quantisations; of vanilla alone.

    Args:
        table: plans and environments.
        cells: from one ``split``.
        components: whose joules to tell.
        costs: of these cells.
    """
    found = []
    for run in dict.fromkeys(cell.key.run for cell in cells):
        environment, plan = table.environments.get(run, {}), _plan(table.plans.get(run))
        places = _places(environment, plan)
        groups: dict[tuple[str, ...], list[Cell]] = {}
        for cell in cells:
            place = places.get(cell.key.engine)
            if cell.key.run == run and cell.key.decoding == VANILLA and place is not None:
                key = (place.model or cell.key.model, cell.key.task, cell.key.reasoning, place.setting)
                groups.setdefault(key, []).append(cell)
        for group, its_cells in groups.items():
            one = _two_way(run, group, its_cells, places, plan, environment, components, costs)
            if one is not None:
                found.append(one)
    return tuple(found)


def _two_way(
    run: str,
    group: tuple[str, ...],
    cells: Sequence[Cell],
    places: Mapping[str, Place],
    plan: Plan | None,
    environment: Mapping[str, Any],
    components: Components,
    costs: Sequence[CellCost],
) -> TwoWay | None:
    model, task, reasoning, setting = group
    order = {label: i for i, label in enumerate(places)}
    cells = sorted(cells, key=lambda cell: order[cell.key.engine])
    stands: dict[tuple[str, str], Cell] = {}
    others = []
    for cell in cells:
        place = places[cell.key.engine]
        if place.quantisation is None:
            others.append((cell.key.engine, NOT_TOLD))
        elif (at := (place.platform, place.quantisation)) in stands:
            first = stands[at].key.engine
            others.append((cell.key.engine, f"{first} is the same platform and quantisation, and stands for both"))
        else:
            stands[at] = cell
    planned = {
        (place.platform, place.quantisation): label
        for label, place in reversed(list(places.items()))
        if place.model == model and place.setting == setting and place.quantisation is not None
    }
    platforms = list(dict.fromkeys(p for p, _ in (*stands, *reversed(planned))))
    quantisations = list(dict.fromkeys(q for _, q in (*stands, *reversed(planned))))
    if len(stands) < 2 or len(platforms) * len(quantisations) < 2:
        return None
    heads: set[ComponentName] = {components[cell.key.head] for cell in stands.values() if cell.key.head in components}
    component: ComponentName = "gpu" if heads == {"gpu"} else "total"
    energy, time = (log_figures(list(stands.values()), name) for name in (component, None))
    at_of = {cell.key: at for at, cell in stands.items()}
    baseline = _baseline(list(stands), [at_of[key] for key in energy.keys or time.keys])
    fits = [_Fit(figures, at_of, baseline) for figures in (energy, time)]
    not_loaded = {
        str(one.get("engine")): str(one.get("error"))
        for one in environment.get("not_loaded") or ()
        if isinstance(one, Mapping)
    }
    missing = {at_of[key]: why for key, why in time.left_out}
    whole = []
    for at in itertools.product(platforms, quantisations):
        if at not in stands:
            missing[at] = _why_missing(planned.get(at), reasoning, task, plan, not_loaded)
        whole.append(_cell(at, stands.get(at), missing.get(at), fits, costs))
    return TwoWay(
        run,
        model,
        task,
        reasoning,
        setting,
        component,
        baseline,
        tuple(Effect(p, *(fit.effect(0, p) for fit in fits)) for p in _first(platforms, baseline[0])),
        tuple(Effect(q, *(fit.effect(1, q) for fit in fits)) for q in _first(quantisations, baseline[1])),
        tuple(whole),
        tuple(others),
        tuple(fits[0].steps()),
    )


def _cell(
    at: tuple[str, str], cell: Cell | None, missing: str | None, fits: Sequence[_Fit], costs: Sequence[CellCost]
) -> TwoWayCell:
    energy, time = fits
    score, lengths = unknown_quantity(missing or "not scored"), (None, None)
    cost = next((cost for cost in costs if cell is not None and cost.key == cell.key), None)
    if cost is not None and cell is not None and cell.rows.num_rows:
        score = cost.accuracy if cost.accuracy.value is not None else cost.score
        lengths = (cost.prompt_tokens / cell.rows.num_rows, cost.output_tokens / cell.rows.num_rows)
    return TwoWayCell(
        *at,
        None if cell is None else cell.key,
        missing,
        energy.ratio(at, missing),
        time.ratio(at, missing),
        energy.interaction(at, missing),
        time.interaction(at, missing),
        score,
        *lengths,
    )


class _Fit:
    """``ln figure = m + platform + quantisation + interaction`` by least squares over the cells that are there.

    Args:
        figures: of ``k`` cells.
        at_of: platform and quantisation of every cell, those without figures included.
        baseline: whose effects are 0.
    """

    def __init__(
        self, figures: LogFigures, at_of: Mapping[CellKey, tuple[str, str]], baseline: tuple[str, str]
    ) -> None:
        self.figures, self.baseline = figures, baseline
        self.at = at = [at_of[key] for key in figures.keys]
        self.left_out = {at_of[key]: why for key, why in figures.left_out}
        self.names = [list(dict.fromkeys(one[side] for one in at)) for side in (0, 1)]
        columns = [[float(one[side] == name) for one in at] for side in (0, 1) for name in self.names[side]]
        design = np.array(columns, dtype=np.float64).reshape(len(columns), len(at)).T
        self.solver = np.linalg.pinv(design) if len(at) else np.zeros((0, 0))
        self.residual = np.eye(len(at)) - design @ self.solver if len(at) else np.zeros((0, 0))
        self.linked = _linked(at, baseline)

    def effect(self, side: int, name: str) -> Quantity:
        """The factor of a platform (side 0) or quantisation (side 1)."""
        weights = self._weights(side, name)
        if weights is None:
            return unknown_quantity(APART if name in self.names[side] else "no cell of it has figures")
        return self.figures.factor(weights)

    def ratio(self, at: tuple[str, str], missing: str | None) -> Quantity:
        """A cell's factor to the baseline's cell."""
        if at not in self.at or self.baseline not in self.at:
            why = "the baseline has no figures" if at in self.at else self.left_out.get(at, "")
            return unknown_quantity(missing or why)
        weights = np.zeros(len(self.at))
        weights[self.at.index(at)] += 1.0
        weights[self.at.index(self.baseline)] -= 1.0
        return self.figures.factor(weights)

    def interaction(self, at: tuple[str, str], missing: str | None) -> Quantity:
        """A cell's factor to what the effects alone would give."""
        if at not in self.at:
            return unknown_quantity(missing or self.left_out.get(at, ""))
        weights = self.residual[self.at.index(at)]
        if weights[self.at.index(at)] < _EXACT:
            return unknown_quantity(ON_NO_RING)
        return self.figures.factor(weights)

    def steps(self) -> Iterable[Step]:
        """Every two quantisations against every two platforms whose effects are known."""
        known = [
            {name: w for name in self.names[side] if (w := self._weights(side, name)) is not None} for side in (0, 1)
        ]
        for two, both in itertools.product(*(itertools.combinations(known[side], 2) for side in (1, 0))):
            quantised = self._upwards(known[1][two[1]] - known[1][two[0]])
            moved = self._upwards(known[0][both[1]] - known[0][both[0]])
            steps = (self.figures.factor(quantised), self.figures.factor(moved))
            measured = {step.provenance for step in steps} == {"measured"}
            chances = [self.figures.p_above(sign * (quantised - moved)) if measured else None for sign in (1.0, -1.0)]
            yield Step(two, both, *steps, *chances)

    def _upwards(self, weights: Floats) -> Floats:
        return weights if float(self.figures.logs @ weights) >= 0.0 else -weights

    def _weights(self, side: int, name: str) -> Floats | None:
        """By which the logarithms combine to an effect; None where they do not."""
        if (side, name) not in self.linked or self.baseline[side] not in self.names[side]:
            return None
        first = len(self.names[0]) * side
        rows = [first + self.names[side].index(one) for one in (name, self.baseline[side])]
        weights: Floats = self.solver[rows[0]] - self.solver[rows[1]]
        return weights


def _linked(at: Sequence[tuple[str, str]], baseline: tuple[str, str]) -> set[tuple[int, str]]:
    """The platforms and quantisations that a chain of cells links to the baseline's."""
    reached = {(0, baseline[0]), (1, baseline[1])}
    while True:
        more = {
            node
            for platform, quantisation in at
            for node in ((0, platform), (1, quantisation))
            if (0, platform) in reached or (1, quantisation) in reached
        }
        if more <= reached:
            return reached
        reached |= more


def _baseline(stands: Sequence[tuple[str, str]], known: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The first cell with figures that is not quantised; else the first with figures, or of all."""
    return next((at for at in known if at[1] in (*_DTYPES, UNQUANTISED)), next(iter(known), stands[0]))


def _first(names: Sequence[str], first: str) -> list[str]:
    return [first, *(name for name in names if name != first)]


def _why_missing(label: str | None, reasoning: str, task: str, plan: Plan | None, not_loaded: Mapping[str, str]) -> str:
    if label is None:
        return "no engine of the plan is that"
    if label in not_loaded:
        return f"{label} could not be loaded: {not_loaded[label]}"
    task, _, load = task.partition("/")  # under load the two are one label
    parts = {"engine": label, "decoding": VANILLA, "reasoning": reasoning, "task": task, "load": load}
    excluded = None if plan is None else excluded_by(plan.exclude, parts)
    if excluded is not None:
        return f"the plan leaves it out{f' ({excluded.reason})' if excluded.reason else ''}"
    return "it has no Trial yet"


def _plan(data: Mapping[str, Any] | None) -> Plan | None:
    try:
        return Plan.model_validate(data)
    except ValidationError:
        return None  # of another version, or made up for a test


def _places(environment: Mapping[str, Any], plan: Plan | None) -> dict[str, Place]:
    """Where every engine of a run stands, in the plan's order, as it told or else as the plan says."""
    told = {str(e.get("label")): e for e in environment.get("engines") or () if isinstance(e, Mapping)}
    specs = {} if plan is None else {spec.label: spec for spec in plan.engines}
    places = {}
    for label in dict.fromkeys([*specs, *told]):
        spec, info = specs.get(label), told.get(label)
        model = "" if spec is None else spec.base_model or spec.model
        model = model or str((info or {}).get("model") or "")
        setting = "" if spec is None else str(CardSetting(spec.power_limit_w, spec.locked_sm_clock_hz))
        if info is not None:
            places[label] = Place(*_as_told(info), model, setting)
        elif spec is not None:
            places[label] = Place(*_as_planned(spec), model, setting)
    dtypes = {p.quantisation for label, p in places.items() if label in told and p.quantisation in _DTYPES}
    if len(dtypes) == 1:  # an engine that was not loaded, with `dtype: auto`, would have had the others'
        sole = dtypes.pop()
        places = {
            label: Place(p.platform, sole if p.quantisation == UNQUANTISED else p.quantisation, p.model, p.setting)
            for label, p in places.items()
        }
    return places


_DTYPES = ("float32", "bfloat16", "float16")
_SERVERS = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}
"""As they call themselves."""


def _as_told(info: Mapping[str, Any]) -> tuple[str, str | None]:
    platform = str(info.get("engine"))
    if platform == "endpoint":
        platform = str(info.get("model_class")).partition(":")[0]
    dtype = info.get("dtype")
    level = info.get("quantisation") or (None if dtype in (None, "unknown") else dtype)
    return platform, None if level is None else str(level).lower()


def _as_planned(spec: Any) -> tuple[str, str | None]:
    platform, level = spec.kind, spec.quantisation
    if platform == "endpoint":
        platform = spec.label if spec.server is None else _SERVERS[spec.server.kind]
    elif level == "none":
        level = UNQUANTISED if spec.dtype == "auto" else spec.dtype
    return platform, None if level is None else str(level).lower()

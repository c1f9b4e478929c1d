"""Which option answers a query: one pure function of the query, the options, the state and the goal, with its reasons.

Three steps, each monotone, so that a dominated option never wins and a higher floor never lowers the accuracy: options
that cannot or may not take the query fall out; of the rest those remain that keep the limits (joules, latency; if none
does, those that miss the fewest); of these the cheapest at or above the floor wins (if none reaches it, the most
accurate). Without a floor the cheapest wins where answers have a value, else the most accurate within the limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

from joulewise.errors import UserError
from joulewise.routing.energy import Quantiles

J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Cascade:
    """Try one option, verify its answer, ask another one where the verifier refuses it.

    Args:
        first, then: names of options.
        keeps_right, keeps_wrong: chances that the verifier keeps a right and a wrong answer.
        verify_j, verify_s: joules and seconds of verifying.
    """

    first: str
    then: str
    keeps_right: float
    keeps_wrong: float
    verify_j: float = 0.0
    verify_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Option:
    """One way to answer.

    Args:
        name: of the option.
        model: whose load counts.
        reasoning: ``direct``, ``cot``, ``votes`` and so on.
        output_budget: most output tokens; None for no budget.
        decoding: its label.
        context_limit: most tokens of prompt and budget; None where not known.
        modalities: what it reads.
        active_parameters: of the model, None where not known.
        cascade: where it is one; the other fields are then the first option's.
    """

    name: str
    model: str
    reasoning: str = "direct"
    output_budget: int | None = None
    decoding: str = "vanilla"
    context_limit: int | None = None
    modalities: frozenset[str] = frozenset({"text"})
    active_parameters: float | None = None
    cascade: Cascade | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is expected of an option for a query.

    Args:
        accuracy: chance of a right answer.
        energy_j: joules.
        first_token_s, total_s: seconds; None where not known.
    """

    accuracy: float
    energy_j: Quantiles
    first_token_s: Quantiles | None = None
    total_s: Quantiles | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was before: the model that has the prefix in its cache, and what another one spends to read it again."""

    model: str
    lost_prefix_j: float = 0.0
    lost_prefix_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Query:
    """What a choice needs to know of a query, but for its estimates."""

    prompt_tokens: int
    domain: str | None = None
    modalities: frozenset[str] = frozenset({"text"})
    conversation: Conversation | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A value and how old it is."""

    value: float
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """What is so at present. A reading that is older than its most counts as not known, and the choice says so.

    Args:
        running, queued: requests by model.
        carbon_g_per_kwh: of the grid.
        most_age_s: of loads and first tokens.
        most_carbon_age_s: of the carbon intensity.
        first_token_s: mean seconds to the first token that a model's server showed of late.
    """

    running: Mapping[str, Reading] = field(default_factory=lambda: MappingProxyType({}))
    queued: Mapping[str, Reading] = field(default_factory=lambda: MappingProxyType({}))
    carbon_g_per_kwh: Reading | None = None
    most_age_s: float = 30.0
    most_carbon_age_s: float = 7200.0
    first_token_s: Mapping[str, Reading] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Load:
    """A model's load as an estimator takes it: with this request running, and those that wait before it."""

    running: float = 1.0
    queued: float = 0.0


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted, in the user's units. Prices are in one currency.

    Args:
        least_accuracy: floor of the chance of a right answer.
        within: floor as a share that may be lost of the best option's chance: 0.02 for 2 %.
        most_j: expected joules of a request.
        most_first_token_s, most_total_s: kept by the 95th percentile.
        kwh_price, co2_kg_price, second_price: of energy, of carbon and of waiting.
        answer_value: of a right answer.
        switch_price: of a change of model within a conversation, on top of the lost prefix.
        pinned: options of which one is taken; empty for all.
        forbidden: options that are not taken, and not asked by a cascade.
        affordable_j: expected joules that a budget leaves for the request: options above it fall out, whatever else is
            asked; the floor stays where it would be without it.
    """

    least_accuracy: float | None = None
    within: float | None = None
    most_j: float | None = None
    most_first_token_s: float | None = None
    most_total_s: float | None = None
    kwh_price: float = 1.0
    co2_kg_price: float = 0.0
    second_price: float = 0.0
    answer_value: float = 0.0
    switch_price: float = 0.0
    pinned: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    affordable_j: float | None = None

    def __post_init__(self) -> None:
        """Raises UserError: parts that contradict each other, or a number that none of them can be."""
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, (int, float)) and not (value >= 0 and math.isfinite(value)):
                raise UserError(f"Goal, {part.name}: {value} is no number of at least 0.")
        for name in ("least_accuracy", "within"):
            if (value := getattr(self, name)) is not None and value > 1:
                raise UserError(f"Goal, {name}: {value:g} is above 1; give a share, such as 0.8 for 80 %.")
        if self.least_accuracy is not None and self.within is not None:
            raise UserError("Goal: least_accuracy and within are two floors; give one of them.")
        if both := self.pinned & self.forbidden:
            raise UserError(f"Goal: {', '.join(sorted(both))}: pinned and forbidden; take it out of one of them.")
        first, total = self.most_first_token_s, self.most_total_s
        if first is not None and total is not None and total < first:
            raise UserError(f"Goal: all of an answer within {total:g} s, its first token within {first:g} s: too late.")
        if not self.kwh_price:
            raise UserError("Goal, kwh_price: energy must have a price above 0, or its joules would not count.")
        asks = (self.least_accuracy, self.within, self.most_j, self.most_first_token_s, self.most_total_s)
        if not any(part is not None for part in asks) and not self.answer_value and not self.pinned:
            raise UserError(
                "The goal asks for nothing: give a floor of accuracy (least_accuracy or within), a limit (most_j, "
                "most_total_s, ...), a value of a right answer, or options to pin."
            )


@dataclass(frozen=True, slots=True)
class Verdict:
    """An option as it was judged, lost prefix included; ``why`` says why it lost, or that it won."""

    option: str
    estimate: Estimate | None
    cost: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What is taken and why.

    Args:
        option: its name.
        estimate: what is expected of it.
        reasons: sentences, the deciding one first.
        best_effort: something that was asked for is not reached.
        verdicts: every option, by name.
        limits_missed: no option is expected to keep all limits.
        below_floor: no option, of those that miss the fewest limits, is expected to reach the floor.
    """

    option: str
    estimate: Estimate
    reasons: tuple[str, ...]
    best_effort: bool
    verdicts: tuple[Verdict, ...]
    limits_missed: bool = False
    below_floor: bool = False


Estimator = Callable[[Query, Option, Load], Estimate]


def choose(query: Query, options: Sequence[Option], estimate: Estimator, state: State, goal: Goal) -> Choice:
    """The option that answers a query at the least cost that the goal allows.

    Args:
        estimate: a pure function too: what is expected of an option (never of a cascade) at its model's load.

    Raises:
        UserError: no option can or may take the query, two have one name, a pinned or forbidden one is not there, or a
            cascade names an option that is not there.
    """
    known = {option.name: option for option in sorted(options, key=lambda o: o.name)}
    _check(known, options, goal)
    notes: list[str] = []
    found: dict[str, Estimate] = {}
    for name, option in known.items():
        if option.cascade is None:
            expected = estimate(query, option, load_of(option.model, state, notes))
            _check_estimate(name, expected)
            found[name] = _with_lost_prefix(_as_observed(expected, option.model, state, notes), option.model, query)
    for name, option in known.items():
        if (cascade := option.cascade) is not None:
            found[name] = cascade_estimate(cascade, found[cascade.first], found[cascade.then])
    cannot = {name: why for name, option in known.items() if (why := _why_not(option, known, query, goal))}
    able = [name for name in known if name not in cannot]
    floor = _floor(goal, max((found[name].accuracy for name in able), default=0.0))
    if (left_j := goal.affordable_j) is not None:
        dear = {name: f"{j:,.3g} J expected" for name in able if (j := found[name].energy_j.mean) > left_j}
        cannot |= {name: f"{joules}, and the joule budget leaves {left_j:,.3g} J" for name, joules in dear.items()}
        able = [name for name in able if name not in dear]
    if not able:
        raise UserError(
            "No option can take the query: " + "; ".join(f"{name}: {why}" for name, why in cannot.items()) + "."
        )
    costs = {name: _cost(known[name], found[name], query, state, goal, notes) for name in able}
    missed = {name: _missed(found[name], goal) for name in able}
    fewest = min(len(missed[name]) for name in able)
    within = [name for name in able if len(missed[name]) == fewest]
    above = [name for name in within if found[name].accuracy >= floor]
    by_cost = bool(above) and (goal.least_accuracy is not None or goal.within is not None or goal.answer_value > 0)

    def order(name: str) -> tuple[float, ...]:
        e, cost = found[name], costs[name]
        tie = (cost, -e.accuracy) if by_cost else (-e.accuracy, cost)
        return (*tie, e.energy_j.mean, *_seconds(e.total_s), *_seconds(e.first_token_s))

    taken = min(above or within, key=lambda name: (order(name), name))
    reasons = _reasons(taken, found[taken], floor, bool(above), missed[taken], by_cost, len(above or within))
    verdicts = []
    for name in known:
        if name == taken:
            why = "taken"
        elif name in cannot:
            why = cannot[name]
        elif len(missed[name]) > fewest:
            why = "; ".join(missed[name])
        elif above and name not in above:
            why = f"accuracy {found[name].accuracy:.1%} is below the floor of {floor:.1%}"
        else:
            why = _worse(name, taken, found, costs, by_cost)
        verdicts.append(Verdict(name, found[name], costs.get(name), why))
    told = (*reasons, *dict.fromkeys(notes))
    missed_any, below = fewest > 0, not above
    return Choice(taken, found[taken], told, below or missed_any, tuple(verdicts), missed_any, below)


def cascade_estimate(cascade: Cascade, first: Estimate, then: Estimate) -> Estimate:
    """What is expected of a cascade, the second option taken to be as often right as on all queries like this one.

    It is less often right where both fail on the same queries. Percentiles are upper bounds: the second option's are
    added wherever it is asked that often.
    """
    right = first.accuracy * cascade.keeps_right
    again = 1.0 - right - (1.0 - first.accuracy) * cascade.keeps_wrong

    def add(a: Quantiles, b: Quantiles, more: float) -> Quantiles:
        p50, p95 = (b.p50 if again >= 0.5 else 0.0), (b.p95 if again > 0.05 else 0.0)
        return Quantiles(a.mean + more + again * b.mean, a.p50 + more + p50, a.p95 + more + p95)

    total = None
    if first.total_s is not None and then.total_s is not None:
        total = add(first.total_s, then.total_s, cascade.verify_s)
    begun = None
    if first.total_s is not None and then.first_token_s is not None:  # nothing can be shown before it is verified
        begun = add(first.total_s, then.first_token_s, cascade.verify_s)
    joules = add(first.energy_j, then.energy_j, cascade.verify_j)
    return Estimate(min(1.0, right + again * then.accuracy), joules, begun, total)


def _check(known: Mapping[str, Option], options: Sequence[Option], goal: Goal) -> None:
    if not options:
        raise UserError("There is no option to choose from: give at least one.")
    if len(known) < len(options):
        raise UserError("Two options have the same name: give each its own.")
    if unknown := sorted((goal.pinned | goal.forbidden) - set(known)):
        raise UserError(f"Goal: no option is named {', '.join(unknown)}; there are {', '.join(known)}.")
    for name, option in known.items():
        if (cascade := option.cascade) is not None:
            for part in (cascade.first, cascade.then):
                if part not in known or known[part].cascade is not None:
                    raise UserError(f"Option {name}: a cascade is of two options that are none; {part} is not.")
            if not all(0 <= chance <= 1 for chance in (cascade.keeps_right, cascade.keeps_wrong)):
                raise UserError(f"Option {name}: keeps_right and keeps_wrong are chances, from 0 to 1.")


def _check_estimate(name: str, found: Estimate) -> None:
    if not (0 <= found.accuracy <= 1 and found.energy_j.mean >= 0):
        raise UserError(
            f"Option {name}: an accuracy of {found.accuracy} and {found.energy_j.mean} J are no estimate; accuracy is "
            "from 0 to 1, joules are at least 0."
        )


def load_of(model: str, state: State, notes: list[str] | None = None) -> Load:
    """A model's load with one request more; what is too old is taken as none, and added to the notes."""
    values = []
    for what, readings in (("running", state.running), ("queued", state.queued)):
        reading = readings.get(model)
        if reading is not None and reading.age_s > state.most_age_s:
            (notes if notes is not None else []).append(
                f"{what} requests of {model} are {reading.age_s:,.0f} s old, more than {state.most_age_s:,.0f} s: not "
                "used, taken as none"
            )
            reading = None
        values.append(0.0 if reading is None else max(0.0, reading.value))
    return Load(1.0 + values[0], values[1])


def _as_observed(found: Estimate, model: str, state: State, notes: list[str]) -> Estimate:
    """With seconds moved by what the server's first tokens are later than expected, or earlier."""
    reading = state.first_token_s.get(model)
    if reading is None:
        return found
    if reading.age_s > state.most_age_s:
        notes.append(
            f"seconds to the first token of {model} are {reading.age_s:,.0f} s old, more than {state.most_age_s:,.0f} "
            "s: not used"
        )
        return found
    if found.first_token_s is None:
        notes.append(f"of seconds to the first token of {model} only the mean that its server showed is known")
        return replace(found, first_token_s=Quantiles(reading.value, reading.value, reading.value))
    later = reading.value - found.first_token_s.mean
    total = None if found.total_s is None else _add(found.total_s, later)
    return replace(found, first_token_s=_add(found.first_token_s, later), total_s=total)


def _with_lost_prefix(found: Estimate, model: str, query: Query) -> Estimate:
    before = query.conversation
    if before is None or before.model == model:
        return found

    def later(seconds: Quantiles | None) -> Quantiles | None:
        return None if seconds is None else _add(seconds, before.lost_prefix_s)

    return replace(
        found,
        energy_j=_add(found.energy_j, before.lost_prefix_j),
        first_token_s=later(found.first_token_s),
        total_s=later(found.total_s),
    )


def _add(found: Quantiles, more: float) -> Quantiles:
    return Quantiles(max(0.0, found.mean + more), max(0.0, found.p50 + more), max(0.0, found.p95 + more))


def _why_not(option: Option, known: Mapping[str, Option], query: Query, goal: Goal) -> str | None:
    parts = [option] if option.cascade is None else [known[option.cascade.first], known[option.cascade.then]]
    if option.name in goal.forbidden:
        return "forbidden"
    if asked := sorted(goal.forbidden & {part.name for part in parts}):
        return f"may ask {', '.join(asked)}, which is forbidden"
    if goal.pinned and option.name not in goal.pinned:
        return f"not pinned ({', '.join(sorted(goal.pinned))})"
    return next((why for part in parts if (why := cannot_take(part, query))), None)


def cannot_take(part: Option, query: Query) -> str | None:
    """Why a query does not fit an option that is no cascade; None where it does."""
    needed = query.prompt_tokens + (part.output_budget or 0)
    if part.context_limit is not None and needed > part.context_limit:
        return f"{needed:,} tokens do not fit the context of {part.context_limit:,}"
    if unread := query.modalities - part.modalities:
        return f"{part.model} does not read {', '.join(sorted(unread))}"
    return None


def _cost(option: Option, found: Estimate, query: Query, state: State, goal: Goal, notes: list[str]) -> float:
    """In the goal's currency; with the default prices this orders as the joules do."""
    kwh = found.energy_j.mean / J_PER_KWH
    cost = kwh * goal.kwh_price - goal.answer_value * found.accuracy
    if goal.co2_kg_price:
        grid = state.carbon_g_per_kwh
        if grid is None or grid.age_s > state.most_carbon_age_s:
            notes.append("the grid's carbon intensity is not known or too old: carbon has no part in the cost")
        else:
            cost += kwh * grid.value / 1000.0 * goal.co2_kg_price
    if goal.second_price:
        if found.total_s is None:
            notes.append(f"seconds of {option.name} are not known: its cost is without them")
        else:
            cost += found.total_s.mean * goal.second_price
    if query.conversation is not None and query.conversation.model != option.model:
        cost += goal.switch_price
    return cost


def _missed(found: Estimate, goal: Goal) -> list[str]:
    """Limits that an option does not keep; seconds that are not known do not keep one."""
    missed = []
    if goal.most_j is not None and found.energy_j.mean > goal.most_j:
        missed.append(f"{found.energy_j.mean:,.3g} J expected, more than {goal.most_j:,.3g} J")
    for what, seconds, most in (
        ("first token", found.first_token_s, goal.most_first_token_s),
        ("whole answer", found.total_s, goal.most_total_s),
    ):
        if most is not None and seconds is None:
            missed.append(f"{what}: seconds are not known, {most:,.3g} s asked for")
        elif most is not None and seconds is not None and seconds.p95 > most:
            missed.append(f"{what} after {seconds.p95:,.3g} s (95th percentile), later than {most:,.3g} s")
    return missed


def _floor(goal: Goal, best: float) -> float:
    if goal.within is not None:
        return best * (1.0 - goal.within)
    return goal.least_accuracy or 0.0


def _seconds(found: Quantiles | None) -> tuple[float, float]:
    return (math.inf, math.inf) if found is None else (found.mean, found.p95)


def _reasons(
    taken: str, found: Estimate, floor: float, reached: bool, missed: list[str], by_cost: bool, rivals: int
) -> list[str]:
    expected = f"{taken}: accuracy {found.accuracy:.1%}, {found.energy_j.mean:,.3g} J expected"
    among = f"of {rivals} option{'s' * (rivals > 1)} {'that miss least' if missed else 'within the limits'}"
    if not reached:
        head = f"{expected}; best effort: none {among} reaches the floor of {floor:.1%}, so the most accurate"
    elif by_cost:
        head = f"{expected}; the cheapest {among}{f' at or above {floor:.1%}' if floor else ''}"
    else:
        head = f"{expected}; the most accurate {among}"
    return [head, *(f"best effort: no option keeps all limits; this one misses: {what}" for what in missed)]


def _worse(name: str, taken: str, found: Mapping[str, Estimate], costs: Mapping[str, float], by_cost: bool) -> str:
    mine, best = found[name], found[taken]
    if by_cost and costs[name] > costs[taken]:
        return f"costs more: {mine.energy_j.mean:,.3g} J against {best.energy_j.mean:,.3g} J, all prices included"
    if mine.accuracy < best.accuracy:
        return f"less accurate: {mine.accuracy:.1%} against {best.accuracy:.1%}"
    return "no better in anything that is asked"

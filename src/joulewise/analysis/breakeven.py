"""Where does a decoding begin to pay, in seconds, in joules, and in joules above idle power?

An answer of N tokens costs ``prefill + (N - 1) e`` by plain decoding and ``prefill + extra + (N - 1) / tau c`` by
speculation: e is the cost of a plain step, c that of a round (its drafts, its verification and what the host does in
between), tau the tokens that a round keeps, its bonus token among them, ``extra`` what the draft's prefill costs. Both
are equal at

    tau* = c / (e - extra / (N - 1))

and where the denominator is not above 0 no tau is enough. All are ratios of sums over the same questions in both
cells, and everything beyond vanilla's prefill counts, so that tau exceeds tau* exactly where speculation costs less.
``docs/explain.md`` says it at length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from joulewise.analysis.cells import Cell, exact_sum, nothing_to_divide, parts_of, sum_by_unit, why_no_energy
from joulewise.analysis.intervals import Floats, Quantity, resample, unknown_quantity
from joulewise.analysis.net import NOT_MEASURED, Idle, idle_powers, net_quantity
from joulewise.analysis.pairs import Pairs
from joulewise.energy.reading import Z95, ComponentName

Pays = Literal["saves", "costs", "cannot tell"]

NO_SAVING = "no acceptance is enough: what comes on top of the rounds costs more than plain decoding"
NO_FIRST_TOKEN = "the engine does not tell when the first token was there"
NEAR_NOTHING = "what it would be divided by cannot be told from nothing"
NO_PAIR = "vanilla and this decoding have no answered question in common"
UNBOUNDED_PREFILL = "what the prefill drew was not recorded, and nothing bounds it"
ASSUMED_PREFILL = (
    "what the prefill drew was not recorded: the interval holds for anything between nothing and the most that the "
    "device can draw, the figure for the answer's mean power"
)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """One decoding against vanilla in one currency: seconds, joules, or joules above idle power.

    Args:
        length: tau, the tokens that a round keeps: the bonus token in, the first token and what lies past the end out.
        needed: tau*, the length from which on the decoding saves.
        round: c, the mean cost of a round, in seconds or joules.
        step: e, that of a plain step.
        power: mean power of a round over that of a plain step: ``needed`` in joules over ``needed`` in seconds, where
            the draft's prefill is not told apart.
        per_token: what a token after the first costs.
        saved_per_token: what it costs less than by plain decoding; below 0 it costs more.
        saving: share of the whole answer's cost that is saved, prefill included, as these costs foretell it.
        measured: the same per output token, as measured; it differs where the outputs do.
        verdict: what the intervals of ``saved_per_token`` and ``measured`` say; None where joules are not measured, and
            for what is unknown.
        note: what was assumed.
    """

    length: Quantity
    needed: Quantity
    round: Quantity
    step: Quantity
    power: Quantity
    per_token: Quantity
    saved_per_token: Quantity
    saving: Quantity
    measured: Quantity
    verdict: Pays | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class BreakEvens:
    """The same in seconds, in joules, and in joules above idle power."""

    time: BreakEven
    gross: BreakEven
    net: BreakEven


def break_evens(vanilla: Cell, method: Cell, component: ComponentName, environment: Mapping[str, Any]) -> BreakEvens:
    """Where one decoding breaks even with plain decoding.

    Args:
        vanilla: plain decoding, with at least one ok Trial.
        method: the decoding, likewise; equal but for it.
        component: whose joules.
        environment: the run's, which tells idle power and the most that a device can draw.
    """
    everything = Pairs.of(vanilla, method)
    timed = everything.with_known("prefill_s")
    if not timed.n:
        nothing = unknown_break_even(NO_FIRST_TOKEN if everything.n else NO_PAIR)
        return BreakEvens(nothing, nothing, nothing)
    pairs = timed.with_known(f"{component}_energy_j")
    parts = parts_of(component, pairs.provenances) if pairs.n else []
    samples = _samples(pairs, parts, environment) if pairs.n else []
    # Summing over samples of the questions is what takes long here, and these sums hold the seconds too.
    shared = samples[:1] if pairs is timed else []
    time = _break_even(timed, shared or [_sample(timed, [_time_costs(timed)])], _SECONDS)
    if not samples:
        why = UNBOUNDED_PREFILL if pairs.n else why_no_energy(component, timed.provenances(component))
        return BreakEvens(time, unknown_break_even(why), unknown_break_even(why))
    recorded = all(not np.isnan(pairs.column(f"{part}_prefill_j")[0]).any() for part in parts)
    note = None if recorded else ASSUMED_PREFILL
    gross = _break_even(pairs, samples, _joules(pairs, component, parts, {}), note)
    idle = idle_powers(environment, method.key.engine)
    if not all(part in idle for part in parts):
        return BreakEvens(time, gross, unknown_break_even(NOT_MEASURED))
    return BreakEvens(time, gross, _break_even(pairs, samples, _joules(pairs, component, parts, idle), note))


@dataclass(frozen=True, slots=True)
class _Currency:
    """How much one second and one joule of each part count.

    Args:
        weights: of the seconds and of the parts' joules, shape ``(1 + parts,)``.
        errors: what the meter's common errors (one standard uncertainty) change in the weights.
        provenances: of the joules, and of the idle power that is taken off.
    """

    weights: Floats
    errors: tuple[Floats, ...]
    provenances: tuple[str | None, ...]


_SECONDS = _Currency(np.array([1.0]), (), ("measured",))


def _joules(pairs: Pairs, component: ComponentName, parts: Sequence[str], idle: Mapping[str, Idle]) -> _Currency:
    """Joules of all parts; those above idle power where that is given."""
    watts = {part: idle[part].power_w if idle else 0.0 for part in parts}
    errors = [_unit(parts, part, _gain(pairs, part), -watts[part]) for part in parts]
    # The sensor's offset is in idle power too and cancels.
    offsets = (idle[part].standard_w if idle else _offset_w(pairs, part) for part in parts)
    errors += [_unit(parts, None, offset_w, 1.0) for offset_w in offsets]
    provenances = [*pairs.provenances(component), *(taken.provenance for name, taken in idle.items() if name in parts)]
    return _Currency(np.array([-sum(watts.values()), *(1.0 for _ in parts)]), tuple(errors), tuple(provenances))


@dataclass(frozen=True, slots=True)
class _Sample:
    """Sums over all pairs, shape ``(columns,)``, and over samples of the questions, ``(replicates, columns)``."""

    sums: Floats
    again: Floats


_COUNTS = 5
_TERMS = 4


def _samples(pairs: Pairs, parts: Sequence[str], environment: Mapping[str, Any]) -> list[_Sample]:
    """Samples of what the prefills drew as far as that is known: best guess, least and most; none without any.

    One alone where nothing is uncertain about it.
    """
    guesses = [_prefills(pairs, part, environment) for part in parts]
    known = [guess for guess in guesses if guess is not None]
    if len(known) < len(guesses):
        return []
    sure = all(np.array_equal(least, most) for _, least, most in known)
    return [
        _sample(
            pairs, [_time_costs(pairs), *(_costs(pairs, f"{p}_energy_j", g) for p, g in zip(parts, of, strict=True))]
        )
        for of in list(zip(*known, strict=True))[: 1 if sure else 3]
    ]


def _sample(pairs: Pairs, costs: Sequence[tuple[Floats, ...]]) -> _Sample:
    """Sum the counts and each currency's ``_TERMS``."""
    generations, outputs = pairs.column("generation_count"), pairs.column("output_tokens")
    counts = (outputs[0] - generations[0], outputs[1] - generations[1], pairs.column("rounds")[1], *outputs)
    columns = [*counts, *(column for terms in zip(*costs, strict=True) for column in terms)]
    return _Sample(
        np.array([exact_sum(column) for column in columns]),
        resample(sum_by_unit(pairs.codes, pairs.n, *columns)),
    )


def _time_costs(pairs: Pairs) -> tuple[Floats, ...]:
    return _costs(pairs, "duration_s", pairs.column("prefill_s")[0])


def _costs(pairs: Pairs, column: str, prefill: Floats) -> tuple[Floats, ...]:
    """Of each pair: vanilla's prefill, its plain steps, the decoding's rounds, and its draft's prefill.

    Vanilla's prefill stands for that of both: in the engine ``transformers`` the decoding's is part of its first round.
    The draft's prefill is told apart where its seconds are known; its joules are taken for the same share of what the
    decoding drew beyond the prefill.
    """
    plain, ours = pairs.column(column)
    beyond_s = pairs.column("duration_s")[1] - pairs.column("prefill_s")[0]
    drafting_s = np.nan_to_num(pairs.column("phase_draft_prefill_s")[1])
    share = np.clip(_over(drafting_s, beyond_s), 0.0, 1.0)
    beyond = ours - prefill
    return prefill, plain - prefill, beyond * (1.0 - share), beyond * share


def _over(above: Floats, below: Floats) -> Floats:
    """A ratio; 0 where there is nothing to divide by."""
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0.0)


def _prefills(pairs: Pairs, part: str, environment: Mapping[str, Any]) -> tuple[Floats, Floats, Floats] | None:
    """What vanilla's prefills drew, the least and the most that they may have drawn; None where nothing tells.

    A prefill is short beside the counter's step, and how the sensor lags there is the same in every Trial: so what its
    ends leave open is not averaged over Trials.
    """
    recorded, edges = (pairs.column(f"{part}_{name}_j")[0] for name in ("prefill", "prefill_edges"))
    wholes = pairs.column(f"{part}_energy_j")
    whole = np.minimum(*wholes)
    least, most = np.maximum(recorded - Z95 * edges, 0.0), np.minimum(recorded + Z95 * edges, whole)
    missing = np.isnan(recorded)
    if not missing.any():
        return recorded, least, most
    most_w = _most_w(environment, part)
    if most_w is None:
        return None
    seconds, duration_s = (pairs.column(name)[0] for name in ("prefill_s", "duration_s"))
    limit = np.minimum(most_w * seconds, whole)
    even = np.minimum(_over(wholes[0] * seconds, duration_s), limit)
    assumed = (even, np.zeros_like(limit), limit)
    known = (recorded, least, most)
    even, least, most = (np.where(missing, guess, told) for guess, told in zip(assumed, known, strict=True))
    return even, least, most


def _most_w(environment: Mapping[str, Any], part: str) -> float | None:
    sources = [s for s in environment.get("sources") or () if isinstance(s, Mapping) and s.get("component") == part]
    limits = [limit for s in sources if isinstance(limit := s.get("max_power_w"), int | float)]
    return float(sum(limits)) if limits and len(limits) == len(sources) else None


def _gain(pairs: Pairs, part: str) -> float:
    """The sensor's gain uncertainty, relative."""
    whole = sum(map(exact_sum, pairs.column(f"{part}_energy_j")))
    return sum(map(exact_sum, pairs.column(f"{part}_gain_j"))) / whole if whole > 0.0 else 0.0


def _offset_w(pairs: Pairs, part: str) -> float:
    seconds = sum(map(exact_sum, pairs.column("duration_s")))
    return sum(map(exact_sum, pairs.column(f"{part}_offset_j"))) / seconds if seconds > 0.0 else 0.0


def _unit(parts: Sequence[str], part: str | None, size: float, seconds: float) -> Floats:
    """``size`` of one part's joules and of so many seconds, as weights."""
    return size * np.array([seconds, *(float(name == part) for name in parts)])


def _figures(sums: Floats, weights: Floats) -> dict[str, Floats]:
    """Every figure of ``BreakEven``, by name, but for ``needed`` 1 / tau*, ``inverse``; and plain ``answers``' cost.

    Args:
        sums: shape ``(..., _COUNTS + _TERMS (1 + parts))``.
        weights: of the seconds and of the first parts' joules, shape ``(1 + parts,)`` at most.
    """
    steps, tokens, rounds, output_plain, output = np.moveaxis(sums[..., :_COUNTS], -1, 0)
    costs = sums[..., _COUNTS:].reshape(*sums.shape[:-1], _TERMS, -1)[..., : len(weights)]
    prefill, plain, in_rounds, extra = np.moveaxis(costs @ weights, -1, 0)
    plain_s, rounds_s = costs[..., 1, 0], costs[..., 2, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        step, of_round, length = plain / steps, in_rounds / rounds, tokens / rounds
        per_token = (in_rounds + extra) / tokens
        saved = step - per_token
        return {
            "length": length,
            "inverse": (step - extra / tokens) / of_round,
            "round": of_round,
            "step": step,
            "power": (in_rounds / rounds_s) / (plain / plain_s),
            "per_token": per_token,
            "saved_per_token": saved,
            "saving": saved * tokens / (prefill + step * tokens),
            "measured": 1.0 - ((prefill + in_rounds + extra) / output) / ((prefill + plain) / output_plain),
            "answers": prefill + plain,
        }


def _break_even(pairs: Pairs, samples: Sequence[_Sample], currency: _Currency, note: str | None = None) -> BreakEven:
    """The figures of the first sample, with intervals that hold for all of them."""
    steps, tokens, rounds = samples[0].sums[:3]
    for what, count in (("plain steps", steps), ("tokens", tokens), ("rounds", rounds)):
        if not count > 0.0:  # or not known
            return unknown_break_even(f"there were no {what} after the first token")
    figures = _figures(samples[0].sums, currency.weights)
    for name, clause in (("round", "a round"), ("step", "a plain step")):
        if figures[name] <= 0.0:
            net = currency.weights[0] < 0.0
            return unknown_break_even(
                f"{clause} drew no more than idling" if net else nothing_to_divide("total_energy_j")
            )
    wholes = [_quantities(sample, pairs, currency) for sample in samples]
    joined = {name: _joined([found[name] for found in wholes]) for name in wholes[0]}
    for below, names in (("round", ["inverse"]), ("step", ["inverse", "power"]), ("answers", ["saving", "measured"])):
        lowest = joined[below].lower
        if lowest is not None and lowest <= 0.0:
            joined |= {name: replace(joined[name], lower=None, upper=None, reason=NEAR_NOTHING) for name in names}
    return BreakEven(
        joined["length"],
        _needed(joined["inverse"]),
        joined["round"],
        joined["step"],
        joined["power"],
        joined["per_token"],
        joined["saved_per_token"],
        joined["saving"],
        joined["measured"],
        _verdict(joined["saved_per_token"], joined["measured"]),
        note,
    )


def _quantities(sample: _Sample, pairs: Pairs, currency: _Currency) -> dict[str, Quantity]:
    figures, again = _figures(sample.sums, currency.weights), _figures(sample.again, currency.weights)
    # By how much each common error moves each figure.
    moved = [
        (_figures(sample.sums, currency.weights + error), _figures(sample.sums, currency.weights - error))
        for error in currency.errors
    ]
    found = {}
    for name, value in figures.items():
        found[name] = net_quantity(
            float(value),
            again[name],
            common=sum(abs(float(up[name]) - float(down[name])) / 2 for up, down in moved),
            n_questions=pairs.n,
            n_trials=len(pairs.codes),
            provenances=("measured",) if name == "length" else currency.provenances,
        )
    return found


def _joined(quantities: Sequence[Quantity]) -> Quantity:
    """The first, with an interval that holds the others'."""
    ends = [(q.lower, q.upper) for q in quantities]
    lowers, uppers = [low for low, _ in ends if low is not None], [high for _, high in ends if high is not None]
    if len(quantities) == 1 or min(len(lowers), len(uppers)) < len(ends):
        return quantities[0]
    return replace(quantities[0], lower=min(lowers), upper=max(uppers))


def _needed(inverse: Quantity) -> Quantity:
    """tau* from 1 / tau*, which alone has no pole where a saving becomes impossible."""
    assert inverse.value is not None
    lower = None if inverse.upper is None or inverse.upper <= 0.0 else 1.0 / inverse.upper
    if inverse.value <= 0.0:
        return replace(inverse, value=None, lower=lower, upper=None, unbounded=True, reason=NO_SAVING, common=None)
    unbounded = inverse.lower is not None and inverse.lower <= 0.0
    upper = None if inverse.lower is None or unbounded else 1.0 / inverse.lower
    return replace(inverse, value=1.0 / inverse.value, lower=lower, upper=upper, unbounded=unbounded)


def _verdict(saved: Quantity, measured: Quantity) -> Pays | None:
    """What the interval of the difference says, which has no pole, and that of the answers' saving where it has one."""
    if saved.provenance != "measured":
        return None
    ends = [(q.lower, q.upper) for q in (saved, measured) if q.lower is not None and q.upper is not None]
    if saved.lower is not None and all(low > 0.0 for low, _ in ends):
        return "saves"
    if saved.upper is not None and all(high < 0.0 for _, high in ends):
        return "costs"
    return "cannot tell"


def unknown_break_even(reason: str) -> BreakEven:
    """Nothing is known, for this reason."""
    q = unknown_quantity(reason)
    return BreakEven(q, q, q, q, q, q, q, q, q)

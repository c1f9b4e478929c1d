"""How good is a router, on answers that it did not learn from? The figures behind ``joulewise route evaluate``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulewise.analysis.intervals import wilson
from joulewise.counted import counted
from joulewise.errors import UserError
from joulewise.routing.answer_joules import GIVEN
from joulewise.routing.evaluate import Figure, PairResult, aiq, first_crossing, pair_result
from joulewise.routing.floors import REPLICATES, WITHINS, AbsoluteFloor, Floor, Judged, absolute_floors, floors_within
from joulewise.routing.guarantee import Certificate, certify
from joulewise.routing.past_answers import Past
from joulewise.routing.performance import calibration_error, reliability
from joulewise.routing.policy import Load
from joulewise.routing.router import Router

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_PRICES = 60
_POINTS = 8
_FEWEST_FOR_CALIBRATION = 20


@dataclass(frozen=True, slots=True)
class Fixed:
    """One option for all queries: mean accuracy with its 95 % interval, mean joules, and whether another is better."""

    option: str
    accuracy: Figure
    energy_j: float | None
    dominated_by: str | None


@dataclass(frozen=True, slots=True)
class Point:
    """The router at a price of joules: realised mean accuracy and joules."""

    accuracy: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """How far predictions hold.

    Args:
        option: as the estimator names it.
        labels: scored queries.
        error: mean distance of predicted and observed accuracy over ten bins; None with too few labels.
        brier: mean squared error.
        table: by bin: predicted, observed, queries.
    """

    option: str
    labels: int
    error: float | None
    brier: float
    table: tuple[tuple[float, float, int], ...]


@dataclass(frozen=True, slots=True)
class Expectation:
    """Joules as drawn over those expected: the median ratio, and the share within the 95th percentile."""

    option: str
    answers: int
    ratio: float
    within_p95: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All figures.

    Args:
        queries: that all options have a score for, and that the router had not seen.
        also_seen: those that it learnt from are in the figures.
        seen: that the router learnt from.
        incomplete: left out, as some option has no score.
        unknown: options of the data that the router does not know.
        missing: options of the router that the data does not have.
        measured: share of (query, option) pairs whose joules are the data's own; None where joules are not known.
        modelled: whether some of these are modelled, or of unknown provenance.
        chosen_by_joules: whether the router knows all joules, and so can choose by them; else there are no points and
            floors.
        fixed: every option on its own.
        best, cheapest: the most accurate fixed option, and the one of the fewest joules.
        strongest: the option that the router takes for the most accurate, whatever these answers say: losses of floors
            are against it.
        points: from the fewest joules to the most accuracy.
        same_accuracy: joules at which the router is as accurate as ``best``, as a share of its joules, the price chosen
            on these answers; None where it never is, or joules are not known.
        weak, strong: the two options of ``pair``; ``cheapest`` and ``best`` where nobody names them.
        pair: the router's order of queries in RouteLLM's frame; None where ``strong`` is not better than ``weak``.
        aiq, aiq_fixed, aiq_oracle: mean accuracy over joules, of the router, of mixing fixed options, and of an oracle.
        oracle: the cheapest right option, where none is right the cheapest.
        chance: options by lot.
        floors: the router within shares of the best option's chance.
        certificate: what these labels prove of these floors.
        absolute: the router with least chances of a right answer, in the order that they were asked for.
        cascades: options of the router that are not judged.
        contradictory: pairs of query and option with both right and wrong answers, which count by their mean.
        calibrations, expectations: by option.
    """

    queries: int
    also_seen: bool
    seen: int
    incomplete: int
    unknown: tuple[str, ...]
    missing: tuple[str, ...]
    measured: float | None
    modelled: bool
    chosen_by_joules: bool
    fixed: tuple[Fixed, ...]
    best: str
    cheapest: str
    strongest: str
    points: tuple[Point, ...]
    same_accuracy: float | None
    weak: str
    strong: str
    pair: PairResult | None
    aiq: float | None
    aiq_fixed: float | None
    aiq_oracle: float | None
    oracle: Point
    chance: Point
    floors: tuple[Floor, ...]
    certificate: Certificate | None
    absolute: tuple[AbsoluteFloor, ...]
    cascades: tuple[str, ...]
    contradictory: int
    calibrations: tuple[Calibration, ...]
    expectations: tuple[Expectation, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """By query and option: scores, joules as they count, as measured (NaN: not) and as expected, and predictions."""

    options: tuple[str, ...]
    correct: Floats
    joules: Floats
    measured: Floats
    expected: Floats
    within_p95: Floats
    predicted: Floats

    @property
    def joules_known(self) -> bool:
        return bool(np.isfinite(self.joules).all())

    @property
    def expected_known(self) -> bool:
        """Whether the router can choose by joules: it never sees those that were drawn."""
        return self.joules_known and bool(np.isfinite(self.expected).all())


def evaluate(
    router: Router,
    past: Past,
    also_seen: bool = False,
    margin: float = 0.02,
    seed: int = 0,
    leasts: Sequence[float] = (),
    pair: tuple[str, str] | None = None,
) -> Evaluation:
    """Hold a router against past answers.

    Args:
        also_seen: count queries that it learnt from, too: figures are then better than they will be.
        margin: of the certificate.
        seed: of the bootstrap.
        leasts: floors of the chance of a right answer, from 0 to 1.
        pair: the weak and the strong option of RouteLLM's frame; None for the cheapest and the most accurate one.

    Raises:
        UserError: no query is left to judge by, with the reason; a floor beyond 0 to 1; a pair of options of which one
            is not judged, or of one option twice.
    """
    scores: dict[tuple[str, str | None], dict[str, list[float]]] = {}
    drawn: dict[tuple[str, str | None], dict[str, list[float]]] = {}
    unknown: set[str] = set()
    modelled = False
    for a in past.answers:
        if a.query is None:
            continue
        if a.option not in router.learnt:
            unknown.add(a.option)
            continue
        key = a.query, a.domain
        if a.score is not None:
            scores.setdefault(key, {}).setdefault(router.learnt[a.option].answers_as, []).append(a.score)
        if a.energy_j:
            drawn.setdefault(key, {}).setdefault(a.option, []).append(a.energy_j)
            modelled |= a.provenance not in ("measured", GIVEN)
    scored = {group for of in scores.values() for group in of}
    options = tuple(name for name, known in router.learnt.items() if known.answers_as in scored)
    if not options:
        told = f"they are of {', '.join(sorted(unknown))}" if unknown else "there are no scored answers"
        raise UserError(f"nothing to judge the router by: {told}, and it knows {', '.join(router.learnt)}")
    if pair is not None and (strange := [name for name in pair if name not in options]):
        raise UserError(f"the pair's option {strange[0]} has no scored answers here; there are {', '.join(options)}")
    if pair is not None and router.learnt[pair[0]].answers_as == router.learnt[pair[1]].answers_as:
        raise UserError(f"the pair {', '.join(pair)}: both give the same answers, so there is no gap between them")
    groups = {router.learnt[name].answers_as for name in options}
    complete = [key for key, of in scores.items() if groups <= set(of)]
    fresh = [key for key in complete if also_seen or not router.saw(key[0])]
    if not fresh:
        some = f"{counted(len(complete), 'question')} with a score of every option"
        why = f"the router learnt from all of the {some}" if complete else f"there are no {some[2:]}"
        raise UserError(f"no question to judge the router by: {why}; give answers to other questions")
    table = _table(router, options, fresh, scores, drawn)
    return _evaluation(
        table,
        margin,
        seed,
        leasts,
        pair,
        also_seen=also_seen,
        modelled=modelled,
        seen=sum(router.saw(key[0]) for key in complete),
        incomplete=len(scores) - len(complete),
        unknown=tuple(sorted(unknown)),
        missing=tuple(name for name in router.learnt if name not in options),
        cascades=tuple(option.name for option in router.cascades),
        contradictory=past.contradictory,
        calibrations=_calibrations(router, table),
    )


def _table(
    router: Router,
    options: tuple[str, ...],
    keys: Sequence[tuple[str, str | None]],
    scores: dict[tuple[str, str | None], dict[str, list[float]]],
    drawn: dict[tuple[str, str | None], dict[str, list[float]]],
) -> _Table:
    shape = len(keys), len(options)
    correct, measured, expected = np.empty(shape), np.full(shape, math.nan), np.full(shape, math.nan)
    predicted, within = np.empty(shape), np.full(shape, math.nan)
    place = {name: i for i, name in enumerate(router.performance.options)}
    columns = [place[router.learnt[name].answers_as] for name in options]
    for row, (text, domain) in enumerate(keys):
        found = router.performance.predict(text, domain)
        predicted[row] = found.accuracy[columns]
        query, estimate = router.query(text, domain), router.estimator(text, domain, found)
        of, joules = scores[text, domain], drawn.get((text, domain), {})
        for column, name in enumerate(options):
            correct[row, column] = np.mean(of[router.learnt[name].answers_as])
            if router.learnt[name].energy is not None:
                told = estimate(query, router.learnt[name].option, Load()).energy_j
                expected[row, column] = told.mean
                if name in joules:
                    within[row, column] = np.mean(joules[name]) <= told.p95 * (1.0 + 1e-9)
            if name in joules:
                measured[row, column] = np.mean(joules[name])
    return _Table(
        options, correct, np.where(np.isnan(measured), expected, measured), measured, expected, within, predicted
    )


def _evaluation(
    table: _Table,
    margin: float,
    seed: int,
    leasts: Sequence[float],
    named: tuple[str, str] | None,
    *,
    also_seen: bool,
    modelled: bool,
    seen: int,
    incomplete: int,
    unknown: tuple[str, ...],
    missing: tuple[str, ...],
    cascades: tuple[str, ...],
    contradictory: int,
    calibrations: tuple[Calibration, ...],
) -> Evaluation:
    accuracy, known, by_joules = table.correct.mean(axis=0), table.joules_known, table.expected_known
    joules = table.joules.mean(axis=0) if known else np.full(len(table.options), math.nan)
    best = max(range(len(table.options)), key=lambda i: (accuracy[i], -joules[i] if known else 0.0))
    cheapest = int(np.argmin(joules)) if known else int(np.argmin(accuracy))
    strongest = int(np.argmax(table.predicted.mean(axis=0)))
    points, right, spent = _trade_off(table) if by_joules else ([], np.empty(0), np.empty(0))
    weak, strong = (cheapest, best) if named is None else map(table.options.index, named)
    pair = None
    if accuracy[strong] > accuracy[weak]:
        gain = table.predicted[:, strong] - table.predicted[:, weak]
        pair = pair_result(gain, table.correct[:, weak], table.correct[:, strong], seed, REPLICATES)
    area = None
    if by_joules and joules.max() > joules.min():
        ends = float(joules.min()), float(joules.max())
        oracle_right, oracle_spent = _curve(table, table.correct, table.joules)
        area = (aiq(spent, right, *ends), aiq(joules, accuracy, *ends), aiq(oracle_spent, oracle_right, *ends))
    same = None
    if by_joules:
        order = np.argsort(spent, kind="stable")
        best_so_far = np.maximum.accumulate(right[order])
        at = first_crossing(spent[order] / joules[best], best_so_far / max(accuracy[best], 1e-12), 1.0)
        same = None if math.isnan(at) else at
    judged = Judged(table.correct, table.joules, table.predicted, table.expected)
    floors, losses = floors_within(judged, strongest, accuracy, seed) if by_joules else ((), None)
    certificate = None
    if losses is not None:
        # Learn-then-Test asks for labels in an order that has nothing to do with them, and files are often sorted.
        shuffled = np.random.default_rng(seed).permutation(losses)
        certificate = certify(shuffled, [f"within {w:.0%} of the best" for w in WITHINS], margin=margin)
    return Evaluation(
        queries=len(table.correct),
        also_seen=also_seen,
        seen=seen,
        incomplete=incomplete,
        unknown=unknown,
        missing=missing,
        measured=float(np.isfinite(table.measured).mean()) if known else None,
        modelled=modelled,
        chosen_by_joules=by_joules,
        fixed=tuple(_fixed(table, i, accuracy, joules, known) for i in range(len(table.options))),
        best=table.options[best],
        cheapest=table.options[cheapest],
        strongest=table.options[strongest],
        points=tuple(points),
        same_accuracy=same,
        weak=table.options[weak],
        strong=table.options[strong],
        pair=pair,
        aiq=None if area is None else area[0],
        aiq_fixed=None if area is None else area[1],
        aiq_oracle=None if area is None else area[2],
        oracle=_oracle(table),
        chance=Point(float(accuracy.mean()), float(joules.mean())),
        floors=floors,
        certificate=certificate,
        absolute=absolute_floors(judged, strongest, leasts, seed) if by_joules else (),
        cascades=cascades,
        contradictory=contradictory,
        calibrations=calibrations,
        expectations=_expectations(table),
    )


def _fixed(table: _Table, at: int, accuracy: Floats, joules: Floats, known: bool) -> Fixed:
    mean, n = float(accuracy[at]), len(table.correct)
    lower, upper = wilson(float(table.correct[:, at].sum()), n)
    beats = [
        i
        for i in range(len(table.options))
        if known and i != at and joules[i] <= joules[at] and accuracy[i] >= accuracy[at]
        and (joules[i] < joules[at] or accuracy[i] > accuracy[at])
    ]  # fmt: skip
    over = table.options[max(beats, key=lambda i: accuracy[i])] if beats else None
    return Fixed(table.options[at], Figure(mean, lower, upper), float(joules[at]) if known else None, over)


def _curve(table: _Table, predicted: Floats, expected: Floats) -> tuple[Floats, Floats]:
    """Realised mean accuracy and joules as a joule's price falls: the best of accuracy - price x J is chosen."""
    spread = max(float(np.ptp(expected.mean(axis=0))), 1e-12)
    prices = np.concatenate([[math.inf], np.geomspace(1e3, 1e-4, _PRICES) / spread, [0.0]])
    right, spent = np.empty(len(prices)), np.empty(len(prices))
    rows = np.arange(len(expected))
    for i, price in enumerate(prices):
        worth = -expected if math.isinf(price) else predicted - price * expected
        if price == 0.0:
            worth = predicted - 1e-12 * expected
        chosen = np.argmax(worth, axis=1)
        right[i], spent[i] = table.correct[rows, chosen].mean(), table.joules[rows, chosen].mean()
    return right, spent


def _trade_off(table: _Table) -> tuple[list[Point], Floats, Floats]:
    right, spent = _curve(table, table.predicted, table.expected)
    wanted = np.linspace(spent.min(), spent.max(), _POINTS)
    shown = dict.fromkeys(int(np.argmin(np.abs(spent - joules))) for joules in wanted)
    return [Point(float(right[i]), float(spent[i])) for i in shown], right, spent


def _oracle(table: _Table) -> Point:
    joules = table.joules if table.joules_known else np.zeros_like(table.correct)
    worth = table.correct - 1e-9 * joules / max(float(joules.max()), 1e-12)
    chosen, rows = np.argmax(worth, axis=1), np.arange(len(worth))
    spent = float(joules[rows, chosen].mean()) if table.joules_known else math.nan
    return Point(float(table.correct[rows, chosen].mean()), spent)


def _calibrations(router: Router, table: _Table) -> tuple[Calibration, ...]:
    """By what the estimator tells apart: options that answer alike share theirs."""
    found: dict[str, Calibration] = {}
    for column, name in enumerate(table.options):
        group = router.learnt[name].answers_as
        told, seen = table.predicted[:, column], table.correct[:, column]
        enough = len(seen) >= _FEWEST_FOR_CALIBRATION
        found[group] = Calibration(
            group,
            len(seen),
            calibration_error(told, seen) if enough else None,
            float(((told - seen) ** 2).mean()),
            tuple(reliability(told, seen)) if enough else (),
        )
    return tuple(found.values())


def _expectations(table: _Table) -> tuple[Expectation, ...]:
    found = []
    for column, name in enumerate(table.options):
        both = np.isfinite(table.measured[:, column]) & np.isfinite(table.expected[:, column])
        if both.any():
            ratios = table.measured[both, column] / table.expected[both, column]
            found.append(
                Expectation(
                    name, int(both.sum()), float(np.median(ratios)), float(table.within_p95[both, column].mean())
                )
            )
    return tuple(found)

"""How many tokens of thought: the smallest budget that is accurate enough, and budgets that keep to joules an hour.

That an answer keeps its budget is ``reasoning/budget.py``'s work: steps are cut off there and the answer is forced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from joulewise.analysis.intervals import MIN_QUESTIONS, percentile_interval, resample
from joulewise.errors import UserError

if TYPE_CHECKING:
    from joulewise.energy.reading import ComponentName
    from joulewise.table import RunTable

Floats = npt.NDArray[np.float64]

_BUDGET = re.compile(r"budget-(\d+)(.*)")
_SMOOTHING = 1 / 6
"""Of the response, the time over which power is averaged: below a quarter, or the scale would swing about its end."""
_MOST_ERROR = 0.5
"""A power that is further off counts as this: beyond, a straight line is too far from the logarithm that is meant."""


@dataclass(frozen=True, slots=True, eq=False)
class BudgetPoint:
    """What a budget makes of a set of questions.

    Args:
        budget: tokens of the steps; None for no budget.
        accuracy: share of right answers.
        energy_j, output_tokens: of an answer, on average.
        by_question: the three by question, shape ``(questions, 3)``, of the same questions in the same order for every
            point; None where not known: then no intervals can be given.
    """

    budget: int | None
    accuracy: float
    energy_j: float
    output_tokens: float
    by_question: Floats | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference on average, with its 95 % interval; None where none can be given."""

    value: float
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BudgetChoice:
    """The budget to take, and what it saves.

    Args:
        point: it.
        against: the point without a budget; where there is none, the one with the largest.
        tokens_saved, joules_saved: an answer, against that one.
        accuracy_lost: against that one, as a share.
        best_effort: no budget meets the floor.
        reason: one sentence.
    """

    point: BudgetPoint
    against: BudgetPoint
    tokens_saved: Difference
    joules_saved: Difference
    accuracy_lost: Difference
    best_effort: bool
    reason: str


def choose_budget(
    points: Sequence[BudgetPoint], floor: float | None = None, least_gain_per_j: float | None = None
) -> BudgetChoice:
    """The smallest budget that meets a floor; or the one beyond which a joule buys too little accuracy.

    The latter has the most accuracy less price times joules: on the concave hull of accuracy over joules, the last
    corner that is reached at a slope of at least the price. A budget that is no better than a smaller one does not
    stop it there, as that one is not on the hull.

    Args:
        floor: least accuracy. It is compared with what was found: for a promise, see ``guarantee.py``.
        least_gain_per_j: accuracy, as a share, that a further joule must buy.

    Raises:
        UserError: no points, two of one budget, numbers that cannot be, questions of different number, or not one of
            floor and price.
    """
    if (floor is None) == (least_gain_per_j is None):
        raise UserError("A budget is chosen by a floor or by least_gain_per_j: give one of them.")
    for name, value, most in (("floor", floor, 1.0), ("least_gain_per_j", least_gain_per_j, math.inf)):
        if value is not None and not 0 <= value <= most:
            raise UserError(f"{name} {value}: a number of at least 0{', at most 1' if most == 1 else ''}.")
    _check(points)
    by_size = sorted(points, key=_size)
    against, best_effort = by_size[-1], False
    if floor is not None:
        reaching = [point for point in by_size if point.accuracy >= floor]
        best_effort = not reaching
        # Of equals the first, which has the smallest budget.
        taken = reaching[0] if reaching else max(by_size, key=lambda point: point.accuracy)
        reason = f"the smallest budget with an accuracy of at least {floor:.1%}"
        if best_effort:
            reason = f"best effort: no budget has an accuracy of {floor:.1%}, so the most accurate"
    else:
        price = least_gain_per_j or 0.0
        taken = max(by_size, key=lambda point: (point.accuracy - price * point.energy_j, -point.energy_j))
        reason = f"up to it a further kilojoule buys at least {100_000 * price:,.3g} points of accuracy"
    what = "no budget" if taken.budget is None else f"a budget of {taken.budget:,} tokens"
    reason = f"{what} ({taken.accuracy:.1%} right, {taken.energy_j:,.3g} J an answer): {reason}"
    return BudgetChoice(taken, against, *_differences(taken, against), best_effort, reason)


def budget_points(
    table: RunTable,
    *,
    engine: str | None = None,
    decoding: str | None = None,
    task: str | None = None,
    without: str | None = None,
    component: ComponentName | None = None,
) -> tuple[BudgetPoint, ...]:
    """What every budget of a run makes of the questions that all of them answered, smallest first.

    A run with the largest budget and ``probes`` in it gives the smaller ones too: their rows are in its table.

    Args:
        engine, decoding, task: labels, where the run has several with budgets.
        without: label of the reasoning that stands for no budget, such as ``cot-4096``.
        component: whose joules; None takes the GPU's where they alone are measured, else the total.

    Raises:
        UserError: no budgets, or of more than one engine, decoding, task or sort; answers or joules that are not known.
    """
    from joulewise.analysis.cells import split
    from joulewise.analysis.curve_points import component_of
    from joulewise.analysis.side_by_side import side_by_side

    wanted = {"engine": engine, "decoding": decoding, "task": task}
    cells = [
        cell for cell in split(table)
        if all(label in (None, getattr(cell.key, name)) for name, label in wanted.items())
    ]  # fmt: skip
    found = [(cell, sized) for cell in cells if (sized := _BUDGET.fullmatch(cell.key.reasoning))]
    if not found:
        raise UserError(
            "The run has no budgets to compare: run one with 'reasonings: [{kind: budget, probes: [...]}]'."
        )
    for name in ("run", *wanted):
        if len(several := sorted({getattr(cell.key, name) for cell, _ in found})) > 1:
            raise UserError(f"The run has budgets of more than one {name}; choose one of {', '.join(several)}.")
    if len(rests := {sized[2] for _, sized in found}) > 1:
        sorts = ", ".join(sorted(f"budget-N{rest}" for rest in rests))
        raise UserError(f"The run has budgets of more than one sort, which do not compare: {sorts}.")
    sizes: dict[str, int | None] = {sized[0]: int(sized[1]) for _, sized in found}
    if without is not None:
        if not any(cell.key.reasoning == without for cell in cells):
            raise UserError(f"without {without}: the run has no such reasoning beside its budgets.")
        sizes[without] = None
    board = side_by_side(
        [cell for cell in cells if cell.key.reasoning in sizes], component or component_of(table.arrow)
    )
    if board.measure is None:
        raise UserError("No answer of the run's budgets is judged: a budget cannot be chosen by its accuracy.")
    if not len(board.quality) or np.isnan(board.energy_j).any():
        raise UserError("The run's budgets share no question of which the joules are known.")
    points = []
    for i, key in enumerate(board.keys):
        values = np.column_stack([board.quality[:, i], board.energy_j[:, i], board.output_tokens[:, i]])
        accuracy, energy_j, output_tokens = values.mean(axis=0).tolist()
        points.append(BudgetPoint(sizes[key.reasoning], accuracy, energy_j, output_tokens, values))
    return tuple(sorted(points, key=_size))


def _size(point: BudgetPoint) -> float:
    return math.inf if point.budget is None else point.budget


def _check(points: Sequence[BudgetPoint]) -> None:
    if not points:
        raise UserError("There are no budgets to choose from: give at least one point.")
    if len({point.budget for point in points}) < len(points):
        raise UserError("Two points are of the same budget: give one a budget.")
    for point in points:
        numbers = (point.energy_j, point.output_tokens)
        if not (0 <= point.accuracy <= 1 and all(0 <= x < math.inf for x in numbers) and _size(point) > 0):
            raise UserError(
                f"Budget {point.budget}: accuracy {point.accuracy}, {point.energy_j} J, {point.output_tokens} tokens: "
                "a budget is above 0, accuracy from 0 to 1, the others at least 0."
            )
    shapes = {point.by_question.shape for point in points if point.by_question is not None}
    if len(shapes) > 1 or any(shape[1:] != (3,) for shape in shapes):
        raise UserError("by_question: give all points' values of the same questions, shape (questions, 3).")


def _differences(taken: BudgetPoint, against: BudgetPoint) -> tuple[Difference, Difference, Difference]:
    """Tokens and joules saved and accuracy lost, by the paired bootstrap.

    Accuracy of right and wrong answers by the adjusted Wald interval, as questions that went the same way on both
    sides do not say that none will differ. The meter's common error is not in the interval of the joules.
    """
    tokens, joules = against.output_tokens - taken.output_tokens, against.energy_j - taken.energy_j
    lost = against.accuracy - taken.accuracy
    if taken is against:
        return Difference(0.0, 0.0, 0.0), Difference(0.0, 0.0, 0.0), Difference(0.0, 0.0, 0.0)
    if taken.by_question is None or against.by_question is None or len(taken.by_question) < MIN_QUESTIONS:
        return Difference(tokens), Difference(joules), Difference(lost)
    moved = against.by_question - taken.by_question
    n = len(moved)
    ends = [percentile_interval(again, n) for again in (resample(moved) / n).T]
    if np.isin([taken.by_question[:, 0], against.by_question[:, 0]], (0.0, 1.0)).all():
        from joulewise.analysis.contrast import adjusted_wald

        ends[0] = adjusted_wald(float((moved[:, 0] < 0).sum()), float((moved[:, 0] > 0).sum()), n)
    return _between(tokens, ends[2]), _between(joules, ends[1]), _between(lost, ends[0])


def _between(value: float, ends: tuple[float, float]) -> Difference:
    return Difference(value, min(ends[0], value), max(ends[1], value))


@dataclass(frozen=True, slots=True)
class Throttle:
    """Budgets that rise and fall so that joules an hour keep to a target: its settings and where it stands.

    ``budget_scale`` is what budgets are multiplied by (``scaled``). Its logarithm is moved by how far power is off the
    target: an integral controller. Power rises with the scale, no more than in proportion (what an answer draws besides
    its steps, and answers that end before their budget, do not follow), so it settles without swinging. A price of a
    joule (``least_gain_per_j``) would give up the least accuracy for the joules, as it cuts where thought helps least;
    but by it a budget jumps from one corner of the hull to the next, and on alike queries power would swing between
    two corners for ever. Where traffic is below the target the scale ends at ``most``, and as nothing beyond the bounds
    is summed up, it leaves them as soon as power asks for it.

    What was drawn too much is not saved later: the target is a rate.

    Args:
        target_j_per_hour: joules that may be drawn in an hour, of whatever ``step`` is told.
        response_s: how fast it acts. At least three times the seconds of an answer, as answers under way keep their
            budget; longer where requests are rare.
        least, most: bounds of the scale.
        budget_scale: at present.
        power_w: smoothed; None before the first reading.
        at_s: of the last reading.
        unusable: readings that were not used: no number, below 0, or no later than the one before.
    """

    target_j_per_hour: float
    response_s: float = 60.0
    least: float = 0.1
    most: float = 1.0
    budget_scale: float = 1.0
    power_w: float | None = None
    at_s: float | None = None
    unusable: int = 0

    def __post_init__(self) -> None:
        """Raises UserError: a target or response that is none, or bounds that are not in order."""
        for name in ("target_j_per_hour", "response_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"Throttle, {name}: {getattr(self, name)} is no number above 0.")
        if not 0 < self.least <= self.budget_scale <= self.most <= 1:
            raise UserError(
                f"Throttle: least {self.least}, budget_scale {self.budget_scale}, most {self.most}: they are above 0, "
                "at most 1, and in this order."
            )


def step(state: Throttle, now_s: float, drawn_j: float) -> Throttle:
    """The state after a reading.

    Args:
        now_s: on a clock that does not go back; a reading every few seconds does.
        drawn_j: joules since the reading before (of the first one, nothing can be told).
    """
    passed_s = math.inf if state.at_s is None else now_s - state.at_s
    if not (math.isfinite(now_s) and passed_s > 0):
        return replace(state, unusable=state.unusable + 1)
    if state.at_s is None:
        return replace(state, at_s=now_s)
    power_w = drawn_j / passed_s
    if not 0 <= power_w < math.inf:
        return replace(state, at_s=now_s, unusable=state.unusable + 1)
    if state.power_w is not None:
        old = math.exp(-passed_s / (_SMOOTHING * state.response_s))
        power_w = old * state.power_w + (1.0 - old) * power_w
    error = 1.0 - power_w * 3600.0 / state.target_j_per_hour
    error = max(-_MOST_ERROR, min(_MOST_ERROR, error))
    moved = state.budget_scale * math.exp(-math.expm1(-passed_s / state.response_s) * error)
    return replace(state, budget_scale=max(state.least, min(state.most, moved)), power_w=power_w, at_s=now_s)


def scaled(budget: int, scale: float, step: int = 16) -> int:
    """A budget times a scale, to the nearest multiple of ``step`` tokens; at least one, and never above the budget.

    A scale of 1 leaves it as it is.

    Raises:
        UserError: a budget or step below 1, or a scale that is not above 0 and at most 1.
    """
    if budget < 1 or step < 1 or not 0 < scale <= 1:
        raise UserError(f"budget {budget}, scale {scale}, step {step}: above 0, and a scale is at most 1.")
    return budget if scale == 1 else min(budget, max(step, round(budget * scale / step) * step))

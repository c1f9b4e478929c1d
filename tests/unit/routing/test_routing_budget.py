from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.errors import UserError
from joulewise.routing.budget import BudgetPoint, Throttle, budget_points, choose_budget, scaled, step
from synthetic_table import part, row, table

POINTS = (
    BudgetPoint(64, 0.50, 10.0, 70.0),
    BudgetPoint(128, 0.49, 20.0, 130.0),  # no better than the smaller one
    BudgetPoint(256, 0.70, 40.0, 240.0),
    BudgetPoint(512, 0.74, 80.0, 400.0),
    BudgetPoint(None, 0.75, 120.0, 600.0),
)


@pytest.mark.parametrize(("floor", "budget"), [(0.0, 64), (0.5, 64), (0.51, 256), (0.72, 512), (0.75, None)])
def test_the_smallest_budget_that_meets_the_floor(floor: float, budget: int | None) -> None:
    found = choose_budget(POINTS[::-1], floor=floor)
    assert (found.point.budget, found.best_effort, found.against.budget) == (budget, False, None)
    assert found.joules_saved.value == pytest.approx(120.0 - found.point.energy_j)
    assert found.tokens_saved.value == pytest.approx(600.0 - found.point.output_tokens)
    assert found.accuracy_lost.value == pytest.approx(0.75 - found.point.accuracy)


def test_a_floor_that_nothing_meets_gives_the_most_accurate_and_says_so() -> None:
    found = choose_budget(POINTS[:4], floor=0.9)
    assert (found.point.budget, found.best_effort, found.against.budget) == (512, True, 512)
    assert "best effort: no budget has an accuracy of 90.0%" in found.reason
    assert found.joules_saved.value == 0.0


@pytest.mark.parametrize(
    ("price", "budget"),
    # Slopes of the hull: 0.2 over 30 J, 0.04 over 40 J, 0.01 over 40 J.
    [(0.0, None), (0.0002, None), (0.0003, 512), (0.0009, 512), (0.0011, 256), (0.0066, 256), (0.0068, 64), (1.0, 64)],
)
def test_a_joule_must_buy_its_price(price: float, budget: int | None) -> None:
    assert choose_budget(POINTS, least_gain_per_j=price).point.budget == budget


def hull_walk(points: list[BudgetPoint], price: float) -> BudgetPoint:
    """The last corner of the concave hull that is reached at a slope of at least the price."""
    hull: list[BudgetPoint] = []
    for point in sorted(points, key=lambda p: (p.energy_j, -p.accuracy)):
        if hull and point.accuracy <= hull[-1].accuracy:
            continue
        while len(hull) > 1 and slope(hull[-2], hull[-1]) <= slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    taken = hull[0]
    for before, after in pairwise(hull):
        if slope(before, after) < price:
            break
        taken = after
    return taken


def slope(a: BudgetPoint, b: BudgetPoint) -> float:
    return (b.accuracy - a.accuracy) / (b.energy_j - a.energy_j)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 50)), min_size=1, max_size=8),
    st.integers(0, 30).map(lambda k: k / 300 + 1 / 7919),
)
@settings(max_examples=200, deadline=None)
def test_it_is_the_corner_of_the_hull(found: list[tuple[int, int]], price: float) -> None:
    joules = np.cumsum([more for _, more in found])
    points = [
        BudgetPoint(16 * (i + 1), right / 100, float(j), 16.0 * i)
        for i, ((right, _), j) in enumerate(zip(found, joules, strict=True))
    ]
    assert choose_budget(points, least_gain_per_j=price).point is hull_walk(points, price)


def by_question(points: int, questions: int, seed: int = 0) -> list[BudgetPoint]:
    """Budgets whose true accuracy, joules and tokens are (0.5 + i / 20, 10 i, 20 i)."""
    rng = np.random.default_rng(seed)
    hard, long = rng.random(questions), rng.lognormal(0, 0.5, questions) / math.exp(0.125)
    found = []
    for i in range(1, points + 1):
        right = (hard < 0.5 + i / 20).astype(float)
        values = np.column_stack([right, 10 * i * long, 20 * i * long])
        accuracy, energy_j, tokens = values.mean(axis=0).tolist()
        found.append(BudgetPoint(64 * i, accuracy, energy_j, tokens, values))
    return found


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    inside = np.zeros(3)
    for seed in range(200):
        found = choose_budget(by_question(3, 100, seed), floor=0.0)
        for i, (difference, truth) in enumerate(
            [(found.tokens_saved, 40.0), (found.joules_saved, 20.0), (found.accuracy_lost, 0.1)]
        ):
            assert difference.lower is not None
            assert difference.upper is not None
            inside[i] += difference.lower <= truth <= difference.upper
    assert (inside / 200 >= 0.91).all()


def test_answers_that_did_not_change_do_not_promise_that_none_will() -> None:
    points = by_question(2, 50)
    before, after = (point.by_question for point in points)
    assert before is not None
    assert after is not None
    same = np.column_stack([after[:, 0], before[:, 1:]])
    lost = choose_budget([replace(points[0], by_question=same, accuracy=points[1].accuracy), points[1]], 0.0)
    assert lost.accuracy_lost.value == 0.0
    assert lost.accuracy_lost.lower is not None
    assert lost.accuracy_lost.upper is not None
    assert lost.accuracy_lost.lower < -0.02
    assert lost.accuracy_lost.upper > 0.02


@pytest.mark.parametrize("points", [POINTS, by_question(2, 4)])
def test_without_enough_questions_no_interval_is_given(points: tuple[BudgetPoint, ...]) -> None:
    found = choose_budget(points, floor=0.0)
    assert (found.joules_saved.lower, found.accuracy_lost.upper) == (None, None)


@pytest.mark.parametrize(
    ("points", "goal", "told"),
    [
        ((), {"floor": 0.5}, "no budgets to choose from"),
        (POINTS, {}, "give one of them"),
        (POINTS, {"floor": 0.5, "least_gain_per_j": 0.1}, "give one of them"),
        (POINTS, {"floor": 1.5}, "floor 1.5"),
        (POINTS, {"least_gain_per_j": math.nan}, "least_gain_per_j nan"),
        ((POINTS[0], POINTS[0]), {"floor": 0.5}, "same budget"),
        ((replace(POINTS[0], energy_j=math.nan),), {"floor": 0.5}, "Budget 64"),
        ((replace(POINTS[0], budget=0),), {"floor": 0.5}, "Budget 0"),
        ((by_question(1, 5)[0], by_question(2, 6)[1]), {"floor": 0.5}, "by_question"),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(
    points: tuple[BudgetPoint, ...], goal: dict[str, float], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        choose_budget(points, **goal)


def answer(reasoning: str, question: int, right: bool | None, tokens: int, **other: Any) -> dict[str, Any]:
    joules = [part("gpu", tokens / 10), part("cpu", None)]
    other = {"reasoning": reasoning, "correct": right, "output_tokens": tokens} | other
    return row(question=f"q{question}", energy=joules, **other)


def probed_run() -> list[dict[str, Any]]:
    """One run with budget-64 that was probed at 16 and 32, and a direct answer beside it."""
    rows = []
    for i in range(12):
        whole = answer("budget-64", i, i < 9, 60)
        rows += [
            whole,
            answer("budget-16", i, i < 3, 20, probe_of=whole["trial_id"]),
            answer("budget-32", i, i < 8, 40, probe_of=whole["trial_id"]),
            answer("direct", i, i < 2, 5),
            answer("cot-512", i, i < 10, 200),
        ]
    return rows


def test_one_run_gives_all_smaller_budgets() -> None:
    points = budget_points(table(probed_run()))
    assert [(p.budget, p.output_tokens) for p in points] == [(16, 20.0), (32, 40.0), (64, 60.0)]
    assert [p.accuracy for p in points] == pytest.approx([3 / 12, 8 / 12, 9 / 12])
    assert [p.energy_j for p in points] == pytest.approx([2.0, 4.0, 6.0])
    found = choose_budget(points, floor=0.6)
    assert found.point.budget == 32
    assert (found.tokens_saved.value, found.joules_saved.value) == pytest.approx((20.0, 2.0))
    assert found.joules_saved.lower == pytest.approx(2.0)  # as each question saves as much
    assert found.reason.startswith("a budget of 32 tokens (66.7% right, 4 J an answer)")


def test_a_reasoning_can_stand_for_no_budget() -> None:
    points = budget_points(table(probed_run()), without="cot-512")
    assert [p.budget for p in points] == [16, 32, 64, None]
    assert choose_budget(points, floor=0.6).tokens_saved.value == pytest.approx(160.0)


@pytest.mark.parametrize(
    ("rows", "asked", "told"),
    [
        ([answer("direct", 1, True, 5)], {}, "no budgets to compare"),
        ([*probed_run(), answer("budget-16", 1, True, 5, engine="f")], {}, "more than one engine"),
        ([*probed_run(), answer("budget-16-thinking", 1, True, 5)], {}, "more than one sort"),
        (probed_run(), {"without": "cot-1024"}, "no such reasoning"),
        (probed_run(), {"engine": "g"}, "no budgets to compare"),
        ([answer("budget-16", 1, None, 5)], {}, "judged"),
        ([answer("budget-16", 1, True, 5), answer("budget-32", 2, True, 5)], {}, "share no question"),
        ([row(reasoning="budget-16", correct=True)], {}, "share no question of which the joules are known"),
    ],
)
def test_runs_without_comparable_budgets_are_refused(rows: list[Any], asked: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        budget_points(table(rows), **asked)


# The throttle, on simulated traffic. Steps draw 0.1 J a token; without a throttle a request thinks for 1,000 tokens.

TARGET_W = 100.0
DT_S = 5.0


def simulate(
    traffic: Callable[[float], float],
    hours: float = 1.0,
    spent: Callable[[float], float] = lambda scale: 100.0 * scale,
    base_w: float = 0.0,
    delay_s: float = 10.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Watts and scales by step; a scale is at work ``delay_s`` later, as answers under way keep theirs."""
    state = Throttle(3600 * TARGET_W)
    watts, scales = [], [state.budget_scale]
    for k in range(int(hours * 3600 / DT_S)):
        at_work = scales[max(0, k - int(delay_s / DT_S))]
        watts.append(base_w + traffic(k * DT_S) * spent(at_work))
        state = step(state, k * DT_S, watts[-1] * DT_S)
        scales.append(state.budget_scale)
    return np.array(watts), np.array(scales)


def settled_after_min(watts: np.ndarray, from_s: float = 0.0) -> float:
    """Minutes until power is within 2 % of the target for good."""
    off = np.flatnonzero(np.abs(watts / TARGET_W - 1) > 0.02)
    return max(0.0, ((off[-1] + 1) * DT_S if len(off) else 0.0) - from_s) / 60


def by_lengths(scale: float) -> float:
    """Joules of a request where thoughts end by themselves too: their lengths spread as usual."""
    return float(0.1 * np.minimum(LENGTHS, 1000 * scale).mean())


LENGTHS = np.random.default_rng(0).lognormal(6, 0.7, 2000)


@pytest.mark.parametrize(
    ("traffic", "plant"),
    [
        (1.2, {}),
        (2.0, {}),
        (8.0, {}),
        (4.0, {"spent": by_lengths}),
        (3.0, {"base_w": 40.0}),
        (2.0, {"delay_s": 20.0}),
    ],
)
def test_constant_traffic_settles_within_six_minutes_without_swinging(traffic: float, plant: dict[str, Any]) -> None:
    watts, scales = simulate(lambda _: traffic, **plant)
    assert settled_after_min(watts) <= 6.0
    assert watts.min() >= 0.95 * TARGET_W
    assert watts[360:] == pytest.approx(TARGET_W, rel=1e-3)
    assert np.ptp(scales[360:]) < 1e-3


@pytest.mark.parametrize(("before", "after"), [(1.6, 3.2), (3.2, 1.6)])
def test_traffic_that_doubles_or_halves_is_followed_within_four_minutes(before: float, after: float) -> None:
    watts, _ = simulate(lambda t: before if t < 1800 else after)
    assert settled_after_min(watts[:360]) <= 4.0
    assert settled_after_min(watts, from_s=1800) <= 4.0


def test_below_the_target_budgets_are_at_their_largest() -> None:
    _, scales = simulate(lambda _: 0.9)
    assert (scales == 1.0).all()


def test_nothing_is_wound_up_at_the_bounds() -> None:
    """Hours below the target do not delay the first cut, nor do hours of too much at the least scale the first rise."""
    _, scales = simulate(lambda t: 0.5 if t < 3600 else 4.0, hours=1.1)
    cut = int(3600 / DT_S) + 1
    assert scales[cut - 1] == 1.0
    assert scales[cut + int(60 / DT_S)] < 0.75
    _, scales = simulate(lambda t: 20.0 if t < 3600 else 2.0, hours=1.1)
    assert scales[cut - 1] == 0.1
    assert scales[cut + int(60 / DT_S)] > 0.13


@pytest.mark.parametrize(
    ("rate", "response_s", "drawn_share", "off"),
    [(1.0, 60.0, 1.0, 0.01), (4.0, 60.0, 1.0, 0.01), (0.2, 300.0, 1.0, 0.02), (0.2, 60.0, 1.05, 0.02)],
)
def test_random_requests_with_whole_tokens_hold_the_hours(
    rate: float, response_s: float, drawn_share: float, off: float
) -> None:
    """The last has too short a response for so few requests: docs/routing.md says what it draws."""
    rng = np.random.default_rng(1)
    target_w = 50.0 * rate
    state, drawn = Throttle(3600 * target_w, response_s=response_s), []
    for k in range(int(5 * 3600 / DT_S)):
        budget = scaled(1000, state.budget_scale)
        lengths = 2.5 * rng.choice(LENGTHS, rng.poisson(rate * DT_S))
        drawn.append(0.1 * float(np.minimum(lengths, budget).sum()))
        state = step(state, k * DT_S, drawn[-1])
    assert sum(drawn[720:]) / (4 * 3600 * target_w) == pytest.approx(drawn_share, abs=off)


anything = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(st.tuples(anything, anything) | st.tuples(st.floats(0, 1e6), st.floats(0, 1e9)), max_size=40),
    st.floats(1e-3, 1e12),
    st.floats(1e-2, 1e5),
    st.floats(0.01, 1.0),
)
@settings(max_examples=200, deadline=None)
def test_it_never_leaves_its_bounds(
    readings: list[tuple[float, float]], target: float, response_s: float, least: float
) -> None:
    state = Throttle(target, response_s, least)
    for now_s, drawn_j in readings:
        state = step(state, now_s, drawn_j)
        assert least <= state.budget_scale <= 1.0
        assert state.power_w is None or 0 <= state.power_w < math.inf


def test_readings_that_cannot_be_are_counted_and_change_nothing_else() -> None:
    state = step(step(Throttle(3600.0), 0.0, 0.0), 5.0, 5.0)
    for now_s, drawn_j in ((5.0, 1.0), (4.0, 1.0), (math.nan, 1.0), (10.0, -1.0), (10.0, math.inf)):
        after = step(state, now_s, drawn_j)
        assert (after.budget_scale, after.power_w, after.unusable) == (state.budget_scale, state.power_w, 1)
    assert step(state, 10.0, -1.0).at_s == 10.0  # what comes later is not spread over this time


@pytest.mark.parametrize(
    "wrong",
    [{"target_j_per_hour": 0.0}, {"target_j_per_hour": math.inf}, {"response_s": -1.0}, {"least": 0.0},
     {"least": 0.6, "budget_scale": 0.5}, {"most": 1.5}],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="Throttle"):
        Throttle(**({"target_j_per_hour": 3600.0} | wrong))


@pytest.mark.parametrize(
    ("budget", "scale", "found"),
    [(1000, 1.0, 1000), (1000, 0.999, 992), (1000, 0.5, 496), (256, 0.1, 32), (64, 0.1, 16), (10, 0.5, 10)],
)
def test_a_budget_is_scaled_to_whole_steps(budget: int, scale: float, found: int) -> None:
    assert scaled(budget, scale) == found


@given(st.integers(1, 10**6), st.floats(1e-6, 1.0), st.integers(1, 100))
def test_a_scaled_budget_is_never_above_it(budget: int, scale: float, whole: int) -> None:
    found = scaled(budget, scale, whole)
    assert min(budget, whole) <= found <= budget
    assert abs(found - budget * scale) <= max(whole, min(budget, whole))


@pytest.mark.parametrize(("budget", "scale", "whole"), [(0, 0.5, 16), (64, 0.0, 16), (64, 1.1, 16), (64, 0.5, 0)])
def test_scaling_to_nothing_is_refused(budget: int, scale: float, whole: int) -> None:
    with pytest.raises(UserError, match="at most 1"):
        scaled(budget, scale, whole)

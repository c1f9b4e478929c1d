"""Savings under load: planted figures come out, and the crossing's interval holds the truth."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.analysis.load_crossing import Level, crossing
from joulewise.analysis.load_saving import ONE_REPEAT, over_repeats, under_load
from planted_loads import SPREAD, loads_table, stretch
from synthetic_table import table

FALLING = {1: [1.49, 1.5, 1.51], 4: [1.19, 1.2, 1.21], 16: [0.79, 0.8, 0.81]}


def test_costs_and_savings_are_the_planted_ones() -> None:
    (found,) = under_load(loads_table(FALLING))
    assert (found.task, found.engine) == ("chat", "e")
    assert [(cost.load, cost.decoding) for cost in found.costs] == [
        (load, decoding) for load in ("c1", "c4", "c16") for decoding in ("vanilla", "coga-5")
    ]
    plain = found.costs[2]
    assert (plain.component, plain.repeats, plain.in_flight, plain.requests_per_s) == ("total", 3, 4.0, 10.0)
    assert plain.energy_per_token_j.value == pytest.approx(0.25)
    assert plain.power_w.value == pytest.approx(25.0)
    assert plain.tokens_per_s.value == pytest.approx(100.0)
    assert plain.percentiles_s["to_first"] == pytest.approx((0.1, 0.3, 0.4))
    assert plain.good == pytest.approx(0.8)
    assert plain.good_per_j == pytest.approx(80 / 250)
    assert [saving.verdict for saving in found.savings] == ["saves energy", "saves energy", "costs energy"]
    assert [saving.energy.value for saving in found.savings] == pytest.approx([1.5, 1.2, 0.8], rel=1e-3)
    (one,) = found.crossings["coga-5"]
    # Where the straight line in the logarithms from 1.2 at 4 to 0.8 at 16 is 0.
    expected = 4.0 * 4.0 ** (math.log(1.2) / math.log(1.2 / 0.8))
    assert (one.shape, one.saves_below, one.first, one.last) == ("crosses", True, 1.0, 16.0)
    assert one.level == pytest.approx(expected, rel=1e-3)
    assert one.lower is not None
    assert one.upper is not None
    assert one.lower < one.level < one.upper


def test_a_percentile_that_a_repeat_does_not_tell_is_not_told() -> None:
    """The 99th of one slow repeat alone could lie below the mean of two 95ths."""
    few = {**SPREAD, "p95_s": 0.1, "p99_s": None}
    found = under_load(table([stretch("vanilla", 4, 0, 100.0), stretch("vanilla", 4, 1, 100.0, load={"total": few})]))
    assert found[0].costs[0].percentiles_s["total"] == (0.1, pytest.approx(0.2), None)


@pytest.mark.parametrize(
    ("savings", "shape", "reason"),
    [
        ({1: [1.5, 1.51], 8: [1.2, 1.21]}, "saves throughout", None),
        ({1: [0.8, 0.81], 8: [0.6, 0.61]}, "costs throughout", None),
        ({1: [1.5, 1.51], 8: [0.9, 1.1]}, "cannot tell", "at 8 it is not known"),
        ({1: [1.5, 1.51], 4: [0.8, 0.81], 8: [1.5, 1.51]}, "cannot tell", "turns more than once"),
        ({1: [1.5, 1.51], 4: [0.9, 1.1], 8: [1.5, 1.51]}, "cannot tell", "at 4 it is not known"),
        ({1: [1.5], 8: [0.7]}, "cannot tell", ONE_REPEAT),
    ],
)
def test_no_crossing_is_claimed_that_is_not_known(
    savings: dict[int, list[float]], shape: str, reason: str | None
) -> None:
    (found,) = under_load(loads_table(savings))
    (one,) = found.crossings["coga-5"]
    assert one.shape == shape
    assert (one.level, one.lower, one.upper) == (None, None, None)
    assert reason is None or reason in str(one.reason)


def test_modelled_joules_carry_no_verdict() -> None:
    (found,) = under_load(loads_table(FALLING, provenance="modelled"))
    assert {saving.verdict for saving in found.savings} == {None}
    (one,) = found.crossings["coga-5"]
    assert one.shape == "cannot tell"
    assert "modelled joules" in str(one.reason)


def test_without_vanilla_without_joules_and_with_failures() -> None:
    lone = table([stretch("coga-5", 4, 0, 100.0)])
    (found,) = under_load(lone)
    assert found.savings[0].verdict is None
    assert "no stretch of the same load and repeat in common" in str(found.savings[0].energy.reason)
    failed = table([stretch("vanilla", 4, 0, 100.0), stretch("coga-5", 4, 0, 100.0, status="failed")])
    (found,) = under_load(failed)
    assert [(cost.repeats, cost.failed) for cost in found.costs] == [(1, 0), (0, 1)]
    assert found.costs[1].energy_per_token_j.value is None
    assert under_load(table([])) == ()


def test_repeats_are_paired_by_their_number() -> None:
    """Both sides drift alike from repeat to repeat, by far more than they differ: the saving does not."""
    rows = []
    for repeat, drift in enumerate((1.0, 2.0, 4.0)):
        rows += [stretch("vanilla", 4, repeat, 100.0 * drift), stretch("coga-5", 4, repeat, 100.0 * drift / 1.2)]
    (found,) = under_load(table(rows))
    (saving,) = found.savings
    assert saving.verdict == "saves energy"
    assert saving.energy.lower == pytest.approx(1.2)
    assert found.costs[0].energy_per_token_j.upper > 1.0  # type: ignore[operator]


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=8), st.floats(0.1, 10.0))
@settings(deadline=None)
def test_an_interval_over_repeats_holds_the_mean_and_goes_with_the_unit(values: list[float], factor: float) -> None:
    found, scaled = over_repeats(values, "measured"), over_repeats([v * factor for v in values], "measured")
    assert found.value is not None
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower <= found.value * (1 + 1e-9)
    assert found.value <= found.upper * (1 + 1e-9)
    assert min(values) * (1 - 1e-9) <= found.value <= max(values) * (1 + 1e-9)
    assert scaled.value == pytest.approx(found.value * factor, rel=1e-6)


levels_of = st.lists(
    st.tuples(st.floats(-1.0, 1.0), st.floats(0.001, 0.2), st.integers(1, 9)), min_size=2, max_size=6
).map(lambda found: [Level(2.0**i, value, se, df) for i, (value, se, df) in enumerate(found)])


@given(levels_of, st.floats(0.25, 8.0), st.randoms())
@settings(deadline=None, max_examples=200)
def test_a_crossing_lies_within_its_interval_whatever_the_order_unit_and_side(
    levels: list[Level], factor: float, rng: random.Random
) -> None:
    one = crossing(levels)
    shuffled = rng.sample(levels, len(levels))
    assert crossing(shuffled) == one
    turned = crossing([Level(x.level, -x.value, x.se, x.df) for x in levels])
    if one.level is None:
        assert one.shape != "crosses"
        assert turned.level is None
        return
    assert (turned.level, turned.lower, turned.upper) == pytest.approx((one.level, one.lower, one.upper), rel=1e-6)
    assert one.lower is not None
    assert one.upper is not None
    assert one.first <= one.lower * (1 + 1e-9)
    assert one.lower <= one.level <= one.upper <= one.last * (1 + 1e-9)
    assert turned.saves_below is (not one.saves_below)
    other = crossing([Level(factor * x.level, x.value, x.se, x.df) for x in levels])
    assert other.level == pytest.approx(factor * one.level, rel=1e-6)
    wider = crossing([Level(x.level, x.value, 1.05 * x.se, x.df) for x in levels])
    if wider.lower is not None and wider.upper is not None:
        assert wider.lower <= one.lower * (1 + 1e-9)
        assert wider.upper >= one.upper * (1 - 1e-9)


@pytest.mark.parametrize(("repeats", "noise"), [(3, 0.02), (5, 0.05)])
def test_the_interval_of_a_crossing_holds_the_truth_as_often_as_it_says(repeats: int, noise: float) -> None:
    """Simulated: true savings on straight lines between the loads, repeats that scatter; 95 % should hold it."""
    rng = np.random.default_rng(7)
    loads, truth = np.array([1.0, 4.0, 16.0, 64.0]), np.log([1.5, 1.25, 0.85, 0.7])
    at = math.exp(np.interp(0.0, -truth, np.log(loads)))
    held, told = 0, 0
    for _ in range(600):
        seen = truth[:, None] + rng.normal(0.0, noise, (4, repeats))
        se = seen.std(axis=1, ddof=1) / math.sqrt(repeats)
        one = crossing(
            [Level(*x, repeats - 1) for x in zip(loads.tolist(), seen.mean(axis=1).tolist(), se.tolist(), strict=True)]
        )
        if one.lower is not None and one.upper is not None:
            told += 1
            held += one.lower <= at <= one.upper
    assert told > 550
    assert 0.93 <= held / told <= 1.0

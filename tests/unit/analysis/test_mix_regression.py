"""Joules of each kind of request from windows with several mixes: known answers, conservation, coverage, faults."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.analysis.mix_regression import KindCost, Miss, MixWindow, completed, kind_costs, misses
from joulewise.analysis.request_shares import BatchRequest
from joulewise.energy.attribution import IDLE, UNATTRIBUTED, Share
from joulewise.errors import UserError

TRUE = {"output": 50.0, "prompt": 80.0}


def windows(noise: float = 0.0, seed: int = 0, repeats: int = 4) -> list[MixWindow]:
    """Five mixes of 100 requests or so."""
    draw = np.random.default_rng(seed)
    found = []
    for prompts in (0.0, 25.0, 50.0, 75.0, 100.0) * repeats:
        done = {"prompt": prompts, "output": 100.0 - prompts + draw.uniform(-5.0, 5.0)}
        joules = sum(TRUE[kind] * count for kind, count in done.items())
        found.append(MixWindow(joules * (1.0 + noise * draw.standard_normal()), done))
    return found


def test_the_kinds_joules_come_back() -> None:
    costs = kind_costs(windows())
    assert {c.kind: c.energy_j for c in costs} == pytest.approx(TRUE)
    assert costs[0].standard_j == pytest.approx(0.0, abs=1e-9)


@given(st.floats(0.0, 0.3), st.integers(0, 1000))
def test_costs_times_counts_are_all_joules(noise: float, seed: int) -> None:
    found = windows(noise, seed)
    told = math.fsum(c.energy_j * w.done[c.kind] for c in kind_costs(found) for w in found)
    assert told == pytest.approx(math.fsum(w.energy_j for w in found), rel=1e-9)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    held = [
        c.interval_j[0] <= TRUE[c.kind] <= c.interval_j[1]
        for seed in range(300)
        for c in kind_costs(windows(0.02, seed, repeats=1))
    ]
    assert 0.92 <= np.mean(held) <= 0.98


def test_the_meters_own_uncertainty_is_the_least() -> None:
    sure = windows()
    unsure = [MixWindow(w.energy_j, w.done, independent_j=100.0) for w in sure]
    once, twice = kind_costs(unsure[:5])[0], kind_costs(unsure)[0]
    assert once.standard_j > 0.0
    assert twice.standard_j == pytest.approx(once.standard_j / 2.0, rel=0.05)
    # What is common to all windows widens the interval, and not what stays of it in a comparison.
    wide = kind_costs(unsure, common=0.05)[0]
    assert wide.own_j == twice.own_j
    half = (wide.interval_j[1] - wide.interval_j[0]) / 2.0
    assert half == pytest.approx(math.hypot(wide.own_j, 1.959964 * 0.05 * wide.energy_j))


def test_requests_at_the_ends_count_by_their_share_of_time() -> None:
    requests = [
        BatchRequest("before", -4.0, 1.0, 10, 10),
        BatchRequest("inside", 1.0, 5.0, 10, 10),
        BatchRequest("after", 9.0, 13.0, 10, 10),
        BatchRequest("outside", 11.0, 13.0, 10, 10),
    ]
    kinds = {"before": "x", "inside": "x", "after": "y", "outside": "y"}
    assert completed(requests, kinds, 0.0, 10.0) == pytest.approx({"x": 1.2, "y": 0.25})


def test_a_models_miss() -> None:
    mine = [MixWindow(300.0, {"a": 2.0, "b": 1.0}), MixWindow(200.0, {"a": 2.0})]
    costs = (KindCost("a", 100.0, 1.0, 1000), KindCost("b", 100.0, 1.0, 1000))
    rows = [("1", 110.0), ("2", 90.0), ("3", 80.0), (IDLE, 7.0), (UNATTRIBUTED, 20.0)]
    first = [Share(name, "measured", "", joules) for name, joules in rows]
    second = [Share("4", "measured", "", 120.0), Share("5", "measured", "", 80.0)]
    found = misses(costs, mine, [first, second], {"1": "a", "2": "a", "3": "b", "4": "a", "5": "a"})
    assert [(m.kind, m.mean_j) for m in found] == [("a", 100.0), ("b", 80.0)]
    assert found[1].relative == pytest.approx(-0.2)
    half = costs[1].own_j
    assert found[1].interval == pytest.approx((80.0 / (100.0 + half) - 1.0, 80.0 / (100.0 - half) - 1.0))
    assert Miss("a", 1.0, KindCost("a", 1.0, 10.0, 3)).interval[1] == math.inf


def test_windows_that_tell_no_kinds_apart() -> None:
    same = [MixWindow(100.0 + i, {"a": 10.0, "b": 10.0 + 1e-3 * i}) for i in range(5)]
    with pytest.raises(UserError, match="mixes do not differ"):
        kind_costs(same)
    with pytest.raises(UserError, match="at least 3"):
        kind_costs(windows()[:2])
    with pytest.raises(UserError, match="at least"):
        kind_costs([])
    with pytest.raises(UserError, match="tells nothing"):
        kind_costs([*windows(), MixWindow(0.0, {"prompt": 1.0})])
    with pytest.raises(UserError, match="tells nothing"):
        kind_costs([*windows(), MixWindow(5.0, {"prompt": 0.0})])
    with pytest.raises(UserError, match="mixes do not differ"):
        kind_costs([MixWindow(5.0, {"a": 1.0, "b": 0.0}) for _ in range(5)])

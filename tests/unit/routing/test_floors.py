"""Floors of a router against answers whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from joulewise.errors import UserError
from joulewise.routing.energy import Quantiles
from joulewise.routing.floors import Judged, absolute_floors
from joulewise.routing.policy import Estimate, Goal, Load, Option, Query, State, choose

COST = np.array([1.0, 3.0, 9.0])


def judged(n: int, seed: int = 0, flattering: float = 0.0) -> Judged:
    """Three options; predictions are the true chances, or better by so much."""
    rng = np.random.default_rng(seed)
    chances = np.sort(rng.uniform(0.2, 0.98, (n, 3)), axis=1)
    correct = (rng.random((n, 3)) < chances).astype(float)
    return Judged(correct, np.tile(COST, (n, 1)), np.minimum(1.0, chances + flattering), np.tile(COST, (n, 1)))


def test_what_the_floor_takes_is_what_the_policy_takes() -> None:
    data = judged(60)
    options = [Option(name, name) for name in "abc"]

    def estimate_of(row: int) -> object:
        def estimate(_: Query, option: Option, __: Load) -> Estimate:
            at = "abc".index(option.name)
            return Estimate(float(data.predicted[row, at]), Quantiles(*[float(COST[at])] * 3))

        return estimate

    chosen = [
        "abc".index(choose(Query(10), options, estimate_of(row), State(), Goal(least_accuracy=0.7)).option)  # type: ignore[arg-type]
        for row in range(60)
    ]
    (floor,) = absolute_floors(data, 2, [0.7], 0)
    assert floor.energy_j == pytest.approx(COST[chosen].mean())
    assert floor.overall.value == pytest.approx(data.correct[np.arange(60), chosen].mean())
    assert 0 < floor.reached < 60


def test_honest_predictions_keep_their_floors_and_flattering_ones_violate_them() -> None:
    for floor in absolute_floors(judged(4000), 2, [0.6, 0.8], 0):
        assert floor.verdict == "kept"
        assert floor.accuracy is not None
        assert floor.accuracy.value is not None
        assert floor.accuracy.value >= floor.least
    (floor,) = absolute_floors(judged(4000, flattering=0.3), 2, [0.8], 0)
    assert floor.verdict == "violated"
    assert floor.certificate is not None
    assert floor.certificate.setting is None


def test_few_answers_can_tell_nothing() -> None:
    (floor,) = absolute_floors(judged(20), 2, [0.8], 0)
    assert floor.verdict == "cannot tell"
    assert floor.certificate is not None
    assert floor.certificate.setting is None


def test_a_floor_far_below_is_proven_and_several_share_the_risk() -> None:
    (alone,) = absolute_floors(judged(4000), 2, [0.5], 0)
    assert alone.certificate is not None
    assert alone.certificate.setting is not None
    assert alone.certificate.risk == pytest.approx(0.05)
    assert alone.certificate.labels == alone.reached
    both = absolute_floors(judged(4000), 2, [0.5, 0.9], 0)
    assert [f.certificate.risk for f in both if f.certificate] == pytest.approx([0.025, 0.025])


def test_a_certificate_is_wrong_no_more_often_than_it_says() -> None:
    """Where exactly so many are right as the floor asks for, "fewer are right" is the edge of being true."""
    proven = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        correct = (rng.random((300, 1)) < 0.8).astype(float)
        flat = np.full((300, 1), 0.9)
        (floor,) = absolute_floors(Judged(correct, flat, flat, flat), 0, [0.8], seed)
        assert floor.certificate is not None
        proven += floor.certificate.setting is not None
    assert proven <= 0.05 * 400 + 2 * (0.05 * 0.95 * 400) ** 0.5


def test_a_floor_that_nothing_reaches_takes_the_most_accurate() -> None:
    data = judged(100)
    (floor,) = absolute_floors(data, 2, [1.0], 0)
    assert (floor.reached, floor.accuracy, floor.verdict, floor.certificate) == (0, None, "never reached", None)
    assert floor.overall.value == pytest.approx(data.correct[:, 2].mean())
    assert floor.saved.value == pytest.approx(0.0)
    (floor,) = absolute_floors(data, 2, [0.0], 0)
    assert (floor.reached, floor.energy_j, floor.verdict, floor.certificate) == (100, 1.0, "kept", None)


def test_floors_that_are_none_are_refused() -> None:
    with pytest.raises(UserError, match=r"a floor of 1\.5: give a chance from 0 to 1"):
        absolute_floors(judged(5), 2, [0.5, 1.5], 0)

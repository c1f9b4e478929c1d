"""Operating curves: planted coefficients come back, and what cannot carry a curve is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.analysis.curves import (
    ATTENTION,
    PROMPT,
    REQUEST,
    ROOT,
    SHARED,
    SQUARE,
    TERMS,
    TOKEN,
    Form,
    Points,
    fit_curve,
    held_out,
)
from joulewise.errors import UserError
from planted_curve import PLANTED, grid, one_load


@settings(max_examples=15, deadline=None)
@given(exponents=st.lists(st.floats(-1.0, 1.0), min_size=len(PLANTED), max_size=len(PLANTED)))
def test_planted_coefficients_come_back(exponents: list[float]) -> None:
    planted = {name: value * 10**e for (name, value), e in zip(PLANTED.items(), exponents, strict=True)}
    points = grid(planted)
    curve = fit_curve(points, replicates=20)
    told = [curve.energy_j(*at) for at in zip(points.prompt_tokens, points.output_tokens, points.running, strict=True)]
    assert told == pytest.approx(points.energy_j, rel=1e-4)
    assert curve.held_out.inside.p90 < 1e-3
    for name, value in planted.items():
        share = (
            value * TERMS[name].column(points.prompt_tokens, points.output_tokens, points.running)
        ) / points.energy_j
        if share.max() > 0.2:
            assert curve.coefficients[name].value == pytest.approx(value, rel=0.02)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.0, 0.5))
def test_no_coefficient_is_below_0_and_each_lies_in_its_interval(seed: int, noise: float) -> None:
    curve = fit_curve(grid(noise=noise, seed=seed), replicates=50)
    for found in curve.coefficients.values():
        assert 0.0 <= found.lower <= found.value <= found.upper


@settings(max_examples=10, deadline=None)
@given(factor=st.floats(1e-6, 1e6))
def test_scaled_joules_scale_coefficients_and_leave_errors_alone(factor: float) -> None:
    points = grid(noise=0.1)
    before = fit_curve(points, replicates=50)
    after = fit_curve(replace(points, energy_j=points.energy_j * factor), replicates=50)
    for name, found in before.coefficients.items():
        assert after.coefficients[name].value == pytest.approx(found.value * factor, rel=1e-6, abs=1e-12 * factor)
        assert after.coefficients[name].upper == pytest.approx(found.upper * factor, rel=1e-6, abs=1e-12 * factor)
    assert after.held_out.inside.median == pytest.approx(before.held_out.inside.median, rel=1e-6)
    assert after.correction.weights == pytest.approx(before.correction.weights, abs=1e-9)


def test_intervals_hold_what_was_planted() -> None:
    planted = {"request": 2.0, "token": 0.5, "prompt_token": 0.01, "attention": 1e-4}
    held = [
        fit_curve(one_load(planted, noise=0.05, seed=seed), replicates=300).coefficients["token"] for seed in range(20)
    ]
    assert sum(found.lower <= 0.5 <= found.upper for found in held) >= 16
    assert all(found.upper - found.lower < 0.2 for found in held)


def test_noise_does_not_make_the_curve_too_low() -> None:
    points = one_load(PLANTED, noise=0.3)
    many = Points(
        *(np.tile(v, 40) for v in (points.prompt_tokens, points.output_tokens, points.running)),
        np.concatenate([one_load(PLANTED, 0.3, seed).energy_j for seed in range(40)]),
        np.tile(points.unit, 40),
    )
    curve = fit_curve(many, replicates=20)
    true = one_load(PLANTED).energy_j
    told = [curve.energy_j(p, o) for p, o in zip(points.prompt_tokens, points.output_tokens, strict=True)]
    assert np.mean(np.log(told / true)) == pytest.approx(0.02, abs=0.04)


def test_a_wild_point_moves_little() -> None:
    points = one_load(PLANTED, noise=0.01)
    wild = points.energy_j.copy()
    wild[5] *= 10
    calm, moved = (fit_curve(p, replicates=20) for p in (points, replace(points, energy_j=wild)))
    assert moved.energy_j(512, 128) == pytest.approx(calm.energy_j(512, 128), rel=0.03)


def test_the_meters_common_uncertainty_is_in_every_interval() -> None:
    points = one_load(PLANTED)
    found = fit_curve(replace(points, common=0.05), replicates=20).coefficients["token"]
    assert found.upper / found.value == pytest.approx(np.exp(1.96 * 0.05), rel=1e-3)


def load_curve(energy: list[float]) -> Points:
    n = len(energy)
    return Points(np.zeros(n), np.ones(n), 2.0 ** np.arange(3, 3 + n), np.array(energy), np.arange(n))


def test_the_correction_follows_what_the_terms_cannot() -> None:
    bumpy = load_curve([1.0, 0.65, 0.45, 0.22, 0.14, 0.12, 0.10, 0.06])
    terms = (TOKEN, SHARED, ROOT)
    plain, smooth = (held_out(bumpy, Form(terms, freedom=freedom)).inside for freedom in (0.0, 4.0))
    assert plain.points == smooth.points == 6
    assert smooth.median < plain.median


def test_held_out_points_beyond_the_others_are_told_apart() -> None:
    found = held_out(load_curve([1.0, 0.55, 0.32, 0.2, 0.15]), Form((TOKEN, SHARED)))
    assert (found.inside.points, found.outside.points) == (3, 2)


def test_a_unit_is_held_out_whole() -> None:
    """Two copies of every point do not predict each other."""
    points = one_load(PLANTED, noise=0.2)
    form = Form((REQUEST, TOKEN, PROMPT, SQUARE, ATTENTION), freedom=0.0)
    twice = Points(
        *(np.tile(v, 2) for v in (points.prompt_tokens, points.output_tokens, points.running)),
        np.tile(points.energy_j, 2),
        np.tile(points.unit, 2),
    )
    assert held_out(twice, form).inside.median == pytest.approx(held_out(points, form).inside.median, rel=1e-6)


def test_residuals_tell_which_way_the_curve_errs() -> None:
    points = one_load(PLANTED)
    dear = points.output_tokens == 1024
    curve = fit_curve(replace(points, energy_j=np.where(dear, 2.0, 1.0) * points.energy_j), replicates=20)
    by_output = {left.low: left.median for left in curve.residuals if left.of == "output_tokens"}
    assert by_output[1024] < -0.1
    assert {left.of for left in curve.residuals} == {"prompt_tokens", "output_tokens"}
    assert sum(left.points for left in curve.residuals) == 2 * len(points)


def test_margins_add_up_to_the_whole() -> None:
    curve = fit_curve(grid(), replicates=20)
    successive = [curve.output_token_j(512, i, 2) for i in range(1, 129)]
    assert sum(successive) == pytest.approx(curve.energy_j(512, 128, 2) - curve.energy_j(512, 0, 2))
    assert successive[-1] > successive[0]
    more = curve.another_request_j(512, 128, 4)
    assert 4 * curve.energy_j(512, 128, 4) + more == pytest.approx(5 * curve.energy_j(512, 128, 5))
    assert more < curve.energy_j(512, 128, 4)
    assert curve.prompt_token_j(512, 128, 4) > 0.0


def test_outside_of_what_was_measured_there_is_a_warning() -> None:
    curve = fit_curve(grid(), replicates=20)
    assert curve.warnings(512, 100, 4) == []
    assert len(curve.warnings(10, 2000, 16)) == 3
    assert "32 to 7,168" in curve.warnings(10, 100, 4)[0]


def points_of(p: list[float], o: list[float]) -> Points:
    return Points(np.array(p), np.array(o), np.ones(len(p)), np.array(o) + 1.0, np.arange(len(p)))


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (points_of([], []), "nothing to fit"),
        (points_of([100.0], [10.0]), "prompts do not vary.*add prompts of other lengths"),
        (points_of([100.0] * 9, [float(i) for i in range(1, 10)]), "prompts do not vary"),
        (points_of([100.0 * i for i in range(1, 10)], [200.0] * 9), "outputs do not vary.*200 alone.*max_new_tokens"),
        (points_of([100.0, 101.0, 102.0] * 3, [float(i) for i in range(1, 10)]), "100 to 102"),
        (points_of([100.0, 200.0, 300.0], [1.0, 2.0, 3.0]), "3 different points.*at least 7"),
    ],
)  # fmt: skip
def test_what_cannot_carry_a_curve_is_refused(points: Points, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fit_curve(points)


def test_one_question_asked_often_has_no_held_out_error() -> None:
    points = one_load(PLANTED)
    with pytest.raises(UserError, match="1 question give"):
        fit_curve(replace(points, unit=np.zeros(len(points), dtype=np.int64)))

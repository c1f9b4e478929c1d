"""Where a sweep measures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from joulewise.analysis.curves import Points
from joulewise.analysis.design import Box, Point, first_points, next_point
from joulewise.errors import UserError
from scripted_sweep import planted_j


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    def ends(most: int) -> tuple[int, int]:
        low = draw(st.integers(1, most))
        return low, draw(st.integers(low, most))

    return Box(ends(7168), ends(1024), ends(16))


def inside(box: Box, point: Point) -> bool:
    ends = (box.prompt_tokens, box.output_tokens, box.running)
    return all(low <= x <= high for x, (low, high) in zip(point, ends, strict=True))


@settings(max_examples=60, deadline=None)
@given(box=boxes(), count=st.integers(1, 30), seed=st.integers(0, 99))
def test_first_points_lie_in_the_box_and_are_never_twice(box: Box, count: int, seed: int) -> None:
    points = first_points(box, count, seed)
    assert all(inside(box, point) for point in points)
    assert len(set(points)) == len(points) <= count
    assert points == first_points(box, count, seed)
    assert {point.running for point in points} <= set(box.loads)


@settings(max_examples=40, deadline=None)
@given(box=boxes(), seed=st.integers(0, 99))
def test_every_pair_of_ends_is_measured(box: Box, seed: int) -> None:
    ends = (box.prompt_tokens, box.output_tokens, box.running)
    points = first_points(box, 12, seed)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        pairs = {(point[i], point[j]) for point in points}
        assert {(a, b) for a in ends[i] for b in ends[j]} <= pairs


@settings(max_examples=30, deadline=None)
@given(box=boxes(), seed=st.integers(0, 99), count=st.integers(0, 15))
def test_next_points_are_new_and_in_the_box(box: Box, seed: int, count: int) -> None:
    done = set(first_points(box, 12, seed))
    for _ in range(count):
        point = next_point(box, done, None, seed)
        if point is None:
            break
        assert point not in done
        assert inside(box, point)
        done.add(point)


def test_a_box_of_two_points_has_no_third() -> None:
    box = Box((5, 5), (3, 3), (1, 2))
    assert sorted(first_points(box, 12, 0)) == [Point(5, 3, 1), Point(5, 3, 2)]
    assert next_point(box, {Point(5, 3, 1)}, None, 0) == Point(5, 3, 2)
    assert next_point(box, {Point(5, 3, 1), Point(5, 3, 2)}, None, 0) is None


def test_points_that_cost_too_much_are_left_out() -> None:
    box, done = Box(), set(first_points(Box(), 12, 0))
    point = next_point(box, done, None, 0, lambda p: p.output_tokens < 4)
    assert point is not None
    assert point.output_tokens < 4
    assert next_point(box, done, None, 0, lambda _: False) is None


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 20))
def test_the_design_fills_the_box(seed: int) -> None:
    box = Box()
    places = np.stack([box.place(point) for point in first_points(box, 24, seed)])
    anywhere = np.random.default_rng(0).random((500, 3))
    gaps = np.sqrt(((anywhere[:, None] - places) ** 2).sum(axis=2)).min(axis=1)
    assert gaps.max() < 0.75  # the cube's diagonal is 1.73


@pytest.mark.parametrize("seed", [3, 8, 9])
def test_where_the_fit_is_unsure_comes_first(seed: int) -> None:
    """Short or long outputs were measured with great scatter, all others exactly."""
    box = Box((32, 2048), (1, 512), (1, 8))
    points = list(dict.fromkeys((*box.corners(), *first_points(box, 40, seed))))

    def following(scattered: Callable[[int], bool]) -> int:
        rng = np.random.default_rng(3)
        joules = [planted_j(*p) * (rng.lognormal(0.0, 0.8) if scattered(p.output_tokens) else 1.0) for p in points]
        p, o, b = np.array(points, dtype=np.float64).T
        found = next_point(box, set(points), Points(p, o, b, np.array(joules), np.arange(len(points))), seed)
        assert found is not None
        return found.output_tokens

    assert following(lambda o: o < 8) < 8
    assert following(lambda o: o > 60) > 60


@pytest.mark.parametrize("ends", [(0, 8), (5, 4), (-1, 1)])
def test_a_range_that_is_none_is_refused(ends: tuple[int, int]) -> None:
    for box in (lambda: Box(prompt_tokens=ends), lambda: Box(output_tokens=ends), lambda: Box(running=ends)):
        with pytest.raises(UserError, match="give the least"):
            box()


@settings(max_examples=50, deadline=None)
@given(box=boxes(), x=st.tuples(*[st.floats(0, 1)] * 2))
def test_place_undoes_at(box: Box, x: tuple[float, float]) -> None:
    assume(box.prompt_tokens[0] > 50 and box.output_tokens[0] > 50)
    point = box.at(np.array([*x, 0.0]))
    assert box.at(np.append(box.place(point)[:2], 0.0)) == point

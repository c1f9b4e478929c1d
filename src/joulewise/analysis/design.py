"""Which points to measure for an operating curve: few, spread evenly in logarithms, then where the fit is unsure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np

from joulewise.analysis.curves import Points, unsure
from joulewise.analysis.intervals import Floats
from joulewise.errors import UserError

_CANDIDATES = 64
_FIRST = 12
_BASES = (2, 3, 5)


class Point(NamedTuple):
    """So many requests side by side, all with as many prompt and output tokens."""

    prompt_tokens: int
    output_tokens: int
    running: int

    @property
    def label(self) -> str:
        """Its name in a ledger."""
        return f"p{self.prompt_tokens}-o{self.output_tokens}-b{self.running}"


@dataclass(frozen=True, slots=True)
class Box:
    """The least and the most of what is to be measured.

    Args:
        prompt_tokens, output_tokens: of a request, from 1.
        running: requests side by side, from 1.

    Raises:
        UserError: a range that is none.
    """

    prompt_tokens: tuple[int, int] = (32, 7168)
    output_tokens: tuple[int, int] = (1, 1024)
    running: tuple[int, int] = (1, 8)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                what = name.replace("_", " ")
                raise UserError(f"{what} from {low} to {high}: give the least, from 1 on, and then the most")

    @property
    def loads(self) -> tuple[int, ...]:
        """The loads that are measured: the ends, and powers of two between them; each is memory, and is captured."""
        low, high = self.running
        return tuple(sorted({low, high, *(2**k for k in range(high.bit_length()) if low < 2**k < high)}))

    def at(self, unit: Floats) -> Point:
        """The point at a place in the unit cube, shape ``(3,)``, along logarithms."""
        lengths = (self.prompt_tokens, self.output_tokens)
        p, o = (round(low * (high / low) ** x) for (low, high), x in zip(lengths, unit[:2].tolist(), strict=True))
        return Point(p, o, self.loads[min(int(unit[2] * len(self.loads)), len(self.loads) - 1)])

    def place(self, point: Point) -> Floats:
        """The inverse of ``at``, shape ``(3,)``; where a range is one number, 0."""
        ends = (self.prompt_tokens, self.output_tokens, self.running)
        found = [
            np.log(x / low) / np.log(high / low) if high > low else 0.0
            for x, (low, high) in zip(point, ends, strict=True)
        ]
        return np.array(found)

    def corners(self) -> list[Point]:
        """All ends with all ends. The first half holds every pair of two axes' ends."""
        cube = np.array([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)], dtype=np.float64)
        odd = cube.sum(axis=1) % 2
        return list(dict.fromkeys(self.at(corner) for corner in cube[np.argsort(1 - odd, kind="stable")]))


def first_points(box: Box, count: int, seed: int) -> list[Point]:
    """A space-filling design: half of the corners, which have every pair of ends, and Halton's sequence; shuffled.

    Halton's sequence is shifted at random (Cranley and Patterson 1976, "Randomization of number theoretic methods for
    multiple integration"). Fewer points than asked for, where the box has no more.
    """
    corners = box.corners()
    found = dict.fromkeys(corners[: max(4, len(corners) // 2)][:count])
    for point in _sequence(box, 20 * count + 100, seed):
        if len(found) >= count:
            break
        found[point] = None
    points, order = list(found), Random(seed)
    # Corners stay in the first half, for a sweep whose time is up before its design is measured.
    halves = points[:_FIRST], points[_FIRST:]
    return [point for half in halves for point in order.sample(half, len(half))]


def next_point(
    box: Box,
    done: Collection[Point],
    measured: Points | None,
    seed: int,
    fits: Callable[[Point], bool] = lambda _: True,
) -> Point | None:
    """The point to measure next: where the bootstrap's predictions scatter most, away from what is measured.

    Args:
        box: where.
        done: measured already, or given up.
        measured: their joules; None, or too few for a curve: the most remote point.
        seed: of the candidates: the corners, and the next of Halton's sequence.
        fits: whether a point can be afforded.

    Returns:
        None where no candidate is left.
    """
    left = [point for point in _sequence(box, 20 * (len(done) + _CANDIDATES), seed) if point not in done][:_CANDIDATES]
    left = [p for p in dict.fromkeys((*box.corners(), *left)) if p not in done and fits(p)]
    if not left:
        return None
    places = np.stack([box.place(point) for point in left])
    score = np.ones(len(left))
    if done:
        known = np.stack([box.place(point) for point in done])
        score = np.sqrt(((places[:, None] - known) ** 2).sum(axis=2)).min(axis=1)
    if measured is not None:
        p, o, b = np.array(left, dtype=np.float64).T
        with suppress(UserError):  # too few to tell
            score = score * unsure(measured, (p, o, b))
    return left[int(np.argmax(score))]


def _sequence(box: Box, count: int, seed: int) -> list[Point]:
    """The first points of Halton's sequence, shifted, each once."""
    shift = np.random.default_rng(seed).random(3)
    places = (np.array([[_radical(i, base) for base in _BASES] for i in range(1, count + 1)]) + shift) % 1.0
    return list(dict.fromkeys(box.at(place) for place in places))


def _radical(index: int, base: int) -> float:
    """The digits of a number mirrored at the point (Halton 1960, "On the efficiency of certain sequences")."""
    found, scale = 0.0, 1.0
    while index:
        index, digit = divmod(index, base)
        scale /= base
        found += digit * scale
    return found

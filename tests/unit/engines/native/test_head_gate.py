"""A head that is hardly ever accepted is told of, once."""

from __future__ import annotations

import warnings

import pytest

from joulewise.engines.engine import Round
from joulewise.engines.native.heads.gate import Gate


def seen(accepted: list[int], generations: int) -> list[str]:
    """The warnings after so many generations with these rounds each."""
    gate = Gate("eagle3-60x5x10", "some/head")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(generations):
            gate.see([Round(59, each) for each in accepted])
    return [str(each.message) for each in caught]


def test_after_ten_generations_a_useless_head_is_told_of_once() -> None:
    assert seen([0, 0, 1, 0], 9) == []
    (said,) = seen([0, 0, 1, 0], 30)
    assert said.startswith("eagle3-60x5x10: a round gives 1.25 tokens over the first 10 answers")
    assert "Suspect that some/head was made for another fine-tune" in said


@pytest.mark.parametrize("accepted", [[0, 0, 1, 0, 1], [3], []])
def test_a_fair_head_and_no_rounds_at_all_are_not(accepted: list[int]) -> None:
    assert seen(accepted, 30) == []

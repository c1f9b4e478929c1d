"""The figures of a check: tokens a round, positions, repetition, and the gate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.engines.engine import Round
from joulewise.engines.native.training.check import Checked, Fared, _fared, gate, kind_of, repeated_share
from joulewise.errors import UserError


def checked(length: float | None) -> tuple[Checked, ...]:
    fared = Fared(1, 10, 5, length, (), ((5, 2),))
    return (Checked("coga-5", fared, fared),)


def test_acceptance_counts_the_targets_own_token() -> None:
    rounds = (Round(5, 2), Round(5, 0), Round(5, 1), Round(0, 0))
    fared = _fared([((1,) * 8, rounds), ((2,), ())])
    assert (fared.outputs, fared.tokens, fared.rounds) == (2, 9, 4)
    assert fared.length == pytest.approx(1 + 3 / 4)
    assert fared.per_position == (0.5, 0.25)
    assert fared.by_output == ((4, 3), (0, 0))
    assert _fared([((2,), ())]) == Fared(1, 1, 0, None, (), ((0, 0),))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_positions_never_rise_and_add_up(accepted: list[int]) -> None:
    fared = _fared([((), tuple(Round(6, n) for n in accepted))])
    assert list(fared.per_position) == sorted(fared.per_position, reverse=True)
    assert fared.length == pytest.approx(1 + sum(accepted) / len(accepted))


def test_repetition_is_told_by_eight_tokens_in_a_row() -> None:
    assert repeated_share(range(50)) == 0.0
    assert repeated_share([1, 2, 3]) == 0.0
    assert repeated_share([7] * 17) == pytest.approx(0.9)
    assert repeated_share([*range(10), *range(8)]) == pytest.approx(1 / 11)


def test_the_gate() -> None:
    assert gate(checked(1.31)) is None
    assert "coga-5 keeps 1.30 tokens a round" in str(gate(checked(1.3)))
    assert "had no rounds" in str(gate(checked(None)))


def test_what_a_name_is() -> None:
    assert kind_of("first-layers:2") == "draft"
    with pytest.raises(UserError):
        kind_of("no such/head at all")

"""The words of `joulewise heads check`: intervals of the acceptance length, and warnings of few prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.engines.engine import Round
from joulewise.engines.native.training.check import Checked, _fared
from joulewise.report.heads import FEW, as_json, length_of, table, warnings


def checked(*accepted: list[int]) -> tuple[Checked, ...]:
    """CoGA over outputs whose rounds accepted so many tokens."""
    fared = _fared([((1,) * 9, tuple(Round(5, n) for n in its)) for its in accepted])
    return (Checked("coga-5", fared, _fared([])),)


def test_an_interval_from_five_prompts_on() -> None:
    assert length_of(checked(*[[1, 2]] * 4)[0].everything).lower is None
    length = length_of(checked([0, 1], [1, 1], [2, 3], [0, 0], [3, 1])[0].everything)
    assert length.value == pytest.approx(1 + 12 / 10)
    assert length.lower is not None
    assert length.upper is not None
    assert 1.0 <= length.lower < 1.8 < 2.6 < length.upper <= 4.0


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=5, max_size=30))
def test_the_interval_holds_the_figure(accepted: list[list[int]]) -> None:
    length = length_of(checked(*accepted)[0].everything)
    assert length.lower is not None
    assert length.value is not None
    assert length.upper is not None
    assert 1.0 <= length.lower <= length.value <= length.upper <= 6.0


def test_few_prompts_are_warned_of() -> None:
    (one,) = warnings(checked([3]), 1.3)
    assert one.startswith("Only 1 prompt: fewer than 5 give no interval")
    (some,) = warnings(checked(*[[2, 3]] * (FEW - 1)), 1.3)
    assert some.startswith(f"Only {FEW - 1} prompts: another few may give another figure")
    assert warnings(checked(*[[2, 3]] * FEW), 1.3) == []


def test_a_gate_within_the_interval_is_told() -> None:
    near = checked(*[[0, 0], [1, 0], [0, 1], [0, 0], [1, 1]] * 6)
    assert warnings(near, 1.3) == ["The gate of 1.3 lies within the interval, so which side it is on cannot be told."]
    assert warnings(near, 3.0) == []


def test_the_table_and_the_file() -> None:
    found = checked(*[[0, 1], [1, 1], [2, 3]] * 8)
    line = table(found).splitlines()[1]
    assert line.startswith("coga-5 ")
    assert "2.33 (" in line
    assert ", n 24 " in line
    assert "-, n 0" in line
    (plain,) = as_json(found, 1.3, head="h")["decodings"]
    low, high = plain["everything"]["interval"]
    assert low < 2.33 < high
    assert plain["unrepetitive"]["interval"] is None
    assert plain["everything"]["by_output"][0] == (2, 1)

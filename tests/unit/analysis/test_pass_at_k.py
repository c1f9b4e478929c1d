"""pass@k against all subsets counted one by one, and which cells have one."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.analysis.cells import split
from joulewise.analysis.pass_at_k import METRIC, pass_at_k, passes
from joulewise.report.markdown import render
from joulewise.report.summary import summarise
from joulewise.tasks import code_answer
from synthetic_table import part, row, table


def samples(question: str, right: str, *, outputs: str | None = None, **other: Any) -> list[dict[str, Any]]:
    """A row for each letter of ``right``: ``x`` passes."""
    hashes = outputs or "abcdefghijklmnop"
    more = {"task": "humaneval", "metric": METRIC, **other}
    return [
        row(question=question, repeat=i, correct=c == "x", score=float(c == "x"), output_hash=h, **more)
        for i, (c, h) in enumerate(zip(right, hashes, strict=False))
    ]


@given(st.data())
def test_it_is_the_share_of_subsets_with_a_right_sample(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_the_ends() -> None:
    assert pass_at_k(200, 0, 100) == 0.0
    assert pass_at_k(200, 200, 1) == pass_at_k(200, 101, 100) == 1.0
    assert pass_at_k(10_000, 1, 1) == pytest.approx(1e-4)
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4)


@pytest.mark.parametrize(("n", "c", "k"), [(0, 0, 1), (5, 6, 1), (5, -1, 1), (5, 1, 0), (5, 1, 6)])
def test_numbers_that_do_not_go_together(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} of {c} right among {n} samples"):
        pass_at_k(n, c, k)


def test_a_cell_s_is_the_mean_over_questions_each_by_its_own_samples() -> None:
    (found,) = passes(split(table(samples("q1", "x..") + samples("q2", "x.x.") + samples("q3", "..."))), (1, 2, 4))
    at = dict(found.at)
    assert found.samples == 3
    assert at[1].value == pytest.approx((1 / 3 + 1 / 2 + 0) / 3)
    assert at[2].value == pytest.approx((2 / 3 + 5 / 6 + 0) / 3)
    assert (at[1].n_questions, at[1].n_trials) == (3, 10)
    assert at[1].lower is not None
    assert at[1].upper is not None
    assert 0.0 < at[1].lower < at[1].value < at[1].upper < 1.0
    assert (at[4].value, at[4].reason) == (None, "a question has 3 samples")


def test_greedy_repeats_are_no_samples_and_other_tasks_have_none() -> None:
    greedy = samples("q1", "xx", outputs="aa") + samples("q2", "..", outputs="bb")
    assert passes(split(table(greedy))) == ()
    assert passes(split(table(samples("q1", "x") + samples("q2", ".")))) == ()
    assert passes(split(table(samples("q1", "x.", metric="math_match")))) == ()
    assert METRIC == code_answer.METRIC


def test_the_report_tells_it_where_there_are_so_many_samples() -> None:
    energy = {"energy": [part("gpu", 2.0)]}
    rows = samples("q1", "x.", **energy) + samples("q2", "..", **energy)
    told = render(summarise(table(rows), ks=(1, 2, 10))).replace("\\@", "@")
    assert "pass@1, %" in told
    assert "pass@2, %" in told
    assert "pass@10" not in told
    assert "25.0" in told
    assert "Programs: does one of k samples pass?" not in render(summarise(table(samples("q1", "x", **energy))))

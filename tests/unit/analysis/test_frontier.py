"""Pareto's frontier, tests of differences and their correction: what must hold for any cells."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from joulewise.analysis.cells import CellKey, split
from joulewise.analysis.contrast import adjusted_wald, contrast, holm, judged, mcnemar
from joulewise.analysis.frontier import pareto
from joulewise.analysis.side_by_side import Board, Sample
from joulewise.analysis.tradeoffs import Wishes, tradeoffs
from synthetic_table import part, row, table

numbers = st.integers(0, 5).map(float)
cells = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8)
chances = st.lists(st.floats(0.0, 1.0), max_size=12)


@given(cells)
def test_the_frontier_is_never_empty_and_holds_nothing_that_is_beaten(points):
    quality, energy = (np.array(column) for column in zip(*points, strict=True))
    optimal = pareto(quality, energy)
    assert optimal.any()

    def beats(a, b):
        return a[0] >= b[0] and a[1] <= b[1] and a != b

    for point, on_it in zip(points, optimal, strict=True):
        assert on_it != any(beats(other, point) for other in points)


@given(st.lists(cells, min_size=2, max_size=4).filter(lambda rows: len({len(r) for r in rows}) == 1))
def test_each_sample_has_its_own_frontier(rows):
    values = np.array(rows)
    together = pareto(values[..., 0], values[..., 1])
    for one, alone in zip(together, values, strict=True):
        assert (one == pareto(alone[:, 0], alone[:, 1])).all()


@given(chances)
def test_holm_is_monotone_and_never_below_a_chance(found):
    among = holm(found)
    assert all(p <= q <= 1.0 for p, q in zip(found, among, strict=True))
    ranked = [q for _, q in sorted(zip(found, among, strict=True))]
    assert ranked == sorted(ranked)


def test_holm_by_hand():
    # 0.01 x 3; 0.03 x 2; 0.04 x 1, but not below the one before
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5]) == [0.5]
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_a_fair_coins_test(lost, gained):
    expected = stats.binomtest(lost, lost + gained, 0.5).pvalue if lost + gained else 1.0
    assert mcnemar(lost, gained) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(lost, gained) == mcnemar(gained, lost)


def test_mcnemar_far_out():
    assert 0.0 < mcnemar(2000, 2400) < 1e-8
    assert mcnemar(0, 1000) == pytest.approx(2.0**-999)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 100))
def test_the_interval_of_a_difference(lost, gained, same):
    n = max(1, lost + gained + same)
    low, high = adjusted_wald(lost, gained, n)
    assert -1.0 <= low < high <= 1.0
    assert adjusted_wald(gained, lost, n) == pytest.approx((-high, -low))


def test_how_often_the_interval_of_a_difference_holds_the_truth():
    rng = np.random.default_rng(1)
    for n, lost, gained in ((10, 0.1, 0.2), (25, 0.05, 0.05), (100, 0.02, 0.1)):
        drawn = rng.multinomial(n, [lost, gained, 1 - lost - gained], size=2000)
        ends = np.array([adjusted_wald(b, c, n) for b, c, _ in drawn])
        held = ((ends[:, 0] <= gained - lost) & (gained - lost <= ends[:, 1])).mean()
        assert held >= 0.93, (n, lost, gained, held)


@pytest.mark.slow
@pytest.mark.parametrize(("scatter", "most"), [(0.1, 0.10), (0.5, 0.15)])
def test_how_often_a_table_has_a_false_verdict(scatter, most):
    """57 subjects of 10 questions, three ways against one, nothing differs: 5 % and 9 % of 150 tables (100 here)."""
    rng, tables = np.random.default_rng(0), 100
    keys = tuple(CellKey("r", "e", "m", f"way-{i}", "t", "vanilla") for i in range(4))
    false = 0
    for _ in range(tables):
        found = []
        for _ in range(57):
            right = (0.6 * rng.random((10, 1)) + 0.4 * rng.random((10, 4)) < 0.5).astype(float)
            joules = np.exp(rng.normal(0.0, 0.5, (10, 1)) + rng.normal(0.0, scatter, (10, 4)))
            trials, errors = np.ones((10, 4), dtype=np.int64), np.zeros((2, 10, 4))
            known = (None,) * 10, right, joules, joules, joules, errors, trials, ("measured",) * 4
            sample = Sample(Board(keys, "gpu", "accuracy", *known, 10, 0, ()), np.arange(10))
            found += [contrast(sample, 0, way) for way in (1, 2, 3)]
        verdicts = {verdict for one in judged(found) for verdict in (one.quality_verdict, one.energy_verdict)}
        false += verdicts != {"cannot tell"}
    assert false / tables <= most


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(2, 5))
@settings(max_examples=25, deadline=None)
def test_what_holds_for_any_run(seed, questions, ways):
    rng = random.Random(seed)
    rows = [
        row(
            question=f"q{q}",
            reasoning=f"budget-{2**way}" if way else "direct",
            category=rng.choice("ab"),
            energy=[part("gpu", rng.uniform(0.1, 50.0), gain=rng.choice([0.0, 0.05]))],
            correct=rng.random() < 0.4,
        )
        for q in range(questions)
        for way in range(ways)
    ]
    found = [split(table(rows)), split(table(rng.sample(rows, len(rows))))]
    one, shuffled = (tradeoffs(part_, {c.key.head: "total" for c in part_}, Wishes(reach=0.4)) for part_ in found)
    assert one == shuffled
    (tradeoff,) = one
    assert any(place.optimal for place in tradeoff.places)
    assert {p.key for p in tradeoff.places if not p.optimal} == {d.loser for d in tradeoff.dominances}
    assert not {d.winner for d in tradeoff.dominances} & {None}
    for place in tradeoff.places:
        assert (place.frequency is None) == (questions < 5)
        assert 0.0 <= (place.frequency or 0.0) <= 1.0
    for worth in (cell for group in tradeoff.groups for cell in group.cells):
        per_correct, per_kj = worth.energy_per_correct_answer_j, worth.correct_answers_per_kj
        if per_correct.value is not None:
            assert per_kj.value * per_correct.value == pytest.approx(1000.0)
        else:
            assert (per_kj.value, worth.quality.value) == (0.0, 0.0)
        for figure in (worth.quality, worth.energy_per_answer_j, per_kj):
            if figure.lower is not None and figure.upper is not None:
                assert figure.lower <= figure.value <= figure.upper
    assert sum(g.questions for g in tradeoff.groups if g.level == "category") in (0, questions)
    for advice in (a for curve in tradeoff.curves for a in curve.advice):
        assert (advice.best is None) == (advice.questions < 5)
        assert advice.best is None or advice.best in advice.may_be

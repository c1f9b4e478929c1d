"""How well a cell is measured: by hand, and how often the interval holds the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from joulewise.analysis.cells import split
from joulewise.analysis.precision import Precision, precision
from joulewise.energy.reading import Z95, ComponentEnergy
from joulewise.report.summary import summarise
from joulewise.report.text import trial_notes
from synthetic_table import part, row, table

T_AT_4 = 2.7764451
"""Student's t at 97.5 %, four degrees of freedom."""


def only(rows: list[dict[str, object]]) -> Precision:
    (cell,) = split(table(rows))
    return precision(cell)


def uncertain(energy_j: float, standard_j: float = 0.0) -> ComponentEnergy:
    return ComponentEnergy("gpu", "measured", energy_j, start_edge_j=standard_j, gain_j=0.05 * energy_j)


def test_one_repeat_has_what_the_meter_states() -> None:
    found = only([row(question=f"q{i}", energy=[uncertain(100.0, 3.0)]) for i in range(4)])
    assert found.relative_half_width == pytest.approx(Z95 * 6.0 / 400.0)  # four times 3 J; the gain is no part of it
    assert (found.repeats, found.duration_s, found.component) == (1, 4.0, "total")


def test_repeats_that_scatter_more_than_the_meter_states_count() -> None:
    # Two questions three times: 97, 100, 103 J and 50, 50, 50 J. Within the first s^2 = 9, its sum of three has 27.
    rows = [row(question="a", repeat=r, energy=[uncertain(e)]) for r, e in enumerate((97.0, 100.0, 103.0))]
    rows += [row(question="b", repeat=r, energy=[uncertain(50.0)], output_tokens=4) for r in range(3)]
    assert only(rows).relative_half_width == pytest.approx(T_AT_4 * math.sqrt(27.0) / 450.0)
    stated = [r | {"total_independent_j": 10.0} for r in rows]
    assert only(stated).relative_half_width == pytest.approx(Z95 * 10.0 * math.sqrt(6) / 450.0)


def test_joules_that_follow_the_tokens_do_not_scatter() -> None:
    rows = [
        row(question="a", repeat=r, energy=[part("gpu", 2.0 * n)], output_tokens=n) for r, n in enumerate((5, 9, 20))
    ]
    assert only(rows).relative_half_width == pytest.approx(0.0, abs=1e-12)


def test_the_measured_component_counts_and_unknown_joules_are_unknown() -> None:
    mixed = only([row(energy=[part("gpu", 100.0), part("cpu", 5.0, "modelled", gain=0.5)])])
    assert mixed.component == "gpu"
    lost = only([row(energy=[part("gpu", None)])])
    assert (lost.relative_half_width, lost.repeats) == (None, 1)
    failed = only([row(status="failed")])
    assert (failed.relative_half_width, failed.repeats) == (None, 0)


def test_the_interval_holds_the_truth() -> None:
    rng = np.random.default_rng(0)
    tokens = np.array([20, 50, 80, 110, 140])
    inside = 0
    for _ in range(200):
        energy = 3.0 * tokens + rng.normal(0.0, 15.0, (4, 5))
        rows = [
            row(question=f"q{q}", repeat=r, energy=[part("gpu", energy[r, q])], output_tokens=int(tokens[q]))
            for r in range(4)
            for q in range(5)
        ]
        off = abs(energy.sum() / (4 * tokens.sum()) / 3.0 - 1.0)
        half = only(rows).relative_half_width
        inside += off <= half * energy.sum() / (4 * tokens.sum() * 3.0)
    assert 183 <= inside <= 198  # 190 +- 2.5 standard deviations


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (0.05, "Measured to 5 % or better (joules per output token of these very questions, gain apart): 1 of 1 cell,"),
        (
            0.01,
            "0 of 1 cell, with up to 1 repeat. Not yet, or not within the plan's budget: vanilla on maths at 2.94 %",
        ),
        (None, None),
    ],
)
def test_the_report_says_what_a_target_has_come_to(target: float | None, words: str | None) -> None:
    plan = {} if target is None else {"target": {"relative_half_width": target, "max_repeats": 3}}
    rows = [row(question=f"q{i}", energy=[uncertain(100.0, 3.0)]) for i in range(4)]
    summary = summarise(table(rows, plans={"r": plan}))
    notes = [note for note in trial_notes(summary.runs[0], summary) if note.startswith("Measured to")]
    assert len(notes) == (words is not None)
    if words is not None:
        assert words in notes[0]

"""Costs: known answers by hand, and what must hold for any ledger."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.analysis.cells import split
from joulewise.analysis.per_token import COMPONENTS, cell_cost, costs
from synthetic_table import part, row, table

QUESTIONS = [f"q{i}" for i in range(1, 11)]


def only(rows, **arguments):
    (found,) = costs(split(table(rows)), **arguments)
    return found


def test_costs_by_hand():
    # Ten questions, each 20 prompt and 10 output tokens, 36 J on the GPU, 14 J in the CPU, 2 s; 4 of 10 correct.
    energy = [part("gpu", 36.0), part("cpu", 14.0)]
    found = only(
        [
            row(question=q, energy=energy, duration_s=2.0, correct=i < 4, metric="exact", score=float(i < 4))
            for i, q in enumerate(QUESTIONS)
        ],
        price_per_kwh=0.30,
    )
    gpu, total = found.component("gpu"), found.component("total")
    assert gpu.energy_per_token_j.value == pytest.approx(360 / 300)  # 360 J over 10 * (20 + 10) tokens
    assert gpu.energy_per_output_token_j.value == pytest.approx(3.6)  # 360 J / 100
    assert gpu.energy_per_answer_j.value == pytest.approx(36.0)
    assert gpu.energy_per_correct_answer_j.value == pytest.approx(90.0)  # 360 J / 4
    assert gpu.correct_answers_per_kj.value == pytest.approx(1000 / 90)
    assert gpu.correct_answers_per_kj.lower == pytest.approx(1000 / gpu.energy_per_correct_answer_j.upper)
    assert gpu.energy_per_1000_output_tokens_wh.value == pytest.approx(1.0)  # 3,600 J = 1 Wh
    assert gpu.energy_per_million_output_tokens_kwh.value == pytest.approx(1.0)  # 3.6 MJ = 1 kWh
    assert gpu.price_per_1000_output_tokens.value == pytest.approx(0.0003)  # 0.001 kWh at 0.30
    assert total.energy_per_output_token_j.value == pytest.approx(5.0)  # (360 + 140) J / 100
    assert found.time_per_output_token_s.value == pytest.approx(0.2)  # 20 s / 100
    assert found.output_tokens_per_second.value == pytest.approx(5.0)
    assert found.accuracy.value == pytest.approx(0.4)
    assert found.score.value == pytest.approx(0.4)
    assert (found.prompt_tokens, found.output_tokens, found.metric) == (200, 100, "exact")
    # Wilson, 4 of 10: centre (0.4 + 3.8415 / 20) / 1.38415 = 0.42775, half 1.41602 * sqrt(0.024 + 0.0096037) = 0.25957
    assert (found.accuracy.lower, found.accuracy.upper) == pytest.approx((0.16818, 0.68732), abs=1e-4)
    # All questions cost alike: no spread, and the meter was said to be exact.
    assert (gpu.energy_per_answer_j.lower, gpu.energy_per_answer_j.upper) == pytest.approx((36.0, 36.0))
    assert gpu.energy_per_correct_answer_j.lower < 90.0 < gpu.energy_per_correct_answer_j.upper


def test_joules_per_answer_hold_all_requests_of_an_answer():
    # Two questions, voted on with 3 and 2 samples of 12 J each; one is right: 60 J a correct answer.
    found = only(
        [
            row(question="q1", energy=[part("gpu", 36.0)], generation_count=3, output_tokens=30, correct=True),
            row(question="q2", energy=[part("gpu", 24.0)], generation_count=2, output_tokens=20, correct=False),
            row(question="q3", status="failed"),
        ]
    )
    assert found.requests_per_answer == 2.5
    gpu = found.component("gpu")
    assert (gpu.energy_per_answer_j.value, gpu.energy_per_correct_answer_j.value) == pytest.approx((30.0, 60.0))
    assert gpu.energy_per_output_token_j.value == pytest.approx(1.2)
    assert only([row(status="failed")]).requests_per_answer is None


def test_the_meters_gain_and_offset_widen_absolute_joules():
    # 50 J a Trial, gain 2 % (1 J) and offset 0.5 J: u = 1.5 / 50 = 3 %;
    # ends 5 * exp(+-1.959964 * 0.03) = 5.30280, 4.71449
    found = only([row(question=q, energy=[part("gpu", 50.0, gain=0.02, offset_j=0.5)]) for q in QUESTIONS])
    quantity = found.component("gpu").energy_per_output_token_j
    assert quantity.common == pytest.approx(0.03)
    assert (quantity.lower, quantity.upper) == pytest.approx((4.71449, 5.30280), abs=1e-5)
    # In the total, the gains of the parts add: (1 + 0.5 + 5 * 0.1) / 55
    both = [part("gpu", 50.0, gain=0.02, offset_j=0.5), part("cpu", 5.0, gain=0.1)]
    found = only([row(question=q, energy=both) for q in QUESTIONS])
    assert found.component("total").energy_per_output_token_j.common == pytest.approx(2.0 / 55)


def test_none_correct_leaves_a_lower_end_only():
    found = only([row(question=q, energy=[part("gpu", 36.0)], correct=False) for q in QUESTIONS])
    quantity = found.component("gpu").energy_per_correct_answer_j
    assert (quantity.value, quantity.upper, quantity.unbounded) == (None, None, True)
    # 36 J an answer over Wilson's upper end of 0 of 10, 0.27753: at least 129.7 J
    assert quantity.lower == pytest.approx(36.0 / 0.27753, rel=1e-4)
    assert "no answer is correct" in quantity.reason
    assert quantity.provenance == "measured"
    per_kj = found.component("gpu").correct_answers_per_kj
    assert (per_kj.value, per_kj.lower, per_kj.upper) == pytest.approx((0.0, 0.0, 1000 / quantity.lower))


def test_few_correct_may_leave_no_upper_end():
    # 1 of 10 correct: a bootstrap sample has none with probability 0.9^10 = 35 %
    found = only([row(question=q, energy=[part("gpu", 36.0)], correct=q == "q1") for q in QUESTIONS])
    quantity = found.component("gpu").energy_per_correct_answer_j
    assert quantity.value == pytest.approx(360.0)
    assert quantity.upper is None
    assert quantity.unbounded
    assert quantity.lower < 360.0
    assert found.component("gpu").correct_answers_per_kj.lower == 0.0


def test_a_task_without_right_and_wrong_has_scores_only():
    found = only(
        [row(question=q, energy=[part("gpu", 1.0)], score=0.1 * i, metric="rouge_l") for i, q in enumerate(QUESTIONS)]
    )
    assert found.accuracy.value is None
    assert found.component("gpu").energy_per_correct_answer_j.value is None
    assert "no right and wrong" in found.component("gpu").energy_per_correct_answer_j.reason
    assert found.score.value == pytest.approx(0.45)  # mean of 0.0, 0.1 ... 0.9
    assert 0.0 <= found.score.lower < 0.45 < found.score.upper <= 1.0


def test_repeats_do_not_make_accuracy_surer():
    rows = [row(question=q, repeat=r, correct=i < 4) for i, q in enumerate(QUESTIONS) for r in range(5)]
    accuracy = only(rows).accuracy
    assert (accuracy.lower, accuracy.upper) == pytest.approx((0.16818, 0.68732), abs=1e-4)  # as 4 of 10 above
    assert (accuracy.n_questions, accuracy.n_trials) == (10, 50)


def test_no_price_no_price_figure():
    assert only([row(energy=[part("gpu", 1.0)])]).component("gpu").price_per_1000_output_tokens is None


def test_components_that_are_not_there_or_cannot_be_read():
    found = only([row(question=q, energy=[part("cpu", 5.0, "modelled"), part("dram", None)]) for q in QUESTIONS])
    assert found.component("gpu").energy_per_token_j.reason == "no GPU was metered here"
    assert found.component("dram").energy_per_token_j.reason == "the memory joules could not be read"
    assert found.component("total").energy_per_token_j.reason == "the total joules could not be read"
    assert found.component("cpu").energy_per_token_j.provenance == "modelled"
    assert {c.component: c.energy_per_answer_j.provenance for c in found.components} == {
        "gpu": "unknown",
        "cpu": "modelled",
        "dram": "unknown",
        "total": "unknown",
    }


def test_trials_without_joules_are_left_out_not_counted_as_0():
    rows = [row(question=q, energy=[part("gpu", None if q == "q1" else 10.0)]) for q in QUESTIONS]
    quantity = only(rows).component("gpu").energy_per_answer_j
    assert quantity.value == pytest.approx(10.0)
    assert (quantity.n_questions, quantity.n_trials) == (9, 9)


def test_a_cell_whose_trials_all_failed():
    found = only([row(question=q, status="failed", error="boom", output_tokens=0) for q in QUESTIONS])
    assert found.accuracy.reason == found.score.reason == found.time_per_output_token_s.reason == "no Trial succeeded"
    assert {c.energy_per_answer_j.reason for c in found.components} == {"no Trial succeeded"}


def test_zero_tokens_and_zero_joules_are_unknown():
    found = only([row(question=q, energy=[part("gpu", 0.0)], output_tokens=0) for q in QUESTIONS])
    gpu = found.component("gpu")
    assert gpu.energy_per_answer_j.value is None
    assert "0 J" in gpu.energy_per_answer_j.reason
    assert gpu.energy_per_output_token_j.value is None
    assert found.time_per_output_token_s.reason == "no tokens were put out"


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.1, 1e4), st.integers(1, 500), st.floats(0.01, 100), st.booleans()),
        min_size=5,
        max_size=12,
    )
)
def test_intervals_hold_values_and_units_agree(sample):
    (cell,) = split(
        table(
            row(question=f"q{i}", energy=[part("gpu", e, gain=0.05)], output_tokens=n, duration_s=t, correct=right)
            for i, (e, n, t, right) in enumerate(sample)
        )
    )
    found = cell_cost(cell)
    gpu = found.component("gpu")
    quantities = [
        found.accuracy,
        found.time_per_output_token_s,
        found.output_tokens_per_second,
        gpu.energy_per_token_j,
        gpu.energy_per_output_token_j,
        gpu.energy_per_answer_j,
        gpu.energy_per_correct_answer_j,
    ]
    for quantity in quantities:
        assert quantity.value is not None or quantity.unbounded
        if quantity.value is not None:
            assert quantity.lower <= quantity.value
            assert quantity.unbounded or quantity.value <= quantity.upper
    assert gpu.energy_per_token_j.value < gpu.energy_per_output_token_j.value
    assert found.time_per_output_token_s.value * found.output_tokens_per_second.value == pytest.approx(1.0)
    assert gpu.energy_per_1000_output_tokens_wh.value * 3.6 == pytest.approx(gpu.energy_per_output_token_j.value)
    assert [c.component for c in found.components] == list(COMPONENTS)

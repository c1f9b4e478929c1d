"""Savings: known answers by hand, and what must hold for any ledger."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.analysis.cells import split
from joulewise.analysis.savings import savings
from synthetic_table import part, row, table

QUESTIONS = [f"q{i}" for i in range(1, 7)]


def only(rows):
    (found,) = savings(split(table(rows)))
    return found


def pair(theirs, ours, **common):
    """Rows of vanilla and coga-5 over six equal questions; ``theirs`` and ``ours`` are arguments of ``row``."""
    return [
        row(decoding, q, **{**common, **arguments})
        for decoding, arguments in (("vanilla", theirs), ("coga-5", ours))
        for q in QUESTIONS
    ]


def test_the_three_factors_by_hand():
    rows = []
    for i, q in enumerate(QUESTIONS):
        # Vanilla: 2 s, 100 J on the GPU and 20 J in the CPU for 10 tokens, but 40 tokens, 8 s, 400 J, 80 J for q1.
        m = 4 if i == 0 else 1
        rows.append(row("vanilla", q, energy=[part("gpu", 100.0 * m), part("cpu", 20.0 * m)], duration_s=2.0 * m,
                        output_tokens=10 * m))  # fmt: skip
        rows.append(row("coga-5", q, energy=[part("gpu", 80.0), part("cpu", 10.0)], duration_s=1.0, output_tokens=10))
    found = only(rows)
    # Sums: vanilla t = 8 + 5 * 2 = 18 s, GPU 900 J, total 900 + 180 = 1080 J, tokens 40 + 50 = 90.
    #       coga-5  t = 6 s, GPU 480 J, total 540 J, tokens 60.
    # gamma_t = (18 / 90) / (6 / 60) = 0.2 / 0.1 = 2
    # gamma_GPU = (900 / 90) / (480 / 60) = 10 / 8 = 1.25
    # gamma_Total = (1080 / 90) / (540 / 60) = 12 / 9 = 4 / 3
    # power = gamma_t / gamma_GPU = 1.6: vanilla 900 J / 18 s = 50 W, coga-5 480 J / 6 s = 80 W
    assert found.time.ratio.value == pytest.approx(2.0)
    assert found.gpu.ratio.value == pytest.approx(1.25)
    assert found.total.ratio.value == pytest.approx(4 / 3)
    assert found.power.value == pytest.approx(1.6)
    # Every question has the same cost per token in either cell, so that the questions' spread adds nothing.
    assert found.gpu.ratio.lower == pytest.approx(1.25)
    assert found.gpu.ratio.upper == pytest.approx(1.25)
    assert (found.time.verdict, found.gpu.verdict, found.total.verdict) == ("faster", "saves energy", "saves energy")
    assert (found.gpu.ratio.n_questions, found.gpu.ratio.n_trials, found.gpu.dropped) == (6, 6, 0)


def test_faster_yet_more_energy_is_shown_as_such():
    # gamma_t = 2 / 1 = 2, gamma_GPU = 100 / 125 = 0.8
    found = only(
        pair(
            {"energy": [part("gpu", 100.0)], "duration_s": 2.0},
            {"energy": [part("gpu", 125.0)], "duration_s": 1.0},
        )
    )
    assert found.gpu.ratio.value == pytest.approx(0.8)
    assert (found.time.verdict, found.gpu.verdict) == ("faster", "costs energy")


def test_gain_cancels_in_a_component_but_not_in_the_total():
    # GPU: 100 J against 50 J, gain 2 %. CPU: 100 J against 100 J, gain 5 %. Totals 200 J and 150 J.
    # GPU shares: 0.5 and 1/3; CPU shares 1/2 and 2/3.
    # u = 0.02 * |1/2 - 1/3| + 0.05 * |1/2 - 2/3| = 0.07 / 6 = 0.0116667
    found = only(
        pair(
            {"energy": [part("gpu", 100.0, gain=0.02), part("cpu", 100.0, gain=0.05)]},
            {"energy": [part("gpu", 50.0, gain=0.02), part("cpu", 100.0, gain=0.05)]},
        )
    )
    assert found.gpu.ratio.common == pytest.approx(0.0, abs=1e-12)
    assert found.total.ratio.common == pytest.approx(0.07 / 6)
    # gamma_Total = 200 / 150 = 4/3; its ends are 4/3 * exp(+-1.959964 * 0.0116667) = 1.36417 and 1.30319
    assert found.total.ratio.upper == pytest.approx(1.36417, abs=1e-5)
    assert found.total.ratio.lower == pytest.approx(1.30319, abs=1e-5)


def test_offset_does_not_cancel():
    # Offset 1 W: vanilla 4 s and 100 J: 4 J / 100 J = 0.04; coga-5 1 s and 50 J: 1 J / 50 J = 0.02. u = 0.02.
    found = only(
        pair(
            {"energy": [part("gpu", 100.0, offset_j=4.0)], "duration_s": 4.0},
            {"energy": [part("gpu", 50.0, offset_j=1.0)], "duration_s": 1.0},
        )
    )
    assert found.gpu.ratio.common == pytest.approx(0.02)
    assert found.power.common == pytest.approx(0.02)
    assert found.time.ratio.common == 0.0
    # gamma_GPU = 2, upper end 2 * exp(1.959964 * 0.02) = 2.07995
    assert found.gpu.ratio.upper == pytest.approx(2.07995, abs=1e-5)


def test_gain_and_offset_of_the_total_add_linearly():
    # GPU 60 J, offset 3 J (0.03 of 100 J) and gain 10 % (0.06 of it) | 30 J, 1 J (0.02 of 50 J), gain 10 % (0.06)
    # DRAM 40 J, gain 1 % (0.004) | 20 J, gain 1 % (0.004): u = |0.06-0.06| + |0.03-0.02| + |0.004-0.004| = 0.01
    found = only(
        pair(
            {"energy": [part("gpu", 60.0, gain=0.1, offset_j=3.0), part("dram", 40.0, gain=0.01)]},
            {"energy": [part("gpu", 30.0, gain=0.1, offset_j=1.0), part("dram", 20.0, gain=0.01)]},
        )
    )
    assert found.total.ratio.common == pytest.approx(0.01)


def test_an_interval_across_1_cannot_tell():
    # 100 J against 99 J, and the meter's offset alone can do +-20 %.
    found = only(pair({"energy": [part("gpu", 100.0, offset_j=10.0)]}, {"energy": [part("gpu", 99.0)]}))
    assert found.gpu.ratio.lower < 1.0 < found.gpu.ratio.upper
    assert found.gpu.verdict == "cannot tell"
    assert found.time.verdict == "cannot tell"  # 1 s against 1 s


@pytest.mark.parametrize("side", [0, 1])
def test_modelled_joules_get_no_verdict(side):
    kinds = ["measured", "measured"]
    kinds[side] = "modelled"
    found = only(pair({"energy": [part("cpu", 100.0, kinds[0])]}, {"energy": [part("cpu", 10.0, kinds[1])]}))
    assert found.total.ratio.value == pytest.approx(10.0)
    assert found.total.ratio.provenance == "modelled"
    assert found.total.verdict is None


def test_a_modelled_part_makes_the_total_modelled_and_leaves_the_gpu_measured():
    found = only(
        pair(
            {"energy": [part("gpu", 100.0), part("cpu", 10.0, "modelled")]},
            {"energy": [part("gpu", 50.0), part("cpu", 5.0, "modelled")]},
        )
    )
    assert (found.gpu.ratio.provenance, found.gpu.verdict) == ("measured", "saves energy")
    assert (found.total.ratio.provenance, found.total.verdict) == ("modelled", None)


def test_no_gpu_means_gamma_gpu_is_unknown():
    found = only(pair({"energy": [part("cpu", 100.0)]}, {"energy": [part("cpu", 50.0)]}))
    assert found.gpu.ratio.value is None
    assert found.gpu.ratio.provenance == "unknown"
    assert found.gpu.ratio.reason == "no GPU was metered here"
    assert found.power.value is None
    assert found.total.ratio.value == pytest.approx(2.0)


def test_a_gpu_that_cannot_be_read_is_unknown_and_so_is_the_total():
    found = only(
        pair({"energy": [part("gpu", None), part("cpu", 1.0)]}, {"energy": [part("gpu", None), part("cpu", 1.0)]})
    )
    assert found.gpu.ratio.reason == "the GPU joules could not be read"
    assert found.total.ratio.reason == "the total joules could not be read"
    assert found.time.ratio.value == pytest.approx(1.0)


def test_no_energy_at_all_still_gives_time():
    found = only(pair({"duration_s": 2.0}, {"duration_s": 1.0}))
    assert found.time.ratio.value == pytest.approx(2.0)
    assert found.total.ratio.value is None


def test_no_vanilla_in_the_grid():
    found = only([row("coga-5", q, energy=[part("gpu", 1.0)]) for q in QUESTIONS])
    assert found.time.ratio.value is found.gpu.ratio.value is found.total.ratio.value is found.power.value is None
    assert "no vanilla" in found.total.ratio.reason
    assert found.total.dropped == 6


def test_vanilla_failed():
    found = only(pair({"status": "failed", "error": "boom", "output_tokens": 0}, {"energy": [part("gpu", 1.0)]}))
    assert found.time.ratio.value is None
    assert found.time.ratio.reason == "no vanilla Trial succeeded"


def test_the_decoding_failed():
    found = only(pair({"energy": [part("gpu", 1.0)]}, {"status": "failed", "error": "boom"}))
    assert found.time.ratio.reason == "no Trial of this decoding succeeded"


def test_no_common_question():
    rows = [row("vanilla", "q1", energy=[part("gpu", 1.0)]), row("coga-5", "q2", energy=[part("gpu", 1.0)])]
    found = only(rows)
    assert found.time.ratio.value is None
    assert "in common" in found.time.ratio.reason
    assert found.gpu.ratio.reason == found.time.ratio.reason
    assert found.time.dropped == 2


def test_an_edited_question_is_not_the_same_question():
    rows = pair({"energy": [part("gpu", 1.0)]}, {"energy": [part("gpu", 1.0)]})
    for r in rows:
        if r["question_id"] == "q1" and r["decoding"] == "coga-5":
            r["question_hash"] = "f" * 16
    assert only(rows).gpu.ratio.n_questions == 5


def test_no_output_tokens():
    found = only(pair({"energy": [part("gpu", 1.0)]}, {"energy": [part("gpu", 1.0)], "output_tokens": 0}))
    assert found.time.ratio.value is None
    assert found.time.ratio.reason == "no tokens were put out"


def test_zero_joules_are_not_an_infinite_saving():
    found = only(pair({"energy": [part("gpu", 10.0)]}, {"energy": [part("gpu", 0.0)]}))
    assert found.gpu.ratio.value is None
    assert "0 J" in found.gpu.ratio.reason
    assert found.power.value is None


def test_only_pairs_count_and_the_rest_is_told():
    rows = pair({"energy": [part("gpu", 100.0)]}, {"energy": [part("gpu", 50.0)]})
    rows[0] = row("vanilla", "q1", status="failed", error="boom")
    rows[-1] = row("coga-5", "q6", energy=[part("gpu", None)])
    found = only(rows)
    assert (found.time.ratio.n_questions, found.time.dropped) == (5, 1)
    assert (found.gpu.ratio.n_questions, found.gpu.dropped) == (4, 2)
    assert found.gpu.ratio.value == pytest.approx(2.0)


def test_repeats_are_paired_one_by_one_and_stay_one_unit():
    rows = [
        row(decoding, q, energy=[part("gpu", joules)], repeat=repeat)
        for decoding, joules in (("vanilla", 100.0), ("coga-5", 50.0))
        for q in QUESTIONS
        for repeat in range(3)
    ]
    rows[0] = row("vanilla", "q1", repeat=0, status="failed", error="boom")
    found = only(rows)
    assert (found.gpu.ratio.n_questions, found.gpu.ratio.n_trials, found.gpu.dropped) == (6, 17, 0)


def test_repeats_do_not_narrow_the_interval():
    def rows(repeats):
        return [
            row(d, q, energy=[part("gpu", 100.0 if d == "vanilla" else 50.0 + 10 * i)], repeat=r)
            for d in ("vanilla", "coga-5")
            for i, q in enumerate(QUESTIONS)
            for r in range(repeats)
        ]

    one, five = only(rows(1)).gpu.ratio, only(rows(5)).gpu.ratio
    assert (five.lower, five.upper) == pytest.approx((one.lower, one.upper))


def test_models_tasks_engines_and_runs_are_never_pooled():
    rows = [
        row(d, q, energy=[part("gpu", e)], engine=engine, task=task, run=run)
        for engine in ("a", "b")
        for task in ("maths", "choice")
        for run in ("r1", "r2")
        for d, e in (("vanilla", 2.0), ("coga-5", 1.0))
        for q in QUESTIONS
    ]
    found = savings(split(table(rows)))
    assert len(found) == 8
    assert len({s.key for s in found}) == 8
    assert {s.gpu.ratio.n_questions for s in found} == {6}


def test_decodings_come_in_the_order_people_read():
    rows = [row(d, "q1") for d in ("coga-20", "vanilla", "dyga-20", "coga-5")]
    assert [c.key.decoding for c in split(table(rows))] == ["vanilla", "coga-5", "coga-20", "dyga-20"]


def test_an_empty_table_has_no_savings():
    assert savings(split(table([]))) == ()


# What must hold for any ledger

joules = st.floats(0.5, 5000, allow_subnormal=False)
trials = st.tuples(joules, joules, st.integers(1, 400), st.floats(0.01, 60))
samples = st.lists(st.tuples(trials, trials), min_size=5, max_size=9)


def rows_of(sample, scale=1.0, swap=False):
    names = ("coga-5", "vanilla") if swap else ("vanilla", "coga-5")
    return [
        row(
            name,
            f"q{i}",
            energy=[
                part("gpu", gpu * scale, gain=0.02, offset_j=0.01 * duration * scale),
                part("cpu", cpu * scale, gain=0.1),
            ],
            output_tokens=tokens,
            duration_s=duration,
            accepted_per_round=[],
            drafted_per_round=[],
        )
        for i, both in enumerate(sample)
        for name, (gpu, cpu, tokens, duration) in zip(names, both, strict=True)
    ]


def ends(ratio):
    return ratio.lower, ratio.value, ratio.upper


@settings(max_examples=25, deadline=None)
@given(samples, st.floats(1e-3, 1e3))
def test_scaling_all_joules_changes_no_ratio(sample, scale):
    before, after = only(rows_of(sample)), only(rows_of(sample, scale))
    for name in ("gpu", "total"):
        assert ends(getattr(before, name).ratio) == pytest.approx(ends(getattr(after, name).ratio), rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(samples)
def test_identical_cells_give_exactly_1(sample):
    found = only(rows_of([(a, a) for a, _ in sample]))
    for gamma in (found.time, found.gpu, found.total):
        assert gamma.ratio.value == 1.0
        assert gamma.ratio.lower == pytest.approx(1.0)
        assert gamma.ratio.upper == pytest.approx(1.0)
    assert found.power.value == 1.0


@settings(max_examples=25, deadline=None)
@given(samples)
def test_swapping_the_cells_inverts_every_ratio(sample):
    one, other = only(rows_of(sample)), only(rows_of(sample, swap=True))
    for name in ("time", "gpu", "total"):
        low, value, high = ends(getattr(one, name).ratio)
        assert ends(getattr(other, name).ratio) == pytest.approx((1 / high, 1 / value, 1 / low))


@settings(max_examples=25, deadline=None)
@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(sample, shuffler: random.Random):
    rows = rows_of(sample)
    shuffled = list(rows)
    shuffler.shuffle(shuffled)
    assert only(rows) == only(shuffled)


@settings(max_examples=25, deadline=None)
@given(samples)
def test_every_interval_holds_its_value(sample):
    found = only(rows_of(sample))
    for ratio in (found.time.ratio, found.gpu.ratio, found.total.ratio, found.power):
        assert ratio.lower <= ratio.value <= ratio.upper
        assert math.isfinite(ratio.upper)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["measured", "modelled", "unknown", None]), min_size=12, max_size=12))
def test_provenance_is_never_better_than_that_of_the_trials_used(kinds):
    rows = []
    for i, kind in enumerate(kinds):
        energy = [part("cpu", 5.0)]
        if kind is not None:
            energy.append(part("gpu", None if kind == "unknown" else 10.0, kind))
        rows.append(row("vanilla" if i % 2 else "coga-5", f"q{i // 2}", energy=energy))
    found = only(rows)
    used = [k for pair in zip(kinds[::2], kinds[1::2], strict=True) if not {"unknown", None} & set(pair) for k in pair]
    expected = "unknown" if not used else "modelled" if "modelled" in used else "measured"
    assert found.gpu.ratio.provenance == expected
    assert (found.gpu.ratio.value is None) == (not used)
    assert found.gpu.dropped == 6 - len(used) // 2
    if expected != "measured":
        assert found.gpu.verdict is None

"""The gate: planted differences, known answers by hand, refusals, and what must hold for any pair of runs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.analysis.compare import Gate, compare_tables
from joulewise.analysis.log_ratio import add_up, log_ratio, spread_of_runs
from joulewise.errors import UserError
from planted import environment, plan, side
from synthetic_table import part, table


def compare(base, new, **gate):
    return compare_tables(base, new, Gate(**gate))


# Planted differences


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("rise", "verdicts"), [(0.0, {"passed"}), (0.03, {"passed", "cannot tell"}), (0.10, {"failed"})]
)
def test_planted_rises(rise, verdicts, seed):
    found = compare(side(seed=seed), side(rise, seed=seed + 100))
    assert found.verdict in verdicts
    assert found.exit_code == (found.verdict == "failed")
    for cell in found.cells:
        assert cell.ratio.lower < 1 + rise < cell.ratio.upper
        assert cell.ratio.n_questions == 50


def test_the_gpu_is_compared_where_it_alone_is_measured():
    def host(values, _):
        return values | {"energy": [*values["energy"], part("cpu", 50.0, "modelled")]}

    found = compare(side(change=host), side(0.1, change=host, seed=1))
    assert (found.component, found.verdict) == ("gpu", "failed")
    assert compare(side(), side(seed=1)).component == "total"  # nothing but the GPU is there
    total = compare(side(change=host), side(0.1, change=host, seed=1), component="total")
    assert total.verdict == "cannot tell"


def test_a_fall_is_no_failure():
    found = compare(side(), side(-0.2, seed=1))
    assert found.verdict == "passed"
    assert {c.verdict for c in found.cells} == {"lower"}


def test_the_limit_is_the_one_asked_for():
    assert compare(side(), side(0.10, seed=1), fail_above=0.2).verdict == "passed"
    assert compare(side(), side(0.10, seed=1), fail_above=0.01).verdict == "failed"


def test_few_questions_cannot_tell_and_say_what_would_help():
    base, new = side(questions=6, noise=0.08), side(0.04, questions=6, noise=0.08, seed=1)
    found = compare(base, new)
    assert (found.verdict, found.exit_code) == ("cannot tell", 0)
    assert any(c.more_questions or c.why for c in found.cells)
    assert compare(base, new, on_unclear="fail").exit_code == 1


def test_as_many_more_questions_as_it_says_do_tell():
    base, new = side(questions=20, noise=0.4), side(0.2, 20, noise=0.4, seed=2)
    more = max(c.more_questions for c in compare(base, new).cells)
    assert 1 <= more < 500
    times = math.ceil((20 + more) / 20) + 1

    def asked(side_):
        """The same questions again and again under other names: all is alike but their number."""
        rows = [{**r, "question_id": f"{r['question_id']}-{i}"} for i in range(times) for r in side_.arrow.to_pylist()]
        return table(rows, plans=side_.plans, environments=side_.environments)

    assert compare(asked(base), asked(new)).verdict == "failed"


def test_below_five_questions_there_is_no_interval():
    found = compare(side(questions=4), side(0.5, questions=4, seed=1))
    assert found.verdict == "cannot tell"
    assert found.cells[0].ratio.lower is None
    assert "fewer than 5 questions" in found.cells[0].why


def test_modelled_joules_never_tell_but_time_does():
    base, new = side(provenance="modelled"), side(0.5, slower=0.5, provenance="modelled", seed=1)
    found = compare(base, new)
    assert (found.verdict, found.exit_code) == ("cannot tell", 0)
    assert "modelled" in found.cells[0].why
    assert compare(base, new, metric="duration_per_output_token_s").verdict == "failed"


def test_one_modelled_trial_takes_the_verdict():
    def one(values, i):
        return values | ({"energy": [part("gpu", 10.0, "modelled")]} if i == 7 else {})

    assert compare(side(change=one), side(0.3, seed=1)).verdict == "cannot tell"


# By hand


def test_a_ratio_and_its_error_by_hand():
    # Five questions of 10 tokens. BASE 100 J each; NEW 100, 110, 120, 130, 140 J: the ratio is 600 / 500 = 1.2.
    base = np.array([[100.0, 10.0]] * 5)
    new = np.array([[e, 10.0] for e in (100.0, 110.0, 120.0, 130.0, 140.0)])
    found = log_ratio(base, new)
    assert found.value == pytest.approx(math.log(1.2))
    # Leaving one out: sums of 500, 490, 480, 470, 460 over 400.
    without = [math.log(s / 400) for s in (500, 490, 480, 470, 460)]
    mean = sum(without) / 5
    assert found.questions_se == pytest.approx(math.sqrt(0.8 * sum((w - mean) ** 2 for w in without)))


def test_run_spread_by_hand():
    # BASE 0.00 and 0.02 about 0.01, NEW 0.10 and 0.10: squares 2e-4, 2 degrees of freedom, sd 1 %.
    assert spread_of_runs([0.0, 0.02], [0.1, 0.1]) == (pytest.approx(0.01), 2)
    assert spread_of_runs([0.0], [1.0]) is None


def test_parts_add_up_by_hand():
    found = add_up([(0.03, 4), (0.04, math.inf)], common=0.01, drift=0.005)
    assert found.se == pytest.approx(0.05)
    assert found.df == pytest.approx(0.05**4 / (0.03**4 / 4))
    # A rise at the limit plus the drift is no evidence at all; without any error any rise is certain.
    assert found.p_above(0.054, 0.05) == 1.0
    assert add_up([], 0.0, 0.0).p_above(0.0501, 0.05) == 0.0


def test_gain_cancels_on_the_same_card_and_not_on_another():
    base = side()
    same, other = compare(base, side(seed=1)), compare(base, side(seed=1, environment_=environment("GPU-2")))
    assert same.same_cards
    assert not other.same_cards
    assert same.cells[0].ratio.common == pytest.approx(0.0, abs=1e-12)
    assert other.cells[0].ratio.common == pytest.approx(0.05 * math.sqrt(2))
    # Two sensors of 5 % each, and runs that may differ by 10 %: a rise of 20 % proves nothing.
    dear = compare(base, side(0.20, seed=1, environment_=environment("GPU-2")))
    assert dear.verdict == "cannot tell"


def test_an_offset_cancels_as_far_as_the_power_is_alike():
    # 5 W on 300 W: 1/60 of the joules. NEW draws a tenth more in the same time: 1/60 - 1/66.
    cell = compare(side(noise=0.0, offset_w=5.0), side(0.1, noise=0.0, offset_w=5.0), run_to_run=0.0).cells[0]
    seconds_per_token = 0.01
    assert cell.ratio.common == pytest.approx(5.0 * seconds_per_token / cell.base * (1 - 1 / 1.1))


def test_unknown_gain_on_other_cards_cannot_tell():
    blind = [{"component": "gpu", "provenance": "measured", "gain": None}]
    base = side(environment_=environment(sources=blind))
    new = side(1.0, seed=1, environment_=environment("GPU-2", sources=blind))
    assert "sensors" in compare(base, new).cells[0].why
    assert compare(base, side(1.0, seed=1, environment_=environment(sources=blind))).verdict == "failed"


def test_a_change_of_idle_power_widens_the_interval():
    def idle(power_w):
        entry = {"engine": "e", "component": "gpu", "provenance": "measured", "power_w": power_w, "duration_s": 30.0}
        return environment(idle=[entry])

    calm = compare(side(environment_=idle(100.0)), side(0.1, seed=1, environment_=idle(100.5)))
    moved = compare(side(environment_=idle(100.0)), side(0.1, seed=1, environment_=idle(130.0)))
    assert calm.verdict == "failed"
    assert moved.verdict == "cannot tell"
    assert moved.cells[0].ratio.upper > calm.cells[0].ratio.upper * 1.05


# Runs


def test_several_runs_a_side_show_their_spread():
    three = {"names": ("a", "b", "c")}
    calm = compare(
        side(run_factors=(0.999, 1.0, 1.001), **three), side(0.08, run_factors=(1.0, 1.001, 0.999), seed=1, **three)
    )
    wild = compare(side(run_factors=(0.9, 1.0, 1.1), **three), side(0.08, run_factors=(0.9, 1.0, 1.1), seed=1, **three))
    assert calm.verdict == "failed"
    assert wild.verdict == "cannot tell"
    assert wild.cells[0].run_spread == pytest.approx(0.1, rel=0.1)
    assert calm.cells[0].ratio.n_trials == 50  # runs are averaged, not counted as further questions


def test_a_stated_spread_widens():
    base, new = side(), side(0.1, seed=1)
    narrow, wide = (compare(base, new, run_to_run=s) for s in (0.001, 0.05))
    assert (narrow.verdict, wide.verdict) == ("failed", "cannot tell")
    assert "repeat both runs" in wide.cells[0].why


def test_many_cells_do_not_add_up_to_a_false_alarm():
    # A limit just below the interval of one cell: enough by itself, not among eleven.
    base, new = side(decodings=("vanilla",)), side(0.079, seed=2, decodings=("vanilla",))
    alone = compare(base, new).cells[0]
    limit = alone.ratio.lower - 1 - 1e-6
    assert compare(base, new, fail_above=limit).verdict == "failed"
    names = [f"prompt-lookup-{i}" for i in range(2, 12)]
    many = plan(decodings=["vanilla", *({"kind": "prompt_lookup", "tokens": i} for i in range(2, 12))])

    def both(rise, seed, first):
        tables = [side(rise, seed=seed, decodings=("vanilla",)), side(seed=first, decodings=tuple(names))]
        rows = [r for t in tables for r in t.arrow.to_pylist()]
        return table(rows, plans={"run": many}, environments={"run": environment()})

    found = compare(both(0.0, 0, 5), both(0.079, 2, 6), fail_above=limit)
    (cell,) = (c for c in found.cells if c.decoding == "vanilla")
    assert cell.ratio.lower > 1 + limit
    assert cell.verdict == "cannot tell"
    assert cell.more_questions or "among as many comparisons" in cell.why


def test_small_rises_everywhere_are_seen_together():
    found = compare(side(noise=0.2), side(0.12, noise=0.2, seed=1))
    assert found.overall[0].cells == 2
    width = [math.log(c.ratio.upper / c.ratio.lower) for c in (*found.overall, *found.cells)]
    assert width[0] < min(width[1:])


# What is shown beside


def test_changed_outputs_and_accuracy_are_told():
    def other(values, i):
        return values | {"output_hash": f"g{i}" if i < 10 else f"h{i}", "correct": i % 2 == 0 and i >= 6}

    found = compare(side(), side(change=other, seed=1))
    assert found.verdict == "passed"  # shown, not gated
    cell = found.cells[0]
    assert (cell.outputs_changed, cell.lost, cell.gained) == (10, 3, 0)
    assert (cell.accuracy_base, cell.accuracy_new) == (0.5, pytest.approx(0.44))


def test_outputs_are_not_compared_where_tokens_are_drawn():
    drawn = plan(sampling={"temperature": 0.7})
    found = compare(side(plan_=drawn), side(seed=1, plan_=drawn))
    assert found.cells[0].outputs_changed is None


def test_an_interrupted_run_is_compared_as_far_as_it_goes():
    found = compare(side(questions=50), side(questions=30, seed=1))
    assert found.cells[0].ratio.n_questions == 30
    assert (found.cells[0].only_base, found.cells[0].only_new) == (20, 0)


def test_a_cell_that_a_run_never_came_to_is_named():
    found = compare(side(), side(seed=1, decodings=("vanilla",)))
    assert len(found.cells) == 1
    assert any("No Trial of e/prompt-lookup-3/direct/gsm8k in NEW" in note for note in found.notes)


def test_polluted_trials_are_told_and_can_be_left_out():
    def dirty(values, i):
        return values | ({"polluted": True, "energy": [part("gpu", 1e6)]} if i < 5 else {})

    base, new = side(), side(change=dirty, seed=1)
    assert any("10 of 100 Trials of NEW (10 %) are polluted" in note for note in compare(base, new).notes)
    clean = compare(base, new, without_polluted=True)
    assert clean.verdict == "passed"
    assert clean.cells[0].ratio.n_questions == 45


def test_trials_of_unknown_pollution_are_kept_and_told():
    new = side(change=lambda values, i: values | ({"other_cpu_cores": None} if i < 5 else {}), seed=1)
    found = compare(side(), new, without_polluted=True)
    assert found.cells[0].ratio.n_questions == 50
    assert [note for note in found.notes if "not known" in note] == [
        "For 10 of 100 Trials of NEW other processes' CPU use is not known: in the figures all the same."
    ]


def test_nothing_unpolluted_is_told_as_such():
    all_dirty = side(change=lambda values, _: values | {"polluted": True})
    with pytest.raises(UserError, match="quiet machine"):
        compare(side(), all_dirty, without_polluted=True)


def test_failed_trials_are_told():
    def failed(values, i):
        return values | ({"status": "failed", "energy": ()} if i == 0 else {})

    assert any("2 of 100 Trials of NEW failed" in note for note in compare(side(), side(change=failed)).notes)


def test_joules_per_correct_answer():
    def worse(values, i):
        return values | {"correct": i % 4 == 0}

    found = compare(side(), side(change=worse, seed=1), metric="energy_per_correct_answer_j")
    assert found.cells[0].ratio.value == pytest.approx(25 / 13, rel=0.05)  # 25 correct answers became 13
    assert found.verdict == "failed"

    def hardly(values, i):
        return values | {"correct": i < 3}

    few = compare(side(), side(change=hardly, seed=1), metric="energy_per_correct_answer_j")
    assert few.verdict == "cannot tell"
    assert "fewer than 5 correct" in few.cells[0].why


# Refusals


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"environment_": environment(gpu="NVIDIA H100")}, "GPU: NVIDIA H200 (BASE), NVIDIA H100 (NEW)"),
        ({"environment_": environment(driver="570")}, "GPU driver: 580 (BASE), 570 (NEW)"),
        ({"environment_": environment(power_limit_w=500.0)}, "GPU power limit (W): 700.0 (BASE), 500.0 (NEW)"),
        ({"environment_": {"python": "3.12.3"}}, "NEW (run): no record of what it ran on (environment.json)"),
        ({"plan_": plan(sampling={"temperature": 0.7})}, "plan: sampling.temperature: 0.0 (BASE), 0.7 (NEW)"),
        ({"plan_": plan(stop={"rule": "fixed", "tokens": 9})}, "plan: stop.rule: natural (BASE), fixed (NEW)"),
        (
            {"plan_": plan(engines=[{"kind": "transformers", "model": "m", "name": "e", "dtype": "float16"}])},
            "plan: engine e: dtype: bfloat16 (BASE), float16 (NEW)",
        ),
        ({"plan_": plan(decodings=["vanilla"]), "decodings": ("vanilla",)}, "cells in one plan only"),
        (
            {"change": lambda v, i: v | ({"question_hash": "edited"} if i == 3 else {})},
            "questions of gsm8k: 1 with another text: q3 (BASE)",
        ),
        (
            {"change": lambda v, i: v | ({"question": "new"} if i == 3 else {})},
            "questions of gsm8k: 1 that the other lacks (BASE)",
        ),
    ],
)
def test_what_is_not_alike_is_refused_by_name_and_can_be_allowed(other, named):
    base, new = side(), side(seed=1, **other)
    with pytest.raises(UserError) as refused:
        compare(base, new)
    assert named in str(refused.value)
    assert "--allow-different" in str(refused.value)
    found = compare(base, new, allow_different=True)
    assert found.cells
    assert any(d.refuses for d in found.differences)


def test_library_versions_are_shown_not_refused():
    newer = environment(packages={"torch": "2.13.0"}, python="3.13.0")
    found = compare(side(), side(seed=1, environment_=newer))
    assert {d.what for d in found.differences} == {"package torch", "python"}
    assert not any(d.refuses for d in found.differences)


def test_cards_are_those_that_were_metered_not_all_of_a_machine():
    def on(uuid, cards=2):
        here = environment()
        gpus = [here["machine"]["gpus"][0] | {"uuid": f"GPU-{i}"} for i in range(cards)]
        machine, sources = here["machine"] | {"gpus": gpus}, [here["sources"][0] | {"source_id": f"nvml:{uuid}"}]
        return side(environment_=here | {"machine": machine, "sources": sources})

    assert compare(on("GPU-0"), on("GPU-0", cards=1)).same_cards
    assert not compare(on("GPU-0"), on("GPU-1")).same_cards


def test_nothing_in_common_is_refused_even_if_allowed():
    other = plan(engines=[{"kind": "transformers", "name": "f"}])
    new = side(plan_=other, change=lambda v, _: v | {"engine": "f"})
    with pytest.raises(UserError, match="no question was answered in the same cell"):
        compare(side(), new, allow_different=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v, _: v | {"status": "failed", "error": "no memory"}, "all 100 failed, the first with: no memory"),
        (None, "it holds no Trial at all"),
    ],
)
def test_a_side_without_a_successful_trial_is_named(change, words):
    empty = side(seed=1, change=change) if change else side(questions=0, environment_={})
    for pair, name in (((side(), empty), "NEW"), ((empty, side()), "BASE"), ((empty, empty), "BASE")):
        with pytest.raises(UserError) as refused:
            compare(*pair, allow_different=True)
        assert str(refused.value).startswith(f"{name} (run) has no successful Trial: {words}")


def test_runs_without_a_record_of_their_machine_are_named():
    base, new = (side(seed=s, environment_={"python": "3.12.3"}) for s in (0, 1))
    with pytest.raises(UserError, match=r"^BASE \(run\), NEW \(run\): no record of what it ran on"):
        compare(base, new)
    found = compare(base, side(seed=1), allow_different=True)
    assert ("GPU", "not recorded", "NVIDIA H200") in {(d.what, d.base, d.new) for d in found.differences}


def test_a_recording_on_both_sides_is_told():
    whole, half = side(), side(questions=50, change=lambda v, i: v | {"started_at": "2026-12-01"} if i % 2 else v)
    for new, shared, same in ((whole, 100, True), (half, 50, False), (side(seed=1), 0, False)):
        found = compare(whole, new)
        assert (found.shared_trials, found.same_recording) == (shared, same)
        assert found.verdict == "passed"


def test_a_copy_on_one_side_is_refused():
    rows = side().arrow.to_pylist()
    rows += [r | {"run": "copy"} for r in rows[:30]]
    twice = table(rows, plans=dict.fromkeys(("run", "copy"), plan()), environments={"run": environment()})
    with pytest.raises(UserError, match=r"^BASE: copy is run again, or a copy of it"):
        compare(twice, side(seed=1))


def test_a_metric_that_no_cell_has_says_why():
    base, new = (side(seed=s, change=lambda v, _: v | {"correct": None}) for s in (0, 1))
    with pytest.raises(UserError, match=r"per correct answer: not known in any cell \(the task has no right and wrong"):
        compare(base, new, metric="energy_per_correct_answer_j")


def test_an_unknown_metric_names_all():
    with pytest.raises(UserError, match="duration_per_answer_s"):
        compare(side(), side(), metric="joules")


# What must hold for any pair

rises, seeds, noises = st.floats(-0.3, 0.5), st.integers(0, 1000), st.floats(0.0, 0.3)


@settings(max_examples=15, deadline=None)
@given(rises, seeds, noises)
def test_changing_places_inverts_the_ratio(rise, seed, noise):
    base, new = side(questions=8, noise=noise), side(rise, questions=8, noise=noise, seed=seed)
    there, back = compare(base, new), compare(new, base)
    for a, b in zip((*there.overall, *there.cells), (*back.overall, *back.cells), strict=True):
        assert a.ratio.value * b.ratio.value == pytest.approx(1.0)
        assert a.ratio.lower * b.ratio.upper == pytest.approx(1.0)


@settings(max_examples=15, deadline=None)
@given(rises, seeds, st.floats(0.01, 100.0))
def test_another_scale_of_joules_changes_nothing(rise, seed, scale):
    base, new = side(questions=8), side(rise, questions=8, seed=seed)
    plain = compare(base, new)
    scaled = compare(side(scale - 1, questions=8), side((1 + rise) * scale - 1, questions=8, seed=seed))
    assert [c.verdict for c in plain.cells] == [c.verdict for c in scaled.cells]
    for a, b in zip(plain.cells, scaled.cells, strict=True):
        assert (a.ratio.lower, a.ratio.upper) == (pytest.approx(b.ratio.lower), pytest.approx(b.ratio.upper))


@settings(max_examples=15, deadline=None)
@given(seeds, st.integers(1, 12), noises, st.floats(0.0, 0.05))
def test_identical_runs_never_fail(seed, questions, noise, limit):
    run = side(questions=questions, noise=noise, seed=seed)
    assert compare(run, run, fail_above=limit, run_to_run=0.0).exit_code == 0

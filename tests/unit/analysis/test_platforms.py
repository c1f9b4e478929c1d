"""Platforms against quantisations on planted truths."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.analysis.platforms import APART, NOT_TOLD, ON_NO_RING
from planted_platforms import (
    ALL,
    PLATFORM,
    PLATFORMS,
    QUANTISATION,
    QUANTISATIONS,
    engine,
    figure,
    plan,
    spec,
    tables,
    trials,
)


def effects(two_way):
    return {e.name: e.energy.value for e in (*two_way.platforms, *two_way.quantisations)}


def test_an_additive_truth_is_recovered():
    (found,) = tables(ALL)
    assert found.baseline == ("transformers", "bfloat16")
    assert effects(found) == pytest.approx({n: math.exp(x) for n, x in (PLATFORM | QUANTISATION).items()})
    for cell in found.cells:
        assert cell.missing is None
        assert cell.energy.value == pytest.approx(math.exp(figure((cell.platform, cell.quantisation))))
        assert cell.time.value == pytest.approx(cell.energy.value)
        assert cell.energy_interaction.value == pytest.approx(1.0)
        assert cell.score.value == pytest.approx(0.5)
    assert [e.time.value for e in found.platforms] == pytest.approx([math.exp(x) for x in PLATFORM.values()])


def test_an_interaction_is_told_apart_from_the_effects():
    (found,) = tables(ALL, interaction={("vLLM", "nf4"): 0.9})
    # Of one cell of nine, the effects take 1/3 + 1/3 - 1/9, and 4/9 are left.
    cell = next(c for c in found.cells if (c.platform, c.quantisation) == ("vLLM", "nf4"))
    assert cell.energy_interaction.value == pytest.approx(math.exp(0.9 * 4 / 9))


@settings(deadline=None, max_examples=25)
@given(st.permutations(ALL), st.dictionaries(st.sampled_from(ALL), st.floats(-1, 1), max_size=4))
def test_the_order_of_engines_changes_no_comparison(order, interaction):
    def told(cells):
        (found,) = tables(cells, interaction=interaction, noise=0.05)
        effect = effects(found)
        # Between any two of them, whichever is the baseline.
        between = {(a, b): effect[a] / effect[b] for a, b in itertools.permutations(PLATFORMS, 2)}
        inner = {(c.platform, c.quantisation): c.energy_interaction.value for c in found.cells}
        return between | {(a, b): effect[a] / effect[b] for a, b in itertools.permutations(QUANTISATIONS, 2)} | inner

    assert told(order) == pytest.approx(told(ALL))


@settings(deadline=None, max_examples=40)
@given(st.sets(st.sampled_from(ALL), min_size=2))
def test_what_is_missing_is_named_and_what_is_linked_is_told(there):
    cells = [at for at in ALL if at in there]
    (found,) = tables(cells) or (None,)
    assert found is not None
    shown = {(c.platform, c.quantisation): c for c in found.cells}
    for at, cell in shown.items():
        assert (cell.missing is None) == (at in there)
        assert (cell.energy.value is None) == (at not in there)
        assert cell.missing in (None, "no engine of the plan is that")
    truth = PLATFORM | QUANTISATION
    p0, q0 = found.baseline
    for effect, base in [(e, p0) for e in found.platforms] + [(e, q0) for e in found.quantisations]:
        if effect.energy.value is None:
            assert effect.energy.reason == APART
        else:
            assert effect.energy.value == pytest.approx(math.exp(truth[effect.name] - truth[base]))
    for cell in shown.values():
        if cell.missing is None and cell.energy_interaction.value is None:
            assert cell.energy_interaction.reason == ON_NO_RING


def test_three_cells_tell_effects_and_no_interaction():
    (found,) = tables([ALL[0], ALL[1], ALL[3]])
    truth = {"transformers": 0.0, "native": -0.3, "bfloat16": 0.0, "nf4": 0.5}
    assert effects(found) == pytest.approx({name: math.exp(x) for name, x in truth.items()})
    assert {c.energy_interaction.reason for c in found.cells if c.missing is None} == {ON_NO_RING}


def test_cells_apart_from_the_baseline_are_told_to_be():
    (found,) = tables([("transformers", "bfloat16"), ("native", "nf4")])
    assert [e.energy.reason for e in (*found.platforms, *found.quantisations)] == [None, APART, None, APART]
    # The two cells themselves can be compared all the same.
    both = sorted(c.energy.value for c in found.cells if c.missing is None)
    assert both == pytest.approx([1.0, math.exp(-0.3 + 0.5)])
    assert found.steps == ()


def test_why_a_cell_is_missing():
    two = [("transformers", "bfloat16"), ("native", "bfloat16")]
    engines = [spec(*at) for at in two]
    engines += [spec("transformers", "nf4", quantisation="nf4"), spec("native", "nf4", quantisation="nf4")]
    engines += [spec("transformers", "int8", quantisation="int8")]
    exclude = [{"engine": "nf4@native", "reason": "too large"}]
    found = tables(
        two,
        plan=plan(*engines, exclude=exclude),
        not_loaded=[{"engine": "nf4@transformers", "error": "bitsandbytes is not installed"}],
    )
    why = {(c.platform, c.quantisation): c.missing for c in found[0].cells}
    assert why[("transformers", "nf4")] == "nf4@transformers could not be loaded: bitsandbytes is not installed"
    assert why[("native", "nf4")] == "the plan leaves it out (too large)"
    assert why[("transformers", "int8")] == "it has no Trial yet"
    assert why[("native", "int8")] == "no engine of the plan is that"


def test_an_engine_that_was_not_loaded_stands_where_it_would_have():
    failed = spec("native", "x", name="plain@native")
    told = [engine("transformers", "bfloat16"), engine("transformers", "nf4")]
    found = tables(
        [("transformers", "bfloat16"), ("transformers", "nf4")],
        engines=told,
        plan=plan(spec("transformers", "bfloat16"), spec("transformers", "nf4", quantisation="nf4"), failed),
        not_loaded=[{"engine": "plain@native", "error": "no room"}],
    )
    why = {(c.platform, c.quantisation): c.missing for c in found[0].cells}
    assert why[("native", "bfloat16")] == "plain@native could not be loaded: no room"


def test_a_failed_cell_says_what_failed():
    broken = [r | {"status": "failed", "error": "out of memory"} for r in trials(("native", "nf4"))]
    there = [ALL[0], ALL[1], ("native", "bfloat16")]
    (found,) = tables([*there, broken], engines=[engine(*at) for at in (*there, ("native", "nf4"))])
    cell = next(c for c in found.cells if (c.platform, c.quantisation) == ("native", "nf4"))
    assert cell.missing == "no Trial succeeded (out of memory)"


def test_two_engines_on_one_place_and_one_that_does_not_tell():
    twin = engine("native", "bfloat16") | {"label": "twin"}
    silent = engine("vLLM", "bfloat16") | {"label": "silent", "quantisation": None}
    there = [ALL[0], ("native", "bfloat16")]
    more = [trials(("native", "bfloat16"), engine=e["label"]) for e in (twin, silent)]
    (found,) = tables([*there, *more], engines=[*(engine(*at) for at in there), twin, silent])
    others = dict(found.others)
    assert others["silent"] == NOT_TOLD
    assert others["twin"].startswith("bfloat16@native is the same platform and quantisation")
    assert len(found.cells) == 2


def test_models_are_not_held_against_each_other_unless_the_plan_says_they_are_one():
    rows = [trials(ALL[0]), trials(ALL[2], model="m-gptq")]
    told = [engine(*ALL[0]), engine(*ALL[2]) | {"model": "m-gptq"}]
    assert tables(rows, engines=told) == ()
    gptq = spec("transformers", "gptq, 4 bits", model="m-gptq", quantisation="gptq", base_model="m")
    (found,) = tables(rows, engines=told, plan=plan(spec("transformers", "bfloat16"), gptq))
    assert found.model == "m"
    assert effects(found)["gptq, 4 bits"] == pytest.approx(math.exp(-0.2))


def test_questions_are_those_that_every_cell_answered():
    first, second = trials(ALL[0]), trials(ALL[1])
    (found,) = tables([first, second[:9]], engines=[engine(*at) for at in ALL[:2]])
    assert found.cells[1].energy.n_questions == 9
    assert found.cells[1].energy.value == pytest.approx(math.exp(0.5))
    (found,) = tables([first, second[:3]], engines=[engine(*at) for at in ALL[:2]])
    assert found.cells[1].missing == "only 3 of 12 questions answered"


def test_joules_that_are_not_known_leave_the_seconds():
    dark = [{k: v for k, v in r.items() if not k.startswith(("gpu", "total"))} for r in trials(("vLLM", "bfloat16"))]
    there = [ALL[0], ALL[1]]
    (found,) = tables([*there, dark], engines=[engine(*at) for at in (*there, ("vLLM", "bfloat16"))])
    cell = next(c for c in found.cells if (c.platform, c.quantisation) == ("vLLM", "bfloat16"))
    assert cell.missing is None
    assert cell.energy.reason == "no GPU was metered here"
    assert cell.time.value == pytest.approx(math.exp(-0.7))
    assert next(e for e in found.platforms if e.name == "vLLM").time.value == pytest.approx(math.exp(-0.7))


def test_the_meter_s_gain_cancels_and_few_questions_have_no_interval():
    (found,) = tables(ALL, gain=0.05)
    assert all(c.energy.common == pytest.approx(0.0, abs=1e-12) for c in found.cells)
    (few,) = tables(ALL, questions=4)
    assert few.cells[1].energy.lower is None
    assert few.cells[1].energy.value == pytest.approx(math.exp(0.5))
    assert all(step.p_quantisation is None for step in few.steps)


def test_modelled_joules_give_no_chance():
    (found,) = tables(ALL, provenance="modelled", noise=0.01)
    assert {c.energy.provenance for c in found.cells} == {"modelled"}
    assert all(step.p_quantisation is step.p_platform is None for step in found.steps)


def test_a_step_s_chances_say_which_is_the_larger():
    (found,) = tables(ALL, noise=0.02)
    steps = {(frozenset(s.quantisations), frozenset(s.platforms)): s for s in found.steps}
    larger = steps[(frozenset({"bfloat16", "nf4"}), frozenset({"transformers", "native"}))]
    assert larger.p_quantisation < 0.001 < 0.9 < larger.p_platform
    smaller = steps[(frozenset({"bfloat16", "gptq, 4 bits"}), frozenset({"transformers", "vLLM"}))]
    assert smaller.p_platform < 0.001 < 0.9 < smaller.p_quantisation


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    held = []
    for seed in range(60):
        (found,) = tables(ALL[:2] + ALL[3:5], questions=15, noise=0.2, seed=seed)
        truth = PLATFORM | QUANTISATION
        for e in (found.platforms[1], found.quantisations[1]):
            held.append(e.energy.lower <= math.exp(truth[e.name]) <= e.energy.upper)
        held.append(found.cells[3].energy_interaction.lower <= 1.0 <= found.cells[3].energy_interaction.upper)
    assert 0.90 <= np.mean(held) <= 0.995

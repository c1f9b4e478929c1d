"""Accuracy against joules on a scripted run of known answers and joules: every figure by hand, and every failure."""

from math import comb

import pytest

from joulewise.analysis.budget_advice import NONE_RIGHT
from joulewise.analysis.cells import split
from joulewise.analysis.tradeoffs import NO_WISHES, Wishes, tradeoffs
from joulewise.errors import UserError
from sample_tradeoff import QUESTIONS, SCRIPT, script
from synthetic_table import part, row, table


def found(rows, wishes=NO_WISHES, component="total"):
    cells = split(table(rows))
    return tradeoffs(cells, {cell.key.head: component for cell in cells}, wishes)


@pytest.fixture(scope="module")
def scripted():
    (one,) = found(script(), Wishes(reach=0.25))
    return one


def cell(group, reasoning):
    return next(c for c in group.cells if c.key.reasoning == reasoning)


def group(tradeoff, name):
    return next(g for g in tradeoff.groups if g.name == name)


def test_what_it_is_about(scripted):
    assert (scripted.run, scripted.task, scripted.measure, scripted.measured) == ("r", "maths", "accuracy", True)
    assert (scripted.questions, scripted.tried, scripted.unjudged, scripted.left_out) == (10, 10, 0, ())
    assert [(g.level, g.name, g.questions, g.too_few) for g in scripted.groups] == [
        ("task", "maths", 10, False),
        ("category", "a", 7, False),
        ("category", "b", 3, True),
    ]
    assert [c.key.reasoning for c in scripted.whole.cells] == ["direct", "cot-256", "vote-1", "vote-3", "vote-5"]


@pytest.mark.parametrize(
    ("reasoning", "accuracy", "per_answer", "per_token", "per_output_token", "per_correct", "per_kj"),
    [
        # direct: 20 J over 10 answers, 10 x (20 + 10) tokens, 100 output tokens, 2 correct answers
        ("direct", 0.2, 2.0, 20 / 300, 0.2, 10.0, 100.0),
        ("cot-256", 0.6, 20.0, 200 / 1200, 0.2, 200 / 6, 30.0),
        ("vote-1", 0.1, 2.0, 20 / 300, 0.2, 20.0, 50.0),
        ("vote-3", 0.3, 5.0, 50 / 500, 50 / 300, 50 / 3, 60.0),
        ("vote-5", 0.3, 8.0, 80 / 700, 0.16, 80 / 3, 37.5),
    ],
)
def test_every_metric_by_hand(
    scripted, reasoning, accuracy, per_answer, per_token, per_output_token, per_correct, per_kj
):
    one = cell(scripted.whole, reasoning)
    assert one.quality.value == pytest.approx(accuracy)
    assert one.energy_per_answer_j.value == pytest.approx(per_answer)
    assert one.energy_per_token_j.value == pytest.approx(per_token)
    assert one.energy_per_output_token_j.value == pytest.approx(per_output_token)
    assert one.energy_per_correct_answer_j.value == pytest.approx(per_correct)
    assert one.correct_answers_per_kj.value == pytest.approx(per_kj)


def test_accuracy_has_wilsons_interval(scripted):
    # 6 of 10: centre (0.6 + 0.192073) / 1.384146 = 0.572247, half 1.959964 / 1.384146 * sqrt(0.024 + 0.0096037)
    quality = cell(scripted.whole, "cot-256").quality
    assert (quality.lower, quality.upper) == pytest.approx((0.312674, 0.831820), abs=1e-5)


def test_steps_against_direct(scripted):
    against = cell(scripted.whole, "cot-256").against
    assert against.baseline.reasoning == "direct"
    assert against.quality_difference.value == pytest.approx(0.4)
    assert against.quality_relative.value == pytest.approx(2.0)  # 6 right in place of 2: +200 %
    assert (against.lost, against.gained) == (1, 5)
    assert against.quality_p == pytest.approx(2 * (1 + 6) / 2**6)  # 0 or 1 of 6 changed answers, either way
    # Bonett and Price: (6 - 2) / 12 +- 1.959964 sqrt((8 / 12 - 1 / 9) / 12) = 0.333333 +- 0.421718
    ends = (against.quality_difference.lower, against.quality_difference.upper)
    assert ends == pytest.approx((-0.088385, 0.755051), abs=1e-5)
    assert against.quality_verdict == "cannot tell"
    assert against.energy_relative.value == pytest.approx(9.0)  # 20 J in place of 2: +900 %
    assert (against.energy_relative.lower, against.energy_relative.upper) == pytest.approx((9.0, 9.0))
    assert against.energy_verdict == "more joules"
    assert cell(scripted.whole, "direct").against is None


def test_where_no_answer_differs_the_relative_gain_has_no_interval():
    """No resampling makes one differ, and that is no certainty."""
    (one,) = found(script({"direct": ({1, 2}, 2.0, 10), "cot-9": ({1, 2}, 4.0, 10)}))
    relative = cell(one.whole, "cot-9").against.quality_relative
    assert (relative.value, relative.lower, relative.upper) == (0.0, None, None)
    assert relative.reason == "no answer differs"


def test_verdicts_hold_among_all_comparisons(scripted):
    # McNemar's of the four: 14/64 (cot), 1 (vote-1: 1 lost), 1 (vote-3), 1 (vote-5). The joules: 0, 1 (none), 0, 0.
    # Holm over 8, ascending 0 0 0 0.21875 1 1 1 1: the fourth is multiplied by 5.
    assert cell(scripted.whole, "cot-256").against.quality_p_among == pytest.approx(1.0)
    assert cell(scripted.whole, "vote-3").against.energy_p_among == 0.0
    assert cell(scripted.whole, "vote-1").against.energy_verdict == "cannot tell"


def test_a_clear_difference_has_a_verdict():
    ways = {"direct": (set(), 2.0, 10), "cot-256": (set(QUESTIONS), 20.0, 100), "cot-9": (set(QUESTIONS), 1.0, 10)}
    (one,) = found(script(ways))
    against = cell(one.whole, "cot-256").against
    # 10 gained of 10 changed: 2 / 2^10; among four tests, two of them with p = 0, times 2
    assert (against.quality_p, against.quality_p_among) == pytest.approx((2 / 1024, 4 / 1024))
    assert against.quality_verdict == "better"
    assert against.quality_relative.value is None
    assert "no correct answer" in against.quality_relative.reason
    assert cell(one.whole, "cot-9").against.energy_verdict == "fewer joules"
    (turned,) = found(script(ways), Wishes(baseline="e/vanilla/cot-256"))
    assert cell(turned.whole, "direct").against.quality_verdict == "worse"
    assert cell(turned.whole, "direct").against.quality_relative.value == -1.0


def test_categories_with_too_few_questions_are_shown_without_a_verdict(scripted):
    few = group(scripted, "b")
    steps = cell(few, "cot-256")
    assert (steps.quality.value, steps.quality.n_questions) == (0.0, 3)
    assert steps.quality.upper > 0.5  # a wide interval: Wilson's of 0 of 3 ends at 56 %
    assert steps.energy_per_answer_j.lower is None
    assert (steps.against.quality_verdict, steps.against.energy_verdict, steps.against.quality_p) == (None, None, None)
    assert cell(group(scripted, "a"), "cot-256").against.energy_verdict == "more joules"


def test_the_frontier_and_how_sure_it_is(scripted):
    places = {place.key.reasoning: place for place in scripted.places}
    assert {name for name, place in places.items() if place.optimal} == {"direct", "vote-3", "cot-256"}
    missed = 0.9**10  # the chance that a given question is not among ten that are drawn
    assert places["direct"].frequency == 1.0  # vote-1 costs as much, and is right where direct is or not at all
    assert places["vote-1"].frequency == pytest.approx(missed, abs=0.03)  # as good as direct where q1 is not drawn
    assert places["vote-3"].frequency == pytest.approx(1 - missed, abs=0.03)  # better than direct where q2 is drawn
    assert places["vote-5"].frequency == 0.0


def test_what_is_beaten_by_what(scripted):
    told = {d.loser.reasoning: d for d in scripted.dominances}
    assert {name: d.winner.reasoning for name, d in told.items()} == {"vote-1": "direct", "vote-5": "vote-3"}
    vote = told["vote-5"]
    assert (vote.quality_difference, vote.energy_ratio, vote.frequency) == pytest.approx((0.0, 0.625, 1.0))
    # category a alone has enough questions to count
    assert (vote.level, vote.ahead, vote.even, vote.behind) == ("category", 0, 1, 0)
    assert (told["vote-1"].ahead, told["vote-1"].even, told["vote-1"].behind) == (1, 0, 0)


def test_the_cheapest_that_reaches_an_accuracy(scripted):
    reach = scripted.reach
    assert (reach.key.reasoning, reach.target) == ("vote-3", 0.25)

    def chance(x, y):  # x draws of q0 or q1, y of q2, of ten
        return comb(10, x) * comb(10 - x, y) * 0.2**x * 0.1**y * 0.7 ** (10 - x - y)

    pairs = [(x, y) for x in range(11) for y in range(11 - x) if x + y >= 3]
    assert reach.frequency == pytest.approx(sum(chance(x, y) for x, y in pairs), abs=0.03)
    assert reach.cheapest == pytest.approx(sum(chance(x, y) for x, y in pairs if x < 3), abs=0.03)
    (one,) = found(script(), Wishes(reach=0.7))
    assert one.reach.key is None


def test_what_more_votes_buy(scripted):
    (curve,) = scripted.curves
    assert [key.reasoning for key in curve.keys] == ["direct", "vote-1", "vote-3", "vote-5"]
    assert curve.sizes == (0, 1, 3, 5)
    first, second, third = curve.steps
    assert (first.quality_difference.value, first.energy_j.value) == pytest.approx((-0.1, 0.0))
    assert first.points_per_kj.value is None
    assert "no more joules" in first.points_per_kj.reason
    assert (second.quality_difference.value, second.energy_j.value) == pytest.approx((0.2, 3.0))
    assert second.points_per_kj.value == pytest.approx(20 / 0.003)  # 20 points for 3 J
    assert second.points_per_kj.lower < 20 / 0.003 < second.points_per_kj.upper
    assert third.points_per_kj.value == pytest.approx(0.0)


def test_where_to_stop(scripted):
    (curve,) = scripted.curves
    whole, a, b = curve.advice
    assert (whole.level, whole.best) == ("task", "vote-3")  # vote-5 is as accurate, and larger
    assert whole.frequency == pytest.approx(1 - 0.9**10, abs=0.03)  # else direct is as accurate
    assert whole.may_be == ("direct", "vote-3")
    assert (a.name, a.best) == ("a", "vote-3")
    assert (b.name, b.best, b.may_be) == ("b", None, ())
    assert "fewer than 5" in b.why
    # At 5,000 points a kilojoule a joule must buy 5 points: direct 20 - 10, vote-3 30 - 25, vote-5 30 - 40.
    (dear,) = found(script(), Wishes(points_per_kj=5000.0))
    assert dear.curves[0].advice[0].best == "direct"
    assert dear.curves[0].points_per_kj == 5000.0


def test_a_size_that_is_surely_enough():
    ways = {
        "budget-16": (set(), 1.0, 16),
        "budget-64": (set(QUESTIONS), 4.0, 64),
        "budget-256": (set(QUESTIONS), 9.0, 99),
    }
    (one,) = found(script(ways))
    (curve,) = one.curves
    assert curve.sizes == (16, 64, 256)  # direct was not run
    assert (curve.advice[0].best, curve.advice[0].frequency, curve.advice[0].may_be) == (
        "budget-64",
        1.0,
        ("budget-64",),
    )


def test_of_sizes_that_are_as_accurate_the_one_with_the_fewest_joules_is_enough():
    ways = {"direct": ({0}, 8.0, 99), "budget-16": ({0}, 5.0, 16), "budget-64": ({0}, 6.0, 64)}
    (one,) = found(script(ways))
    advice = one.curves[0].advice[0]
    assert (advice.best, advice.frequency, advice.may_be) == ("budget-16", 1.0, ("budget-16",))


def test_of_sizes_without_a_right_answer_none_is_advised():
    ways = {"direct": (set(), 8.0, 99), "budget-16": (set(), 5.0, 16), "budget-64": (set(), 9.0, 64)}
    ways["few-shot-2"] = ({0}, 6.0, 9)
    (one,) = found(script(ways))
    advice = one.curves[0].advice[0]
    assert (advice.best, advice.frequency, advice.may_be, advice.why) == (None, None, (), NONE_RIGHT)
    (one,) = found(script(ways | {"budget-16": ({0}, 5.0, 16)}))
    assert one.curves[0].advice[0].best == "budget-16"


def test_votes_over_steps_start_at_those_steps():
    ways = {name: ({0}, 1.0, 10) for name in ("direct", "cot-300", "vote-3-cot-300", "vote-5-cot-300", "vote-3")}
    (one,) = found(script(ways))
    assert [[key.reasoning for key in curve.keys] for curve in one.curves] == [
        ["cot-300", "vote-3-cot-300", "vote-5-cot-300"]
    ]


def test_any_reasoning_with_a_number_in_its_label_has_sizes():
    ways = {name: ({0}, 1.0, 10) for name in ("direct", "best-of-3", "best-of-10", "budget-8-4", "budget-16-4", "odd")}
    (one,) = found(script(ways))
    assert [[key.reasoning for key in curve.keys] for curve in one.curves] == [
        ["direct", "best-of-3", "best-of-10"],
        ["direct", "budget-8-4", "budget-16-4"],
    ]


def test_mmlu_has_subjects_subcategories_and_categories():
    subjects = ["college_physics", "astronomy", "marketing", "anatomy"]
    rows = [
        row(question=f"{s}-{i}", category=s, reasoning=r, energy=[part("gpu", 1.0)], correct=i % 2 == 0, score=0.5)
        for s in subjects
        for i in range(6)
        for r in ("direct", "cot-256")
    ]
    (one,) = found(rows)
    named = {
        level: [g.name for g in one.groups if g.level == level] for level in ("subject", "subcategory", "category")
    }
    assert named["subject"] == sorted(subjects)
    assert named["subcategory"] == ["business", "health", "physics"]
    assert named["category"] == ["STEM", "other"]
    assert group(one, "physics").questions == 12


def test_a_score_in_place_of_right_and_wrong():
    rows = [
        row(question=f"q{i}", reasoning=r, energy=[part("gpu", 1.0)], score=0.1 * i * k, metric="rouge_l")
        for i in range(10)
        for r, k in (("direct", 0.5), ("cot-256", 1.0))
    ]
    (one,) = found(rows)
    steps = cell(one.whole, "cot-256")
    assert (one.measure, steps.quality.value) == ("rouge_l", pytest.approx(0.45))
    assert steps.quality.lower < 0.45 < steps.quality.upper
    assert "no right and wrong" in steps.energy_per_correct_answer_j.reason
    assert steps.against.lost is None
    # Nine of ten questions moved, all upwards: no test of signs can prove more than 2^-8.
    assert steps.against.quality_p == pytest.approx(2**-8)
    assert steps.against.quality_verdict == "better"


def test_repeats_are_one_question():
    rows = script() + script(repeat=1)
    (one,) = found(rows)
    assert (one.questions, cell(one.whole, "direct").quality.n_questions) == (10, 10)
    assert cell(one.whole, "direct").quality.n_trials == 20
    assert cell(one.whole, "cot-256").against.lost is None


def test_unjudged_answers_are_left_out_and_counted():
    rows = script()
    rows[0] |= {"correct": None, "score": None}  # direct on q0, which it had right
    (one,) = found(rows)
    assert (one.questions, one.tried, one.unjudged) == (9, 10, 1)
    assert cell(one.whole, "direct").quality.value == pytest.approx(1 / 9)
    assert cell(one.whole, "cot-256").quality.value == pytest.approx(5 / 9)  # on the same nine


def test_nothing_judged_leaves_joules_alone():
    rows = [r | {"correct": None, "score": None, "metric": "unscored"} for r in script()]
    (one,) = found(rows)
    steps = cell(one.whole, "cot-256")
    assert (one.measure, steps.quality.value) == (None, None)
    assert steps.energy_per_answer_j.value == pytest.approx(20.0)
    assert steps.against.energy_verdict == "more joules"
    assert (steps.against.quality_verdict, one.places, one.dominances, one.curves) == (None, (), (), ())


def test_modelled_joules_carry_no_verdict():
    (one,) = found(script(provenance="modelled"), Wishes(reach=0.25))
    assert (one.measured, one.places, one.dominances, one.reach) == (False, (), (), None)
    steps = cell(one.whole, "cot-256")
    assert (steps.against.energy_relative.value, steps.against.energy_verdict) == (pytest.approx(9.0), None)
    assert steps.against.quality_verdict == "cannot tell"  # accuracy is known all the same
    (curve,) = one.curves
    assert curve.steps[1].points_per_kj.provenance == "modelled"
    assert {advice.best for advice in curve.advice} == {None}


def test_joules_that_are_not_there():
    rows = [row(question=f"q{q}", reasoning=r, correct=True, score=1.0) for q in QUESTIONS for r in ("direct", "cot-9")]
    (one,) = found(rows)
    assert cell(one.whole, "cot-9").quality.value == 1.0
    assert cell(one.whole, "cot-9").energy_per_answer_j.value is None
    assert (one.measured, one.places, one.curves) == (False, (), ())


def test_none_correct():
    ways = {"direct": (set(), 2.0, 10), "cot-256": (set(), 20.0, 100)}
    (one,) = found(script(ways))
    direct = cell(one.whole, "direct")
    assert (direct.energy_per_correct_answer_j.value, direct.energy_per_correct_answer_j.unbounded) == (None, True)
    # 2 J an answer over Wilson's upper end of 0 of 10, 0.27753
    assert direct.energy_per_correct_answer_j.lower == pytest.approx(2.0 / 0.27753, rel=1e-4)
    assert direct.correct_answers_per_kj.value == 0.0
    assert direct.correct_answers_per_kj.upper == pytest.approx(277.53 / 2.0, rel=1e-4)
    assert [place.key.reasoning for place in one.places if place.optimal] == ["direct"]


def test_one_way_of_answering_is_nothing_to_trade():
    assert found(script({"direct": SCRIPT["direct"]})) == ()
    assert found([]) == ()
    decodings = [row(d, f"q{q}", energy=[part("gpu", 1.0)]) for d in ("vanilla", "coga-5") for q in QUESTIONS]
    assert found(decodings) == ()


def test_several_models_are_held_against_each_other():
    small, large = ({"direct": way} for way in (SCRIPT["direct"], SCRIPT["cot-256"]))
    rows = script(small, engine="small", model="1b") + script(large, engine="large", model="8b")
    (one,) = found(rows)
    assert {c.against for c in one.whole.cells} == {None}  # each is its own baseline
    (named,) = found(rows, Wishes(baseline="small/vanilla/direct"))
    assert next(c for c in named.whole.cells if c.key.model == "8b").against.quality_relative.value == pytest.approx(2)


def test_cells_that_have_nothing_are_left_out_with_the_reason():
    rows = script()
    rows += [row(question=f"q{q}", reasoning="budget-9", status="failed") for q in QUESTIONS]
    rows += [r | {"reasoning": "budget-8"} for r in script({"direct": SCRIPT["direct"]})[:3]]
    rows += [r | {"reasoning": "budget-7", "correct": None} for r in script({"direct": SCRIPT["direct"]})]
    (one,) = found(rows)
    assert one.questions == 10
    assert {key.reasoning: reason for key, reason in one.left_out} == {
        "budget-9": "no Trial succeeded",
        "budget-8": "only 3 of 10 questions answered",
        "budget-7": "none of its answers is judged",
    }


def test_cells_without_a_question_in_common():
    rows = [row(question=f"{r}{i}", reasoning=r, correct=True) for r in ("direct", "cot-9") for i in range(6)]
    (one,) = found(rows)
    assert (one.questions, one.groups, one.places, one.curves) == (0, (), (), ())


def test_the_meters_common_error_widens_joules_and_cancels_in_their_ratio():
    rows = script()
    for r in rows:
        r["gpu_gain_j"] = r["total_gain_j"] = 0.05 * r["gpu_energy_j"]
    (one,) = found(rows)
    steps = cell(one.whole, "cot-256")
    assert steps.energy_per_answer_j.common == pytest.approx(0.05)
    assert steps.energy_per_answer_j.upper == pytest.approx(20 * 2.718281828 ** (1.959964 * 0.05))
    assert steps.against.energy_relative.common == pytest.approx(0.0)
    step = one.curves[0].steps[1]
    assert step.energy_j.upper == pytest.approx(3.0 + 1.959964 * 0.15)  # 5 % of 3 J, the difference


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (Wishes(baseline="e/vanilla/drect"), "no such cell.*did you mean 'e/vanilla/direct'"),
        (Wishes(reach=1.2), "an accuracy lies above 0"),
        (Wishes(reach=0.0), "an accuracy lies above 0"),
        (Wishes(points_per_kj=-1.0), "0 or more"),
        (Wishes(points_per_kj=float("nan")), "0 or more"),
    ],
)
def test_wishes_that_cannot_be(wishes, words):
    with pytest.raises(UserError, match=words):
        found(script(), wishes)


def test_a_wish_about_nothing():
    with pytest.raises(UserError, match="every task has one of either"):
        found(script({"direct": SCRIPT["direct"]}), Wishes(reach=0.5))

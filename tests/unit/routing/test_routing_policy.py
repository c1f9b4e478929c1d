from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.analysis.curves import Coefficient, Correction, Curve, HeldOut, Region, Spread
from joulewise.errors import UserError
from joulewise.routing.energy import OptionEnergy, Quantiles, expected_energy
from joulewise.routing.lengths import fit_lengths
from joulewise.routing.paper_policy import choose_by_paper, paper_rule
from joulewise.routing.policy import (
    Cascade,
    Choice,
    Conversation,
    Estimate,
    Goal,
    Load,
    Option,
    Query,
    Reading,
    State,
    cascade_estimate,
    choose,
)


def just(value: float) -> Quantiles:
    return Quantiles(value, value, value)


SMALL = Option("small", "s", context_limit=4000, active_parameters=1e9)
SMALL_COT = Option("small-cot", "s", "cot", output_budget=2000, active_parameters=1e9)
LARGE = Option("large", "l", active_parameters=70e9, modalities=frozenset({"text", "image"}))
LARGE_COT = Option("large-cot", "l", "cot", output_budget=1000, active_parameters=70e9)
OPTIONS = (SMALL, SMALL_COT, LARGE, LARGE_COT)
TABLE = {"small": (0.60, 10.0, 1.0), "small-cot": (0.70, 200.0, 9.0), "large": (0.80, 60.0, 3.0)}
TABLE["large-cot"] = (0.90, 600.0, 20.0)


def told(query: Query, option: Option, load: Load) -> Estimate:
    """Joules fall with the load, seconds grow with it and with the queue."""
    accuracy, joules, seconds = TABLE[option.name]
    late = seconds * load.running**0.5 + load.queued
    return Estimate(accuracy, just(joules / load.running), just(late / 4), just(late))


def chosen(query: Query | None = None, state: State | None = None, **goal: object) -> Choice:
    return choose(query or Query(100), OPTIONS, told, state or State(), Goal(**goal))  # type: ignore[arg-type]


def why(choice: Choice) -> dict[str, str]:
    return {v.option: v.why for v in choice.verdicts}


def busy(model: str, n: float, age_s: float = 0.0) -> State:
    return State(running={model: Reading(n, age_s)})


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        (lambda: chosen(least_accuracy=0.5), lambda: chosen(least_accuracy=0.75), ("small", "large")),
        (lambda: chosen(within=0.4), lambda: chosen(within=0.05), ("small", "large-cot")),
        (lambda: chosen(most_j=100), lambda: chosen(most_j=20), ("large", "small")),
        (lambda: chosen(most_total_s=5), lambda: chosen(most_total_s=2), ("large", "small")),
        (lambda: chosen(most_first_token_s=1), lambda: chosen(most_first_token_s=0.5), ("large", "small")),
        (
            lambda: chosen(answer_value=1, kwh_price=1),
            lambda: chosen(answer_value=1, kwh_price=36e3),
            ("large-cot", "small"),
        ),
        (lambda: chosen(answer_value=1), lambda: chosen(answer_value=1, second_price=0.15), ("large-cot", "small")),
        (lambda: chosen(least_accuracy=0.5), lambda: chosen(least_accuracy=0.5, pinned={"large"}), ("small", "large")),
        (
            lambda: chosen(least_accuracy=0.5),
            lambda: chosen(least_accuracy=0.5, forbidden={"small"}),
            ("small", "large"),
        ),
        (lambda: chosen(least_accuracy=0.5), lambda: chosen(Query(4001), least_accuracy=0.5), ("small", "large")),
        (
            lambda: chosen(least_accuracy=0.5),
            lambda: chosen(Query(9, modalities=frozenset({"image"})), least_accuracy=0.5),
            ("small", "large"),
        ),
        (
            lambda: chosen(least_accuracy=0.5),
            lambda: chosen(state=busy("l", 9), least_accuracy=0.5),
            ("small", "large"),
        ),
        (lambda: chosen(most_total_s=5), lambda: chosen(state=busy("l", 9), most_total_s=5), ("large", "small")),
        (
            lambda: chosen(most_total_s=5),
            lambda: chosen(state=State(queued={"l": Reading(7)}), most_total_s=5),
            ("large", "small"),
        ),
        (
            lambda: chosen(most_first_token_s=1),
            lambda: chosen(state=State(first_token_s={"l": Reading(1.1)}), most_first_token_s=1),
            ("large", "small"),
        ),
        (
            lambda: chosen(most_total_s=5),
            lambda: chosen(state=State(first_token_s={"l": Reading(3)}), most_total_s=5),
            ("large", "small"),
        ),
        (
            lambda: chosen(state=State(carbon_g_per_kwh=Reading(1)), answer_value=1, co2_kg_price=1e5),
            lambda: chosen(state=State(carbon_g_per_kwh=Reading(900)), answer_value=1, co2_kg_price=1e5),
            ("large-cot", "small"),
        ),
        (
            lambda: chosen(Query(9, conversation=Conversation("l", 40)), least_accuracy=0.5),
            lambda: chosen(Query(9, conversation=Conversation("l", 60)), least_accuracy=0.5),
            ("small", "large"),
        ),
        (
            lambda: chosen(Query(9, conversation=Conversation("l")), least_accuracy=0.5),
            lambda: chosen(Query(9, conversation=Conversation("l")), least_accuracy=0.5, switch_price=1),
            ("small", "large"),
        ),
        (
            lambda: chosen(Query(9, conversation=Conversation("l", 0, 5)), most_total_s=3),
            lambda: chosen(Query(9, conversation=Conversation("s", 0, 5)), most_total_s=3),
            ("large", "small"),
        ),
    ],
)
def test_each_input_alone_changes_the_choice(
    one: Callable[[], Choice], other: Callable[[], Choice], names: tuple[str, str]
) -> None:
    assert (one().option, other().option) == names


def test_within_is_a_share_of_the_best_accuracy() -> None:
    assert chosen(within=0.33).option == "large"  # a floor of 0.603, not of 0.57
    assert chosen(within=0.34).option == "small"  # of 0.594


@pytest.mark.parametrize("goal", [Goal(least_accuracy=0.5), Goal(most_j=100)])
@pytest.mark.parametrize(
    "better",
    [
        Estimate(0.8, just(9), just(1), just(2)),
        Estimate(0.7, just(9), just(1), just(1)),
        Estimate(0.7, just(9), just(0), just(2)),
    ],
)
def test_what_costs_the_same_is_told_apart_by_accuracy_then_seconds(better: Estimate, goal: Goal) -> None:
    found = {"a": Estimate(0.7, just(9), just(1), just(2)), "b": better}
    options = [Option(name, "m") for name in found]
    assert choose(Query(1), options, lambda query, option, load: found[option.name], State(), goal).option == "b"


def test_a_stale_load_is_not_used_and_this_is_said() -> None:
    fresh, stale = chosen(state=busy("l", 9, 29), most_total_s=5), chosen(state=busy("l", 9, 31), most_total_s=5)
    assert (fresh.option, stale.option) == ("small", "large")
    assert any("31 s old" in reason for reason in stale.reasons)
    assert sum("31 s old" in reason for reason in stale.reasons) == 1


def test_observed_first_tokens_move_the_seconds_that_are_expected() -> None:
    def shown(reading: Reading, expected: Estimate) -> tuple[Estimate, str]:
        state = State(first_token_s={"s": reading})
        found = choose(Query(9), (SMALL,), lambda *_: expected, state, Goal(least_accuracy=0))
        return found.estimate, str(found.reasons[1:])

    expected = Estimate(0.6, just(10), Quantiles(1, 0.5, 3), Quantiles(4, 3, 9))
    later, _ = shown(Reading(1.5, 29), expected)
    assert (later.first_token_s, later.total_s) == (Quantiles(1.5, 1, 3.5), Quantiles(4.5, 3.5, 9.5))
    sooner, _ = shown(Reading(0.25), expected)
    assert (sooner.first_token_s, sooner.total_s) == (Quantiles(0.25, 0, 2.25), Quantiles(3.25, 2.25, 8.25))
    none, note = shown(Reading(2), Estimate(0.6, just(10)))
    assert (none.first_token_s, none.total_s) == (just(2), None)
    assert "only the mean" in note
    stale, note = shown(Reading(1.5, 31), expected)
    assert stale == expected
    assert "31 s old" in note


@pytest.mark.parametrize("grid", [None, Reading(900, 8000)])
def test_carbon_that_is_not_known_has_no_part(grid: Reading | None) -> None:
    found = chosen(state=State(carbon_g_per_kwh=grid), answer_value=1, co2_kg_price=1e5)
    assert found.option == "large-cot"
    assert any("carbon" in reason for reason in found.reasons)


def test_every_option_is_told_with_why_it_lost() -> None:
    found = chosen(Query(3500), least_accuracy=0.75, most_j=500)
    assert found.reasons == (
        "large: accuracy 80.0%, 60 J expected; the cheapest of 1 option within the limits at or above 75.0%",
    )
    assert why(found) == {
        "large": "taken",
        "large-cot": "600 J expected, more than 500 J",
        "small": "accuracy 60.0% is below the floor of 75.0%",
        "small-cot": "accuracy 70.0% is below the floor of 75.0%",
    }
    assert not found.best_effort


def test_a_floor_that_nothing_reaches_is_best_effort_and_said() -> None:
    found = chosen(least_accuracy=0.99)
    assert (found.option, found.best_effort) == ("large-cot", True)
    assert "none of 4 options within the limits reaches the floor of 99.0%" in found.reasons[0]
    limited = chosen(least_accuracy=0.99, most_j=100)
    assert (limited.option, limited.best_effort) == ("large", True)


def test_limits_that_nothing_keeps_are_best_effort_and_said() -> None:
    found = chosen(least_accuracy=0.5, most_j=1)
    assert (found.option, found.best_effort) == ("small", True)
    assert any("misses: 10 J expected" in reason for reason in found.reasons)


def test_what_a_budget_cannot_afford_falls_out_and_the_floor_stays() -> None:
    without, short = chosen(within=0.2), chosen(within=0.2, affordable_j=50.0)
    assert (without.option, without.below_floor) == ("large", False)
    assert (short.option, short.below_floor, short.best_effort, short.limits_missed) == ("small", True, True, False)
    assert why(short)["large"] == "60 J expected, and the joule budget leaves 50 J"
    # Limits that nothing keeps do not bring back what cannot be afforded.
    assert chosen(least_accuracy=0.8, most_total_s=0.1, most_j=1.0, affordable_j=100.0).option == "large"
    with pytest.raises(UserError, match="small: 10 J expected, and the joule budget leaves 5 J"):
        chosen(within=0.2, affordable_j=5.0)


def test_seconds_that_are_not_known_keep_no_limit() -> None:
    def blind(query: Query, option: Option, load: Load) -> Estimate:
        return replace(told(query, option, load), total_s=None)

    found = choose(Query(9), OPTIONS, blind, State(), Goal(most_total_s=5))
    assert found.best_effort
    assert "not known" in why(found)["small"] + str(found.reasons)
    priced = choose(Query(9), OPTIONS, blind, State(), Goal(answer_value=1, second_price=1))
    assert any("seconds of small are not known" in reason for reason in priced.reasons)


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        ({}, "asks for nothing"),
        ({"least_accuracy": 0.5, "within": 0.1}, "two floors"),
        ({"least_accuracy": 80}, "above 1"),
        ({"least_accuracy": -0.1}, "at least 0"),
        ({"most_j": float("nan")}, "at least 0"),
        ({"pinned": frozenset("a"), "forbidden": frozenset("a")}, "pinned and forbidden"),
        ({"most_first_token_s": 2, "most_total_s": 1}, "too late"),
        ({"least_accuracy": 0.5, "kwh_price": 0}, "above 0"),
    ],
)
def test_contradictory_goals_are_refused(goal: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Goal(**goal)  # type: ignore[arg-type]


def test_options_that_cannot_be_are_refused() -> None:
    goal = Goal(least_accuracy=0.5)
    lost = Option("lost", "s", cascade=Cascade("small", "none", 1, 0))
    for options, said in (((), "no option"), ((SMALL, SMALL), "same name"), ((SMALL, lost), "none is not")):
        with pytest.raises(UserError, match=said):
            choose(Query(9), options, told, State(), goal)
    with pytest.raises(UserError, match=r"small: 5,000 tokens do not fit"):
        choose(Query(5000), (SMALL,), told, State(), goal)
    with pytest.raises(UserError, match="no option is named xl"):
        chosen(pinned={"xl"})
    with pytest.raises(UserError, match="no estimate"):
        choose(Query(9), (SMALL,), lambda *_: Estimate(1.2, just(1)), State(), goal)


def test_a_cascade_by_hand() -> None:
    small, large = told(Query(9), SMALL, Load()), told(Query(9), LARGE, Load())
    found = cascade_estimate(Cascade("small", "large", 0.9, 0.2, verify_j=1.0, verify_s=0.5), small, large)
    again = 1 - 0.6 * 0.9 - 0.4 * 0.2
    assert found.accuracy == pytest.approx(0.54 + again * 0.8)
    assert found.energy_j.mean == pytest.approx(10 + 1 + again * 60)
    assert (found.energy_j.p50, found.energy_j.p95) == (11, 71)
    assert found.total_s is not None
    assert found.total_s.mean == pytest.approx(1 + 0.5 + again * 3)


def test_a_cascade_wins_where_its_verifier_is_good_and_loses_where_it_is_bad() -> None:
    def taken(keeps_right: float, keeps_wrong: float) -> str:
        both = Option("both", "s", cascade=Cascade("small", "large", keeps_right, keeps_wrong))
        return choose(Query(9), (SMALL, LARGE, both), told, State(), Goal(least_accuracy=0.78)).option

    assert taken(1.0, 0.1) == "both"
    assert taken(0.5, 0.5) == "large"


def test_a_cascade_falls_out_with_either_of_its_options() -> None:
    both = Option("both", "s", cascade=Cascade("small", "large", 1.0, 0.1))
    found = choose(Query(9), (SMALL, LARGE, both), told, State(), Goal(within=0.0, forbidden=frozenset({"large"})))
    assert found.option == "small"
    assert why(found)["both"] == "may ask large, which is forbidden"
    image = choose(Query(9, modalities=frozenset({"image"})), (SMALL, LARGE, both), told, State(), Goal(within=0.0))
    assert why(image)["both"] == "s does not read image"


def test_with_curves_more_load_brings_the_large_model_within_the_joules() -> None:
    none = Spread(0, None, None)
    region = Region((1.0, 1e4), (1.0, 1e4), (1.0, 64.0))
    shared = {"token_shared": Coefficient(1.0, 1.0, 1.0), "token": Coefficient(0.1, 0.1, 0.1)}
    curve = Curve(shared, Correction(2.0), HeldOut("question", none, none), none, (), region)
    energies = {
        "small": OptionEnergy(fit_lengths([9], [20]), curve),
        "large": OptionEnergy(fit_lengths([9], [99]), curve),
    }

    def estimate(query: Query, option: Option, load: Load) -> Estimate:
        joules = expected_energy(energies[option.name], query.prompt_tokens, load.running)
        return Estimate(TABLE[option.name][0], joules.energy_j)

    def taken(state: State) -> str:
        return choose(Query(100), (SMALL, LARGE), estimate, state, Goal(most_j=50)).option

    assert (taken(State()), taken(busy("l", 7))) == ("small", "large")


rows = st.lists(
    st.tuples(*(st.integers(0, 2),) * 4, st.booleans()).map(lambda t: (t[0] / 2, 3.0 * t[1], t[2], 3 * t[3], t[4])),
    min_size=1,
    max_size=6,
)
goals = st.builds(
    dict,
    most_j=st.none() | st.integers(0, 6),
    most_total_s=st.none() | st.integers(3, 6),
    most_first_token_s=st.none() | st.integers(0, 3),
    second_price=st.sampled_from([0.0, 1e-6]),
    answer_value=st.sampled_from([0.0, 1e-6]),
)


def made(found: list[tuple[float, float, float, float, bool]]) -> tuple[list[Option], Callable[..., Estimate]]:
    table = {f"o{i}": Estimate(a, just(j), just(f), just(t) if k else None) for i, (a, j, f, t, k) in enumerate(found)}
    return [Option(name, "m") for name in table], lambda query, option, load: table[option.name]


def better(a: Estimate, b: Estimate) -> bool:
    if a.total_s is None or b.total_s is None or a.first_token_s is None or b.first_token_s is None:
        return False
    one = (a.accuracy, -a.energy_j.mean, -a.first_token_s.mean, -a.total_s.mean)
    two = (b.accuracy, -b.energy_j.mean, -b.first_token_s.mean, -b.total_s.mean)
    return one != two and all(x >= y for x, y in zip(one, two, strict=True))


@given(rows, goals, st.none() | st.integers(0, 6))
@settings(max_examples=80, deadline=None)
def test_a_dominated_option_is_never_chosen(found: list, limits: dict, floor: int | None) -> None:
    options, estimate = made(found)
    goal = Goal(**limits, within=0.5) if floor is None else Goal(**limits, least_accuracy=floor / 6)
    choice = choose(Query(1), options, estimate, State(), goal)
    assert not any(better(v.estimate, choice.estimate) for v in choice.verdicts if v.estimate is not None)


@given(rows, goals, st.integers(0, 7), st.integers(0, 7), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_higher_floor_never_lowers_the_accuracy(found: list, limits: dict, a: int, b: int, relative: bool) -> None:
    options, estimate = made(found)

    def accuracy(floor: float) -> float:
        goal = Goal(**limits, within=1 - floor) if relative else Goal(**limits, least_accuracy=floor)
        return choose(Query(1), options, estimate, State(), goal).estimate.accuracy

    assert accuracy(min(a, b) / 7) <= accuracy(max(a, b) / 7)


@given(rows, goals, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_the_options_does_not_matter(found: list, limits: dict, random: object) -> None:
    options, estimate = made(found)
    goal = Goal(**limits, least_accuracy=0.5)
    first = choose(Query(1), options, estimate, State(), goal)
    random.shuffle(options)  # type: ignore[attr-defined]
    assert choose(Query(1), options, estimate, State(), goal) == first


@pytest.mark.parametrize(
    ("domain", "critical", "name"),
    [
        ("humanities", False, "small"),
        ("high_school_macroeconomics", False, "small"),
        ("Economics", False, "small"),
        ("college_mathematics", False, "large"),
        ("engineering", False, "large"),
        ("computer science", False, "large"),
        ("law", True, "large-cot"),
        ("math", True, "large-cot"),
        (None, False, "large"),
        ("astronomy", False, "large"),
    ],
)
def test_the_papers_rules(domain: str | None, critical: bool, name: str) -> None:
    found = choose_by_paper(Query(100, domain), OPTIONS, told, State(), critical)
    assert found.option == name
    assert "econom" not in found.reasons[0] or name == "small"
    assert len(found.verdicts) == 4


def test_the_papers_rules_pass_over_what_cannot_take_the_query_and_say_when_nothing_can() -> None:
    assert paper_rule(Query(5000, "history"), OPTIONS)[0].name == "large"
    with pytest.raises(UserError, match="chain of thought, a budget"):
        paper_rule(Query(9), (SMALL, LARGE), accuracy_critical=True)

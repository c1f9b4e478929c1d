from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.errors import UserError
from joulewise.routing.energy import PublishedCurve
from joulewise.routing.fast_choice import fast_chooser
from joulewise.routing.fitting import fit_router
from joulewise.routing.past_answers import Past, PastAnswer
from joulewise.routing.policy import Goal, Reading, State
from joulewise.routing.router import Learnt, Router
from planted_outcomes import planted

pytest.importorskip("scipy", reason="learning needs the extra routing")


def varied() -> Router:
    """Options whose joules come in all forms, with votes, budgets and small contexts."""
    found = planted(120, named=True)
    answers = [
        PastAnswer(
            option, option, query, score, domain, prompt_tokens=30.0 + i % 11, output_tokens=5.0 + (7 * i) % 23,
            energy_j=2.0 + i % 7, total_s=1.0,
        )
        for i, (query, scores, domain) in enumerate(zip(found.queries, found.correct, found.domains, strict=True))
        for option, score in zip(found.options, scores.tolist(), strict=True)
    ]  # fmt: skip
    router = fit_router(Past(tuple(answers)))
    learnt: dict[str, Learnt] = {}
    curve = PublishedCurve("m", "gpu", "table", (1.0, 8.0, 64.0), (2.0, 0.9, 0.3), (5.0, 50.0))
    for number, (name, known) in enumerate(router.learnt.items()):
        assert known.energy is not None
        for votes in (1, 3):
            for budget in (None, 9):
                energy = replace(
                    known.energy,
                    votes=votes * (1.0 + number / 17),
                    at_once=bool(number % 2),
                    most_output_tokens=budget,
                    retry_chance=0.1,
                    retries=2,
                    curve=curve if votes == 3 else known.energy.curve,
                )
                new = f"{name}/{votes}/{budget}"
                option = replace(known.option, name=new, output_budget=budget, context_limit=60 + 40 * number)
                learnt[new] = replace(known, option=option, energy=energy)
    return replace(router, learnt=learnt)


ROUTER = varied()
NAMES = sorted(ROUTER.learnt)
DECIDE = fast_chooser(ROUTER)

goals = st.builds(
    lambda floor, within, most_j, value, carbon, pinned: Goal(
        least_accuracy=floor if within is None else None,
        within=within,
        most_j=most_j,
        answer_value=value or (0.0 if floor or within or most_j or pinned else 1e-6),
        co2_kg_price=carbon,
        pinned=frozenset(pinned),
    ),
    st.none() | st.floats(0.01, 1.0),
    st.none() | st.floats(0.0, 0.5),
    st.none() | st.floats(0.1, 100.0),
    st.sampled_from([0.0, 1e-6, 1e-5]),
    st.sampled_from([0.0, 2.0]),
    st.sets(st.sampled_from(NAMES), max_size=5),
)
models = sorted({known.option.model for known in ROUTER.learnt.values()})
states = st.builds(
    lambda running, carbon: State(running=running, carbon_g_per_kwh=carbon),
    st.dictionaries(st.sampled_from(models), st.builds(Reading, st.floats(0, 40), st.sampled_from([0.0, 100.0]))),
    st.none() | st.builds(Reading, st.floats(0, 900), st.sampled_from([0.0, 1e5])),
)


@given(st.text(max_size=200), goals, states, st.sampled_from([None, "algebra", "nowhere"]))
def test_it_takes_what_choose_takes(text: str, goal: Goal, state: State, domain: str | None) -> None:
    try:
        wanted = ROUTER.choose(text, goal, state, domain).option
    except UserError:
        with pytest.raises(UserError, match="No option can take the query"):
            DECIDE(text, goal, state, domain)
    else:
        assert DECIDE(text, goal, state, domain) == wanted


def test_what_it_does_not_cover_goes_the_long_way() -> None:
    dear = Goal(least_accuracy=0.99, pinned=frozenset({"large/3/None", "small/1/9"}))
    best = ROUTER.choose("How many?", dear)
    budget = replace(dear, affordable_j=0.9 * best.estimate.energy_j.mean)
    assert ROUTER.choose("How many?", budget).option != best.option
    for goal in (Goal(most_total_s=30.0), Goal(within=0.1, second_price=1e-9), budget):
        assert DECIDE("How many?", goal) == ROUTER.choose("How many?", goal).option
    twin = {**ROUTER.learnt}
    first = twin[NAMES[0]]
    twin["zzz"] = replace(first, option=replace(first.option, name="zzz"))
    both = replace(ROUTER, learnt=twin)
    goal = Goal(within=0.5, pinned=frozenset({NAMES[0], "zzz"}))
    assert fast_chooser(both)("How many?", goal) == both.choose("How many?", goal).option


def test_unknown_joules_and_names_are_told() -> None:
    with pytest.raises(UserError, match="no option is named tiny"):
        DECIDE("How many?", Goal(pinned=frozenset({"tiny"})))
    bare = {**ROUTER.learnt, NAMES[0]: replace(ROUTER.learnt[NAMES[0]], energy=None)}
    with pytest.raises(UserError, match="are not known"):
        fast_chooser(replace(ROUTER, learnt=bare))

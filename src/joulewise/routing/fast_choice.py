"""The same choice in a fraction of the time: plain numbers, without percentiles and reasons.

For gateways. It covers goals of accuracy, joules, carbon and the value of an answer; whatever else is asked (seconds, a
joule budget, a conversation, corrections, cascades), and where two options are as good as equal, ``Router.choose``
decides.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from joulewise.routing.energy import coefficients
from joulewise.routing.lengths import THIRDS
from joulewise.routing.policy import J_PER_KWH, Goal, State, load_of
from joulewise.routing.router import Router, known_energy, size_of

_AS_GOOD_AS_EQUAL = 1e-9
"""Relative: what rounding alone may do to a cost."""

Decide = Callable[..., str]


def fast_chooser(router: Router) -> Decide:
    """A function ``(text, goal, state=State(), domain=None)`` to the name of the option that ``choose`` would take.

    Raises:
        UserError: an option's joules are not known; from the function, as ``Router.choose``.
    """
    names = sorted(router.learnt)
    known = [router.learnt[name] for name in names]
    energies = [known_energy(one) for one in known]
    options = [one.option for one in known]
    models = sorted({option.model for option in options})
    model_of = [models.index(option.model) for option in options]
    place = {name: i for i, name in enumerate(router.performance.options)}
    columns = [place[one.answers_as] for one in known]
    prompts = [(one.prompt.base, one.prompt.per_byte) for one in known]
    rooms = [math.inf if o.context_limit is None else o.context_limit - (o.output_budget or 0) for o in options]
    edges = [energy.lengths.edges.tolist() for energy in energies]
    alone = (1.0,) * len(models)

    @lru_cache(maxsize=1024)
    def moments(domain: str | None) -> list[list[tuple[float, float]]]:
        """By option and third of the prompt's length: mean output tokens, and half of the mean of their square."""
        found = []
        for energy in energies:
            of_thirds = [energy.lengths.of_third(third, domain) for third in range(len(THIRDS) + 1)]
            if energy.most_output_tokens is not None:
                of_thirds = [np.minimum(tokens, energy.most_output_tokens) for tokens in of_thirds]
            found.append([(float(t.mean()), float((t * t).mean()) / 2) for t in of_thirds])
        return found

    @lru_cache(maxsize=1024)
    def at(loads: tuple[float, ...]) -> list[tuple[float, float, float, float, float]]:
        """Of each option at these loads of its models: see ``coefficients``."""
        return [coefficients(energy, max(1.0, loads[m])) for energy, m in zip(energies, model_of, strict=True)]

    @lru_cache(maxsize=256)
    def allowed(goal: Goal) -> list[int]:
        return [i for i, n in enumerate(names) if n not in goal.forbidden and (not goal.pinned or n in goal.pinned)]

    def decide(text: str, goal: Goal, state: State = State(), domain: str | None = None) -> str:  # noqa: B008 - frozen
        timed = goal.most_first_token_s is not None or goal.most_total_s is not None or goal.second_price
        size = size_of(text)
        lengths = [max(1.0, base + per_byte * size) for base, per_byte in prompts]
        longest = round(max(lengths))
        able = [i for i in allowed(goal) if longest <= rooms[i]]
        if (
            router.cascades
            or timed
            or goal.affordable_j is not None
            or not able
            or (goal.pinned | goal.forbidden).difference(names)
        ):
            return router.choose(text, goal, state, domain).option
        predicted = router.performance.predict(text, domain).accuracy.tolist()
        loads = tuple([load_of(model, state).running for model in models]) if state.running else alone
        found, tokens = at(loads), moments(domain)
        price = _price(goal, state)
        within: list[tuple[float, float, int]] = []
        beyond: list[tuple[float, float, int]] = []
        best, on_the_edge = 0.0, False
        for i in able:
            accuracy = min(1.0, max(0.0, predicted[columns[i]]))
            prompt = lengths[i]
            fixed, token, prompt_token, prompt_square, attention = found[i]
            mean, half_square = tokens[i][bisect_right(edges[i], prompt)]
            joules = fixed + mean * token + prompt * (prompt_token + prompt * prompt_square) + router.routing_j
            joules += attention * (prompt * mean + half_square)
            if accuracy > best:
                best = accuracy
            one = joules * price - goal.answer_value * accuracy, accuracy, i
            if goal.most_j is not None:
                on_the_edge |= abs(joules - goal.most_j) <= _AS_GOOD_AS_EQUAL * joules
            (within if goal.most_j is None or joules <= goal.most_j else beyond).append(one)
        within = within or beyond
        floor = (goal.least_accuracy or 0.0) if goal.within is None else best * (1.0 - goal.within)
        above = [one for one in within if one[1] >= floor]
        asked = goal.least_accuracy is not None or goal.within is not None or goal.answer_value > 0
        if above and asked:
            keys = [(cost, i) for cost, _, i in above]
        else:
            keys = [(-accuracy, i) for _, accuracy, i in above or within]
        keys.sort()
        (key, taken), *others = keys
        equal = bool(others) and others[0][0] - key <= _AS_GOOD_AS_EQUAL * max(abs(key), 1e-30)
        return router.choose(text, goal, state, domain).option if equal or on_the_edge else names[taken]

    return decide


def _price(goal: Goal, state: State) -> float:
    """Of a joule, its carbon included."""
    grid = state.carbon_g_per_kwh
    price = goal.kwh_price
    if goal.co2_kg_price and grid is not None and grid.age_s <= state.most_carbon_age_s:
        price += grid.value / 1000.0 * goal.co2_kg_price
    return price / J_PER_KWH

"""Options that the commands of routing share: which router, what is wanted, how things stand."""

from __future__ import annotations

import fnmatch
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from joulewise.cli.named_file import named_file
from joulewise.cli.shares import share
from joulewise.errors import UserError

if TYPE_CHECKING:
    from joulewise.routing.policy import Goal, State
    from joulewise.routing.router import Correct, Router
    from joulewise.routing.within_budget import Purse

ROUTER_VARIABLE = "JOULEWISE_ROUTER"
"""Environment variable that names the router file where ``--router`` does not."""

DEFAULT_ROUTERS = (Path("router.npz"), Path("router.json"))
DEFAULT_WITHIN = 0.02
DEFAULT_BUDGET = "joule-budget.json"
LEAST, MOST = 1e-12, 1e12
"""Of joules, seconds and prices that are given: beyond these sums and products lose their digits."""

RouterFile = Annotated[
    str | None,
    typer.Option(
        "--router",
        metavar="FILE",
        help=f"The router file. Default: ${ROUTER_VARIABLE}, else router.npz or router.json here.",
    ),
]
AccuracyFloor = Annotated[
    str | None,
    typer.Option("--accuracy-floor", metavar="SHARE", help="Least chance of a right answer, such as 80% or 0.8."),
]
Within = Annotated[
    str | None,
    typer.Option(
        "--within",
        metavar="SHARE",
        help="At most so much less chance of a right answer than the best option has, such as 2%. Default, where "
        "nothing else is asked for: 2%.",
    ),
]
MaxJoules = Annotated[
    float | None, typer.Option("--max-joules", metavar="J", help="At most so many joules expected for a request.")
]
MaxFirstToken = Annotated[
    float | None,
    typer.Option("--max-first-token-s", metavar="S", help="First token within so many seconds, 95 times out of 100."),
]
MaxTotal = Annotated[
    float | None,
    typer.Option("--max-total-s", metavar="S", help="Whole answer within so many seconds, 95 times out of 100."),
]
JoulesPerHour = Annotated[
    float | None,
    typer.Option(
        "--joules-per-hour", metavar="J", help="At most so many joules an hour, over all calls with one --budget-file."
    ),
]
JoulesPerDay = Annotated[
    float | None,
    typer.Option(
        "--joules-per-day", metavar="J", help="At most so many joules a day, over all calls with one --budget-file."
    ),
]
BudgetFile = Annotated[
    str | None,
    typer.Option(
        "--budget-file",
        metavar="FILE",
        help=f"Keeps what was drawn of --joules-per-hour and --joules-per-day. Default: {DEFAULT_BUDGET} here.",
    ),
]
KwhPrice = Annotated[
    float | None, typer.Option("--price-per-kwh", metavar="P", help="Price of a kilowatt-hour, in any currency.")
]
Co2Price = Annotated[
    float | None,
    typer.Option("--price-per-kg-co2", metavar="P", help="Price of a kilogram of CO2 equivalent, same currency."),
]
SecondPrice = Annotated[
    float | None, typer.Option("--price-per-second", metavar="P", help="Price of a second of waiting, same currency.")
]
AnswerValue = Annotated[
    float | None,
    typer.Option("--answer-value", metavar="P", help="What a right answer is worth, same currency."),
]
Pin = Annotated[
    list[str] | None,
    typer.Option("--pin", metavar="OPTION", help="Choose among these alone; * and ? as in a shell; may be repeated."),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option("--forbid", metavar="OPTION", help="Never choose these; * and ? as in a shell; may be repeated."),
]


Loads = Annotated[
    list[str] | None,
    typer.Option(
        "--load", metavar="N", help="Requests that run already: N everywhere, or ENGINE=N; in the place of live ones."
    ),
]
Latencies = Annotated[
    list[str] | None,
    typer.Option(
        "--latency-ms",
        metavar="MS",
        help="Time to first token at present: MS everywhere, or ENGINE=MS; in the place of live ones.",
    ),
]
CarbonGiven = Annotated[
    str | None,
    typer.Option("--carbon-g-per-kwh", metavar="G", help="The grid's carbon intensity, in the place of --carbon's."),
]
Carbon = Annotated[
    str | None,
    typer.Option("--carbon", metavar="GRID", help="The grid's carbon intensity, as for `joulewise report`."),
]
Live = Annotated[
    bool,
    typer.Option("--live/--no-live", help="Ask running servers (engines at a url) for their load and latency."),
]
Corrections = Annotated[
    str | None,
    typer.Option(
        "--corrections",
        metavar="FILE",
        help="What was learnt since, as `joulewise route learn` wrote it. Default: none.",
    ),
]
Explore = Annotated[
    int | None,
    typer.Option(
        "--explore",
        min=0,
        metavar="SEED",
        help="Now and then try options of which corrections leave much open (Thompson sampling); another SEED each "
        "time.",
    ),
]
Domain = Annotated[
    str | None, typer.Option("--domain", metavar="NAME", help="The query's subject or route, where it is known.")
]
PolicyName = Annotated[
    Literal["goal", "paper"],
    typer.Option("--policy", help="goal: the cheapest that does what is asked; paper: arXiv 2603.20224's own rules."),
]
Critical = Annotated[
    bool, typer.Option("--accuracy-critical", help="With --policy paper: chain of thought within a budget.")
]


@dataclass(frozen=True, slots=True)
class Present:
    """How things stand.

    Args:
        state: loads, latencies and carbon, each with its age.
        notes: what could not be read, one sentence each.
    """

    state: State
    notes: tuple[str, ...]


def present(
    router: Router,
    load: Sequence[str] | None,
    latency_ms: Sequence[str] | None,
    carbon_g_per_kwh: str | None,
    carbon: str | None,
    live: bool,
) -> Present:
    """What running servers and the grid tell, and in their place what is given.

    Raises:
        UserError: a number that is none, or a name that no engine has.
    """
    from joulewise.energy.carbon import ELECTRICITY_MAPS
    from joulewise.routing.live import (
        MOST_LATENCY_MS,
        TIMEOUT_S,
        LiveState,
        Watched,
        by_model,
        carbon_given,
        overridden,
    )

    ways = {known.option.model: known.way for known in router.learnt.values()}
    watched = [
        Watched(model, way.engine["url"], way.engine.get("key_env"))
        for model, way in ways.items()
        if live and way is not None and way.engine.get("url")
    ]
    # A grid's interface takes seconds to answer, and a command asks once; a server that takes so long is no choice.
    slow = carbon is not None and carbon.startswith(ELECTRICITY_MAPS)
    seen = LiveState(watched, carbon, timeout_s=3.0 if slow else TIMEOUT_S)
    seen.refresh()
    given = None if carbon_g_per_kwh is None else carbon_given(carbon_g_per_kwh)
    state = overridden(
        seen.state(),
        by_model(load or (), ways, "--load"),
        by_model(latency_ms or (), ways, "--latency-ms", MOST_LATENCY_MS),
        given,
    )
    return Present(state, seen.notes())


def without_effect(goal: Goal, carbon_g_per_kwh: str | None, carbon: str | None, paper: bool = False) -> list[str]:
    """What was given of the grid and changes no choice, one sentence each.

    Args:
        paper: whether the policy ``paper`` chooses.
    """
    named = [
        option
        for option, given in (("--carbon-g-per-kwh", carbon_g_per_kwh), ("--carbon", carbon))
        if given is not None
    ]
    if not named or goal.co2_kg_price:
        return []
    why = "the policy paper takes no notice of carbon" if paper else "carbon counts by its price, --price-per-kg-co2"
    return [f"{' and '.join(named)} changes nothing: {why}"]


def purse_of(hour_j: float | None, day_j: float | None, named: str | None) -> Purse | None:
    """The joule budget that is asked for, if any.

    Raises:
        UserError: a limit that cannot be, or a file without a limit.
    """
    file = named_file(named, "--budget-file", "the file's name")
    given = {"--joules-per-hour": hour_j, "--joules-per-day": day_j}
    for option, value in given.items():
        if value is not None and not LEAST <= value <= MOST:
            raise UserError(f"{option} {value:g}: give a number from {LEAST:g} to {MOST:g}, or leave it out")
    if hour_j is None and day_j is None:
        if file is not None:
            raise UserError("--budget-file keeps a budget: give --joules-per-hour or --joules-per-day too")
        return None
    from joulewise.routing.joule_budget import Limits
    from joulewise.routing.within_budget import Purse

    return Purse(file or Path(DEFAULT_BUDGET), Limits(hour_j, day_j))


def corrected_by(named: str | None, explore: int | None, router: Router) -> Callable[[int], Correct | None]:
    """By the number of a question, what was learnt since; nothing where no file of it is named.

    Raises:
        UserError: the file cannot be read, is of another router, or there is none to explore by.
    """
    file = named_file(named, "--corrections")
    if file is None:
        if explore is not None:
            raise UserError("--explore draws from what corrections leave open: give --corrections FILE too")
        return lambda _: None
    from joulewise.routing.correction import corrected, load_corrections

    found = load_corrections(file)
    if found.options and not set(found.options) & {option.name for option in router.options}:
        raise UserError(
            f"--corrections {file}: it is of {', '.join(sorted(found.options))}, none of which the router has; name "
            "this router's own"
        )

    def by_number(number: int) -> Correct:
        seed = None if explore is None else explore + number
        return lambda option, domain, estimate: corrected(found, option, domain, estimate, seed)

    return by_number


def read_router(named: str | None) -> Router:
    """The router of ``--router``, of the environment, or of this folder.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    file = named_file(named, "--router") or (Path(given) if (given := os.environ.get(ROUTER_VARIABLE)) else None)
    if file is None:
        file = next((f for f in DEFAULT_ROUTERS if f.exists()), None)
    if file is None:
        raise UserError("no router file is named: give --router FILE; `joulewise fit RUN -o router.npz` makes one")
    return router_at(file)


def router_at(file: Path) -> Router:
    """The router of a file.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    from joulewise.routing.router_file import load_router

    if os.path.isdir(file):
        raise UserError(
            f"{file} is a folder, and no router file: `joulewise fit RUN -o router.npz` makes one of a run folder"
        )
    if not os.path.exists(file):
        raise UserError(f"{file}: there is no such router file; `joulewise fit RUN -o router.npz` makes one")
    return load_router(file)


def learnt_elsewhere(router: Router) -> list[str]:
    """Where a router's joules are of other devices than this machine's, or came about otherwise, one sentence each."""
    learnt = [known.sources for known in router.learnt.values()]
    if not any(learnt):
        return []
    from joulewise.energy import discover
    from joulewise.routing.joule_sources import differences

    meter = discover()
    try:
        return differences(learnt, meter.specs)
    finally:
        meter.close()


def goal_of(
    names: Sequence[str],
    *,
    accuracy_floor: str | None = None,
    within: str | None = None,
    most_j: float | None = None,
    most_first_token_s: float | None = None,
    most_total_s: float | None = None,
    kwh_price: float | None = None,
    co2_kg_price: float | None = None,
    second_price: float | None = None,
    answer_value: float | None = None,
    pin: Sequence[str] | None = None,
    forbid: Sequence[str] | None = None,
) -> Goal:
    """What the options ask for; within 2 % of the best where they ask for nothing.

    Args:
        names: of the router's options.

    Raises:
        UserError: a number that cannot be, a pattern that no option matches, or parts that contradict each other.
    """
    from joulewise.routing.policy import Goal

    if accuracy_floor is not None and within is not None:
        raise UserError("--accuracy-floor and --within are two floors; give one of them")
    floor = None if accuracy_floor is None else share(accuracy_floor, "--accuracy-floor", "80%", "0.8", most=1.0)
    near = None if within is None else share(within, "--within", "2%", "0.02", most=1.0)
    for option, value in (
        ("--max-joules", most_j),
        ("--max-first-token-s", most_first_token_s),
        ("--max-total-s", most_total_s),
        ("--price-per-kwh", kwh_price),
        ("--price-per-kg-co2", co2_kg_price),
        ("--price-per-second", second_price),
        ("--answer-value", answer_value),
    ):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UserError(f"{option} {value:g}: give a number above 0, or leave it out")
        if value is not None and not LEAST <= value <= MOST:
            raise UserError(f"{option} {value:g}: give a number from {LEAST:g} to {MOST:g}, or leave it out")
    if (co2_kg_price or second_price or answer_value) and kwh_price is None:
        raise UserError("prices are in one currency: give --price-per-kwh too, so that joules have their price in it")
    if near is None and floor is None and not answer_value:
        near = DEFAULT_WITHIN
    forbidden = _matched(names, forbid, "--forbid")
    pinned = _matched(names, pin, "--pin")
    if pinned and not pinned - forbidden:
        raise UserError("--forbid forbids all that --pin pins: leave one of them out")
    return Goal(
        least_accuracy=floor,
        within=near,
        most_j=most_j,
        most_first_token_s=most_first_token_s,
        most_total_s=most_total_s,
        kwh_price=1.0 if kwh_price is None else kwh_price,
        co2_kg_price=co2_kg_price or 0.0,
        second_price=second_price or 0.0,
        answer_value=answer_value or 0.0,
        pinned=pinned - forbidden,
        forbidden=forbidden,
    )


def _matched(names: Sequence[str], patterns: Sequence[str] | None, option: str) -> frozenset[str]:
    found: set[str] = set()
    for pattern in patterns or ():
        mine = fnmatch.filter(names, pattern)
        if not mine:
            raise UserError(f"{option} {pattern}: no option is called so; there are {', '.join(names)}")
        found.update(mine)
    return frozenset(found)

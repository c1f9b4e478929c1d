"""``joulewise route simulate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli.named_file import named_file, output_file
from joulewise.cli.routing_options import (
    AccuracyFloor,
    AnswerValue,
    Carbon,
    Co2Price,
    Forbid,
    KwhPrice,
    MaxFirstToken,
    MaxJoules,
    MaxTotal,
    Pin,
    RouterFile,
    SecondPrice,
    Within,
    goal_of,
    read_router,
)
from joulewise.errors import UserError

if TYPE_CHECKING:
    from joulewise.routing.outcomes import Outcomes
    from joulewise.routing.past_answers import Past
    from joulewise.routing.router import Router

_MOST_S, _MOST_REQUESTS = 1e7, 1e7
"""Of a simulation; a request takes some hundred bytes and microseconds for each router."""


def simulate(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TRACE]",
            help="A CSV file with TIMESTAMP, ContextTokens and GeneratedTokens, as Azure publishes them.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="R", help="In the place of a trace: so many requests a second, at random."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="So long requests arrive.")] = 600.0,
    speed: Annotated[
        float, typer.Option("--speed", metavar="F", help="2 sends a trace's requests twice as fast.")
    ] = 1.0,
    router: RouterFile = None,
    on: Annotated[
        list[Path] | None,
        typer.Option(
            "--on",
            metavar="DATA",
            help="Run folders or files of outcomes, whose questions arrive and are looked up; may be repeated. "
            "Default: accuracy as the router predicts it.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Where third-party data sets lie. Default: $JOULEWISE_DATA.", metavar="DIR"),
    ] = None,
    slots: Annotated[
        int, typer.Option("--slots", min=1, metavar="N", help="Requests that each engine runs at a time.")
    ] = 32,
    idle_w: Annotated[
        list[str] | None,
        typer.Option("--idle-w", metavar="W", help="Watts at rest: W for every engine, or ENGINE=W; may be repeated."),
    ] = None,
    state_age_s: Annotated[
        float, typer.Option("--state-age-s", metavar="S", help="How old the loads are that a router sees.")
    ] = 0.0,
    routers: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="NAME",
            help="joulewise, load-blind, cost-only, oracle (with --on), or an option; may be repeated. Default: all.",
        ),
    ] = None,
    accuracy_floor: AccuracyFloor = None,
    within: Within = None,
    max_joules: MaxJoules = None,
    max_first_token_s: MaxFirstToken = None,
    max_total_s: MaxTotal = None,
    price_per_kwh: KwhPrice = None,
    price_per_kg_co2: Co2Price = None,
    price_per_second: SecondPrice = None,
    answer_value: AnswerValue = None,
    pin: Pin = None,
    forbid: Forbid = None,
    carbon: Carbon = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all chance.", metavar="N")] = 0,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the figures; - is standard output.")
    ] = None,
) -> None:
    """Joules, accuracy and lateness of a router, of the same without loads, of the cheapest, and of each option alone.

    Nothing runs: servers are simulated from what the router learnt of joules and seconds, at the load as it changes.
    """
    from dataclasses import replace
    from datetime import UTC, datetime

    from joulewise.cli.report import STDOUT, write_file
    from joulewise.energy.carbon import grid
    from joulewise.report.plain_table import terminal_width
    from joulewise.report.routing_simulation import describe_simulation, simulation_json
    from joulewise.routing.live import MOST_WATTS, by_model
    from joulewise.routing.past_answers import past_of
    from joulewise.routing.simulate import Fleet
    from joulewise.routing.simulate import simulate as simulated
    from joulewise.routing.simulated_fleet import carbon_over_time
    from joulewise.traffic.arrivals import Poisson, Replay

    file = output_file(json_file, "--json", "joulewise route simulate TRACE")
    known = read_router(router)
    goal = goal_of(
        [option.name for option in known.options],
        accuracy_floor=accuracy_floor,
        within=within,
        most_j=max_joules,
        most_first_token_s=max_first_token_s,
        most_total_s=max_total_s,
        kwh_price=price_per_kwh,
        co2_kg_price=price_per_kg_co2,
        second_price=price_per_second,
        answer_value=answer_value,
        pin=pin,
        forbid=forbid,
    )
    if (trace is None) == (rate is None):
        raise UserError("give a trace, or a rate of requests with --rate R")
    if rate is not None and speed != 1.0:
        raise UserError("--speed is of a trace; give another --rate")
    if rate is not None and not 0 < rate < 1e5:
        raise UserError(f"--rate {rate:g}: give a number of requests a second, above 0 and below 100,000")
    for option, value, least, most in (
        ("--seconds", seconds, 1.0, _MOST_S),
        ("--speed", speed, 1e-3, 1e6),
        ("--state-age-s", state_age_s, 0.0, _MOST_S),
    ):
        if not least <= value <= most:
            raise UserError(f"{option} {value:g}: give a number from {least:g} to {most:,.0f}")
    if rate is not None and rate * seconds > _MOST_REQUESTS:
        raise UserError(
            f"--rate {rate:g} for --seconds {seconds:g} is {rate * seconds:,.0f} requests: more than "
            f"{_MOST_REQUESTS:,.0f} are not simulated; lower one of them"
        )
    if trace is not None:
        load = Replay(trace=trace, speed=speed)
        load.check(seconds)
        arrivals = list(load.arrivals(seconds))
    else:
        arrivals = list(Poisson(rate=rate, seed=seed).arrivals(seconds))
    asked = _asked(known, past_of(on, named_file(data, "--data", "the folder's name"))) if on else ("",)
    models = {option.model for option in known.options}
    fleet = Fleet(
        slots,
        by_model(idle_w, models, "--idle-w", MOST_WATTS) if idle_w else None,
        None if carbon is None else carbon_over_time(grid(carbon), datetime.now(UTC)),
        state_age_s,
    )
    found = simulated(known, arrivals, goal, fleet, asked, routers=routers, seed=seed)
    if goal.co2_kg_price and carbon is None:
        found = replace(found, notes=(*found.notes, "--price-per-kg-co2 changes nothing: name the grid with --carbon"))
    if file != STDOUT:
        typer.echo(describe_simulation(found, terminal_width()), nl=False)
    if file is not None:
        write_file(json.dumps(simulation_json(found), indent=1) + "\n", file, "JSON", "joulewise route simulate TRACE")


def _asked(router: Router, past: Past) -> Outcomes:
    """Scored questions, by the names that the router's estimator has for options.

    Raises:
        UserError: there is no scored answer of an option that the router knows.
    """
    from joulewise.routing.outcomes import gather

    scored = [a for a in past.answers if a.query is not None and a.score is not None]
    if not any(a.option in router.learnt for a in scored):
        there = f"they are of {', '.join(sorted({a.option for a in scored}))}" if scored else "there are none"
        raise UserError(f"--on: no scored answers of {', '.join(router.learnt)}; {there}")
    return gather(
        (a.query or "", router.learnt[a.option].answers_as, a.score or 0.0, a.domain)
        for a in scored
        if a.option in router.learnt
    )

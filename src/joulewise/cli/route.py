"""``joulewise route``: which option a router takes, how good it is, and what it would do with traffic."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from joulewise.cli.named_file import named_file
from joulewise.cli.routing_options import (
    AccuracyFloor,
    AnswerValue,
    Carbon,
    CarbonGiven,
    Co2Price,
    Corrections,
    Critical,
    Domain,
    Explore,
    Forbid,
    KwhPrice,
    Latencies,
    Live,
    Loads,
    MaxFirstToken,
    MaxJoules,
    MaxTotal,
    Pin,
    PolicyName,
    RouterFile,
    SecondPrice,
    Within,
    corrected_by,
    goal_of,
    present,
    read_router,
)
from joulewise.cli.shares import share
from joulewise.errors import UserError

if TYPE_CHECKING:
    from joulewise.routing.outcomes import Outcomes
    from joulewise.routing.past_answers import Past
    from joulewise.routing.router import Cached, Router

QUESTION = "question"
"""The command that is meant where none is named."""


class _QuestionFirst(TyperGroup):
    """``route "How much ..."`` is ``route question "How much ..."``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [QUESTION, *args]
        return super().parse_args(ctx, args)


route = typer.Typer(
    cls=_QuestionFirst,
    help="Tell which option a router takes for a question, how good it is, and what it would do with traffic.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@route.command(QUESTION, short_help='Tell which option answers a question (the default: route "...").')
def question(
    text: Annotated[str, typer.Argument(metavar="QUESTION", help="The question; - reads standard input.")],
    router: RouterFile = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Every option with what is expected of it, and why it lost.")
    ] = False,
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
    load: Loads = None,
    latency_ms: Latencies = None,
    carbon_g_per_kwh: CarbonGiven = None,
    carbon: Carbon = None,
    live: Live = True,
    corrections: Corrections = None,
    explore: Explore = None,
    domain: Domain = None,
    last_model: Annotated[
        str | None,
        typer.Option("--last-model", metavar="ENGINE", help="Who answered before in this conversation."),
    ] = None,
    cached_tokens: Annotated[
        int | None,
        typer.Option("--cached-tokens", min=0, metavar="N", help="So many tokens of it are in its prefix cache."),
    ] = None,
    policy: PolicyName = "goal",
    accuracy_critical: Critical = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the choice as JSON on standard output.")] = False,
) -> None:
    """Tell which option answers a question well enough for the fewest joules. Nothing is asked or loaded."""
    from joulewise.report.routing import choice_json, describe_choice
    from joulewise.routing.paper_policy import choose_by_paper

    known = read_router(router)
    query = read_question(text)
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
    cached = _cached(known, last_model, cached_tokens)
    now = present(known, load, latency_ms, carbon_g_per_kwh, carbon, live)
    correct = corrected_by(corrections, explore, known)(0)
    if policy == "paper":
        asked_for = (accuracy_floor, within, max_joules, max_first_token_s, max_total_s, answer_value, pin, forbid)
        if any(part is not None for part in (*asked_for, price_per_kwh, price_per_kg_co2, price_per_second)):
            raise UserError(
                "--policy paper has rules of its own, and takes no floors, limits, prices or options: leave these out, "
                "or --policy paper"
            )
        estimate = known.estimator(query, domain, None, correct, cached)
        choice = choose_by_paper(
            known.query(query, domain, cached), known.options, estimate, now.state, accuracy_critical
        )
    else:
        if accuracy_critical:
            raise UserError("--accuracy-critical goes with --policy paper; or give --accuracy-floor")
        choice = known.choose(query, goal, now.state, domain, correct, cached)
    notes = (*now.notes, *known.notes(query, choice.option, now.state, domain))
    if json_output:
        typer.echo(json.dumps(choice_json(choice, notes)))
    else:
        typer.echo(describe_choice(choice, explain, notes), nl=False)


def read_question(text: str) -> str:
    """A question from the command line, or from standard input for ``-``.

    Raises:
        UserError: there is none.
    """
    if text == "-" and sys.stdin is None:
        raise UserError("standard input is closed: give the question itself, or open standard input")
    query = typer.get_text_stream("stdin").read() if text == "-" else text
    if not query.strip():
        raise UserError("the question is empty: give one, or - to read it from standard input")
    try:
        query.encode()
    except UnicodeEncodeError:
        raise UserError("the question is not UTF-8 text: convert it first") from None
    return query


def _cached(router: Router, model: str | None, tokens: int | None) -> Cached | None:
    from joulewise.routing.router import Cached

    if model is None and tokens is None:
        return None
    if model is None or tokens is None:
        raise UserError("--last-model and --cached-tokens go together: who answered before, and what it holds")
    if model not in (models := {option.model for option in router.options}):
        raise UserError(f"--last-model {model}: no option is of it; there are {', '.join(sorted(models))}")
    return Cached(model, tokens)


@route.command("learn", short_help="Learn from answers since: corrections of a router, bounded and resettable.")
def learn(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Run folders, such as those of `joulewise ask`.")
    ] = None,
    router: RouterFile = None,
    corrections: Annotated[
        str, typer.Option("--corrections", metavar="FILE", help="The file of corrections; made if it is not there.")
    ] = "corrections.json",
    verdict: Annotated[
        str | None,
        typer.Option(
            "--verdict",
            metavar="right|wrong|SHARE",
            help="What answers without a score are worth: a thumb, or a verifier's score from 0 to 1.",
        ),
    ] = None,
    reset: Annotated[
        str | None,
        typer.Option("--reset", metavar="OPTION|all", help="Forget what was learnt of an option, or of all."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Where third-party data sets lie. Default: $JOULEWISE_DATA.", metavar="DIR"),
    ] = None,
) -> None:
    """Learn from what became of answers. Give each run once: what is given twice counts twice.

    Corrections are used only where `joulewise route` and `joulewise ask` are told to (--corrections FILE).
    """
    from joulewise.routing.correction import Corrections as Learnt
    from joulewise.routing.correction import drift, load_corrections, save_corrections
    from joulewise.routing.correction import reset as without
    from joulewise.routing.feedback import learn_from
    from joulewise.routing.past_answers import from_runs

    file = named_file(corrections, "--corrections")
    assert file is not None
    if not runs and reset is None:
        raise UserError("give a run to learn from, or --reset OPTION to forget what was learnt")
    found = load_corrections(file) if file.exists() else Learnt()
    if reset is not None:
        found = without(found, None if reset == "all" else reset)
    if runs:
        past = from_runs(runs, named_file(data, "--data", "the folder's name"))
        found, told = learn_from(found, read_router(router), past, _verdict(verdict))
        typer.echo(told)
    elif verdict is not None:
        raise UserError("--verdict is on a run's answers: name the run")
    save_corrections(found, file)
    for sentence in drift(found):
        typer.echo(f"Drift: {sentence}")
    typer.echo(f"Corrections: {file}", err=True)


def _verdict(text: str | None) -> float | None:
    if text is None or text in ("right", "wrong"):
        return None if text is None else float(text == "right")
    return share(text, "--verdict", "80%", "0.8", most=1.0)


@route.command("evaluate", short_help="Tell how good a router is, on answers that it did not learn from.")
def evaluate(
    router: Annotated[Path, typer.Argument(metavar="ROUTER", help="The router file.")],
    on: Annotated[
        list[Path], typer.Option("--on", metavar="DATA", help="A run folder or a file of outcomes; may be repeated.")
    ],
    data: Annotated[
        str | None,
        typer.Option("--data", help="Where third-party data sets lie. Default: $JOULEWISE_DATA.", metavar="DIR"),
    ] = None,
    also_seen: Annotated[
        bool, typer.Option("--also-seen", help="Count questions that it learnt from, too: figures then flatter it.")
    ] = False,
    margin: Annotated[
        str, typer.Option("--margin", metavar="SHARE", help="Of the loss that a floor is certified for.")
    ] = "2%",
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the figures; - is standard output.")
    ] = None,
) -> None:
    """Accuracy at joules, joules at accuracy, APGR, CPT and AIQ, regret, floors with bounds, calibration."""
    from joulewise.cli.report import STDOUT, write_file
    from joulewise.report.routing_evaluation import describe_evaluation, evaluation_json
    from joulewise.routing.evaluation import evaluate as evaluated
    from joulewise.routing.past_answers import past_of
    from joulewise.routing.router_file import load_router

    file = named_file(json_file, "--json")
    past = past_of(on, named_file(data, "--data", "the folder's name"))
    lost = share(margin, "--margin", "2%", "0.02", most=1.0)
    found = evaluated(load_router(router), past, also_seen=also_seen, margin=lost)
    if file != STDOUT:
        typer.echo(describe_evaluation(found), nl=False)
    if file is not None:
        write_file(
            json.dumps(evaluation_json(found), indent=1) + "\n",
            file,
            "JSON",
            "joulewise route evaluate ROUTER --on DATA",
        )


@route.command("simulate", short_help="Replay traffic through a router and others, with simulated servers.")
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
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, metavar="S", help="So long requests arrive.")] = 600.0,
    speed: Annotated[
        float, typer.Option("--speed", min=1e-3, metavar="F", help="2 sends a trace's requests twice as fast.")
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
        float, typer.Option("--state-age-s", min=0.0, metavar="S", help="How old the loads are that a router sees.")
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
    from datetime import UTC, datetime

    from joulewise.cli.report import STDOUT, write_file
    from joulewise.energy.carbon import grid
    from joulewise.report.routing_simulation import describe_simulation, simulation_json
    from joulewise.routing.live import by_model
    from joulewise.routing.past_answers import past_of
    from joulewise.routing.simulate import Fleet
    from joulewise.routing.simulate import simulate as simulated
    from joulewise.routing.simulated_fleet import carbon_over_time
    from joulewise.traffic.arrivals import Poisson, Replay

    file = named_file(json_file, "--json")
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
        by_model(idle_w, models, "--idle-w") if idle_w else None,
        None if carbon is None else carbon_over_time(grid(carbon), datetime.now(UTC)),
        state_age_s,
    )
    found = simulated(known, arrivals, goal, fleet, asked, routers=routers, seed=seed)
    if file != STDOUT:
        typer.echo(describe_simulation(found), nl=False)
    if file is not None:
        write_file(json.dumps(simulation_json(found), indent=1) + "\n", file, "JSON", "joulewise route simulate TRACE")


def _asked(router: Router, past: Past) -> Outcomes:
    """Scored questions, by the names that the router's estimator has for options."""
    from joulewise.routing.outcomes import gather

    return gather(
        (a.query, router.learnt[a.option].answers_as, a.score, a.domain)
        for a in past.answers
        if a.query is not None and a.score is not None and a.option in router.learnt
    )

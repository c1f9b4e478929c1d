"""``joulewise route``: which option a router takes, how good it is, and what it would do with traffic."""

from __future__ import annotations

import fnmatch
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from joulewise.cli.named_file import named_file, output_file
from joulewise.cli.routing_options import (
    AccuracyFloor,
    AnswerValue,
    BudgetFile,
    Carbon,
    CarbonGiven,
    Co2Price,
    Corrections,
    Critical,
    Domain,
    Explore,
    Forbid,
    JoulesPerDay,
    JoulesPerHour,
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
    learnt_elsewhere,
    present,
    purse_of,
    read_router,
    router_at,
    without_effect,
)
from joulewise.cli.shares import share
from joulewise.cli.simulate import simulate
from joulewise.errors import UserError

if TYPE_CHECKING:
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
    joules_per_hour: JoulesPerHour = None,
    joules_per_day: JoulesPerDay = None,
    budget_file: BudgetFile = None,
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
        typer.Option(
            "--cached-tokens", min=0, max=10**9, metavar="N", help="So many tokens of it are in its prefix cache."
        ),
    ] = None,
    policy: PolicyName = "goal",
    accuracy_critical: Critical = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the choice as JSON on standard output.")] = False,
) -> None:
    """Tell which option answers a question well enough for the fewest joules. Nothing is asked or loaded."""
    from joulewise.report.plain_table import terminal_width
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
    purse = purse_of(joules_per_hour, joules_per_day, budget_file)
    cached = _cached(known, last_model, cached_tokens)
    now = present(known, load, latency_ms, carbon_g_per_kwh, carbon, live)
    correct = corrected_by(corrections, explore, known)(0)
    if policy == "paper":
        asked_for = (
            accuracy_floor,
            within,
            max_joules,
            joules_per_hour,
            joules_per_day,
            max_first_token_s,
            max_total_s,
            answer_value,
            pin,
            forbid,
        )
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
        choose = partial(known.choose, query, state=now.state, domain=domain, correct=correct, cached=cached)
        # Nothing is asked, so nothing is booked.
        choice = choose(goal) if purse is None else purse.foreseen().choose(choose, goal)
    useless = without_effect(goal, carbon_g_per_kwh, carbon, policy == "paper")
    notes = (*learnt_elsewhere(known), *now.notes, *useless, *known.notes(query, choice.option, now.state, domain))
    if json_output:
        typer.echo(json.dumps(choice_json(choice, notes)))
    else:
        typer.echo(describe_choice(choice, explain, notes, terminal_width()), nl=False)


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
    told = None
    if runs:
        past = from_runs(runs, named_file(data, "--data", "the folder's name"))
        found, told = learn_from(found, read_router(router), past, _verdict(verdict))
    elif verdict is not None:
        raise UserError("--verdict is on a run's answers: name the run")
    save_corrections(found, file)
    if told is not None:
        typer.echo(told)
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
    accuracy_floor: Annotated[
        list[str] | None,
        typer.Option(
            "--accuracy-floor",
            metavar="SHARE",
            help="Hold this least chance of a right answer against the data, such as 80% or 0.8; may be repeated.",
        ),
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(
            "--pair",
            metavar="WEAK,STRONG",
            help="The two options of APGR and CPT, by name; * and ? as in a shell. Default: the cheapest and the most "
            "accurate.",
        ),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the figures; - is standard output.")
    ] = None,
) -> None:
    """Accuracy at joules, joules at accuracy, APGR, CPT and AIQ, regret, floors with bounds, calibration."""
    from joulewise.cli.report import STDOUT, write_file
    from joulewise.report.plain_table import terminal_width
    from joulewise.report.routing_evaluation import describe_evaluation, evaluation_json
    from joulewise.routing.evaluation import evaluate as evaluated
    from joulewise.routing.past_answers import past_of

    file = output_file(json_file, "--json", "joulewise route evaluate ROUTER --on DATA")
    past = past_of(on, named_file(data, "--data", "the folder's name"))
    lost = share(margin, "--margin", "2%", "0.02", most=1.0)
    if not 0 < lost < 1:
        raise UserError(f"--margin {margin}: give a share above 0% and below 100%, such as 2%")
    leasts = [share(text, "--accuracy-floor", "80%", "0.8", most=1.0) for text in accuracy_floor or ()]
    known = router_at(router)
    named = None if pair is None else _weak_and_strong(pair, list(known.learnt))
    found = evaluated(known, past, also_seen=also_seen, margin=lost, leasts=list(dict.fromkeys(leasts)), pair=named)
    if file != STDOUT:
        typer.echo(describe_evaluation(found, terminal_width()), nl=False)
    if file is not None:
        write_file(
            json.dumps(evaluation_json(found), indent=1) + "\n",
            file,
            "JSON",
            "joulewise route evaluate ROUTER --on DATA",
        )


def _weak_and_strong(text: str, names: list[str]) -> tuple[str, str]:
    """Two options by name or pattern; names may hold commas."""
    parts = text.split(",")
    for at in range(1, len(parts)):
        ends = ",".join(parts[:at]).strip(), ",".join(parts[at:]).strip()
        found = [[end] if end in names else fnmatch.filter(names, end) for end in ends]
        if found[0] and (ends[0] == ends[1] or (len(found[0]) == 1 and found[0] == found[1])):
            raise UserError(f"--pair {text}: the same option twice ({', '.join(found[0])}); name two")
        if all(len(mine) == 1 for mine in found):
            return found[0][0], found[1][0]
        if len(parts) == 2 and (many := [(end, mine) for end, mine in zip(ends, found, strict=True) if len(mine) > 1]):
            raise UserError(f"--pair {text}: {many[0][0]} is several options ({', '.join(many[0][1])}); name one")
    raise UserError(f"--pair {text}: write WEAK,STRONG, two options by name; there are {', '.join(names)}")


route.command("simulate", short_help="Replay traffic through a router and others, with simulated servers.")(simulate)

"""``joulewise ask``."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli.named_file import named_file
from joulewise.cli.route import read_question
from joulewise.cli.routing_options import (
    AccuracyFloor,
    AnswerValue,
    BudgetFile,
    Carbon,
    CarbonGiven,
    Co2Price,
    Corrections,
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
    RouterFile,
    SecondPrice,
    Within,
    corrected_by,
    goal_of,
    present,
    purse_of,
    read_router,
    without_effect,
)
from joulewise.counted import counted
from joulewise.errors import UserError
from joulewise.tasks.asked import AnswerKind, reference_fault

if TYPE_CHECKING:
    from joulewise.routing.asking import Answered, Chosen
    from joulewise.routing.batch import Asked
    from joulewise.routing.router import Router


def ask(
    text: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="The question; - reads standard input.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="FILE",
            help="A file of questions in place of one: JSON lines with query and, if known, domain, reference (the "
            "right answer) and id; - reads standard input.",
        ),
    ] = None,
    router: RouterFile = None,
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
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference", metavar="ANSWER", help="The right answer, so that `joulewise fit` can learn from it."
        ),
    ] = None,
    answer: Annotated[
        AnswerKind | None,
        typer.Option(
            "--answer",
            help="How to ask, and to compare with the right answer. Default: letter where options A, B ... are given, "
            "else text.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", min=1, metavar="N", help="Output budget. Default: the option's when it was learnt."
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="DIR", help="The run folder. Default: runs/asked-DATE-TIME.")
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print answers as JSON lines on standard output.")
    ] = False,
) -> None:
    """Answer a question by the option that a router takes, and tell the joules drawn against those expected.

    Questions and answers are written as Trials into a run folder, which `joulewise report` shows and `joulewise fit`
    learns from.
    """
    from joulewise.cli.progress import show_progress
    from joulewise.energy import discover
    from joulewise.report.plain_table import terminal_width
    from joulewise.report.routing import answered_json, describe_answered
    from joulewise.routing.asking import answer_all, choose_all
    from joulewise.routing.batch import write_batch
    from joulewise.routing.joule_sources import differences

    known = read_router(router)
    names = [option.name for option in known.options]
    goal = goal_of(
        names,
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
    asked = _questions(text, batch, domain, reference, answer)
    now = present(known, load, latency_ms, carbon_g_per_kwh, carbon, live)
    folder = named_file(out, "--out", "the folder's name")
    with discover() as meter:
        chosen = choose_all(known, asked, goal, now.state, corrected_by(corrections, explore, known), meter, purse)
        useless = without_effect(goal, carbon_g_per_kwh, carbon)
        elsewhere = differences([one.sources for one in known.learnt.values()], meter.specs)
        for note in (*elsewhere, *now.notes, *useless, *_own_budgets(known, chosen, max_tokens)):
            typer.echo(f"Note: {note}", err=True)
        with show_progress() as on_progress:
            done = answer_all(known, chosen, folder, meter, max_tokens, on_progress, purse)
    for one in done.answered:
        told = json.dumps(answered_json(one)) if json_output else describe_answered(one, terminal_width())
        typer.echo(told, nl=json_output)
    folders = " ".join(shlex.quote(str(folder)) for folder in done.folders)
    typer.echo(f"Trials: {folders}; `joulewise fit` learns from them beside the runs before", err=True)
    if purse is not None:
        typer.echo(f"Joule budget: {purse.left()}", err=True)
    unasked = [*done.unasked, *asked[len(chosen) :]]
    if unasked:
        rest = write_batch(unasked, done.folders[0] / "not-asked.jsonl")
        typer.echo(
            f"The joule budget leaves {counted(len(unasked), 'question')} unasked: {rest}; `joulewise ask --batch` "
            "takes it once there are joules again",
            err=True,
        )
    if done.interrupted:
        last = shlex.quote(str(done.folders[-1]))
        typer.echo(
            f"Stopped after {len(done.answered)} of {len(chosen)} answers. The rest: "
            f"joulewise run {last}/plan.yaml --out {last} --resume",
            err=True,
        )
        raise typer.Exit(130)
    _end(done.answered, bool(unasked))


def _own_budgets(router: Router, chosen: list[Chosen], max_tokens: int | None) -> list[str]:
    """Options that ``--max-tokens`` does not cut."""
    ways = {
        one.choice.option: known.way for one in chosen if (known := router.learnt.get(one.choice.option)) is not None
    }
    own = [name for name, way in ways.items() if way is not None and way.reasoning.get("kind") in ("cot", "budget")]
    return [f"--max-tokens does not cut {', '.join(own)}: how long it thinks is its own"] if own and max_tokens else []


def _questions(
    text: str | None, batch: str | None, domain: str | None, reference: str | None, answer: AnswerKind | None
) -> list[Asked]:
    from joulewise.routing.batch import Asked, parse_batch, read_batch

    file = named_file(batch, "--batch")
    if text is not None and file is not None:
        raise UserError("give a question, or a file of them with --batch FILE, not both")
    if text is None and file is None:
        raise UserError("give a question, or a file of them with --batch FILE")
    if text is not None:
        one = Asked(read_question(text), domain, reference, answer=answer)
        if reference is not None and (fault := reference_fault(one.kind, reference)):
            raise UserError(f"--reference {reference}: it {fault} (answers of the kind '{one.kind}')")
        return [one]
    assert file is not None
    if reference is not None:
        raise UserError("--reference is of one question; in a batch's file each line may have its own 'reference'")
    if str(file) != "-":
        return read_batch(file, domain, answer)
    if sys.stdin is None:
        raise UserError("standard input is closed: name a file with --batch FILE, or open standard input")
    return parse_batch(typer.get_binary_stream("stdin").read(), "standard input", domain, answer)


def _end(answered: list[Answered], incomplete: bool) -> None:
    failed = [one for one in answered if one.error is not None]
    for one in failed:
        typer.echo(f"{one.asked.name or 'the question'} failed on {one.choice.option}: {one.error}", err=True)
    if failed:
        raise typer.Exit(2 if len(failed) == len(answered) else 1)
    if incomplete:
        raise typer.Exit(1)

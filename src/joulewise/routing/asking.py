"""Asking by a router: each question goes to the option that is chosen for it, and its Trial into a run folder."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from joulewise.analysis.intervals import joint_provenance
from joulewise.errors import EnvironmentFault, JoulewiseError, UserError, first_paragraph
from joulewise.routing.batch import Asked
from joulewise.routing.joule_sources import JouleSource, difference, source_here
from joulewise.routing.past_answers import ASKED, Way, agreed
from joulewise.routing.policy import Choice, Goal, State
from joulewise.routing.router import Correct, Router
from joulewise.routing.within_budget import Booking, BudgetSpentError, Purse
from joulewise.tasks.asked import AnswerKind

if TYPE_CHECKING:
    from joulewise.energy.meter import Meter
    from joulewise.plan import Plan
    from joulewise.records import Trial
    from joulewise.run_result import Progress


@dataclass(frozen=True, slots=True)
class Chosen:
    """A question and who is to answer it; ``routing_j``: joules of the choice, None where not known."""

    asked: Asked
    choice: Choice
    routing_j: float | None


@dataclass(frozen=True, slots=True)
class CutOff:
    """Answers that came to the end of their token budget before their own.

    Args:
        option: whose; of a cascade, one of its two.
        cut: how many of its samples.
        samples: that it took.
        tokens: the longest of them.
        own_budget: the budget is the reasoning's own, and ``max_tokens`` does not change it.
    """

    option: str
    cut: int
    samples: int
    tokens: int
    own_budget: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """A question, the choice, and what came of it.

    Args:
        text: the answer; None where it failed.
        energy_j, lower_j, upper_j: joules drawn, with the 95 % interval; None where not known.
        provenance: of the joules.
        duration_s: seconds it took.
        correct, score: where the right answer is known.
        routing_j: joules of the choice.
        error: why there is no answer.
        cut_off: what was cut off by its token budget; the thoughts of a budget, which are meant to be, apart.
        not_comparable: why joules drawn and expected cannot be held against each other, if so.
    """

    asked: Asked
    choice: Choice
    text: str | None
    energy_j: float | None
    lower_j: float | None
    upper_j: float | None
    provenance: str
    duration_s: float
    correct: bool | None
    score: float | None
    routing_j: float | None
    error: str | None
    cut_off: tuple[CutOff, ...] = ()
    not_comparable: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked.

    Args:
        answered: in the order of the questions.
        folders: the run folders.
        interrupted: it was stopped by a signal before all were there.
        unasked: what the joule budget left no joules for, as answers drew more than was expected.
    """

    answered: list[Answered]
    folders: list[Path]
    interrupted: bool = False
    unasked: list[Asked] = field(default_factory=list)


def choose_all(
    router: Router,
    asked: Sequence[Asked],
    goal: Goal,
    state: State,
    correct: Callable[[int], Correct | None] = lambda _: None,
    meter: Meter | None = None,
    purse: Purse | None = None,
) -> list[Chosen]:
    """A choice for each question; options that cannot answer such a question are left out.

    Args:
        correct: by a question's number, what was learnt since.
        meter: tells the joules of choosing.
        purse: a joule budget. The first question that does not fit it, by what is expected of those before, and all
            after it have no choice.

    Raises:
        UserError: no option can take a question, or none tells how it answers; not even the first question fits the
            budget.
    """
    unusable = {name for name, known in router.learnt.items() if known.way is None}
    if not set(router.learnt) - unusable:
        raise UserError("the router does not know how its options answer: fit it with run folders, or with --plan PLAN")
    unusable |= {
        c.name for c in router.cascades if c.cascade is not None and unusable & {c.cascade.first, c.cascade.then}
    }
    foreseen = None if purse is None else purse.foreseen()
    chosen: list[Chosen] = []
    with nullcontext() if meter is None else meter.window() as window:
        for i, one in enumerate(asked):
            choose = partial(_choice, router, one, state, correct(i), unusable)
            try:
                choice = choose(goal) if foreseen is None else foreseen.choose(choose, goal)
            except BudgetSpentError:
                if not chosen:
                    raise
                break
            chosen.append(Chosen(one, choice, None))
    total = None if window is None else window.energy.total.energy_j
    if purse is not None and total:
        purse.drew(total)
    return [replace(one, routing_j=None if total is None else total / len(chosen)) for one in chosen]


def _choice(
    router: Router, one: Asked, state: State, correct: Correct | None, unusable: set[str], goal: Goal
) -> Choice:
    without = unusable | _cannot_answer(router, one.kind)
    pinned = goal.pinned - without
    if goal.pinned and not pinned:
        raise UserError(f"none of the pinned options can be asked for an answer of the kind '{one.kind}': pin another")
    wanted = replace(goal, pinned=pinned, forbidden=goal.forbidden - without)
    return router.choose(one.query, wanted, state, one.domain, correct, None, without)


def _cannot_answer(router: Router, kind: AnswerKind) -> set[str]:
    """Options whose reasoning counts votes, where answers are free texts: no two are alike."""
    if kind != "text":
        return set()
    votes = {
        name
        for name, known in router.learnt.items()
        if known.way is not None and known.way.reasoning.get("kind") == "vote"
    }
    return votes | {
        c.name for c in router.cascades if c.cascade is not None and votes & {c.cascade.first, c.cascade.then}
    }


def answer_all(
    router: Router,
    chosen: Sequence[Chosen],
    folder: Path | None,
    meter: Meter,
    max_tokens: int | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    purse: Purse | None = None,
) -> Done:
    """Run the choices as one plan: a task for each option and kind of answer, in that option's cell alone.

    Where a cascade was chosen, its first option; the questions on which its votes differ are asked again of its second
    option, in the folder ``FOLDER-then``.

    Args:
        folder: the run folder, which must be new; None: ``runs/asked-DATE-TIME``.
        max_tokens: output budget; None: the option's own.
        purse: a joule budget that each answer's joules are booked in, as soon as it is there; where they leave too
            little for what is still to be asked, that is not asked.

    Raises:
        UserError, EnvironmentFault: as ``joulewise.runner.run``.
    """
    folder = folder or Path("runs") / f"asked-{datetime.now():%Y%m%d-%H%M%S-%f}"
    cascades = {option.name: option.cascade for option in router.cascades}
    first, then = [one.choice.option for one in chosen], [""] * len(chosen)
    for i, one in enumerate(chosen):
        if (cascade := cascades.get(one.choice.option)) is not None:
            first[i], then[i] = cascade.first, cascade.then
    bookings: list[Booking] = []

    def run_all(rows: Sequence[int], options: Sequence[str], folder: Path) -> tuple[list[Trial | None], bool]:
        questions = [chosen[i].asked for i in rows]
        if purse is None:
            return _run(router, questions, options, folder, meter, max_tokens, on_progress)
        waiting = [(options[n], _expected_j(chosen[i], options[n])) for n, i in enumerate(rows)]
        bookings.append(booking := Booking(purse, waiting, on_progress))
        with booking:
            return _run(router, questions, options, folder, meter, max_tokens, booking.told, booking.enough)

    found, stopped = run_all(range(len(chosen)), first, folder)
    trials = [[trial] for trial in found]
    folders = [folder]
    differ = [i for i, (trial,) in enumerate(trials) if trial is not None and then[i] and not _agreed(trial)]
    unanswered = {i for i, (trial,) in enumerate(trials) if trial is None} if stopped else set()
    short = False
    if differ and not stopped and purse is not None:
        short = not purse.fits(min(_expected_j(chosen[i], then[i]) for i in differ))
    if stopped or short:
        unanswered.update(differ)  # whoever was to be asked then is not
    elif differ:
        folders.append(further := folder.with_name(f"{folder.name}-then"))
        found, stopped = run_all(differ, [then[i] for i in differ], further)
        for i, trial in zip(differ, found, strict=True):
            trials[i].append(trial)
            if trial is None and stopped:
                unanswered.add(i)
    answered = [
        _answered(router, one, of, options, source_here(meter.specs))
        for i, (one, of, *options) in enumerate(zip(chosen, trials, first, then, strict=True))
        if i not in unanswered
    ]
    short = short or any(booking.short for booking in bookings)
    unasked = [chosen[i].asked for i in sorted(unanswered)] if short else []
    return Done(answered, folders, stopped and not short, unasked)


def _expected_j(one: Chosen, option: str) -> float:
    """Of an option that is asked for a choice: of the choice itself, or of a part of a cascade."""
    found = (v.estimate.energy_j.mean for v in one.choice.verdicts if v.option == option and v.estimate is not None)
    return next(found, one.choice.estimate.energy_j.mean)


def _agreed(trial: Trial | None) -> bool:
    return trial is not None and trial.status == "ok" and agreed(trial.votes)


def _run(
    router: Router,
    asked: Sequence[Asked],
    options: Sequence[str],
    folder: Path,
    meter: Meter,
    max_tokens: int | None,
    on_progress: Callable[[Progress], None],
    enough: Callable[[], bool] = lambda: False,
) -> tuple[list[Trial | None], bool]:
    """The Trial of each question, None where there is none, and whether it was stopped before."""
    from joulewise.ledger import LEDGER
    from joulewise.ledger_lines import read_ledger
    from joulewise.runner import run

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        told = f"{folder} holds something already: name another folder with --out"
        if (folder / "plan.yaml").is_file() and (folder / f"{ASKED}-1.jsonl").is_file():
            name = shlex.quote(str(folder))
            told += f"; if it was stopped, `joulewise run {name}/plan.yaml --out {name} --resume` does the rest"
        raise UserError(told)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plan, places = _plan(router, asked, options, folder.absolute(), max_tokens)
        result = run(plan, folder, meter=meter, on_progress=on_progress, enough=enough)
    except (JoulewiseError, OSError, ValidationError) as error:
        if folder.exists() and not read_ledger(folder / LEDGER).trials:
            shutil.rmtree(folder)  # as if it had not been made
        if isinstance(error, ValidationError):
            raise UserError(
                f"the router's options cannot be run ({first_paragraph(error)}): fit it again with this version of "
                "Joulewise"
            ) from error
        if isinstance(error, OSError):
            raise EnvironmentFault(
                f"{folder}: cannot be written ({error.strerror}); make room, or name another folder with --out"
            ) from error
        raise
    there = {(trial.task, trial.question_id): trial for trial in read_ledger(folder / LEDGER).trials}
    return [there.get(place) for place in places], result.interrupted


def _plan(
    router: Router, asked: Sequence[Asked], options: Sequence[str], folder: Path, max_tokens: int | None
) -> tuple[Plan, list[tuple[str, str]]]:
    """The plan, and by question its task and id; the files of questions are written into the folder."""
    from joulewise.plan import Plan

    groups: dict[tuple[str, AnswerKind], list[int]] = {}
    for i, (one, option) in enumerate(zip(asked, options, strict=True)):
        groups.setdefault((option, one.kind), []).append(i)
    ways: dict[str, Way] = {}
    for name, _ in groups:
        way = router.learnt[name].way
        assert way is not None
        ways[name] = way
    places: list[tuple[str, str]] = [("", "")] * len(asked)
    tasks, wanted = [], {}
    for number, ((name, kind), members) in enumerate(groups.items(), 1):
        label, file = f"asked-{number}", folder / f"asked-{number}.jsonl"
        rows = []
        for i in members:
            one = asked[i]
            places[i] = label, one.name or "question"
            row = {"id": places[i][1], "query": one.query, "domain": one.domain, "reference": one.reference}
            rows.append(json.dumps({key: value for key, value in row.items() if value is not None}))
        file.write_text("\n".join(rows) + "\n", encoding="utf-8")
        most = max_tokens or ways[name].max_new_tokens
        tasks.append(
            {"name": ASKED, "label": label, "max_new_tokens": most, "options": {"file": str(file), "answer": kind}}
        )
        wanted[label] = name
    engines = {json.dumps(way.engine, sort_keys=True): way.engine for way in ways.values()}
    decodings = {json.dumps(way.decoding, sort_keys=True): way.decoding for way in ways.values()}
    reasonings = {json.dumps(way.reasoning, sort_keys=True): way.reasoning for way in ways.values()}
    grid: dict[str, Any] = {
        "name": ASKED,
        "description": "Questions, each by the option that a router chose for it.",
        "engines": list(engines.values()),
        "decodings": list(decodings.values()),
        "reasonings": list(reasonings.values()),
        "tasks": tasks,
        "sampling": next(iter(ways.values())).sampling,
        "idle_baseline_s": 0.0,
    }
    whole = Plan.model_validate(grid)
    others = [
        {"engine": _literal(engine), "decoding": _literal(decoding), "reasoning": _literal(reasoning), "task": label}
        for cell in whole.cells()
        for engine, decoding, reasoning, label in [
            (cell.engine.label, cell.decoding.label, cell.reasoning.label, cell.task.label)
        ]
        if f"{engine}/{decoding}/{reasoning}" != wanted[label]
    ]
    return Plan.model_validate({**grid, "exclude": others}), places


def _literal(label: str) -> str:
    """A label as a pattern that matches nothing else."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in label)


def _answered(
    router: Router, one: Chosen, trials: Sequence[Trial | None], options: Sequence[str], here: JouleSource | None
) -> Answered:
    """What came of a question: the last answer, and the joules and seconds of all.

    Args:
        options: whose they are.
        here: whose joules are drawn.
    """
    last = trials[-1]
    if last is None:
        return Answered(
            one.asked, one.choice, None, None, None, None, "unknown", 0.0, None, None, one.routing_j, "it was not run"
        )
    ran = [trial for trial in trials if trial is not None]
    energies = [trial.window().total for trial in ran]
    intervals = [energy.interval_j for energy in energies]
    known = all(trial.status == "ok" for trial in ran) and all(intervals)
    ends = [pair for pair in intervals if pair is not None] if known else []
    provenance = joint_provenance(energy.provenance for energy in energies)
    here = None if here is None else replace(here, provenance=provenance)
    differs = (
        difference(router.learnt[option].sources, here) for _, option in zip(ran, options, strict=False) if known
    )
    return Answered(
        one.asked,
        one.choice,
        _text(last) if last.status == "ok" else None,
        sum(energy.energy_j or 0.0 for energy in energies) if known else None,
        sum(lower for lower, _ in ends) if known else None,
        sum(upper for _, upper in ends) if known else None,
        provenance,
        sum(trial.duration_s for trial in ran),
        last.correct,
        last.score,
        one.routing_j,
        last.error,
        tuple(
            cut
            for trial, option in zip(ran, options, strict=False)
            if (cut := _cut_off(trial, option, router.learnt[option].way)) is not None
        ),
        next((why for why in differs if why is not None), None),
    )


def _cut_off(trial: Trial, option: str, way: Way | None) -> CutOff | None:
    """What of an answer its token budget cut off; None where nothing is.

    The thoughts of a budget are meant to be cut off, and an answer is forced where they state none: that one counts.
    """
    kind = None if way is None else way.reasoning.get("kind")
    made = trial.generations[1:] if kind == "budget" else trial.generations
    cut = [generation.output_tokens for generation in made if generation.finish_reason == "length"]
    if trial.status != "ok" or not cut:
        return None
    return CutOff(option, len(cut), len(made), max(cut), kind in ("cot", "budget"))


def _text(trial: Trial) -> str:
    """What was answered: of a vote, the first sample with the answer that won; of a thought, all of it."""
    texts = [generation.text or "" for generation in trial.generations]
    if trial.votes is not None and trial.extracted in trial.votes:
        return texts[trial.votes.index(trial.extracted)]
    return "\n".join(texts)

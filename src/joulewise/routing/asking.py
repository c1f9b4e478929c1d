"""Asking by a router: each question goes to the option that is chosen for it, and its Trial into a run folder."""

from __future__ import annotations

import difflib
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from joulewise.analysis.intervals import joint_provenance
from joulewise.errors import EnvironmentFault, JoulewiseError, UserError, first_paragraph
from joulewise.routing.past_answers import ASKED, Way, agreed
from joulewise.routing.policy import Choice, Goal, State
from joulewise.routing.router import Correct, Router
from joulewise.routing.within_budget import BudgetSpentError, Purse
from joulewise.tasks.asked import AnswerKind, answer_kind
from joulewise.whole_file import whole_file

if TYPE_CHECKING:
    from joulewise.energy.meter import Meter
    from joulewise.plan import Plan
    from joulewise.records import Trial
    from joulewise.run_result import Progress


_KEYS = ("query", "domain", "reference", "id")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question.

    Args:
        query: its text.
        domain: its field, where it is known.
        reference: the right answer, where it is known.
        name: its id.
        answer: how it is asked; None: by its text.
    """

    query: str
    domain: str | None = None
    reference: str | None = None
    name: str | None = None
    answer: AnswerKind | None = None

    @property
    def kind(self) -> AnswerKind:
        """How it is asked."""
        return answer_kind(self.query, self.reference) if self.answer is None else self.answer


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


@dataclass(frozen=True, slots=True)
class Done:
    """Answers, in the order of the questions, the run folders, and whether it was stopped before all were there."""

    answered: list[Answered]
    folders: list[Path]
    interrupted: bool = False


def read_batch(file: Path, domain: str | None = None, answer: AnswerKind | None = None) -> list[Asked]:
    """The questions of a file of JSON lines.

    Raises:
        UserError: it cannot be read, a line is no question (with its place), two have one id, or there is none.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    return parse_batch(data, str(file), domain, answer)


def parse_batch(data: bytes, file: str, domain: str | None = None, answer: AnswerKind | None = None) -> list[Asked]:
    """The questions of JSON lines; ``file`` is what they are called. Raises as ``read_batch``."""
    found: list[Asked] = []
    names: set[str] = set()
    try:
        # At line feeds alone: a question may hold other characters that end lines.
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} cannot be read as UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row: Any = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f'{where}: not JSON ({error.msg}); write a line such as {{"query": "..."}}') from error
        query = row.get("query") if isinstance(row, dict) else None
        if not isinstance(query, str) or not query.strip():
            raise UserError(f'{where}: no text under \'query\'; write a line such as {{"query": "..."}}')
        for key in row:
            if key not in _KEYS and (meant := difflib.get_close_matches(key, _KEYS, 1)):
                raise UserError(f"{where}: the field '{key}' is not known; did you mean '{meant[0]}'?")
        name = str(row.get("id", f"line-{number}"))
        if name in names:
            raise UserError(f"{where}: a second question with the id '{name}'; give each its own, or leave ids out")
        names.add(name)
        told, reference = row.get("domain", domain), row.get("reference")
        found.append(Asked(query, told and str(told), None if reference is None else str(reference), name, answer))
    if not found:
        raise UserError(f"{file}: it holds no question")
    return found


def write_batch(asked: Sequence[Asked], file: Path) -> Path:
    """Questions as the file of JSON lines that ``read_batch`` reads; its path.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    rows = [{"id": one.name, "query": one.query, "domain": one.domain, "reference": one.reference} for one in asked]
    lines = [json.dumps({key: value for key, value in row.items() if value is not None}) for row in rows]
    try:
        with whole_file(file) as part:
            part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"{file}: cannot be written ({error.strerror}); make room") from error
    return file


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
        purse: a joule budget that each answer's joules are booked in, as soon as it is there.

    Raises:
        UserError, EnvironmentFault: as ``joulewise.runner.run``.
    """
    folder = folder or Path("runs") / f"asked-{datetime.now():%Y%m%d-%H%M%S-%f}"
    cascades = {option.name: option.cascade for option in router.cascades}
    first, then = [one.choice.option for one in chosen], [""] * len(chosen)
    for i, one in enumerate(chosen):
        if (cascade := cascades.get(one.choice.option)) is not None:
            first[i], then[i] = cascade.first, cascade.then
    asked = [one.asked for one in chosen]
    told = on_progress if purse is None else _booking(purse, chosen, on_progress)
    run_all = partial(_run, router, meter=meter, max_tokens=max_tokens, on_progress=told)
    try:
        found, stopped = run_all(asked, first, folder)
    except JoulewiseError:
        if purse is not None:
            purse.end()  # nothing is under way
        raise
    trials = [[trial] for trial in found]
    folders = [folder]
    again = [] if stopped else [i for i, (trial,) in enumerate(trials) if then[i] and not _agreed(trial)]
    if again:
        folders.append(further := folder.with_name(f"{folder.name}-then"))
        found, stopped = run_all([asked[i] for i in again], [then[i] for i in again], further)
        for i, trial in zip(again, found, strict=True):
            trials[i].append(trial)
    if purse is not None:
        purse.end()
    answered = [
        _answered(router, one, of, options)
        for one, of, *options in zip(chosen, trials, first, then, strict=True)
        if of[-1] is not None or not stopped
    ]
    return Done(answered, folders, stopped)


def _booking(purse: Purse, chosen: Sequence[Chosen], tell: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Books what each Trial drew, and what is expected of the next one.

    Where a kill ends it all, what is expected of the Trial in flight stays booked.
    """
    expected = {one.choice.option: one.choice.estimate.energy_j.mean for one in chosen}
    most_j = max(expected.values())

    def told(progress: Progress) -> None:
        if progress.stage == "load":
            purse.begin(most_j)
        if (trial := progress.trial) is not None:
            drawn_j = trial.window().total.energy_j
            if drawn_j is None:
                option = f"{trial.engine}/{trial.decoding}/{trial.reasoning}"
                drawn_j = expected.get(option, most_j) if trial.status == "ok" else 0.0
            purse.drew(drawn_j, trial.duration_s)
            if progress.done < progress.total:
                purse.begin(most_j)
            else:
                purse.end()
        tell(progress)

    return told


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
) -> tuple[list[Trial | None], bool]:
    """The Trial of each question, None where there is none, and whether it was stopped before."""
    from joulewise.ledger import LEDGER
    from joulewise.ledger_lines import read_ledger
    from joulewise.runner import run

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} holds something already: name another folder with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plan, places = _plan(router, asked, options, folder.absolute(), max_tokens)
        result = run(plan, folder, meter=meter, on_progress=on_progress)
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


def _answered(router: Router, one: Chosen, trials: Sequence[Trial | None], options: Sequence[str]) -> Answered:
    """What came of a question: the last answer, and the joules and seconds of all; ``options`` are whose they are."""
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
    return Answered(
        one.asked,
        one.choice,
        _text(last) if last.status == "ok" else None,
        sum(energy.energy_j or 0.0 for energy in energies) if known else None,
        sum(lower for lower, _ in ends) if known else None,
        sum(upper for _, upper in ends) if known else None,
        joint_provenance(energy.provenance for energy in energies),
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

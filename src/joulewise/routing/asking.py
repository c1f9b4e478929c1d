"""Asking by a router: each question goes to the option that is chosen for it, and its Trial into a run folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulewise.errors import UserError
from joulewise.routing.past_answers import ASKED, Way
from joulewise.routing.policy import Choice, Goal, State
from joulewise.routing.router import Correct, Router
from joulewise.tasks.asked import AnswerKind, answer_kind

if TYPE_CHECKING:
    from joulewise.energy.meter import Meter
    from joulewise.plan import Plan
    from joulewise.records import Trial
    from joulewise.run_result import Progress


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


@dataclass(frozen=True, slots=True)
class Done:
    """All answers, in the order of the questions, and the run folder."""

    answered: list[Answered]
    folder: Path


def read_batch(file: Path, domain: str | None = None, answer: AnswerKind | None = None) -> list[Asked]:
    """The questions of a file of JSON lines.

    Raises:
        UserError: it cannot be read, a line is no question (with its place), two have one id, or there is none.
    """
    found: list[Asked] = []
    names: set[str] = set()
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
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
        name = str(row.get("id", f"line-{number}"))
        if name in names:
            raise UserError(f"{where}: a second question with the id '{name}'; give each its own, or leave ids out")
        names.add(name)
        told, reference = row.get("domain", domain), row.get("reference")
        found.append(Asked(query, told and str(told), None if reference is None else str(reference), name, answer))
    if not found:
        raise UserError(f"{file}: it holds no question")
    return found


def choose_all(
    router: Router,
    asked: Sequence[Asked],
    goal: Goal,
    state: State,
    correct: Callable[[int], Correct | None] = lambda _: None,
    meter: Meter | None = None,
) -> list[Chosen]:
    """A choice for each question; options that cannot answer such a question are left out.

    Args:
        correct: by a question's number, what was learnt since.
        meter: tells the joules of choosing.

    Raises:
        UserError: no option can take a question, or none tells how it answers.
    """
    unusable = {name for name, known in router.learnt.items() if known.way is None}
    if not set(router.learnt) - unusable:
        raise UserError("the router does not know how its options answer: fit it with run folders, or with --plan PLAN")
    unusable |= {c.name for c in router.cascades}  # the verifier between them is not part of a plan
    with nullcontext() if meter is None else meter.window() as window:
        chosen = [
            Chosen(one, _choice(router, one, goal, state, correct(i), unusable), None) for i, one in enumerate(asked)
        ]
    total = None if window is None else window.energy.total.energy_j
    return [replace(one, routing_j=None if total is None else total / len(chosen)) for one in chosen]


def _choice(
    router: Router, one: Asked, goal: Goal, state: State, correct: Correct | None, unusable: set[str]
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
    return {
        name
        for name, known in router.learnt.items()
        if known.way is not None and known.way.reasoning.get("kind") == "vote"
    }


def answer_all(
    router: Router,
    chosen: Sequence[Chosen],
    folder: Path | None,
    meter: Meter,
    max_tokens: int | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Done:
    """Run the choices as one plan: a task for each option and kind of answer, in that option's cell alone.

    Args:
        folder: the run folder, which must be new; None: ``runs/asked-DATE-TIME``.
        max_tokens: output budget; None: the option's own.

    Raises:
        UserError, EnvironmentFault: as ``joulewise.runner.run``.
    """
    from joulewise.runner import run

    folder = folder or Path("runs") / f"asked-{datetime.now():%Y%m%d-%H%M%S-%f}"
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} holds something already: name another folder with --out")
    with tempfile.TemporaryDirectory() as drawer:
        plan, places, files = _plan(router, chosen, Path(drawer), folder, max_tokens)
        result = run(plan, folder, meter=meter, on_progress=on_progress)
        for file in files:
            shutil.copyfile(file, folder / file.name)  # for `fit`: ledgers do not hold questions
    return Done(_answers(result.folder, chosen, places), result.folder)


def _plan(
    router: Router, chosen: Sequence[Chosen], drawer: Path, folder: Path, max_tokens: int | None
) -> tuple[Plan, list[tuple[str, str]], list[Path]]:
    """The plan, by question its task and id, and the files of questions."""
    from joulewise.plan import Plan

    groups: dict[tuple[str, AnswerKind], list[int]] = {}
    for i, one in enumerate(chosen):
        groups.setdefault((one.choice.option, one.asked.kind), []).append(i)
    ways: dict[str, Way] = {}
    for name, _ in groups:
        way = router.learnt[name].way
        assert way is not None
        ways[name] = way
    places: list[tuple[str, str]] = [("", "")] * len(chosen)
    tasks, wanted, files = [], {}, []
    for number, ((name, kind), members) in enumerate(groups.items(), 1):
        label, file = f"asked-{number}", drawer / f"asked-{number}.jsonl"
        rows = []
        for i in members:
            asked = chosen[i].asked
            places[i] = label, asked.name or "question"
            row = {"id": places[i][1], "query": asked.query, "domain": asked.domain, "reference": asked.reference}
            rows.append(json.dumps({key: value for key, value in row.items() if value is not None}))
        file.write_text("\n".join(rows) + "\n", encoding="utf-8")
        files.append(file)
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
    return Plan.model_validate({**grid, "exclude": others}), places, files


def _literal(label: str) -> str:
    """A label as a pattern that matches nothing else."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in label)


def _answers(folder: Path, chosen: Sequence[Chosen], places: Sequence[tuple[str, str]]) -> list[Answered]:
    from joulewise.ledger import LEDGER
    from joulewise.ledger_lines import read_ledger

    there = {(trial.task, trial.question_id): trial for trial in read_ledger(folder / LEDGER).trials}
    return [_answered(one, there.get(place)) for one, place in zip(chosen, places, strict=True)]


def _answered(one: Chosen, trial: Trial | None) -> Answered:
    if trial is None:
        return Answered(
            one.asked, one.choice, None, None, None, None, "unknown", 0.0, None, None, one.routing_j, "it was not run"
        )
    energy = trial.window().total
    known = trial.status == "ok"
    lower, upper = (energy.lower_j, energy.upper_j) if energy.energy_j is not None else (None, None)
    return Answered(
        one.asked,
        one.choice,
        _text(trial) if known else None,
        energy.energy_j if known else None,
        lower if known else None,
        upper if known else None,
        energy.provenance,
        trial.duration_s,
        trial.correct,
        trial.score,
        one.routing_j,
        trial.error,
    )


def _text(trial: Trial) -> str:
    """What was answered: of a vote, the first sample with the answer that won; of a thought, all of it."""
    texts = [generation.text or "" for generation in trial.generations]
    if trial.votes is not None and trial.extracted in trial.votes:
        return texts[trial.votes.index(trial.extracted)]
    return "\n".join(texts)

"""Grade the answers of a finished run, one judgement after the other; what is judged stays judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from joulewise.counted import counted
from joulewise.energy.meter import Meter
from joulewise.environment import utc_now
from joulewise.errors import UserError
from joulewise.judge.client import Judge, JudgeDown, JudgeRefuses
from joulewise.judge.prompts import GUIDED, Prompts, grade, open_prompts, open_references, spoken, verdict
from joulewise.judge.record import Call, Judgement, append, judgements_file, latest, read_judgements
from joulewise.ledger import LEDGER
from joulewise.ledger_lines import read_ledger
from joulewise.plan import Plan
from joulewise.records import EnergyRecord, Trial
from joulewise.run_result import Progress
from joulewise.tasks import JUDGED, TaskContext, open_task
from joulewise.tasks.task import Question, Task, question_hash
from joulewise.yaml_file import load_yaml

DOWN_IN_A_ROW = 3
"""After so many answers that the judge could not be reached for, the rest is left for another time."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that can be judged.

    Args:
        trial: whose it is.
        asked: what the user said, turn by turn.
        said: the model's answers, turn by turn, its thinking left out.
    """

    trial: Trial
    asked: tuple[str, ...]
    said: tuple[str, ...]

    @property
    def answer_hash(self) -> str:
        """Of the answers' tokens, as ``output_hash`` of the run's table."""
        return "+".join(g.output_hash for g in self.trial.generations)


@dataclass(frozen=True, slots=True)
class Judged:
    """How it ended.

    Args:
        answers: by trial id, what there is to judge.
        judgements: the latest of this judge on each, unjudged ones too; those of earlier times included.
        asked: how many were judged this time.
        notes: what was left out, and why.
        stopped: why the rest was left for another time; None where it was not.
    """

    answers: Mapping[str, Answered]
    judgements: tuple[Judgement, ...]
    asked: int
    notes: tuple[str, ...]
    stopped: str | None


@dataclass(frozen=True, slots=True)
class _Item:
    ours: Answered
    turn: int
    theirs: Answered | None

    @property
    def of(self) -> tuple[str, str, int, str | None]:
        against = None if self.theirs is None else self.theirs.trial.trial_id
        return self.ours.trial.trial_id, self.ours.answer_hash, self.turn, against


def judge_run(
    folder: Path,
    judge: Judge,
    *,
    data_dir: Path | None = None,
    against: str | None = None,
    limit: int | None = None,
    meter: Meter | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Judged:
    """Grade every answer of a run's judged tasks, each turn by itself, or compare them with another cell's.

    Args:
        folder: the run.
        judge: who grades.
        data_dir: where the questions lie, and the published prompts and reference answers if they are to be used.
        against: a cell's id; every other cell's answers are then compared with its answers to the same questions, each
            pair in both orders.
        limit: at most so many judgements this time.
        meter: measures this machine's joules during the judge's calls; None where the judge runs elsewhere.
        on_progress: told of every judgement.

    Raises:
        UserError: nothing to judge, or the judge knows neither key nor model.
        EnvironmentFault: the folder cannot be written, or the questions cannot be had.
    """
    answers, notes = answered(folder, data_dir)
    named = TaskContext(data_dir).folder()
    place = None if named is None else named[0]
    prompts, references = open_prompts(place), open_references(place)
    items = list(_pairs(answers, against) if against is not None else _singles(answers))
    if not references and any(item.ours.trial.category in GUIDED for item in items):
        notes.append("no reference answers are at hand, so mathematics, coding and reasoning are judged without")
    stopped, asked, down = None, 0, 0
    with judgements_file(folder) as file:
        mine = [j for j in read_judgements(folder) if j.by == (judge.model, prompts.name)]
        known = dict(latest(mine))
        for done, item in enumerate(items, 1):
            before = known.get(item.of)
            reference = _reference(item, references)
            if before is not None and before.status == "judged" and before.guided == bool(reference):
                continue
            if limit is not None and asked >= limit:
                stopped = f"no more than {limit} judgements were asked for"
                break
            found, unreachable = _judge(item, judge, prompts, reference, meter)
            append(file, found)
            known[item.of] = found
            asked += 1
            text = found.status if found.reason is None else f"unjudged: {found.reason}"
            on_progress(Progress("trial", text, done, len(items)))
            down = down + 1 if unreachable else 0
            if down == DOWN_IN_A_ROW:
                stopped = f"the judge {found.reason}"
                break
    return Judged(
        {a.trial.trial_id: a for a in answers},
        tuple(known[item.of] for item in items if item.of in known),
        asked,
        tuple(notes),
        stopped,
    )


def answered(folder: Path, data_dir: Path | None) -> tuple[list[Answered], list[str]]:
    """The answers of a run that can be judged, in the ledger's order, and why others cannot.

    Raises:
        UserError: no run, or one without a task that a judge grades, or questions that changed since.
        EnvironmentFault: the questions cannot be had.
    """
    if not (folder / LEDGER).is_file():
        raise UserError(f"{folder}: not a run folder; name one that `joulewise run` made (runs/NAME-DATE-TIME)")
    plan = load_yaml(folder / "plan.yaml", Plan)
    specs = {spec.label: spec for spec in plan.tasks if spec.name in JUDGED}
    if not specs:
        raise UserError(
            f"{folder}: none of its tasks has answers for a judge; {', '.join(sorted(JUDGED))} has, the others are "
            "scored when they are run"
        )
    last = {t.trial_id: t for t in read_ledger(folder / LEDGER).trials if t.task in specs}
    opened: dict[str, tuple[Task, dict[str, Question]]] = {}
    for label in sorted({t.task for t in last.values()}):
        task = open_task(specs[label].name, data_dir, specs[label].options)
        opened[label] = task, {q.question_id: q for q in task.questions()}
    found, lost = [], {"failed": 0, "whose texts were not kept": 0, "that are not one text a turn": 0}
    for trial in last.values():
        task, questions = opened[trial.task]
        question = questions.get(trial.question_id)
        if question is None or question_hash(task, question) != trial.question_hash:
            raise UserError(
                f"{folder}: question '{trial.question_id}' of task {trial.task} no longer reads as it did when it was "
                "asked: put its data file back, or run anew"
            )
        turns = tuple(turn[-1].content for turn in task.turns(question))
        texts = tuple(spoken(g.text) for g in trial.generations if g.text is not None)
        if trial.status != "ok":
            lost["failed"] += 1
        elif len(trial.generations) != len(turns):
            lost["that are not one text a turn"] += 1
        elif len(texts) != len(turns):
            lost["whose texts were not kept"] += 1
        else:
            found.append(Answered(trial, turns, texts))
    notes = [f"left out: {counted(count, 'Trial')} {why}" for why, count in lost.items() if count]
    if not found:
        raise UserError(f"{folder}: no answer can be judged ({'; '.join(notes) or 'none was given'})")
    return found, notes


def _singles(answers: Sequence[Answered]) -> Iterator[_Item]:
    for answer in answers:
        for turn in range(1, len(answer.said) + 1):
            yield _Item(answer, turn, None)


def _pairs(answers: Sequence[Answered], against: str) -> Iterator[_Item]:
    cells = list(dict.fromkeys(a.trial.cell_id for a in answers))
    if against not in cells:
        raise UserError(f"--against {against}: no such cell with answers to judge; there are: {', '.join(cells)}")
    if len(cells) == 1:
        raise UserError(f"--against {against}: it is the run's only cell, so there is nothing to compare with it")
    task = next(a.trial.task for a in answers if a.trial.cell_id == against)
    theirs = {(a.trial.question_id, a.trial.repeat): a for a in answers if a.trial.cell_id == against}
    for answer in answers:
        other = theirs.get((answer.trial.question_id, answer.trial.repeat))
        if other is not None and answer.trial.cell_id != against and answer.trial.task == task:
            for turn in range(1, len(answer.said) + 1):
                yield _Item(answer, turn, other)


def _reference(item: _Item, references: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The reference answers that the judge is given, one a turn; empty where it is given none."""
    trial = item.ours.trial
    found = references.get(trial.question_id, ()) if trial.category in GUIDED else ()
    return found if len(found) == len(item.ours.asked) else ()


def _judge(
    item: _Item, judge: Judge, prompts: Prompts, reference: tuple[str, ...], meter: Meter | None
) -> tuple[Judgement, bool]:
    """The judgement, and whether it failed because the judge is down."""
    trial, guided = item.ours.trial, bool(reference)
    template = prompts.templates["single" if item.theirs is None else "pair", guided, item.turn]
    calls: list[Call] = []
    reason, down = None, False
    rating: float | None = None
    verdicts: list[str] = []
    for order, texts in _texts(item, reference):
        said, reason, down = _call(judge, template.messages(texts), order, meter, calls)
        if said is None:
            break
        if order is None:
            rating = float(said)
        else:
            won = {"A": "win", "B": "loss"} if order == "ours first" else {"A": "loss", "B": "win"}
            verdicts.append(won.get(said, "tie"))
    # The judge's liking for a place would win one order each: what changes with the order is a tie.
    agreed = verdicts[0] if len(set(verdicts)) == 1 else "tie"
    judgement = Judgement(
        trial_id=trial.trial_id,
        answer_hash=item.ours.answer_hash,
        turn=item.turn,
        against=item.of[3],
        judge=judge.model,
        server=judge.server,
        prompts=prompts.name,
        guided=guided,
        status="judged" if reason is None else "unjudged",
        reason=reason,
        rating=rating,
        verdict=agreed if reason is None and item.theirs is not None else None,
        calls=tuple(calls),
        judged_at=utc_now(),
    )
    return judgement, down


def _texts(item: _Item, reference: Sequence[str]) -> Iterator[tuple[str | None, dict[str, str]]]:
    """The order and what the placeholders stand for: once for a grade, twice for a comparison."""
    asked = item.ours.asked
    texts = {"question": asked[0]} | {f"question_{i}": text for i, text in enumerate(asked, 1)}
    texts |= {f"ref_answer_{i}": text for i, text in enumerate(reference, 1)}
    if item.theirs is None:
        yield None, texts | _named("", item.ours)
        return
    for order, (a, b) in (("ours first", (item.ours, item.theirs)), ("theirs first", (item.theirs, item.ours))):
        yield order, texts | _named("_a", a) | _named("_b", b)


def _named(who: str, answer: Answered) -> dict[str, str]:
    return {f"answer{who}": answer.said[0]} | {f"answer{who}_{i}": text for i, text in enumerate(answer.said, 1)}


def _call(
    judge: Judge, messages: list[dict[str, str]], order: str | None, meter: Meter | None, calls: list[Call]
) -> tuple[str | None, str | None, bool]:
    """What is taken from the judge's reply; else None, why there is none, and whether the judge is down."""
    reason, down, rest_s = None, False, 0.0
    for attempt in range(judge.tries):
        if rest_s:
            judge.sleep(rest_s)
        reply, reason, down, rest_s = None, None, False, 0.0
        with ExitStack() as measured:
            window = None if meter is None else measured.enter_context(meter.window())
            try:
                reply = judge.ask(messages)
            except JudgeDown as error:
                reason, down, rest_s = str(error), True, error.retry_after_s or 2.0**attempt
            except JudgeRefuses as error:
                reason = str(error)
        energy = None if window is None else tuple(EnergyRecord.of(part) for part in window.energy.components)
        if reply is None:
            calls.append(Call(order=order, energy=energy))
            if down:
                continue
            break
        found = grade(reply.text) if order is None else verdict(reply.text)
        said = f"{found:g}" if isinstance(found, float) else found
        calls.append(
            Call(
                order=order,
                prompt_tokens=reply.prompt_tokens,
                output_tokens=reply.output_tokens,
                duration_s=reply.duration_s,
                said=said,
                energy=energy,
            )
        )
        if said is not None:
            return said, None, False
        reason = "its reply was cut off before any grade" if reply.cut_off else "no grade is in its reply"
    return None, reason, down

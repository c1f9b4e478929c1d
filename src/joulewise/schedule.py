"""Which Trials, in which order? The questions of a plan's tasks and the jobs of its grid."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from joulewise.decoding import Vanilla
from joulewise.engines import open_engine
from joulewise.engines.engine import ComparingEngine, Engine, Message, Request
from joulewise.engines.together import refuses_together
from joulewise.errors import JoulewiseError, UserError
from joulewise.plan import Cell, Plan, TaskSpec
from joulewise.records import Trial
from joulewise.tasks import open_task
from joulewise.tasks.task import Question, Task, prompt_hash, question_hash
from joulewise.traffic.arrivals import Replay

TOLD = 3
"""So many faults of a task's data are told in full; all are in the run folder."""

Faults: TypeAlias = dict[str, list[Cell]]
"""What is wrong with a plan, each a sentence with the way out, and the cells that it keeps from running."""

QuestionsByTask = Mapping[str, tuple[Task, tuple[Question, ...]]]
"""By task label: the task and the questions that are asked."""


@dataclass(frozen=True, slots=True)
class Job:
    """One Trial to be: a question in a cell, once."""

    cell: Cell
    question: Question
    repeat: int

    @property
    def trial_id(self) -> str:
        """Unique in a run, the same in every session of it."""
        return f"{self.cell.cell_id}|{self.question.question_id}|{self.repeat}"


class Skipped:
    """Broken lines of task data that were left out: the faults, by task label."""

    def __init__(self) -> None:
        self.faults: dict[str, list[str]] = {}

    def add(self, label: str, fault: str) -> None:
        """Note one line."""
        self.faults.setdefault(label, []).append(fault)

    def told(self) -> list[str]:
        """One sentence a task, with its first few faults."""
        return [
            f"task {label}: {len(faults)} broken line{'s' * (len(faults) > 1)} left out: "
            + "; ".join(faults[:TOLD] + ["..."] * (len(faults) > TOLD))
            for label, faults in self.faults.items()
        ]


def open_tasks(
    plan: Plan, data_dir: Path | None, limit: int | None, skip_bad: Callable[[str, str], None] | None = None
) -> QuestionsByTask:
    """Every task of the plan with the questions that are asked, by task label.

    Args:
        plan: the plan.
        data_dir: where third-party data sets lie; None looks at ``JOULEWISE_DATA``, then the hub.
        limit: at most so many questions a task.
        skip_bad: told of every broken line of a task's data (the task's label and the fault), which is then left out;
            None refuses the first one.

    Raises:
        UserError, EnvironmentFault: a task that cannot be opened, with the reason.
    """
    return {spec.label: _open(spec, plan.seed, data_dir, limit, skip_bad) for spec in plan.tasks}


def open_what_can_be(
    plan: Plan, data_dir: Path | None, limit: int | None, skip_bad: Callable[[str, str], None] | None = None
) -> tuple[QuestionsByTask, Faults]:
    """As ``open_tasks``, but a task that cannot be opened is left out, and told with its cells."""
    chosen, faults = {}, Faults()
    for spec in plan.tasks:
        try:
            chosen[spec.label] = _open(spec, plan.seed, data_dir, limit, skip_bad)
        except JoulewiseError as error:
            faults[str(error)] = [cell for cell in plan.cells() if cell.task.label == spec.label]
    return chosen, faults


def _open(
    spec: TaskSpec, seed: int, data_dir: Path | None, limit: int | None, skip_bad: Callable[[str, str], None] | None
) -> tuple[Task, tuple[Question, ...]]:
    task = open_task(spec.name, data_dir, spec.options, skip_bad and partial(skip_bad, spec.label))
    questions = list(task.questions())
    if spec.questions is not None and spec.questions > len(questions):
        raise UserError(
            f"task {spec.label}: asks for {spec.questions} questions but there are {len(questions)}; ask for fewer"
        )
    questions = in_proportion(questions, random.Random(f"{seed}/{spec.label}"))
    sizes = [n for n in (spec.questions, limit) if n is not None]
    return task, tuple(questions[: min(sizes)] if sizes else questions)


def in_proportion(questions: Sequence[Question], order: random.Random) -> list[Question]:
    """Shuffled so that every beginning of the list holds the categories in proportion, each to within a question or so.

    A cut of it is a stratified sample, and a smaller sample is contained in a larger one. Within a category every
    question is as likely to come early as any other.
    """
    shuffled = list(questions)
    order.shuffle(shuffled)
    sizes = Counter(question.category for question in shuffled)
    # Question r of a category of n stands at (r + u) / n of the way, where u is drawn once for the category.
    shifts = {category: order.random() for category in sizes}
    seen: Counter[str | None] = Counter()
    places = []
    for question in shuffled:
        category = question.category
        places.append((seen[category] + shifts[category]) / sizes[category])
        seen[category] += 1
    return [shuffled[i] for i in sorted(range(len(shuffled)), key=places.__getitem__)]


def schedule(plan: Plan, questions: QuestionsByTask) -> list[Job]:
    """All Trials in the order of execution: engine by engine (one is loaded at a time), then as ``plan.order`` says."""
    jobs: list[Job] = []
    for engine in plan.engines:
        cells = [c for c in plan.cells() if c.engine.label == engine.label]
        order = random.Random(f"{plan.seed}/order/{engine.label}")
        if plan.loads:
            jobs += _stretches(plan, cells, order)
            continue
        if plan.order == "sequential":
            jobs += [Job(c, q, r) for c in cells for r in range(plan.repeats) for q in questions[c.task.label][1]]
            continue
        for repeat in range(plan.repeats):
            # A block is one question in all its cells, in random order; blocks of all tasks are mixed.
            by_task: dict[str, list[Cell]] = defaultdict(list)
            for cell in cells:
                by_task[cell.task.label].append(cell)
            blocks = [(task, question) for task in by_task for question in questions[task][1]]
            order.shuffle(blocks)
            for task, question in blocks:
                jobs += [Job(c, question, repeat) for c in order.sample(by_task[task], len(by_task[task]))]
    return [job for spec in plan.engines for job in _by_server(plan, spec.label, jobs)]


def _stretches(plan: Plan, cells: Sequence[Cell], order: random.Random) -> list[Job]:
    """Each cell's load once a repeat; a block is one load of one task in all its cells, in random order."""

    def job(cell: Cell, repeat: int) -> Job:
        assert cell.load is not None
        return Job(cell, Question(cell.load.label, "", ""), repeat)

    if plan.order == "sequential":
        return [job(cell, repeat) for cell in cells for repeat in range(plan.repeats)]
    together: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        together[cell.task_label].append(cell)
    jobs = []
    for repeat in range(plan.repeats):
        for label in order.sample(list(together), len(together)):
            jobs += [job(cell, repeat) for cell in order.sample(together[label], len(together[label]))]
    return jobs


def _by_server(plan: Plan, engine: str, jobs: Sequence[Job]) -> list[Job]:
    """An engine's jobs; where its servers run one at a time, so that each is started once a repeat.

    Within a repeat the servers come in random order: more repeats make more, shorter blocks that take turns, and drift
    falls on all of them more alike.
    """
    mine = [job for job in jobs if job.cell.engine.label == engine]
    labels = list(dict.fromkeys(job.cell.decoding.label for job in mine))
    if not mine or not mine[0].cell.engine.one_at_a_time:
        return mine
    if plan.order == "sequential":
        return sorted(mine, key=lambda job: labels.index(job.cell.decoding.label))
    turns = {
        repeat: random.Random(f"{plan.seed}/servers/{engine}/{repeat}").sample(sorted(labels), len(labels))
        for repeat in {job.repeat for job in mine}
    }
    return sorted(mine, key=lambda job: (job.repeat, turns[job.repeat].index(job.cell.decoding.label)))


def further(
    plan: Plan,
    questions: QuestionsByTask,
    done: Mapping[str, Trial],
    engine: str,
    narrow: Callable[[Sequence[Trial]], bool],
) -> list[Job]:
    """The repeats beyond ``plan.repeats`` that ``plan.target`` calls for by now, those that are done included.

    All cells of a task repeat together, so that pairs stay fair. What is called for follows from the Trials alone, so a
    run that goes on comes to the same.

    Args:
        plan, questions: as for ``schedule``.
        done: Trials by id.
        engine: the engine's label.
        narrow: whether the Trials of a cell are measured well enough.
    """
    target = plan.target
    if target is None:
        return []
    by_task: dict[str, list[Cell]] = defaultdict(list)
    for cell in plan.cells():
        if cell.engine.label == engine:
            by_task[cell.task.label].append(cell)

    def wanted(task: str, repeat: int) -> bool:
        jobs = [[Job(c, q, r) for r in range(repeat) for q in questions[task][1]] for c in by_task[task]]
        if not all(job.trial_id in done for cell in jobs for job in cell):
            return False
        trials = [[done[job.trial_id] for job in cell] for cell in jobs]
        if target.max_repeats is not None and repeat >= target.max_repeats:
            return False
        if target.max_s is not None and max(sum(t.duration_s for t in cell) for cell in trials) >= target.max_s:
            return False
        return not all(narrow(cell) for cell in trials)

    found: list[tuple[str, int]] = []
    for task in by_task:
        repeat = plan.repeats
        while questions[task][1] and wanted(task, repeat):
            found.append((task, repeat))
            repeat += 1
    if plan.order == "sequential":
        jobs = [Job(c, q, r) for task, r in found for c in by_task[task] for q in questions[task][1]]
        return _by_server(plan, engine, jobs)
    order = random.Random(f"{plan.seed}/further/{engine}/{len(found)}")
    blocks = [(task, question, repeat) for task, repeat in found for question in questions[task][1]]
    order.shuffle(blocks)
    jobs = [Job(c, q, r) for task, q, r in blocks for c in order.sample(by_task[task], len(by_task[task]))]
    return _by_server(plan, engine, jobs)


def check_supported(plan: Plan) -> tuple[dict[str, Engine], dict[str, JoulewiseError]]:
    """Open (not load) every engine and make sure that it can do what the plan asks.

    Returns:
        the engines by label, and why others of several cannot be opened (an extra that is not installed, say).

    Raises:
        UserError: naming every cell that an engine refuses, why, and the way out.
        EnvironmentFault: no engine can be opened.
    """
    engines, absent = {}, {}
    for spec in plan.engines:
        try:
            engines[spec.label] = open_engine(spec)
        except JoulewiseError as error:
            absent[spec.label] = error
    if not engines:
        raise next(iter(absent.values()))
    _refuse(unsupported(plan, engines))
    return engines, absent


def unsupported(plan: Plan, engines: Mapping[str, Engine]) -> Faults:
    """What the engines refuse; of an engine that is not among ``engines``, nothing is told."""
    faults = Faults()
    for cell in plan.cells():
        label, decoding = cell.engine.label, cell.decoding.label
        engine = engines.get(label)
        if engine is None:
            continue
        if (reason := engine.refuses(cell.decoding)) is not None:
            left_out = f"`exclude: [{{engine: '{label}', decoding: '{decoding}'}}]`"
            told = f"engine {label} cannot do {decoding}: {reason}; change it, or leave it out with {left_out}"
            faults.setdefault(told, []).append(cell)
        elif cell.reasoning.together and (reason := refuses_together(engine, cell.decoding, greedy=False)):
            reasoning = cell.reasoning.label
            left_out = f"`exclude: [{{engine: '{label}', decoding: '{decoding}', reasoning: '{reasoning}'}}]`"
            told = f"engine {label} cannot do {reasoning} by {decoding}: {reason}; leave out `batched`, or these cells "
            faults.setdefault(f"{told}with {left_out}", []).append(cell)
    return faults


def check_traces(plan: Plan) -> None:
    """Make sure that the traces of the plan's loads can be replayed.

    Raises:
        UserError: naming every one that cannot, and why.
    """
    _refuse(unreplayable(plan))


def unreplayable(plan: Plan) -> Faults:
    """The traces that are not there, or none."""
    faults = Faults()
    for stretch in (stretch for loads in plan.loads for stretch in loads.each()):
        try:
            if isinstance(stretch.load, Replay):
                stretch.load.check(stretch.duration_s)
        except UserError as error:
            faults.setdefault(str(error), []).extend(cell for cell in plan.cells() if cell.load == stretch)
    return faults


def check_reasonings(plan: Plan, questions: QuestionsByTask) -> None:
    """Make sure that the plan's reasonings can answer the questions of its tasks.

    Raises:
        UserError: naming every reasoning and task that do not go together, why, and the way out.
    """
    _refuse(unanswerable(plan, questions))


def unanswerable(plan: Plan, questions: QuestionsByTask) -> Faults:
    """The reasonings that cannot answer a task's questions; of a task without questions, nothing is told."""
    faults = Faults()
    found: dict[tuple[str, str], str | None] = {}
    for cell in plan.cells():
        pair = label, name = cell.reasoning.label, cell.task.label
        if name not in questions:
            continue
        if pair not in found:
            task, asked = questions[name]
            reasons = (cell.reasoning.refuses(task.asked(question)) for question in asked)
            found[pair] = next((reason for reason in reasons if reason is not None), None)
        if (reason := found[pair]) is not None:
            left_out = f"`exclude: [{{reasoning: '{label}', task: '{name}'}}]`"
            told = f"reasoning {label} cannot answer task {name}: {reason}; change it, or leave it out with {left_out}"
            faults.setdefault(told, []).append(cell)
    return faults


def check_compared(plan: Plan, engines: Mapping[str, Engine], questions: QuestionsByTask) -> None:
    """Make sure that tasks whose answers are compared, not generated, meet engines and decodings that do so.

    Args:
        plan: the plan.
        engines: by label.
        questions: of ``open_tasks``.

    Raises:
        UserError: naming every cell that does not go, why, and the way out.
    """
    _refuse(not_compared(plan, engines, questions))


def not_compared(plan: Plan, engines: Mapping[str, Engine], questions: QuestionsByTask) -> Faults:
    """The cells whose answers cannot be compared; of engines and tasks that are not given, nothing is told."""
    faults = Faults()
    for cell in plan.cells():
        if cell.engine.label not in engines or cell.task.label not in questions:
            continue
        task, asked = questions[cell.task.label]
        if not asked or not task.asked(asked[0]).continuations:
            continue
        if not isinstance(engines[cell.engine.label], ComparingEngine):
            reason, left_out = "this engine does not compare answers", f"engine: '{cell.engine.label}', "
        elif not isinstance(cell.decoding, Vanilla):
            reason = "the answers are compared by one forward, so nothing is drafted: vanilla alone goes"
            left_out = f"decoding: '{cell.decoding.label}', "
        elif plan.stop.rule == "fixed":
            reason, left_out = "no tokens are generated that the stop rule `fixed` could count", ""
        else:
            continue
        way_out = f"exclude: [{{{left_out}task: '{cell.task.label}'}}]"
        told = f"{cell.cell_id}: {reason}; ask for `scoring: generation`, or leave it out with `{way_out}`"
        faults[told] = [cell]
    return faults


def _refuse(faults: Faults) -> None:
    if faults:
        raise UserError("\n".join(faults))


def check_unchanged(questions: QuestionsByTask, jobs: Sequence[Job], done: Mapping[str, Trial], where: Path) -> None:
    """Make sure that what a run has asked so far still reads as it did.

    Args:
        questions: of ``open_tasks``.
        jobs: of ``schedule``.
        done: the run's Trials by id.
        where: the run folder.

    Raises:
        UserError: naming the first question that does not.
    """
    for job in jobs:
        label = job.cell.task.label
        trial = done.get(job.trial_id)
        if trial is None:
            continue
        what = None
        if trial.question_hash != asked_hash(questions, job):
            what = "its text, prompt or answer was changed"
        elif trial.prompt_hash not in (None, first_prompt_hash(questions, job)):
            what = f"the prompt or the examples for {job.cell.reasoning.label} were changed"
        if what is not None and job.cell.load is not None:
            raise UserError(
                f"{where}: the questions of task {label} are not those that this run asked under that load: give the "
                "`--limit` that it was begun with, or none if it had none; if their text or prompts were changed, put "
                "them back, or start anew elsewhere"
            )
        if what is not None:
            raise UserError(
                f"{where}: question '{job.question.question_id}' of task {label} no longer reads as it did when "
                f"this run asked it ({what}): put it back, or start anew elsewhere"
            )


def asked_hash(questions: QuestionsByTask, job: Job) -> str:
    """Of the question of a job; under load, of all that are asked."""
    task, asked = questions[job.cell.task.label]
    if job.cell.load is None:
        return question_hash(task, job.question)
    return prompt_hash([Message("user", question_hash(task, question)) for question in asked])


def first_prompt_hash(questions: QuestionsByTask, job: Job) -> str:
    """Of what a job asks first; under load, of all that is asked."""
    task, all_asked = questions[job.cell.task.label]
    asked = [job.question] if job.cell.load is None else all_asked
    turns = [job.cell.reasoning.asks_first(task.asked(question), Request((), 1)) for question in asked]
    return prompt_hash([message for turn in turns for message in turn])


def blocks(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Consecutive jobs that ask the same question."""
    for _, block in itertools.groupby(jobs, key=lambda j: (j.cell.task.label, j.question.question_id, j.repeat)):
        yield list(block)

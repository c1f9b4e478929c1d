"""The loop: a Plan's cells, Trial by Trial, into a run folder."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from joulewise.asking import CellAsk, answer_of, ask_of, check_server, check_thinking, template_of
from joulewise.decoding import Vanilla
from joulewise.energy.card_setting import CardSetting, cards_of, held
from joulewise.energy.meter import Meter
from joulewise.energy.part import WHOLE
from joulewise.energy.reading import Energy
from joulewise.engines import serving
from joulewise.engines.engine import Engine, EngineInfo, Generation, LosslessCheck
from joulewise.engines.spec import EngineSpec
from joulewise.environment import not_loaded, record_environment, utc_now
from joulewise.errors import ChoiceError, ContextLengthError, JoulewiseError, ServerError, UserError
from joulewise.idle import measure_idle
from joulewise.ledger import IDLE, SKIPPED, RunFolder, read_json
from joulewise.plan import Plan
from joulewise.pollution import cpu_use, other_cores
from joulewise.probing import probe_all
from joulewise.reasoning import Answer
from joulewise.records import (
    NET_POLICY,
    Check,
    EnergyRecord,
    GenerationRecord,
    ReadingRecord,
    TallyRecord,
    Trial,
)
from joulewise.run_result import Progress, RunResult
from joulewise.schedule import (
    Job,
    QuestionsByTask,
    Skipped,
    blocks,
    check_compared,
    check_reasonings,
    check_supported,
    check_traces,
    check_unchanged,
    first_prompt_hash,
    further,
    open_tasks,
    schedule,
)
from joulewise.stopping import stop_on_signal
from joulewise.tasks import JUDGED
from joulewise.tasks.task import question_hash
from joulewise.verdicts import NO_VANILLA, reference_of, told_by_engine, told_by_records

if TYPE_CHECKING:
    from joulewise.under_load import Live

TIMELINE_S = 60.0
"""Raw readings are written to disk about so often."""

SERVERS = "servers"
"""The folder of servers' logs within a run folder."""

KEPT_ANSWER_LENGTH = 64
"""Longer extracts of answers to others' questions may quote them, and stay out of the ledger."""


def run(
    plan: Plan,
    folder: Path,
    *,
    meter: Meter,
    data_dir: Path | None = None,
    resume: bool = False,
    limit: int | None = None,
    skip_bad: bool = False,
    on_progress: Callable[[Progress], None] = lambda _: None,
    enough: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Run a plan into a folder.

    Of several engines, one that cannot be loaded is left out, and told.

    Ctrl-C (or SIGTERM) once ends the run after the Trial in flight; a second time at once, and that Trial is lost.

    Args:
        plan: what to run.
        folder: the run folder; made if it is not there.
        meter: an open meter.
        data_dir: where third-party data sets lie.
        resume: go on with the run that the folder holds.
        limit: at most so many questions a task.
        skip_bad: leave broken lines of the tasks' data out, instead of refusing the first one.
        on_progress: told of every step.
        enough: asked after every step; once it says so, the run ends after the Trial in flight, as if by Ctrl-C.

    Raises:
        UserError: the plan asks for what cannot be done.
        EnvironmentFault: the folder cannot be written, an extra is missing, and the like.
    """
    skipped = Skipped()
    questions = open_tasks(plan, data_dir, limit, skipped.add if skip_bad else None)
    check_reasonings(plan, questions)
    check_traces(plan)
    engines, absent = check_supported(plan)
    check_compared(plan, engines, questions)
    jobs = schedule(plan, questions)
    with RunFolder(folder, plan, resume) as out, stop_on_signal() as stop:
        check_unchanged(questions, jobs, {t.trial_id: t for t in out.content.trials}, out.path)

        def tell(progress: Progress) -> None:
            on_progress(progress)
            if enough():
                stop.set()

        session = _Session(plan, out, meter, questions, jobs, tell)
        for notice in (*out.notices, *skipped.told()):
            session.tell("notice", notice)
        if skipped.faults:
            out.write_json(SKIPPED, {"skipped": skipped.faults})
        try:
            for spec in plan.engines:
                if stop.is_set() or not session.open_jobs(spec.label):
                    continue
                if spec.label in absent:
                    session.leave_out(spec.label, absent[spec.label])
                    continue
                session.run_held(spec, engines[spec.label], stop)
        finally:
            out.append_timeline(meter.drain_timeline())
        session.none_loaded()
        try:
            out.cross_check()
        except UserError as error:
            session.tell("notice", str(error))
        return session.result()


class _Session:
    """One process's share of a run: what is done, and how one Trial is done."""

    def __init__(
        self,
        plan: Plan,
        out: RunFolder,
        meter: Meter,
        questions: QuestionsByTask,
        jobs: Sequence[Job],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.plan, self.out, self.meter, self.questions, self.jobs = plan, out, meter, questions, list(jobs)
        self.on_progress = on_progress
        self.job_ids = {j.trial_id for j in jobs}
        self.done = {t.trial_id: t for t in out.content.trials}
        self.checks = dict(out.content.checks)
        self.sequence = itertools.count(len(out.content.trials))
        self.infos: dict[str, EngineInfo] = {}
        self.faults: dict[str, JoulewiseError] = {}
        self.not_loaded = not_loaded(out)
        self.part = WHOLE
        self.setting = CardSetting()
        self.limits_w: Mapping[str, float] = {}
        # Token ids of the block in work; the ledger keeps their hashes only.
        self.outputs: dict[str, Answer] = {}
        self.timeline_written_s = time.monotonic()

    def tell(self, stage: str, text: str, trial: Trial | None = None, live: Live | None = None) -> None:
        done = sum(1 for trial_id in self.done if trial_id in self.job_ids)
        self.on_progress(Progress(stage, text, done, len(self.jobs), trial, live))

    def result(self) -> RunResult:
        for spec in self.plan.engines:
            self._add_repeats(spec.label)  # a stop may have come before they were taken up
        trials = [self.done[j.trial_id] for j in self.jobs if j.trial_id in self.done]
        return RunResult(
            folder=self.out.path,
            done=len(trials),
            total=len(self.jobs),
            failed=sum(1 for t in trials if t.status == "failed"),
            interrupted=any(
                j.trial_id not in self.done and j.cell.engine.label not in self.not_loaded for j in self.jobs
            ),
            different=sum(
                1 for t in trials if t.trial_id in self.checks and self.checks[t.trial_id].status == "different"
            ),
            not_loaded=dict(self.not_loaded),
        )

    def open_jobs(self, engine_label: str) -> list[Job]:
        """The Trials of one engine that are not done, or done but not yet compared with vanilla."""
        self._add_repeats(engine_label)
        mine = [j for j in self.jobs if j.cell.engine.label == engine_label]
        return [j for j in mine if j.trial_id not in self.done or self._can_be_checked(j)]

    def _add_repeats(self, engine_label: str) -> bool:
        """Take up the repeats that the plan's target calls for by now; whether there are new ones."""
        more = further(self.plan, self.questions, self.done, engine_label, self._narrow)
        new = [job for job in more if job.trial_id not in self.job_ids]
        self.jobs += new
        self.job_ids.update(job.trial_id for job in new)
        return bool(new)

    def _narrow(self, trials: Sequence[Trial]) -> bool:
        """Whether a cell need not be repeated: two repeats say that it is narrow enough, or its joules are unknown."""
        from joulewise.analysis.precision import precision_of

        assert self.plan.target is not None
        found = precision_of(trials)
        half = found.relative_half_width
        return half is None or (found.repeats > 1 and half <= self.plan.target.relative_half_width)

    def run_held(self, spec: EngineSpec, engine: Engine, stop: threading.Event) -> None:
        """As ``run_engine``, the GPUs held at what the plan asks for, and put back afterwards."""
        self.setting = CardSetting(spec.power_limit_w, spec.locked_sm_clock_hz)
        with ExitStack() as stack:
            stack.callback(engine.close)
            try:
                cards = cards_of(getattr(spec, "gpus", None), self.meter.specs) if self.setting else []
                limits_w = stack.enter_context(held(self.setting, cards, partial(self.tell, "notice")))
            except JoulewiseError as error:
                self.leave_out(spec.label, error)
                return
            self.limits_w = limits_w
            self.run_engine(spec.label, engine, stop)

    def run_engine(self, label: str, engine: Engine, stop: threading.Event) -> None:
        """Do every open Trial of one engine, or as many as come before ``stop``."""
        jobs = self.open_jobs(label)
        decodings = list({c.decoding.label: c.decoding for c in self.plan.cells() if c.engine.label == label}.values())
        self.tell("load", f"loading {label}")
        if isinstance(engine, serving.Serving):
            folder, first = self.out.path / SERVERS, jobs[0].cell.decoding
            engine.attach(folder, first, lambda text: self.tell("load", f"loading {label}, {text}"))
        try:
            info = engine.load(decodings)
        except JoulewiseError as error:
            self.leave_out(label, error)
            return
        self.not_loaded.pop(label, None)
        self.part = serving.part_of(engine, self.meter.specs)
        check_thinking(self.plan, label, info)
        self._record_environment(label, info)
        self._warm_up(label, engine, stop)
        check_server(self.plan, label, engine)
        self._idle(label, "before", stop)
        any_done = self._do(engine, jobs, stop)
        while not stop.is_set() and self._add_repeats(label):
            jobs = self.open_jobs(label)
            more = sum(job.trial_id not in self.done for job in jobs)
            self.tell("notice", f"{label}: not every cell is as narrow as the target; {more} further Trials")
            any_done = self._do(engine, jobs, stop) or any_done
        if any_done:
            # Also where a first Ctrl-C ended the Trials; a second one raises.
            self._idle(label, "after", threading.Event())
        if not stop.is_set():
            # In sequential order, and where a run was cut, vanilla may come after what is compared with it.
            self._check_all(engine, [j for j in self.jobs if j.cell.engine.label == label])

    def leave_out(self, label: str, error: JoulewiseError) -> None:
        """Go on without an engine that cannot be loaded, where the plan has others."""
        if len(self.plan.engines) == 1:
            raise error
        self.faults[label] = error
        self.not_loaded[label] = str(error)
        record_environment(self.out, self.meter, self.infos, len(self.jobs), self.not_loaded)
        self.tell("notice", f"{label} could not be loaded, and its cells are left out: {error}")

    def none_loaded(self) -> None:
        """Where nothing could be run at all, refuse as with a single engine."""
        if self.faults and not self.done:
            raise next(iter(self.faults.values()))

    def _do(self, engine: Engine, jobs: Sequence[Job], stop: threading.Event) -> bool:
        """Trials block by block, with their verdicts, until ``stop``. Whether any Trial was done."""
        any_done = False
        for block in blocks(jobs):
            for job in block:
                if stop.is_set():
                    return any_done
                if job.trial_id not in self.done:
                    self._trial(engine, job)
                    any_done = True
            self._check_all(engine, block)
            self.outputs.clear()
            if time.monotonic() - self.timeline_written_s > TIMELINE_S:
                self.out.append_timeline(self.meter.drain_timeline())
                self.timeline_written_s = time.monotonic()
        return any_done

    def _record_environment(self, label: str, info: EngineInfo) -> None:
        if self.setting:
            info = replace(info, notes=(*info.notes, f"GPUs held: {self.setting}"))
        self.infos[label] = info
        record_environment(self.out, self.meter, self.infos, len(self.jobs), self.not_loaded, self.limits_w)

    def _warm_up(self, label: str, engine: Engine, stop: threading.Event) -> None:
        if isinstance(engine, serving.Serving):
            # The others as they come up.
            CellAsk(engine, self.open_jobs(label)[0].cell.decoding).ready(self.plan.warm_up)
            return
        cells = [c for c in self.plan.cells() if c.engine.label == label]
        alone = dict.fromkeys((c.decoding, 0) for c in cells)
        for decoding, texts in alone | dict.fromkeys((c.decoding, c.reasoning.together) for c in cells):
            for _ in range(self.plan.warm_up):
                if stop.is_set():
                    return
                self.tell("warm-up", f"warming up {decoding.label}" + (f", {texts} texts at once" if texts else ""))
                CellAsk(engine, decoding).warm_up(texts)

    def _idle(self, label: str, when: Literal["before", "after"], stop: threading.Event) -> None:
        """Power at rest with the weights resident. Trials keep their gross joules; analysis takes this off."""
        if self.plan.idle_baseline_s == 0 or stop.is_set():
            return
        self.tell("idle", f"measuring idle power for {self.plan.idle_baseline_s:g} s")
        rows = measure_idle(self.meter, label, when, self.plan.idle_baseline_s, stop, self.part)
        if rows:
            known = read_json(self.out.path / IDLE).get("idle", [])
            self.out.write_json(IDLE, {"net_policy": NET_POLICY, "idle": known + rows})

    def _trial(self, engine: Engine, job: Job) -> None:
        """Measure one Trial, again where others' CPU use polluted it and the plan asks for reruns."""
        for attempt in range(self.plan.pollution.reruns + 1):
            trial = self._measure(engine, job, attempt)
            self.out.append(trial)
            self.done[trial.trial_id] = trial
            self.tell("trial", job.cell.cell_id, trial)
            if not trial.polluted:
                return

    def _stretch(self, engine: Engine, job: Job, attempt: int) -> Trial:
        """A Trial under load: one stretch of it."""
        from joulewise.under_load import stretch_trial

        return stretch_trial(
            engine,
            self.plan,
            self.questions,
            job,
            template_of(self.plan, self.questions, job),
            self.meter,
            self.part,
            self.out.path,
            (next(self.sequence), attempt),
            lambda live: self.tell("live", job.cell.cell_id, live=live),
        )

    def _measure(self, engine: Engine, job: Job, attempt: int) -> Trial:
        if job.cell.load is not None:
            return self._stretch(engine, job, attempt)
        cell, question = job.cell, job.question
        task = self.questions[cell.task.label][0]
        error = CellAsk(engine, cell.decoding).ready(self.plan.warm_up)
        own = serving.processes(engine)
        started_at, cpu_before = utc_now(), cpu_use(own or ())
        answer = None
        with self.meter.window(self.part) as window:
            try:
                answer = None if error else answer_of(engine, self.plan, self.questions, job)
            except (ContextLengthError, ChoiceError, ServerError) as caught:
                error = str(caught)
        others = None if own is None else other_cores(cpu_before, cpu_use(own))
        counted = serving.counted(engine)
        if counted.fault is not None and error is None:
            answer, error = None, counted.fault
        # Scored while the counter's next steps come, which the joules wait for. The next window waits for them, too:
        # without rest between them two windows cannot be told apart (docs/measurement.md, "Rest between windows").
        score = None if answer is None else task.score(question, answer.text)
        trial = Trial(
            trial_id=job.trial_id,
            cell_id=cell.cell_id,
            engine=cell.engine.label,
            model=cell.engine.model,
            decoding=cell.decoding.label,
            reasoning=cell.reasoning.label,
            task=cell.task.label,
            question_id=question.question_id,
            question_hash=question_hash(task, question),
            prompt_hash=first_prompt_hash(self.questions, job),
            category=question.category,
            repeat=job.repeat,
            sequence=next(self.sequence),
            attempt=attempt,
            status="failed" if answer is None else "ok",
            error=error,
            started_at=started_at,
            start_s=window.start_s,
            end_s=window.end_s,
            energy=tuple(EnergyRecord.of(part) for part in window.energy.components),
            readings_start=tuple(ReadingRecord.of(i, r) for i, r in window.readings_start.items()),
            readings_end=tuple(ReadingRecord.of(i, r) for i, r in window.readings_end.items()),
            other_cpu_cores=others,
            polluted=counted.shared or (others is not None and others > self.plan.pollution.limit_cores),
        )
        if answer is None or score is None:
            return trial
        self.outputs[job.trial_id] = answer
        keep_text = not task.third_party or cell.task.name in JUDGED

        def may_be_kept(extracted: Iterable[str | None]) -> bool:
            return keep_text or all(len(text or "") <= KEPT_ANSWER_LENGTH for text in extracted)

        notes = (answer.note, *(generation.note for generation in answer.generations), counted.note)
        return trial.model_copy(
            update={
                "generations": tuple(GenerationRecord.of(g, keep_text, self._prefill(g)) for g in answer.generations),
                "score": score.value,
                "correct": score.correct,
                "extracted": score.extracted if may_be_kept([score.extracted]) else None,
                "votes": answer.votes if may_be_kept(answer.votes or ()) else None,
                "ratings": answer.ratings,
                "note": "; ".join(dict.fromkeys(filter(None, notes))) or None,
                "tally": TallyRecord.of(counted.tally, counted.known),
                "metric": score.metric,
                "score_note": score.note,
                "probes": probe_all(
                    answer,
                    window.start_s,
                    ask_of(engine, self.questions, job),
                    self.meter,
                    partial(task.score, question),
                    lambda closing: GenerationRecord.of(closing, keep_text),
                    lambda extracted: extracted if may_be_kept([extracted]) else None,
                    self.part,
                ),
            }
        )

    def _prefill(self, generation: Generation) -> Energy | None:
        """What a generation drew up to its first token; None where the timeline does not tell.

        Asked after the Trial's window has settled, so the steps around it have been seen and nothing waits for them.
        """
        if generation.first_token_s is None:
            return None
        try:
            return self.meter.between(generation.start_s, generation.first_token_s, self.part)
        except JoulewiseError:
            return None

    def _can_be_checked(self, job: Job) -> bool:
        trial = self.done.get(job.trial_id)
        if (
            trial is None
            or trial.status != "ok"
            or job.cell.load is not None
            or job.trial_id in self.checks
            or isinstance(job.cell.decoding, Vanilla)
        ):
            return False
        reference = reference_of(self.plan, job)
        return reference is None or reference.trial_id in self.done

    def _check_all(self, engine: Engine, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if self._can_be_checked(job):
                reference = reference_of(self.plan, job)
                verdict = self._compare(engine, job, reference)
                check = Check.of(job.trial_id, reference.trial_id if reference else None, verdict)
                self.out.append(check)
                self.checks[job.trial_id] = check

    def _compare(self, engine: Engine, job: Job, reference: Job | None) -> LosslessCheck:
        """Design, rule 4. Outputs of an earlier session are made again (outside any window) where hashes differ."""
        if reference is None:
            return NO_VANILLA
        greedy = template_of(self.plan, self.questions, job).sampling.greedy
        told = told_by_records(job, greedy, self.done[reference.trial_id], self.done[job.trial_id])
        if told is not None:
            return told
        ours, vanilla = (
            self.outputs.get(j.trial_id) or answer_of(engine, self.plan, self.questions, j) for j in (job, reference)
        )
        return told_by_engine(engine, job, vanilla, ours)

"""The other loop: batches of equal requests over prompt tokens, output tokens and load, for an operating curve.

A point's Trial is a window of so many batches, one after the other, that the meter can tell its joules. Which points: a
space-filling design first, then where a fit to what is measured is unsure (``analysis/design.py``).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from joulewise.analysis.curve_points import run_points
from joulewise.analysis.curves import Points
from joulewise.analysis.design import Box, Point, first_points, next_point
from joulewise.analysis.least_squares import non_negative
from joulewise.decoding import Decoding, Vanilla
from joulewise.energy.meter import Meter
from joulewise.energy.reading import Z95
from joulewise.engines.engine import EngineInfo, Generation
from joulewise.engines.spec import NativeSpec
from joulewise.environment import record_environment, utc_now
from joulewise.errors import JoulewiseError, UserError
from joulewise.ledger import RunFolder, resumable_plan
from joulewise.plan import Plan, TaskSpec
from joulewise.pollution import cpu_use, other_cores
from joulewise.records import EnergyRecord, GenerationRecord, ReadingRecord, Trial
from joulewise.run_result import Progress, RunResult
from joulewise.runner import TIMELINE_S
from joulewise.stopping import stop_on_signal
from joulewise.table import RunTable, rows_to_arrow

TASK = "sweep"
LEAST_POINTS, FIRST_POINTS = 12, 24
"""A curve over the load has 8 terms; so many points are spread evenly before the fit says where it is unsure."""

RELATIVE_ERROR = 0.02
"""Half of the 95 % interval of a window's joules, the sensor's common error apart: windows last as long as it takes,"""
LEAST_S, MOST_S = 0.5, 2.0
"""but no less and no more than so many seconds; longer where one batch takes longer."""

SEEN_S = 0.3
"""What happened so long ago is known as well as it will be: the counter's next step has been read."""
ASK_S = 0.1
"""How well an open window's joules are known is asked so often: each time the device idles for a moment."""


_TIMED = 4
"""Points that must be timed before a fit says how long others take; until then they are taken for the worst."""


class Batches(Protocol):
    """Makes batches of equal requests."""

    def batch(self, running: int, prompt_tokens: int, output_tokens: int) -> Callable[[], tuple[Generation, ...]]:
        """So many requests side by side, warmed up and ready: what is given runs them, at each call anew."""
        ...


class SweepEngine(Protocol):
    """An engine that takes prompts by their length."""

    def load(self, decodings: Sequence[Decoding]) -> EngineInfo:
        """See ``Engine.load``."""
        ...

    def given(self, capacity: int) -> Batches:
        """Batches of vanilla decoding, of at most so many prompt and output tokens a request."""
        ...

    def close(self) -> None:
        """See ``Engine.close``."""
        ...


def sweep_plan(spec: NativeSpec, box: Box, seed: int) -> Plan:
    """What a sweep's run folder holds as its plan: one engine, vanilla, and the ranges as a task's options."""
    options = {name: list(getattr(box, name)) for name in Box.__slots__}
    task = TaskSpec(name=TASK, label=TASK, options=options)
    return Plan(
        name=TASK,
        description="Joules over prompt tokens, output tokens and load (joulewise sweep)",
        engines=(spec,),
        decodings=(Vanilla(),),
        tasks=(task,),
        seed=seed,
        idle_baseline_s=0.0,
    )


def begun(folder: Path) -> tuple[NativeSpec, Box, int]:
    """What a sweep was begun with, from its folder's plan: the reverse of ``sweep_plan``.

    Raises:
        UserError: the folder holds no sweep that could go on.
    """
    plan = resumable_plan(folder)
    spec, task = plan.engines[0], plan.tasks[0]
    if task.name != TASK or not isinstance(spec, NativeSpec):
        raise UserError(f"{folder}: holds a run of the plan '{plan.name}', and no sweep: go on with `joulewise run`")
    low_high = {name: (int(low), int(high)) for name, (low, high) in task.options.items()}
    return spec, Box(**low_high), plan.seed


def sweep(
    engine: SweepEngine,
    spec: NativeSpec,
    box: Box,
    folder: Path,
    *,
    meter: Meter,
    points: int = 40,
    minutes: float | None = None,
    seed: int = 0,
    resume: bool = False,
    relative_error: float = RELATIVE_ERROR,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> RunResult:
    """Measure points into a run folder, from which ``run_points`` reads them.

    Ctrl-C (or SIGTERM) once ends it after the point in flight; a second time at once, and that point is lost.

    Args:
        engine: nothing loaded yet.
        spec: what it is.
        box: where to measure.
        folder: the run folder; made if it is not there.
        meter: an open meter.
        points: so many in all, those of earlier sessions included.
        minutes: begin no point that would end later than this, from the first one on; None: no such limit.
        seed: of the design.
        resume: go on with the sweep that the folder holds.
        relative_error: how well each window's joules are to be known.
        on_progress: told of every step.

    Raises:
        UserError: ranges that the model's context or a curve does not allow, too few points.
        EnvironmentFault: no memory for a point, the folder cannot be written, and the like.
    """
    check_budget(box, points, minutes)
    plan = sweep_plan(spec, box, seed)
    with RunFolder(folder, plan, resume) as out, stop_on_signal("point") as stop:
        done = {t.question_id: t for t in out.content.trials}

        def tell(stage: str, text: str, trial: Trial | None = None) -> None:
            on_progress(Progress(stage, text, len(done), points, trial))

        for notice in out.notices:
            tell("notice", notice)
        try:
            if len(done) < points:
                tell("load", f"loading {spec.label}")
                info = engine.load(plan.decodings)
                _check_context(box, info)
                record_environment(out, meter, {spec.label: info}, points)
                batches = engine.given(box.prompt_tokens[1] + box.output_tokens[1])
                pace = _Pace(minutes)
                for trial in done.values():
                    pace.see(trial)
                first = first_points(box, min(points, FIRST_POINTS), seed)
                written_s = time.monotonic()
                noted: set[str] = set()
                while len(done) < points and not stop.is_set():
                    measured = {_point(trial) for trial in done.values()}
                    open_ = [point for point in first if point not in measured and pace.fits(point)]
                    point = pace.first(open_) if open_ else next_point(box, measured, _points(done), seed, pace.fits)
                    if point is None:
                        tell("notice", "no further point fits the time or the ranges")
                        break
                    begun_s = time.monotonic()
                    run = batches.batch(point.running, point.prompt_tokens, point.output_tokens)
                    if stop.is_set():
                        break
                    trial = _measure(run, point, plan, meter, len(done), relative_error)
                    out.append(trial)
                    done[trial.question_id] = trial
                    pace.see(trial, time.monotonic() - begun_s)
                    if trial.note is not None and trial.note not in noted:
                        noted.add(trial.note)
                        tell("notice", f"{point.label}: {trial.note}")
                    tell("trial", f"{point.label}{pace.left()}", trial)
                    if time.monotonic() - written_s > TIMELINE_S:
                        out.append_timeline(meter.drain_timeline())
                        written_s = time.monotonic()
        finally:
            engine.close()
            out.append_timeline(meter.drain_timeline())
        try:
            out.cross_check()
        except UserError as error:
            tell("notice", str(error))
        told = tuple(trial.note for trial in done.values() if trial.note is not None)
        return RunResult(out.path, len(done), points, 0, stop.is_set(), 0, notes=told)


def check_budget(box: Box, points: int, minutes: float | None) -> None:
    """Refuse what gives no curve.

    Raises:
        UserError: with what to ask for instead.
    """
    if points < LEAST_POINTS:
        raise UserError(
            f"{points} points are too few for a curve and its held-out error: ask for {LEAST_POINTS} or more"
        )
    if minutes is not None and not 0.0 < minutes < float("inf"):
        raise UserError(f"{minutes:g} minutes is no time to measure in: give a number above 0")
    for name, (low, high) in (("prompt", box.prompt_tokens), ("output", box.output_tokens)):
        if high < low + 2 or high < 1.5 * low:
            raise UserError(
                f"{name} tokens from {low} to {high} do not vary enough for a curve: the most must be 1.5 times the "
                "least or more, with a number between them"
            )


def _check_context(box: Box, info: EngineInfo) -> None:
    p, o, limit = box.prompt_tokens[1], box.output_tokens[1], info.context_length
    if limit is not None and p + o > limit:
        raise UserError(
            f"{p} prompt tokens and {o} output tokens need {p + o} positions, and {info.model} has {limit}: lower "
            "the most of one of them"
        )


def _measure(
    run: Callable[[], tuple[Generation, ...]], point: Point, plan: Plan, meter: Meter, sequence: int, error: float
) -> Trial:
    cell = plan.cells()[0]
    asked = f"{plan.seed}/{point.label}"
    needed = [s for s in meter.resolvable(error).values() if s is not None]
    enough_s = min(max([LEAST_S, *needed]), MOST_S)
    generations: list[Generation] = []
    started_at, before = utc_now(), cpu_use()
    with meter.window() as window:
        ask_s = window.start_s + max(LEAST_S, 2 * SEEN_S)
        while True:
            generations += run()
            now_s = time.monotonic()
            if now_s - window.start_s >= enough_s:
                break
            if now_s >= ask_s:
                if _known(meter, window.start_s, error):
                    break
                ask_s = now_s + ASK_S
    others = other_cores(before, cpu_use())
    return Trial(
        trial_id=f"{cell.cell_id}|{point.label}|0",
        cell_id=cell.cell_id,
        engine=cell.engine.label,
        model=cell.engine.model,
        decoding=cell.decoding.label,
        reasoning=cell.reasoning.label,
        task=cell.task.label,
        question_id=point.label,
        question_hash=hashlib.sha256(asked.encode()).hexdigest()[:16],
        repeat=0,
        sequence=sequence,
        status="ok",
        started_at=started_at,
        start_s=window.start_s,
        end_s=window.end_s,
        generations=tuple(GenerationRecord.of(g, keep_text=False) for g in generations),
        energy=tuple(EnergyRecord.of(part) for part in window.energy.components),
        readings_start=tuple(ReadingRecord.of(i, r) for i, r in window.readings_start.items()),
        readings_end=tuple(ReadingRecord.of(i, r) for i, r in window.readings_end.items()),
        note="; ".join(dict.fromkeys(g.note for g in generations if g.note)) or None,
        other_cpu_cores=others,
        polluted=others is not None and others > plan.pollution.limit_cores,
        running=point.running,
    )


def _known(meter: Meter, start_s: float, error: float) -> bool:
    """Whether the joules of a window that is still open are known so well: an idle card before it tells that badly."""
    try:
        energy = meter.between(start_s, time.monotonic() - SEEN_S, wait=False)
    except JoulewiseError:  # the timeline does not reach back so far
        return False
    measured = [part for part in energy.components if part.provenance == "measured"]
    return all(p.energy_j is not None and Z95 * p.independent_j <= error * p.energy_j for p in measured)


def _point(trial: Trial) -> Point:
    one = trial.generations[0]
    return Point(one.prompt_tokens, one.output_tokens, trial.running or 1)


def _points(done: dict[str, Trial]) -> Points | None:
    """What a curve would be fitted to; None where the joules are not measured."""
    try:
        return run_points(RunTable(rows_to_arrow(TASK, enumerate(done.values())))).points
    except UserError:
        return None


class _Pace:
    """How long a point takes, learnt from those that were measured.

    Args:
        minutes: there are; None: no end of them.
    """

    def __init__(self, minutes: float | None) -> None:
        self._end_s = None if minutes is None else time.monotonic() + 60.0 * minutes
        self._costs: list[tuple[Point, float]] = []
        self._beside_s: list[float] = []

    def see(self, trial: Trial, whole_s: float | None = None) -> None:
        """A point took so many seconds, preparations and the wait for the meter included."""
        batches = len(trial.generations) / (trial.running or 1)
        self._costs.append((_point(trial), trial.duration_s / batches))
        if whole_s is not None:
            self._beside_s.append(max(0.0, whole_s - trial.duration_s / batches))

    def fits(self, point: Point) -> bool:
        """Whether it would end in time."""
        if self._end_s is None:
            return True
        left_s = self._end_s - time.monotonic()
        return left_s > 0.0 and (not self._costs or self._seconds(point) <= left_s)

    def first(self, points: Sequence[Point]) -> Point:
        """Which of the points to begin with: where time is short and none was timed yet, the one that takes least."""
        if self._end_s is None or self._costs:
            return points[0]
        return min(points, key=lambda point: point.running * (point.prompt_tokens + point.output_tokens))

    def left(self) -> str:
        """The seconds that may still be spent, in words."""
        return "" if self._end_s is None else f", time for {max(0.0, self._end_s - time.monotonic()):.0f} s more"

    def _seconds(self, point: Point) -> float:
        columns, seconds = _columns([p for p, _ in self._costs]), np.array([s for _, s in self._costs])
        if len(seconds) < _TIMED:
            # No part of a batch grows by more than the part that grows most.
            return float((seconds * (_columns([point]) / columns).max(axis=1)).min())
        x = columns / seconds[:, None]
        found = non_negative((x.T @ x)[None], x.sum(axis=0)[None])[0]
        # The median: what is captured or compiled once makes some points far slower than the rest.
        return float((_columns([point]) @ found)[0]) + float(np.median(self._beside_s or [0.0]))


def _columns(points: Sequence[Point]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """What a batch's seconds are made of: a start, steps, prompts, and the context that steps read."""
    p, o, b = np.array(points, dtype=np.float64).T
    return np.stack([np.ones_like(p), o, b * p, b * p * p, b * o, b * o * (p + o / 2)], axis=1)

"""One stretch under load: a task's questions to a server, many at once, and the joules of its steady part.

The requests go to a file beside the ledger; the Trial holds what came of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from joulewise.asking import CellAsk
from joulewise.energy.meter import Meter
from joulewise.energy.part import Part
from joulewise.energy.reading import Energy
from joulewise.engines import serving
from joulewise.engines.engine import Engine, Message, Request
from joulewise.engines.openai_api.answer import Answer
from joulewise.engines.serving import ManyAtOnce, Sending
from joulewise.environment import utc_now
from joulewise.errors import EnvironmentFault, JoulewiseError, ServerError
from joulewise.plan import Cell, Plan
from joulewise.pollution import cpu_use, other_cores
from joulewise.records import EnergyRecord, LoadRecord, SpreadRecord, TallyRecord, Trial
from joulewise.schedule import Job, QuestionsByTask, asked_hash, first_prompt_hash
from joulewise.traffic.arrivals import Arrival
from joulewise.traffic.course import SLICES, Course
from joulewise.traffic.generator import Driven, Outcome, drive
from joulewise.traffic.latency import Slo, Spread, latencies, spread
from joulewise.traffic.loads import Stretch
from joulewise.traffic.loop import run as run_loop
from joulewise.traffic.served import Served, came, served
from joulewise.traffic.steady import Steady, steady_part
from joulewise.whole_file import whole_file

FOLDER = "requests"
"""The folder of the requests' files within a run folder."""

MOST_FAILED = 0.05
"""Where a larger share of the requests failed, the Trial has."""

LATE_S = 0.005
"""A generator that sent later than this, at the 99th percentile, is told of."""

CHARACTERS_A_TOKEN = 4
"""Of prompts that a trace knows the length of only."""

_LIVE_EVERY_S, _LIVE_OVER_S, _METER_LAG_S = 1.0, 10.0, 0.5


@dataclass(frozen=True, slots=True)
class Live:
    """How a stretch goes; None for what is not known.

    Args:
        elapsed_s, duration_s: of the offered load.
        in_flight, done, failed: requests.
        tokens_per_s: of the answers that ended within the last ten seconds.
        power_w: over the last seconds, of all that is metered.
        accepted: share of the draft tokens so far.
    """

    elapsed_s: float
    duration_s: float
    in_flight: int
    done: int
    failed: int
    tokens_per_s: float
    power_w: float | None
    accepted: float | None

    @property
    def energy_per_token_j(self) -> float | None:
        """Joules per output token by the last seconds."""
        return None if self.power_w is None or self.tokens_per_s <= 0.0 else self.power_w / self.tokens_per_s


@dataclass(frozen=True, slots=True)
class Measured:
    """What a stretch gave, for its Trial.

    Args:
        error: why it has failed; None if it has not.
        start_s, end_s, energy: of the steady part; where there is none, of the whole load.
        other_cpu_cores: over the whole load, as in ``Trial``.
        counted: what the server counted over the whole load.
        note: what a reader must know.
        load: None where no load came about.
    """

    error: str | None
    started_at: str
    start_s: float
    end_s: float
    energy: Energy
    other_cpu_cores: float | None
    counted: serving.Counted
    note: str | None
    load: LoadRecord | None


def request_of(requests: Sequence[tuple[str, Request]], arrival: Arrival, number: int) -> Request:
    """What is sent: the questions in turn; where a trace says how long, as long as that.

    Args:
        requests: question ids and their Requests.
        arrival: of a trace, with its lengths.
        number: of the request.
    """
    request = requests[number % len(requests)][1]
    request = replace(request, seed=(request.seed + number) % 2**32)
    if arrival.output_tokens is not None:
        request = replace(request, max_new_tokens=max(1, arrival.output_tokens))
    if arrival.prompt_tokens is None:
        return request
    pool = "\n\n".join(one.messages[-1].content for _, one in requests) or "?"
    length, start = max(1, arrival.prompt_tokens) * CHARACTERS_A_TOKEN, number * 97 % len(pool)
    text = (pool[start:] + pool * (length // len(pool) + 1))[:length]
    return replace(request, messages=(Message("user", text),))


def stretch_trial(
    engine: Engine,
    plan: Plan,
    questions: QuestionsByTask,
    job: Job,
    template: Request,
    meter: Meter,
    part: Part,
    folder: Path,
    place: tuple[int, int],
    tell: Callable[[Live], None],
) -> Trial:
    """Measure a job of a load.

    Args:
        engine: loaded; one whose server takes many requests at once.
        plan, questions: of the run.
        job: with a load; its questions come in random order, the same for all decodings.
        template: what its Requests have in common.
        meter, part: whose joules are asked for.
        folder: the run folder.
        place: the Trial's sequence and attempt.
        tell: as for ``measure``.

    Raises:
        UserError, EnvironmentFault: as ``measure``.
    """
    cell, (sequence, attempt) = job.cell, place
    task, asked = questions[cell.task.label]
    order = random.Random(f"{plan.seed}/asked/{cell.task_label}/{job.repeat}").sample(asked, len(asked))
    requests = [
        (question.question_id, replace(template, messages=cell.reasoning.asks_first(task.asked(question), template)))
        for question in order
    ]
    fault = CellAsk(engine, cell.decoding).ready(max(1, plan.warm_up))
    assert isinstance(engine, ManyAtOnce)  # the plan refuses others
    slo = Slo() if plan.slo is None else Slo(**plan.slo.model_dump())
    found = measure(engine, cell, requests, meter, part, slo, folder / FOLDER / f"{sequence:05d}.jsonl.gz", fault, tell)
    others = found.other_cpu_cores
    return Trial(
        trial_id=job.trial_id,
        cell_id=cell.cell_id,
        engine=cell.engine.label,
        model=cell.engine.model,
        decoding=cell.decoding.label,
        reasoning=cell.reasoning.label,
        task=cell.task_label,
        question_id=job.question.question_id,
        question_hash=asked_hash(questions, job),
        prompt_hash=first_prompt_hash(questions, job),
        repeat=job.repeat,
        sequence=sequence,
        attempt=attempt,
        status="ok" if found.error is None else "failed",
        error=found.error,
        started_at=found.started_at,
        start_s=found.start_s,
        end_s=found.end_s,
        energy=tuple(EnergyRecord.of(component) for component in found.energy.components),
        note=found.note,
        other_cpu_cores=others,
        polluted=found.counted.shared or (others is not None and others > plan.pollution.limit_cores),
        tally=TallyRecord.of(found.counted.tally, found.counted.known),
        load=found.load,
    )


def measure(
    engine: ManyAtOnce,
    cell: Cell,
    requests: Sequence[tuple[str, Request]],
    meter: Meter,
    part: Part,
    slo: Slo,
    target: Path,
    fault: str | None,
    tell: Callable[[Live], None],
) -> Measured:
    """Put a cell's load on its server, and take the joules of the steady part.

    Args:
        engine: prepared for the cell's decoding.
        cell: with a load.
        requests: question ids and their Requests, in the order in which they are asked, again and again.
        meter: an open meter.
        part: whose joules are asked for.
        slo: which requests are good.
        target: the file of the requests, written whole or not at all.
        fault: why there is no server; None where there is one.
        tell: hears about every second how it goes, from another thread.

    Raises:
        UserError, EnvironmentFault: what no further request would be spared; the file cannot be written.
    """
    assert cell.load is not None
    own = engine.processes()
    started_at, before = utc_now(), cpu_use(own or ())
    taken = driven = None
    with meter.window(part) as window:
        if fault is None:
            try:
                with _rows_file(target) as write:
                    taken = _Taken(cell.load, requests, write)
                    driven = run_loop(_drive(engine, cell, requests, taken, meter, part, tell))
            except ServerError as error:
                fault = str(error)
    others = None if own is None else other_cores(before, cpu_use(own))
    counted = engine.counted()
    energy, start_s, end_s = window.energy, window.start_s, window.end_s
    record, notes = None, [counted.note] if counted.note else []
    if driven is not None and taken is not None:
        steady = _steady(cell.load, taken.course, driven)
        record = _record(cell.load, driven, steady, taken, slo, f"{FOLDER}/{target.name}")
        notes += _notes(record, taken)
        fault = _fault(driven, steady, taken, record) or counted.fault
        if steady.from_s is not None and steady.until_s is not None:
            start_s, end_s = steady.from_s, steady.until_s
            try:
                energy = meter.between(start_s, end_s, part)
            except JoulewiseError as error:
                fault = fault or f"the joules of the steady part cannot be told: {error}"
    return Measured(fault, started_at, start_s, end_s, energy, others, counted, "; ".join(notes) or None, record)


async def _drive(
    engine: ManyAtOnce,
    cell: Cell,
    requests: Sequence[tuple[str, Request]],
    taken: _Taken,
    meter: Meter,
    part: Part,
    tell: Callable[[Live], None],
) -> Driven:
    load = cell.load
    assert load is not None
    async with engine.sending(cell.decoding) as sending:

        async def send(arrival: Arrival, number: int) -> Answer:
            taken.in_flight += 1
            try:
                return await sending.send(request_of(requests, arrival, number))
            finally:
                taken.in_flight -= 1

        def take(outcome: Outcome[Answer]) -> None:
            taken.take(outcome)
            if outcome.error is not None and (why := sending.ended()) is not None:
                raise ServerError(why)

        taken.begin(time.monotonic() + 0.05)
        telling = asyncio.create_task(_tell_on(load, taken, sending, meter, part, tell))
        try:
            return await drive(
                load.load,
                send,
                take,
                duration_s=load.duration_s,
                start_s=float(taken.course.edges_s[0]),
                drain_s=load.drain_s,
            )
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling


async def _tell_on(
    load: Stretch, taken: _Taken, sending: Sending, meter: Meter, part: Part, tell: Callable[[Live], None]
) -> None:
    while True:
        await asyncio.sleep(_LIVE_EVERY_S)
        now_s, drafted = time.monotonic(), sending.drafted()
        taken.forget(now_s - _LIVE_OVER_S)
        elapsed_s = now_s - float(taken.course.edges_s[0])
        live = Live(
            elapsed_s=min(elapsed_s, load.duration_s),
            duration_s=load.duration_s,
            in_flight=taken.in_flight,
            done=len(taken.served),
            failed=taken.failed,
            tokens_per_s=sum(tokens for _, tokens in taken.latest) / max(1e-3, min(elapsed_s, _LIVE_OVER_S)),
            power_w=_power_w(meter, part, now_s - _METER_LAG_S),
            accepted=None if drafted is None else drafted[1] / drafted[0],
        )
        # Another thread draws, so that no request waits for it.
        await asyncio.to_thread(tell, live)


def _power_w(meter: Meter, part: Part, until_s: float) -> float | None:
    try:
        energy_j = meter.between(until_s - 3.0, until_s, part).total.energy_j
    except JoulewiseError:
        return None
    return None if energy_j is None else energy_j / 3.0


@dataclass
class _Taken:
    """What has come of a load's requests."""

    load: Stretch
    requests: Sequence[tuple[str, Request]]
    write: Callable[[Mapping[str, Any]], None]
    served: list[Served] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    latest: deque[tuple[float, int]] = field(default_factory=deque)
    in_flight: int = 0
    failed: int = 0
    first_error: str | None = None

    def begin(self, start_s: float) -> None:
        """From here on; monotonic seconds."""
        self.course = Course(start_s, self.load.duration_s)
        self.tokens = np.zeros(SLICES + 2)

    def take(self, outcome: Outcome[Answer]) -> None:
        """One request."""
        request, answer = served(outcome), came(outcome)
        self.course.add(request, answer.chunks if answer else None)
        self.served.append(request)
        usage = answer.usage if answer else None
        self.prompt_tokens.append(usage.prompt_tokens if usage else 0)
        if outcome.late_s is not None:
            self.late_s.append(outcome.late_s)
        if outcome.error is not None:
            self.failed += 1
            self.first_error = self.first_error or str(outcome.error)
        if answer is not None and request.whole and request.output_tokens:
            self.latest.append((request.end_s, request.output_tokens))
            times_s = np.array(answer.chunks.times_s or (request.end_s,))
            told = answer.chunks.tokens
            each = np.array(told, np.float64) if told else np.ones(len(times_s))
            if each.sum() > 0.0:
                each *= request.output_tokens / each.sum()  # usage counts what no chunk shows: an end token, say
                places = np.searchsorted(self.course.edges_s, times_s, side="right")
                self.tokens += np.bincount(places, weights=each, minlength=SLICES + 2)
        self.write(
            {
                "number": outcome.number,
                "question": self.requests[outcome.number % len(self.requests)][0],
                "due_s": request.due_s,
                "sent_s": request.began_s,
                "first_token_s": request.first_s,
                "last_token_s": request.last_s,
                "end_s": request.end_s,
                "chunks": len(answer.chunks) if answer else 0,
                "prompt_tokens": usage.prompt_tokens if usage else None,
                "output_tokens": request.output_tokens,
                "whole": request.whole,
                "error": None if outcome.error is None else str(outcome.error),
            }
        )

    def forget(self, before_s: float) -> None:
        """Answers that ended earlier are no longer among the latest."""
        while self.latest and self.latest[0][0] < before_s:
            self.latest.popleft()


@contextlib.contextmanager
def _rows_file(target: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Takes rows for a gzip file of one JSON object a line, which is there once it is whole."""
    try:
        target.parent.mkdir(exist_ok=True)
        with (
            whole_file(target) as part,
            part.open("wb") as raw,
            gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, mtime=0) as file,
        ):

            def write(row: Mapping[str, Any]) -> None:
                file.write(json.dumps(row).encode() + b"\n")

            yield write
    except OSError as error:
        raise EnvironmentFault(
            f"{target}: cannot be written ({error.strerror}); everything up to the last whole Trial is intact: make "
            "room and go on with --resume"
        ) from error


def _steady(load: Stretch, course: Course, driven: Driven) -> Steady:
    if load.ramp and course.whole:
        return Steady(driven.start_s, driven.start_s, float(course.edges_s[-1]), driven.end_s)
    return steady_part(course, driven.offered_until_s, driven.end_s)


def _record(load: Stretch, driven: Driven, steady: Steady, taken: _Taken, slo: Slo, file: str) -> LoadRecord:
    from_s, until_s = steady.from_s, steady.until_s
    inside = [steady.has(request.due_s) for request in taken.served]
    window = [request for request, is_in in zip(taken.served, inside, strict=True) if is_in]
    gaps = taken.course.gaps(from_s or 0.0, until_s or 0.0)
    found = latencies(window, gaps)
    verdicts = [slo.met_by(request) for request in window]
    good = None if None in verdicts else verdicts.count(True)
    edges_s = taken.course.edges_s
    first, last = (int(np.searchsorted(edges_s, time_s or 0.0)) for time_s in (from_s, until_s))
    level = {"to_first": found.to_first, "server_to_first": found.server_to_first, "per_token": found.per_token}
    level |= {"between_chunks": found.between_chunks, "total": found.total}
    return LoadRecord(
        label=load.label,
        kind=load.load.kind,
        level=load.level,
        start_s=driven.start_s,
        offered_until_s=driven.offered_until_s,
        end_s=driven.end_s,
        from_s=from_s,
        until_s=until_s,
        **{name: getattr(driven, name) for name in ("sent", "answered", "failed", "cut_off", "left_out")},
        most_in_flight=driven.most_in_flight,
        requests=found.requests,
        whole=found.whole,
        ended=sum(request.whole and steady.has(request.end_s) for request in taken.served),
        in_flight=float(taken.course.in_flight[first:last].mean()) if last > first else None,
        prompt_tokens=sum(n for n, is_in in zip(taken.prompt_tokens, inside, strict=True) if is_in),
        output_tokens=float(taken.tokens[first + 1 : last + 1].sum()),
        good=good,
        good_tokens=None
        if good is None
        else float(sum(r.output_tokens or 0 for r, met in zip(window, verdicts, strict=True) if met)),
        **{name: _spread_record(values) for name, values in level.items()},
        late_p99_s=_p99(spread(taken.late_s)),
        file=file,
    )


def _spread_record(values: Spread) -> SpreadRecord:
    at = {f"p{level:g}_s": value for level, value in values.percentiles.items()}
    return SpreadRecord(count=values.count, mean_s=values.mean, largest_s=values.largest, **at)


def _p99(values: Spread) -> float | None:
    return values.percentiles.get(99.0, values.largest)


def _notes(record: LoadRecord, taken: _Taken) -> list[str]:
    """What a reader must know of a load whose figures count."""
    notes = []
    if record.late_p99_s is not None and record.late_p99_s > LATE_S:
        notes.append(
            f"the load generator itself sent {1e3 * record.late_p99_s:.0f} ms late at the 99th percentile, which is in "
            "the latencies"
        )
    if lost := record.failed + record.left_out:
        notes.append(f"{lost} of {record.sent + record.left_out} requests failed, such as: {taken.first_error}")
    if record.cut_off:
        notes.append(f"{record.cut_off} requests were cut off when the load ended")
    return notes


def _fault(driven: Driven, steady: Steady, taken: _Taken, record: LoadRecord) -> str | None:
    """Why a load's figures are none."""
    lost, asked = driven.failed + driven.left_out, driven.sent + driven.left_out
    if not driven.answered:
        return f"none of {asked} requests was answered: {taken.first_error or 'all were cut off when the load ended'}"
    if lost > MOST_FAILED * asked:
        return f"{lost} of {asked} requests failed, more than {MOST_FAILED:.0%}: {taken.first_error}"
    if steady.reason is not None:
        return f"there is no steady state: {steady.reason}"
    if record.output_tokens <= 0.0:
        return "no tokens came in the steady part"
    return None

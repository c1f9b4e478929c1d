"""What the ledger holds: one frozen, validated value per line. Plain data that travels; no behaviour.

The ledger (``ledger.jsonl``) has two kinds of line: a ``Trial`` (one question answered once in one cell) and a
``Check`` (whether a Trial's output equals vanilla's, known only when both have run).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from joulewise.energy.reading import ComponentEnergy, ComponentName, Energy, Provenance, Reading
from joulewise.engines.engine import PHASES, CheckStatus, FinishReason, Generation, LosslessCheck, Tally

SCHEMA_VERSION = 2
"""Raised when a line's meaning changes; a reader refuses lines of a newer version."""

NET_POLICY = (
    "net joules = gross joules - idle power x seconds; idle power = mean of all readings before and after an engine's "
    "Trials, its weights resident"
)
"""What is taken off where net joules are shown; ``idle.json`` and the report's JSON name it."""


Joules: TypeAlias = Annotated[float, Field(ge=0)]
Seconds: TypeAlias = Annotated[float, Field(ge=0)]
Tokens: TypeAlias = Annotated[int, Field(ge=0)]


class Record(BaseModel):
    """Base of all ledger values."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


def _not_before_start(end_s: float, info: ValidationInfo) -> float:
    start_s = info.data.get("start_s")
    if start_s is not None and end_s < start_s:
        raise ValueError(f"before start_s ({start_s} s)")
    return end_s


class EnergyRecord(Record):
    """One component's joules over a Trial's window; the fields are those of ``ComponentEnergy``."""

    component: ComponentName
    provenance: Provenance
    energy_j: Joules | None
    start_edge_j: Joules = 0.0
    end_edge_j: Joules = 0.0
    sampling_j: Joules = 0.0
    gain_j: Joules = 0.0
    offset_j: Joules = 0.0
    bound_j: tuple[float, float] | None = None
    source_ids: tuple[str, ...] = ()
    note: str | None = None

    @classmethod
    def of(cls, part: ComponentEnergy) -> EnergyRecord:
        """The record of one component."""
        return cls(**{name: getattr(part, name) for name in cls.model_fields})

    def value(self) -> ComponentEnergy:
        """The value that was recorded."""
        return ComponentEnergy(**dict(self))


class ReadingRecord(Record):
    """A raw counter reading at one end of a Trial's window; fields as in ``Reading``."""

    source_id: str
    time_s: float
    read_s: float
    energy_j: float | None
    power_w: float | None = None
    fault: str | None = None

    @classmethod
    def of(cls, source_id: str, reading: Reading) -> ReadingRecord:
        """The record of one reading of one source."""
        return cls(
            source_id=source_id,
            time_s=reading.time_s,
            read_s=reading.read_s,
            energy_j=reading.energy_j,
            power_w=reading.power_w,
            fault=reading.fault,
        )


class GenerationRecord(Record):
    """One Request's result, without its text where the question is others' work.

    Args:
        rounds: ``(drafted, accepted)`` per round of speculation.
        output_hash: SHA-256 (16 hex digits) of the output token ids; ``text:`` and that of the text, where they are not
            known.
        text: the output; None where only hashes are kept.
        phases_s: as in ``Generation``; None too in ledgers of before it was kept.
        prefill_energy: joules from ``start_s`` to ``first_token_s`` by the meter's timeline; None where that does not
            tell them, and in ledgers of before they were kept.
        log_probabilities: of the continuations that were compared, as in ``Generation``.
    """

    prompt_tokens: Tokens
    output_tokens: Tokens
    wasted_tokens: Tokens
    finish_reason: FinishReason
    start_s: float
    end_s: float
    first_token_s: float | None
    rounds: tuple[tuple[Tokens, Tokens], ...]
    output_hash: str
    text: str | None
    phases_s: Mapping[str, Seconds] | None = None
    prefill_energy: tuple[EnergyRecord, ...] | None = None
    log_probabilities: tuple[float, ...] | None = None

    _ends_after_start = field_validator("end_s")(_not_before_start)

    @field_validator("phases_s")
    @classmethod
    def _known_phases(cls, phases_s: Mapping[str, float] | None) -> Mapping[str, float] | None:
        if strange := sorted(set(phases_s or ()) - set(PHASES)):
            raise ValueError(f"no phase is called {strange[0]!r}: there are {', '.join(PHASES)}")
        return phases_s

    @classmethod
    def of(cls, generation: Generation, keep_text: bool, prefill: Energy | None = None) -> GenerationRecord:
        """The record of one generation and of what its prefill drew."""
        return cls(
            prompt_tokens=generation.prompt_tokens,
            output_tokens=generation.output_tokens,
            wasted_tokens=generation.wasted_tokens,
            finish_reason=generation.finish_reason,
            start_s=generation.start_s,
            end_s=generation.end_s,
            first_token_s=generation.first_token_s,
            rounds=tuple((r.drafted, r.accepted) for r in generation.rounds),
            output_hash=generation.output_hash,
            text=generation.text if keep_text else None,
            phases_s=generation.phases_s,
            prefill_energy=None if prefill is None else tuple(EnergyRecord.of(part) for part in prefill.components),
            log_probabilities=generation.log_probabilities,
        )


class TallyRecord(Record):
    """What a server counted over a Trial's speculation; None for what it does not tell.

    Fields as in ``Tally``.
    """

    rounds: Tokens | None = None
    drafted: Tokens | None = None
    accepted: Tokens | None = None
    drafts: Tokens | None = None
    per_position: tuple[Tokens, ...] | None = None

    @classmethod
    def of(cls, tally: Tally | None, known: bool) -> TallyRecord | None:
        """The record of a tally; None where nothing was drafted."""
        if tally is None:
            return None if known else cls()
        return cls(**{name: getattr(tally, name) for name in cls.model_fields})


class ProbeRecord(Record):
    """What a Trial's thought would have answered, had it been cut off; found out after the Trial's window.

    Args:
        tokens: after so many.
        reasoning: label of the reasoning that would have cut it off there.
        time_s: when it had so many tokens, or had ended, on the monotonic clock; None where the engine does not tell.
        score, correct, extracted, score_note: as in ``Trial``; None where ``error`` is not.
        energy: the Trial's joules up to that token by the meter's timeline, which the closing is not in unless the
            thought had ended before; None where the engine or the timeline does not tell them.
        closing: the request that got the answer out of the thought; None where it was stated.
        closing_energy: what that drew.
        error: why it could not be found out.
    """

    tokens: Tokens
    reasoning: str
    time_s: float | None = None
    score: float | None = None
    correct: bool | None = None
    extracted: str | None = None
    score_note: str | None = None
    energy: tuple[EnergyRecord, ...] | None = None
    closing: GenerationRecord | None = None
    closing_energy: tuple[EnergyRecord, ...] | None = None
    error: str | None = None


class SpreadRecord(Record):
    """How a duration is spread over the requests of a steady part; None where there were too few to tell.

    Args:
        count: values behind it.
    """

    count: Tokens
    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    largest_s: float | None = None


class LoadRecord(Record):
    """How a stretch under load went. Moments are on the monotonic clock of the run's timeline.

    Args:
        label: of the load, such as ``c16``.
        kind: ``closed``, ``poisson`` or ``replay``.
        level: requests in flight, or per second; None of a ramp or a trace.
        start_s, offered_until_s, end_s: of the whole load: its begin, when the last request became due, when the last
            answer had ended.
        from_s, until_s: the part that figures are of: its steady state, or of a ramp all of what was offered; None
            where there is none.
        sent, answered, failed, cut_off, left_out, most_in_flight: of the whole load.
        requests: that were due in the steady part.
        whole: of these, those whose answers came whole.
        ended: answers that ended in the steady part.
        in_flight: requests in flight on average over the steady part.
        prompt_tokens: of the requests that were due in the steady part.
        output_tokens: that came in the steady part, whichever requests they are of.
        good: requests of the steady part that met the plan's objective; None where of one it cannot be told.
        good_tokens: their output tokens.
        to_first, server_to_first, per_token, between_chunks, total: as in ``Latencies``.
        late_p99_s: how late the generator itself sent at the 99th percentile (the largest, of fewer than 100).
        file: every request, in the run folder: gzip, one JSON object a line.
    """

    label: str
    kind: str
    level: float | None
    start_s: float
    offered_until_s: float
    end_s: float
    from_s: float | None
    until_s: float | None
    sent: Tokens
    answered: Tokens
    failed: Tokens
    cut_off: Tokens
    left_out: Tokens
    most_in_flight: Tokens
    requests: Tokens
    whole: Tokens
    ended: Tokens
    in_flight: float | None
    prompt_tokens: Tokens
    output_tokens: float
    good: Tokens | None
    good_tokens: float | None
    to_first: SpreadRecord
    server_to_first: SpreadRecord
    per_token: SpreadRecord
    between_chunks: SpreadRecord
    total: SpreadRecord
    late_p99_s: float | None
    file: str


class Trial(Record):
    """One question answered once in one cell: the ledger's row. Under load: one stretch of it.

    Args:
        trial_id: ``cell_id|question_id|repeat``; unique in a run.
        cell_id: ``engine/decoding/reasoning/task``, each by its label.
        engine: the engine's label in the plan (names engine and model).
        model: the target model as the plan names it.
        prompt_hash: SHA-256 (16 hex digits) of what was asked first, in the reasoning's words and with its examples;
            None in ledgers of before it was kept.
        sequence: position in the order in which the run's Trials were executed, from 0.
        status: ``failed`` Trials have an ``error`` and no energy worth using.
        started_at: wall-clock time, ISO 8601 UTC; an anchor only, durations come from the monotonic clock.
        start_s, end_s: monotonic ends of the energy window.
        readings_start, readings_end: raw counter readings at the window's ends.
        votes: what was extracted from each sample of a vote, None for a sample without an answer; None itself for other
            reasonings, and where a long one may quote others' work.
        ratings: what each sample was rated, where the best one was taken, None for a sample without a rating; None
            itself for other reasonings.
        note: what a reader must know of how the answer came about, such as joules that are not in it.
        probes: what a budget's thought would have answered earlier; their joules are not this Trial's.
        score_note: how the answer failed, where the scorer can say so ("timed out").
        other_cpu_cores: cores' worth of CPU time that other processes used meanwhile; None if not known.
        polluted: whether that was above the plan's limit.
        attempt: 0, or the number of the rerun that replaces an earlier polluted Trial.
        tally: what the Trial's server counted, where nobody tells the single rounds; None where they are told, or
            nothing was drafted.
        running: of a sweep's Trial: so many requests ran side by side, batch after batch, and all of its generations
            are alike (as many prompt and output tokens each); None: requests ran one after the other.
        probe_of: the Trial whose thought this one was probed from; only in tables, never in a ledger.
        load: how the stretch went, of a Trial under load: its ``task`` is ``task/load``, ``start_s``, ``end_s`` and
            ``energy`` are of the steady part, and its requests are in a file beside the ledger, not in
            ``generations``; None where requests ran one after the other.
    """

    kind: Literal["trial"] = "trial"
    schema_version: int = SCHEMA_VERSION
    trial_id: str
    cell_id: str
    engine: str
    model: str
    decoding: str
    reasoning: str
    task: str
    question_id: str
    question_hash: str
    prompt_hash: str | None = None
    category: str | None = None
    repeat: int
    sequence: int
    attempt: int = 0
    status: Literal["ok", "failed"]
    error: str | None = None
    started_at: str
    start_s: float
    end_s: float
    generations: tuple[GenerationRecord, ...] = ()
    energy: tuple[EnergyRecord, ...] = ()
    readings_start: tuple[ReadingRecord, ...] = ()
    readings_end: tuple[ReadingRecord, ...] = ()
    score: float | None = None
    correct: bool | None = None
    extracted: str | None = None
    metric: str | None = None
    score_note: str | None = None
    votes: tuple[str | None, ...] | None = None
    ratings: tuple[float | None, ...] | None = None
    note: str | None = None
    probes: tuple[ProbeRecord, ...] = ()
    other_cpu_cores: float | None = None
    polluted: bool = False
    tally: TallyRecord | None = None
    running: Annotated[int, Field(ge=1)] | None = None
    probe_of: str | None = None
    load: LoadRecord | None = None

    _ends_after_start = field_validator("end_s")(_not_before_start)

    @property
    def duration_s(self) -> float:
        """Length of the energy window, in seconds."""
        return self.end_s - self.start_s

    def window(self) -> Energy:
        """The Trial's joules as a value."""
        return Energy(self.duration_s, tuple(e.value() for e in self.energy), self.start_s, self.end_s)


class Check(Record):
    """Whether a Trial's output equals vanilla's for the same question and repeat (design, rule 4).

    Fields as in ``LosslessCheck``; ``reference_trial_id`` is the vanilla Trial it was compared with.
    """

    kind: Literal["check"] = "check"
    schema_version: int = SCHEMA_VERSION
    trial_id: str
    reference_trial_id: str | None
    status: CheckStatus
    first_difference: int | None = None
    gap: float | None = None
    control: float | None = None
    note: str | None = None

    @classmethod
    def of(cls, trial_id: str, reference_trial_id: str | None, check: LosslessCheck) -> Check:
        """The record of one verdict."""
        return cls(
            trial_id=trial_id,
            reference_trial_id=reference_trial_id,
            status=check.status,
            first_difference=check.first_difference,
            gap=check.gap,
            control=check.control,
            note=check.note,
        )

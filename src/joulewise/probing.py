"""Probing: what a Trial's thought would have answered, had it been cut off; outside of the Trial's window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from joulewise.energy.reading import Energy
from joulewise.errors import ContextLengthError, JoulewiseError, ServerError
from joulewise.records import EnergyRecord, GenerationRecord, ProbeRecord, Trial

if TYPE_CHECKING:
    from joulewise.energy.meter import Meter, Window
    from joulewise.energy.part import Part
    from joulewise.engines.engine import Generation, Request
    from joulewise.reasoning import Answer, Ask
    from joulewise.tasks.task import Score


def probe_all(
    answer: Answer,
    start_s: float,
    ask: Ask,
    meter: Meter,
    score: Callable[[str], Score],
    recorded: Callable[[Generation], GenerationRecord],
    kept: Callable[[str | None], str | None],
    part: Part,
) -> tuple[ProbeRecord, ...]:
    """Run every probe of an answer.

    Args:
        answer: of the Trial.
        start_s: of the Trial's window.
        ask: runs Requests.
        meter: an open meter.
        score: scores a text.
        recorded: the record of a closing.
        kept: of what was extracted, what may be kept.
        part: whose joules are asked for.
    """
    found = []
    for probe in answer.probes:
        windows: list[Window] = []

        def measured(request: Request, windows: list[Window] = windows) -> Generation:
            with meter.window(part) as window:
                windows.append(window)
                return ask(request)

        try:
            made = probe.run(ask, measured)
        except (ContextLengthError, ServerError) as error:
            found.append(ProbeRecord(tokens=probe.tokens, reasoning=probe.reasoning, error=str(error)))
            continue
        worth = score(made.text)
        found.append(
            ProbeRecord(
                tokens=probe.tokens,
                reasoning=probe.reasoning,
                time_s=made.time_s,
                score=worth.value,
                correct=worth.correct,
                extracted=kept(worth.extracted),
                score_note=worth.note,
                energy=None if made.time_s is None else _drawn(meter, part, start_s, made.time_s),
                closing=None if made.closing is None else recorded(made.closing),
                closing_energy=_records(windows[-1].energy) if windows else None,
            )
        )
    return tuple(found)


def probed_trials(trial: Trial) -> Iterator[Trial]:
    """The Trials that smaller budgets would have been: the thought up to there, and the closing.

    Those whose joules are not known up to there are left out; so is how a thought's rounds of speculation and its
    phases divide.
    """
    for probe in trial.probes:
        if probe.time_s is None or probe.energy is None:
            continue
        energy = _energy(probe.energy, trial.start_s, probe.time_s)
        thought, *others = trial.generations
        if probe.tokens < thought.output_tokens:
            cut = {"output_tokens": probe.tokens, "output_hash": f"{thought.output_hash}:{probe.tokens}"}
            nothing = {"rounds": (), "phases_s": None, "wasted_tokens": 0, "text": None, "finish_reason": "length"}
            thought = thought.model_copy(update={**cut, **nothing, "end_s": probe.time_s})
            others = [] if probe.closing is None else [probe.closing]
        if probe.closing is not None and probe.closing_energy is not None:
            closing_s = probe.closing.end_s - probe.closing.start_s
            energy += Energy(closing_s, tuple(record.value() for record in probe.closing_energy))
        cell_id = trial.cell_id.replace(f"/{trial.reasoning}/", f"/{probe.reasoning}/")
        yield trial.model_copy(
            update={
                "trial_id": f"{cell_id}|{trial.question_id}|{trial.repeat}",
                "cell_id": cell_id,
                "reasoning": probe.reasoning,
                "end_s": trial.start_s + energy.duration_s,
                "generations": (thought, *others),
                "energy": tuple(EnergyRecord.of(part) for part in energy.components),
                "readings_start": (),
                "readings_end": (),
                "score": probe.score,
                "correct": probe.correct,
                "extracted": probe.extracted,
                "score_note": probe.score_note,
                "probes": (),
                "probe_of": trial.trial_id,
            }
        )


def _drawn(meter: Meter, part: Part, start_s: float, end_s: float) -> tuple[EnergyRecord, ...] | None:
    try:
        return _records(meter.between(start_s, end_s, part))
    except JoulewiseError:  # the timeline does not reach so far
        return None


def _records(energy: Energy) -> tuple[EnergyRecord, ...]:
    return tuple(EnergyRecord.of(part) for part in energy.components)


def _energy(records: tuple[EnergyRecord, ...], start_s: float, end_s: float) -> Energy:
    return Energy(end_s - start_s, tuple(record.value() for record in records), start_s, end_s)

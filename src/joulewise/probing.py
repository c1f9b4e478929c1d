"""Probing: what a Trial's thought would have answered, had it been cut off; outside of the Trial's window."""

from __future__ import annotations

from collections.abc import Callable

from joulewise.energy.meter import Meter
from joulewise.energy.reading import Energy
from joulewise.engines.engine import Generation
from joulewise.errors import ContextLengthError, JoulewiseError
from joulewise.reasoning import Answer, Ask, Probe
from joulewise.records import EnergyRecord, GenerationRecord, ProbeRecord
from joulewise.tasks.task import Score


def probe_all(
    answer: Answer,
    start_s: float,
    ask: Ask,
    meter: Meter,
    score: Callable[[str], Score],
    recorded: Callable[[Generation], GenerationRecord],
    kept: Callable[[str | None], str | None],
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
    """
    found = []
    for tokens, probe in answer.probes:
        with meter.window() as window:
            try:
                made = probe(ask)
            except ContextLengthError as error:
                found.append(ProbeRecord(tokens=tokens, error=str(error)))
                continue
        worth = score(made.text)
        found.append(
            ProbeRecord(
                tokens=tokens,
                score=worth.value,
                correct=worth.correct,
                extracted=kept(worth.extracted),
                score_note=worth.note,
                energy=_drawn(meter, start_s, made),
                closing=None if made.closing is None else recorded(made.closing),
                closing_energy=None if made.closing is None else _records(window.energy),
            )
        )
    return tuple(found)


def _drawn(meter: Meter, start_s: float, probe: Probe) -> tuple[EnergyRecord, ...] | None:
    if probe.time_s is None:
        return None
    try:
        return _records(meter.between(start_s, probe.time_s))
    except JoulewiseError:  # the timeline does not reach so far
        return None


def _records(energy: Energy) -> tuple[EnergyRecord, ...]:
    return tuple(EnergyRecord.of(part) for part in energy.components)

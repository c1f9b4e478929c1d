"""From two Edges of one source to joules with their uncertainty. Pure functions."""

from __future__ import annotations

import math
from dataclasses import replace

from joulewise.energy.calibration import corrected
from joulewise.energy.edge import Edge
from joulewise.energy.reading import ComponentEnergy, unknown
from joulewise.energy.source import SourceSpec
from joulewise.energy.timeline import POWER_HELD_S

PERIOD_JITTER = 1.1
"""A step may come this much late; steps 103 ms apart were seen on a counter of 100 ms."""

ASLEEP_S = 0.1
"""Suspended for longer than this inside a window, nobody knows what the counter did."""


def source_energy(spec: SourceSpec, start: Edge, end: Edge) -> ComponentEnergy:
    """The joules of one source between two Edges.

    The counter's difference counts, each end corrected for the counter's lag (``Track.edge``). A window shorter than
    the counter's period is told by the power trace alone, since the difference there is either nothing or a whole step.

    Args:
        spec: the source.
        start: the window's start.
        end: its end, on the same clock.

    Returns:
        ``unknown`` with a reason where an end could not be read, the counter ran backwards, or nothing tells the
        energy of so short a window.
    """
    for edge in (start, end):
        if edge.reading.energy_j is None:
            return _unknown(spec, edge.reading.fault or "the counter could not be read")
    assert start.reading.energy_j is not None
    assert end.reading.energy_j is not None
    counter_j = end.reading.energy_j - start.reading.energy_j
    if start.resets != end.resets or counter_j < 0:
        return _unknown(spec, "its counter ran backwards inside the window (reset, driver reloaded, or suspended)")
    if end.asleep_s - start.asleep_s > ASLEEP_S:
        return _unknown(spec, f"the machine was suspended for {end.asleep_s - start.asleep_s:.1f} s inside the window")
    duration_s = end.time_s - start.time_s
    if spec.provenance == "modelled":
        # A model's readings lie a little outside the window, which counts where it lasts a few milliseconds only.
        between_s = end.reading.time_s - start.reading.time_s
        counter_j *= min(1.0, duration_s / between_s) if between_s > 0 else 1.0
        return _finish(spec, counter_j, duration_s, notes=[f"a model, not a measurement: {spec.method}"])
    if start.locked or end.locked:
        return _between_steps(spec, start, end, _bound(spec, start, end, counter_j))
    bound_j = _bound(spec, start, end, counter_j)
    period_s = spec.update_period_s or 0.0
    too_short = duration_s < period_s or (counter_j == 0 and duration_s > 0)
    if too_short and start.trace_j is not None and end.trace_j is not None:
        return _finish(
            spec,
            max(0.0, end.trace_j - start.trace_j),
            duration_s,
            sampling_j=math.hypot(
                math.sqrt(max(0.0, end.trace_variance - start.trace_variance)), _unseen_j(spec, start, end)
            ),
            bound_j=bound_j,
            notes=[f"{_too_short(duration_s)}: from power readings, wide interval"],
        )
    if (
        start.sigma_j is not None
        and end.sigma_j is not None
        and start.energy_j is not None
        and end.energy_j is not None
    ):
        return _finish(
            spec,
            max(0.0, end.energy_j - start.energy_j),
            duration_s,
            edges_j=(start.sigma_j, end.sigma_j),
            bound_j=bound_j,
        )
    power_w = counter_j / duration_s if counter_j > 0 and not too_short else spec.max_power_w
    if too_short and power_w is None:
        return _unknown(spec, _too_short(duration_s))
    edges = [
        math.hypot((power_w or 0.0) * (period_s + edge.reading.read_s), spec.quantum_j) / math.sqrt(12)
        for edge in (start, end)
    ]
    notes = [f"{_too_short(duration_s)}: wide interval"] if too_short else []
    return _finish(spec, counter_j, duration_s, edges_j=(edges[0], edges[1]), bound_j=bound_j, notes=notes)


def _between_steps(spec: SourceSpec, start: Edge, end: Edge, loose_j: tuple[float, float] | None) -> ComponentEnergy:
    """Where the counter's steps are known at both ends, or at one: the difference of what is known there.

    ``loose_j`` is the bound where they are known at one end only.
    """
    assert start.energy_j is not None
    assert end.energy_j is not None
    energy_j, duration_s = max(0.0, end.energy_j - start.energy_j), end.time_s - start.time_s
    # An end before the steps were known, of a counter without power readings, may lag by anything up to a step.
    step_j = energy_j / duration_s * (spec.update_period_s or 0.0) if duration_s > 0 else 0.0
    edges_j = [step_j / math.sqrt(3) if edge.sigma_j is None else edge.sigma_j for edge in (start, end)]
    if start.span_j is not None and end.span_j is not None and spec.max_power_w is not None:
        lower_j = max(0.0, end.span_j[0] - start.span_j[1])
        loose_j = lower_j, max(lower_j, min(end.span_j[1] - start.span_j[0], spec.max_power_w * duration_s))
    return _finish(
        spec,
        energy_j,
        duration_s,
        edges_j=(edges_j[0], edges_j[1]),
        bound_j=loose_j,
        notes=list(dict.fromkeys(edge.note for edge in (start, end) if edge.note)),
    )


def _finish(
    spec: SourceSpec,
    energy_j: float,
    duration_s: float,
    *,
    edges_j: tuple[float, float] = (0.0, 0.0),
    sampling_j: float = 0.0,
    bound_j: tuple[float, float] | None = None,
    notes: list[str] | None = None,
) -> ComponentEnergy:
    """Correct by the source's calibration; add what all its windows have in common: gain, offset, and its own note."""
    notes = [*(notes or []), *([spec.note] if spec.note else [])]
    if spec.gain is None:
        notes.append("the sensor's gain is unknown and left out of the interval")
    part = corrected(
        spec,
        ComponentEnergy(
            spec.component,
            spec.provenance,
            energy_j,
            start_edge_j=edges_j[0],
            end_edge_j=edges_j[1],
            sampling_j=sampling_j,
            offset_j=spec.offset_w * duration_s,
            bound_j=bound_j,
            source_ids=(spec.source_id,),
            note="; ".join(notes) or None,
        ),
        duration_s,
    )
    assert part.energy_j is not None
    return replace(part, gain_j=(spec.gain or 0.0) * part.energy_j)


def _unknown(spec: SourceSpec, reason: str) -> ComponentEnergy:
    return unknown(spec.component, f"{spec.device}: {reason}", (spec.source_id,))


def _too_short(duration_s: float) -> str:
    return f"its counter does not resolve a window of {duration_s:.3g} s"


def _unseen_j(spec: SourceSpec, start: Edge, end: Edge) -> float:
    """Standard uncertainty from power readings being up to ``POWER_HELD_S`` old.

    For so long the power may have been anything between nothing and the most, all equally likely: the root of the mean
    square of its distance from the reading.
    """
    powers_w = [edge.reading.power_w for edge in (start, end) if edge.reading.power_w is not None]
    power_w = sum(powers_w) / len(powers_w) if powers_w else 0.0
    most_w = spec.max_power_w if spec.max_power_w is not None else 2 * power_w
    unseen_s = min(end.time_s - start.time_s, POWER_HELD_S)
    return unseen_s * math.sqrt((power_w - most_w / 2) ** 2 + most_w**2 / 12)


def _bound(spec: SourceSpec, start: Edge, end: Edge, counter_j: float) -> tuple[float, float] | None:
    """What the counter's own figure can be at most and at least, given the most the device can draw.

    The value that a reading shows was reached at some moment between one (late) step before the read began and the
    read's end. From there to the window's end the device drew between nothing and its most.
    """
    if spec.max_power_w is None:
        return None
    period_s = (spec.update_period_s or 0.0) * PERIOD_JITTER

    def drawn_since(edge: Edge) -> tuple[float, float]:
        latest = edge.reading.time_s + edge.reading.read_s / 2
        earliest = edge.reading.time_s - edge.reading.read_s / 2 - period_s
        assert spec.max_power_w is not None
        return spec.max_power_w * min(0.0, edge.time_s - latest), spec.max_power_w * max(0.0, edge.time_s - earliest)

    (start_low, start_high), (end_low, end_high) = drawn_since(start), drawn_since(end)
    slack_j = 2 * spec.quantum_j
    lower_j = max(0.0, counter_j + end_low - start_high - slack_j)
    upper_j = min(counter_j + end_high - start_low + slack_j, spec.max_power_w * (end.time_s - start.time_s))
    return lower_j, max(lower_j, upper_j)

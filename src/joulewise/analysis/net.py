"""What of the joules is due to the work? Gross joules less what the machine draws at rest with the weights resident.

``joulewise.records.NET_POLICY`` says how, in one sentence. Gross joules stay the headline:
a machine that waits still has to be paid for, and net joules carry the idle reading's error on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulewise.analysis.intervals import (
    MIN_QUESTIONS,
    TOO_FEW,
    Floats,
    Quantity,
    joint_provenance,
    percentile_interval,
)
from joulewise.energy.reading import Z95, Provenance

NOT_MEASURED = "idle power was not measured"


@dataclass(frozen=True, slots=True)
class IdleReading:
    """One measurement of idle power.

    Args:
        when: ``before`` or ``after`` the engine's Trials.
        power_w: watts.
        standard_w: its standard uncertainty from the reading's own window; gain and offset apart.
        provenance: of the joules.
    """

    when: str
    power_w: float
    standard_w: float
    provenance: str


@dataclass(frozen=True, slots=True)
class Idle:
    """The power that is taken off.

    Args:
        power_w: mean of the readings, in watts.
        standard_w: standard uncertainty: the readings' own, and a power that lay anywhere between the lowest and the
            highest of them, all equally likely. Gain and offset apart.
        drift_w: mean after less mean before; None where one of them is missing, so that drift is not known.
        readings: how many.
        provenance: that of the weakest.
    """

    power_w: float
    standard_w: float
    drift_w: float | None
    readings: int
    provenance: Provenance


def idle_readings(environment: Mapping[str, Any], engine: str, component: str) -> list[IdleReading]:
    """The readings of one component that say how far they can be trusted.

    Args:
        environment: a run's, as ``load`` gives it. Runs of before ``when`` was kept have readings before only.
        engine: the engine's label.
        component: ``gpu``, ``cpu`` or ``dram``.
    """
    sources = [s for s in environment.get("sources") or () if isinstance(s, Mapping)]
    periods = [s.get("update_period_s") or 0.0 for s in sources if s.get("component") == component]
    found = []
    for entry in environment.get("idle") or ():
        if not isinstance(entry, Mapping) or (entry.get("engine"), entry.get("component")) != (engine, component):
            continue
        power_w, standard_w, duration_s = (
            number if isinstance(number := entry.get(name), (int, float)) else None
            for name in ("power_w", "independent_w", "duration_s")
        )
        if standard_w is None and power_w and duration_s:
            # Earlier runs did not keep it: two window ends, each P T / sqrt(12).
            standard_w = power_w * max(periods, default=0.0) / math.sqrt(6) / duration_s
        if power_w and standard_w is not None:
            found.append(IdleReading(entry.get("when") or "before", power_w, standard_w, str(entry.get("provenance"))))
    return found


def idle_power(readings: Sequence[IdleReading]) -> Idle | None:
    """The power to take off, and how far it is known; None without a reading."""
    if not readings:
        return None
    powers = [r.power_w for r in readings]
    own_w = math.hypot(*(r.standard_w for r in readings)) / len(readings)
    sides = [[r.power_w for r in readings if r.when == when] for when in ("before", "after")]
    return Idle(
        _mean(powers),
        math.hypot(own_w, (max(powers) - min(powers)) / math.sqrt(12)),
        _mean(sides[1]) - _mean(sides[0]) if all(sides) else None,
        len(readings),
        joint_provenance(r.provenance for r in readings),
    )


def idle_powers(environment: Mapping[str, Any], engine: str) -> dict[str, Idle]:
    """What to take off, by component, for one engine of a run; those without a reading are not there."""
    found = {name: idle_power(idle_readings(environment, engine, name)) for name in ("gpu", "cpu", "dram")}
    return {name: idle for name, idle in found.items() if idle is not None}


def sum_idle(parts: Sequence[Idle]) -> Idle:
    """Several components together; their uncertainties add linearly, as the meter's common ones do."""
    drifts = [p.drift_w for p in parts if p.drift_w is not None]
    return Idle(
        math.fsum(p.power_w for p in parts),
        math.fsum(p.standard_w for p in parts),
        math.fsum(drifts) if len(drifts) == len(parts) else None,
        min(p.readings for p in parts),
        joint_provenance(p.provenance for p in parts),
    )


@dataclass(frozen=True, slots=True)
class NetCost:
    """Net joules of one component in one cell. They may be negative: the machine then drew less than at rest.

    Args:
        idle: what was taken off; None where it is not known.
        energy_per_output_token_j: over output tokens.
        energy_per_answer_j: over Trials.
    """

    idle: Idle | None
    energy_per_output_token_j: Quantity
    energy_per_answer_j: Quantity


def net_quantity(
    value: float,
    replicates: Floats,
    *,
    common: float,
    n_questions: int,
    n_trials: int,
    provenances: Iterable[str | None],
) -> Quantity:
    """A net figure with its interval, on the linear scale, as it need not be positive.

    Args:
        value: the figure, in joules per something.
        replicates: the figure over bootstrap samples of the questions.
        common: standard uncertainty that all Trials share, in the figure's unit; added to both ends in full.
        n_questions, n_trials: as in ``Quantity``.
        provenances: of the joules and of what was taken off.
    """
    provenance = joint_provenance(provenances)
    relative = common / abs(value) if value else None
    if n_questions < MIN_QUESTIONS:
        return Quantity(value, None, None, n_questions, n_trials, provenance, TOO_FEW, common=relative)
    low, high = percentile_interval(replicates[~np.isnan(replicates)], n_questions)
    lower, upper = min(low, value) - Z95 * common, max(high, value) + Z95 * common
    if not (math.isfinite(lower) and math.isfinite(upper)):
        reason = "the ledger does not say how far the meter can be trusted, or too few questions have output"
        return Quantity(value, None, None, n_questions, n_trials, provenance, reason)
    return Quantity(value, lower, upper, n_questions, n_trials, provenance, common=relative)


def common_j(
    components: Iterable[str],
    energy_j: Mapping[str, float],
    gain_j: Mapping[str, float],
    idle: Mapping[str, Idle],
    duration_s: float,
) -> float:
    """Standard uncertainty that all Trials of a cell share in their net joules.

    The sensor's offset is in the idle reading too and cancels. Its gain scales what is left. The idle power's own error
    acts like an offset: watts x seconds.

    Args:
        components: those that are summed.
        energy_j, gain_j: gross joules and their uncertainty from the gain, by component.
        idle: what is taken off, by component.
        duration_s: the Trials' seconds.
    """
    terms = []
    for name in components:
        net_j = energy_j[name] - idle[name].power_w * duration_s
        gain = gain_j[name] / energy_j[name] if energy_j[name] > 0.0 else 0.0
        terms += [gain * abs(net_j), idle[name].standard_w * duration_s]
    return math.fsum(terms)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

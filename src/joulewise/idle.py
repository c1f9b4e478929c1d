"""Idle power: what the machine draws with an engine's weights resident, and nothing to do."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Literal

from joulewise.energy.meter import Meter, Window
from joulewise.energy.part import WHOLE, Part
from joulewise.environment import utc_now


def measure_idle(
    meter: Meter,
    engine_label: str,
    when: Literal["before", "after"],
    seconds: float,
    stop: threading.Event,
    part: Part = WHOLE,
) -> list[dict[str, Any]]:
    """Rows for ``idle.json``, one a component; none where ``stop`` was set meanwhile.

    Args:
        meter: an open meter.
        engine_label: whose weights are resident.
        when: before its Trials or after them.
        seconds: for how long.
        stop: ends it early.
        part: whose power is asked for.
    """
    with meter.window(part) as window:
        stopped = stop.wait(seconds)
    if stopped:
        return []
    return [
        {
            "engine": engine_label,
            "when": when,
            "component": part.component,
            "power_w": None if part.energy_j is None else part.energy_j / window.duration_s,
            "independent_w": None if part.energy_j is None else part.independent_j / window.duration_s,
            "provenance": part.provenance,
            "devices_w": _mean_powers(window, part.source_ids),
            "duration_s": window.duration_s,
            "measured_at": utc_now(),
        }
        for part in window.energy.components
    ]


def _mean_powers(window: Window, source_ids: Iterable[str]) -> dict[str, float]:
    """Watts of each source by its counter alone, where it could be read at both ends."""
    powers_w = {}
    for source_id in source_ids:
        start, end = window.readings_start[source_id], window.readings_end[source_id]
        if start.energy_j is not None and end.energy_j is not None and end.time_s > start.time_s:
            powers_w[source_id] = (end.energy_j - start.energy_j) / (end.time_s - start.time_s)
    return powers_w

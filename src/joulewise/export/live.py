"""The running meter's figures: joules by source since it was started, read when somebody asks for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from joulewise.energy import ComponentEnergy, Energy, Meter, SourceSpec

FRESH_S = 0.5
"""Figures this young are given again: however often one asks, the counters are read twice a second at most."""


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """What one source has told so far.

    Args:
        spec: the source.
        energy: joules since the start with their uncertainty, never falling; None while they are not known. What flowed
            while a counter was reset or the machine suspended is missing from them.
        power_w: instantaneous power; None where the source has none.
        fault: what is wrong with it now, in words.
        faults: how often it has failed since the start.
    """

    spec: SourceSpec
    energy: ComponentEnergy | None
    power_w: float | None
    fault: str | None
    faults: int

    @property
    def energy_j(self) -> float | None:
        """Joules since the start; None while they are not known."""
        return None if self.energy is None else self.energy.energy_j


@dataclass(frozen=True, slots=True)
class Figures:
    """All sources at one moment.

    Args:
        duration_s: seconds since the start.
        read_s: how long reading them took.
        sampler_cpu_s: CPU time that the meter's sampler has used; None if it is not known.
        sources: in the order of the meter's ``specs``.
    """

    duration_s: float
    read_s: float
    sampler_cpu_s: float | None
    sources: tuple[SourceFigures, ...]


class Live:
    """Joules of a running meter since this object was made. Threads may share it.

    Args:
        meter: open, and kept open by its owner.
        clock: the meter's clock.
    """

    def __init__(self, meter: Meter, clock: Callable[[], float] = time.monotonic) -> None:
        self.meter = meter
        self._clock = clock
        self._lock = threading.Lock()
        self._start = self._anchor = meter.mark()
        # By source id: joules up to the anchor, and up to now as far as known.
        self._banked: dict[str, ComponentEnergy] = {}
        self._known: dict[str, ComponentEnergy] = {}
        self._last: Figures | None = None

    def figures(self) -> Figures:
        """The figures of now, or of less than ``FRESH_S`` ago.

        Raises:
            JoulewiseError: the meter is closed.
        """
        with self._lock:
            age_s = self._clock() - self._start.time_s - (self._last.duration_s if self._last else 0.0)
            if self._last is None or age_s >= FRESH_S:
                self._last = self._read()
            return self._last

    def _read(self) -> Figures:
        asked_s = self._clock()
        now = self.meter.mark()
        read_s = self._clock() - asked_s
        found, lost = [], False
        for i, (spec, part) in enumerate(zip(self.meter.specs, self.meter.by_source(self._anchor, now), strict=True)):
            first, last = (mark.edges[spec.source_id].reading for mark in (self._anchor, now))
            energy, fault = None, last.fault
            if part.energy_j is not None:
                energy = self._known[spec.source_id] = self._so_far(spec.source_id, part, now.time_s)
            elif last.energy_j not in (None, first.energy_j):  # it counts, and yet its joules since then are not known
                lost, fault = True, part.note
            before = self._last.sources[i] if self._last else None
            failed = fault is not None and (before is None or before.fault is None)
            faults = (before.faults if before else 0) + failed
            found.append(SourceFigures(spec, energy, last.power_w, fault, faults))
        if lost:  # reset, suspended or not readable at first: from here on it can be followed again
            self._anchor, self._banked = now, dict(self._known)
        return Figures(now.time_s - self._start.time_s, read_s, self.meter.sampler_cpu_s, tuple(found))

    def _so_far(self, source_id: str, part: ComponentEnergy, now_s: float) -> ComponentEnergy:
        banked, known = self._banked.get(source_id), self._known.get(source_id)
        if banked is not None:
            since_s = now_s - self._anchor.time_s
            part = (Energy(0.0, (banked,)) + Energy(since_s, (part,))).components[0]
        assert part.energy_j is not None
        # An estimate may fall by a hair when its counter steps; a metric that falls would be taken for a restart.
        if known is not None and known.energy_j is not None and known.energy_j > part.energy_j:
            part = replace(part, energy_j=known.energy_j)
        return part

"""A simulated device whose true energy is known: a counter that steps, a power sensor that averages and holds."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from joulewise.energy import Meter, Reading, SourceSpec, Window


@dataclass
class Clock:
    """A monotonic clock that a test moves by hand."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class Load:
    """Power as a step function of time; its integral is the truth."""

    def __init__(self, pieces: Sequence[tuple[float, float]], start_s: float = 1000.0) -> None:
        """``pieces``: ``(seconds, watts)`` one after another; the last one goes on for ever."""
        self._times, self._watts, self._joules = [-math.inf], [pieces[0][1]], [0.0]
        time_s, energy_j = start_s, 0.0
        for (seconds, watts), (_, following) in itertools.pairwise(pieces):
            time_s += seconds
            energy_j += seconds * watts
            self._times.append(time_s)
            self._watts.append(following)
            self._joules.append(energy_j)
        self._start_s = start_s

    def energy_j(self, time_s: float) -> float:
        place = bisect.bisect_right(self._times, time_s) - 1
        since_s = time_s - (self._start_s if place == 0 else self._times[place])
        return self._joules[place] + since_s * self._watts[place]

    def mean_w(self, start_s: float, end_s: float) -> float:
        return (self.energy_j(end_s) - self.energy_j(start_s)) / (end_s - start_s)


def spec(**fields: object) -> SourceSpec:
    """A measured source whose sensor has no error of its own, so that only the window's edges are uncertain."""
    usual: dict[str, object] = {
        "source_id": "simulated:0",
        "component": "gpu",
        "device": "simulated",
        "provenance": "measured",
        "method": "simulation",
        "update_period_s": 0.1,
        "max_power_w": 900.0,
        "gain": 0.0,
    }
    return SourceSpec(**(usual | fields))  # type: ignore[arg-type]


@dataclass
class SimulatedSource:
    """Steps every ``spec.update_period_s`` at ``phase_s``; power is the mean of 25 ms, renewed every 100 ms.

    A read takes ``read_s`` of the clock's time; the counter is fetched in its middle.
    """

    clock: Clock
    load: Load
    spec: SourceSpec = field(default_factory=spec)
    phase_s: float = 0.0
    power_phase_s: float = 0.0
    read_s: float = 0.0
    has_power: bool = True
    offset_j: float = 0.0
    fault: str | None = None
    closed: int = 0

    def read(self) -> Reading:
        self.clock.advance(self.read_s / 2)
        now_s = self.clock()
        energy_j = None if self.fault else self.counter_j(now_s)
        reading = Reading(now_s, self.read_s, energy_j, None if self.fault else self._power_w(), self.fault)
        self.clock.advance(self.read_s / 2)
        return reading

    def sample(self) -> Reading:
        if not self.has_power:
            return self.read()
        return Reading(self.clock(), 0.0, None, None if self.fault else self._power_w(), self.fault)

    def close(self) -> None:
        self.closed += 1

    def counter_j(self, time_s: float) -> float:
        """The raw counter, wrapped where the source wraps."""
        period_s = self.spec.update_period_s
        if period_s:
            time_s = math.floor((time_s - self.phase_s) / period_s) * period_s + self.phase_s
        value = self.load.energy_j(time_s) + self.offset_j
        return value % self.spec.wrap_j if self.spec.wrap_j else value

    def _power_w(self) -> float | None:
        if not self.has_power:
            return None
        renewed_s = math.floor((self.clock() - self.power_phase_s) / 0.1) * 0.1 + self.power_phase_s
        return self.load.mean_w(renewed_s - 0.025, renewed_s)


def meter_of(*sources: SimulatedSource, **arguments: object) -> Meter:
    """A meter on the sources' clock, with no sampler: ``run_to`` polls it."""
    return Meter(sources, clock=sources[0].clock, sample_period_s=None, **arguments)  # type: ignore[arg-type]


def run_to(meter: Meter, clock: Clock, time_s: float, every_s: float = 0.05) -> None:
    """Let time pass, with the sampler's polls at multiples of ``every_s``."""
    while (following := (math.floor(clock() / every_s + 1e-6) + 1) * every_s) < time_s:
        clock.now_s = following
        meter.poll()
    clock.now_s = max(clock.now_s, time_s)


def measure(
    load: Load, start_s: float, duration_s: float, random_: random.Random, **fields: object
) -> tuple[Window, float, Callable[[float, float], float]]:
    """One window over a load at random counter phase: the window, and the true joules between two moments."""
    clock = Clock()
    source = SimulatedSource(
        clock,
        load,
        phase_s=random_.uniform(0, 0.1),
        power_phase_s=random_.uniform(0, 0.1),
        **fields,  # type: ignore[arg-type]
    )
    meter = meter_of(source)
    run_to(meter, clock, start_s)
    with meter.window() as window:
        run_to(meter, clock, clock() + duration_s)
    truth = load.energy_j(window.end_s) - load.energy_j(window.start_s)
    return window, truth, lambda a, b: load.energy_j(b) - load.energy_j(a)

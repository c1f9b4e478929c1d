"""A simulated card whose true energy is known, on a clock that stands still unless it is moved.

Its counter steps every so often, a reading of it takes time, now and then much longer, and fetches the value at an
unknown place within; its power sensor averages, holds and is noisy; the sampler wakes late. Nothing here is measured.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joulewise.energy import Meter, Reading, SourceSpec

IDLE_W, LOADED_W = 120.0, 690.0


@dataclass
class Clock:
    """A clock that is moved by hand, in seconds."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Load:
    """Power as a broken line; its integral is the truth. After the last point the power stays.

    Args:
        points: ``(time_s, power_w)``, in rising order.
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._times = [t for t, _ in points]
        self._powers = [p for _, p in points]
        areas = ((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
        self._joules = [0.0, *itertools.accumulate(areas)]

    def energy_j(self, time_s: float) -> float:
        """Joules since the first point; before it the power is the first point's."""
        place = bisect.bisect_right(self._times, time_s) - 1
        if place < 0:
            return (time_s - self._times[0]) * self._powers[0]
        since_s = time_s - self._times[place]
        if place == len(self._times) - 1:
            return self._joules[place] + since_s * self._powers[place]
        rise_w = self._powers[place + 1] - self._powers[place]
        share = since_s / (self._times[place + 1] - self._times[place])
        return self._joules[place] + since_s * (self._powers[place] + rise_w * share / 2)

    def mean_w(self, start_s: float, end_s: float) -> float:
        """Mean power between two moments, in watts."""
        return (self.energy_j(end_s) - self.energy_j(start_s)) / (end_s - start_s)


def steady(_draw: random.Random, start_s: float, _seconds: float) -> Load:
    """Full power all the time."""
    return Load([(start_s, LOADED_W)])


def bursts(draw: random.Random, start_s: float, seconds: float) -> Load:
    """Bursts of 30 to 300 ms with gaps of 30 to 300 ms, each rising and falling within 2 ms."""
    points, time_s = [(start_s, IDLE_W)], start_s
    while time_s < start_s + seconds:
        for before_w, after_w in ((IDLE_W, LOADED_W), (LOADED_W, IDLE_W)):
            time_s += draw.uniform(0.03, 0.3)
            points += [(time_s - 0.002, before_w), (time_s, after_w)]
    return Load(points)


def ramps(draw: random.Random, start_s: float, seconds: float) -> Load:
    """Up and down between idle and full power, in 1 to 5 s each."""
    points, time_s = [(start_s, IDLE_W)], start_s
    while time_s < start_s + seconds:
        for power_w in (LOADED_W, IDLE_W):
            time_s += draw.uniform(1.0, 5.0)
            points.append((time_s, power_w))
    return Load(points)


LOADS: dict[str, Callable[[random.Random, float, float], Load]] = {"steady": steady, "bursts": bursts, "ramps": ramps}


@dataclass(frozen=True)
class Behaviour:
    """How a simulated card's sensors behave.

    Args:
        period_s: the counter's period, in seconds.
        jitter_s: standard deviation of a step's lateness.
        averaged_s: a power reading is a mean of so long.
        renewed_s: a power reading is renewed so often; 0: at each reading.
        noise: relative standard deviation of a power reading.
        read_s: a counter reading takes so long,
        slow_share: and this share of them takes up to ``slow_s``.
        power_read_s: a power reading takes so long.
        late_s: the sampler wakes so much too late on average (exponential).
        held_up_s: a reading ends up to so much later than it would (uniform), its value long fetched: beside a thread
            that is busy in Python the interpreter lets the reader go on late.
        held_up_share: so many readings do.
    """

    period_s: float = 0.1
    jitter_s: float = 0.0001
    averaged_s: float = 0.025
    renewed_s: float = 0.0
    noise: float = 0.01
    read_s: float = 0.003
    slow_share: float = 0.05
    slow_s: float = 0.015
    power_read_s: float = 0.00005
    late_s: float = 0.0002
    held_up_s: float = 0.0
    held_up_share: float = 1.0


class SimulatedCard:
    """A source with a truth.

    Args:
        clock: the clock; a reading moves it on.
        load: the true power.
        behaviour: of its sensors.
        draw: chance; it also draws the phases of counter and sensor, and where in a reading the value is fetched.
    """

    def __init__(self, clock: Clock, load: Load, behaviour: Behaviour, draw: random.Random) -> None:
        self.clock, self.load, self.behaviour, self._draw = clock, load, behaviour, draw
        self.spec = SourceSpec(
            source_id="simulated:0",
            component="gpu",
            device="simulated card",
            provenance="measured",
            method="simulation",
            update_period_s=0.1,
            quantum_j=0.001,
            max_power_w=1.25 * 700.0,
            gain=0.0,
        )
        self._phase_s = draw.uniform(0.0, behaviour.period_s)
        self._power_phase_s = draw.uniform(0.0, 0.1)
        self._fetched_at = draw.uniform(0.3, 0.7)
        self._jitter_seed = draw.random()
        self._renewed_s, self._shown_w = -math.inf, 0.0
        self.counter_reads, self.power_reads, self.busy_s = 0, 0, 0.0

    def read(self) -> Reading:
        """The counter and the power."""
        b = self.behaviour
        took_s = b.read_s if self._draw.random() >= b.slow_share else self._draw.uniform(b.read_s, b.slow_s)
        before_s = self._draw.uniform(0.0, took_s - b.read_s)
        start_s = self.clock.now_s
        energy_j = self.counter_j(start_s + before_s + self._fetched_at * b.read_s)
        self.counter_reads += 1
        self.busy_s += took_s
        took_s += self._held_up_s()
        self.clock.now_s = start_s + took_s
        return Reading(start_s + took_s / 2, took_s, round(energy_j, 3), self.sample().power_w)

    def sample(self) -> Reading:
        """The power alone."""
        b = self.behaviour
        now_s = self.clock.now_s
        last_s = now_s
        if b.renewed_s:
            last_s = math.floor((now_s - self._power_phase_s) / b.renewed_s) * b.renewed_s + self._power_phase_s
        if last_s != self._renewed_s:  # else the value is still held
            noise = random.Random(last_s * 1e4).gauss(0.0, b.noise)
            self._renewed_s, self._shown_w = last_s, self.load.mean_w(last_s - b.averaged_s, last_s) * (1 + noise)
        took_s = b.power_read_s + self._held_up_s()
        self.clock.now_s += took_s
        self.power_reads += 1
        self.busy_s += b.power_read_s
        return Reading(now_s + took_s / 2, took_s, None, round(self._shown_w, 3))

    def close(self) -> None:
        """Nothing to let go of."""

    def _held_up_s(self) -> float:
        most_s, share = self.behaviour.held_up_s, self.behaviour.held_up_share
        held_up = most_s > 0 and (share == 1 or self._draw.random() < share)
        return self._draw.uniform(0.0, most_s) if held_up else 0.0

    def counter_j(self, time_s: float) -> float:
        """What the counter shows at a moment."""
        number = math.floor((time_s - self._phase_s) / self.behaviour.period_s)
        if time_s < self._step_s(number):
            number -= 1
        return 5000.0 + self.load.energy_j(self._step_s(number))

    def _step_s(self, number: int) -> float:
        late_s = abs(random.Random(number + self._jitter_seed).gauss(0.0, self.behaviour.jitter_s))
        return self._phase_s + number * self.behaviour.period_s + late_s


def run_to(meter: Meter, clock: Clock, time_s: float, draw: random.Random, late_s: float) -> None:
    """Let time pass; the meter's sampler does what is due, a little late."""
    while (due_s := meter.due_s) < time_s:
        clock.now_s = max(clock.now_s, due_s + draw.expovariate(1 / late_s))
        meter.tend()
    clock.now_s = max(clock.now_s, time_s)

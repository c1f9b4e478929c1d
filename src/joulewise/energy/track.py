"""Track: follows one source, learns when its counter steps, and says what is known of its joules at a moment.

Where a window begins or ends, that becomes an ``Edge``; ``joulewise.energy.estimate`` makes joules of two Edges.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from joulewise.energy.edge import LAG_POINTS, LATE, Edge, Known, between_readings, between_steps
from joulewise.energy.lock import LOST, Step, StepLock
from joulewise.energy.reading import Reading
from joulewise.energy.source import Source, TellsState
from joulewise.energy.timeline import Knots, PowerTrace
from joulewise.energy.timeline import TimelineRow as TimelineRow

SHORTEST_PERIOD_S = 0.01
"""Counters that step more often than this are not locked on: they are as good as continuous."""

SEEK_PARTS = 8
"""Until its steps are known, a counter is read so many times a period."""

SEEK_PERIODS = 30
"""If they are not known after so many periods, they are taken for uneven."""

RETRY_S = 60.0
"""How long to wait then before the next attempt."""

REFINE_PROBES = 20
"""Once they are known, each step is probed until they are known well, but at most so many."""

QUIET_S, QUIET_STEPS = 3.0, 30
"""After that, a step is probed so often, or once in so many steps if that is more often,"""

QUIET_SHARE = 0.003
"""or less often, where that would take more than this share of a core."""

DEAREST_SAMPLE_S = 0.0003
"""A power reading is taken to cost no more than this: one that takes longer has mostly waited for something else."""

ANOTHER = 0.25
"""A step that comes later or earlier than foretold by this share of the period is another step."""

COUNTER_S, MODEL_S = 0.05, 0.5
"""Counters that need no lock, and models, are read no more often than this."""

FINEST_PITCH_S = 0.002
"""A counter that shows a new value even so often is taken for continuous."""

STATE_S = 1.0
"""A device is asked so often how busy, fast and hot it is."""

PRESENT_S = 5.0
"""The power is taken over so long, where it is asked what it is now."""


class _Fetched(NamedTuple):
    """A counter reading, and between which moments its value was fetched."""

    earliest_s: float
    latest_s: float
    energy_j: float


class Track:
    """Follows one source. Threads may share it.

    Args:
        source: the source.
        keep: takes each row for the timeline.
        asleep: how long the machine has been suspended so far, in seconds.
    """

    def __init__(
        self, source: Source, keep: Callable[[TimelineRow], None], asleep: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.source = source
        self._keep = keep
        self._asleep, self._asleep_s = asleep, asleep()
        self._state = source.state if isinstance(source, TellsState) else None  # asking each time would be slow
        # One reading at a time: two threads' readings in the wrong order would look like a counter running backwards.
        self._lock = threading.Lock()
        self._raw_j: float | None = None
        self._wrapped_j = 0.0
        self._resets = 0
        self._trace = PowerTrace()
        self._reads = Knots()
        self._last_edge: tuple[float, float] | None = None
        period_s = source.spec.update_period_s or 0.0
        steps = source.spec.provenance == "measured" and period_s >= SHORTEST_PERIOD_S and not source.spec.relayed
        self._steps = StepLock(period_s) if steps else None
        self._knots = Knots()
        self._knot_number: int | None = None
        self._shortest_read_s = math.inf
        self._previous: _Fetched | None = None
        self._doubtful: tuple[int, float] | None = None
        self._sample_due_s = self._state_due_s = -math.inf
        self._shortest_sample_s = DEAREST_SAMPLE_S
        self._pitch_s = period_s / SEEK_PARTS
        self._in_a_row = 0
        self._seek_until_s = math.inf
        self._probe_due_s = -math.inf
        self._second_of: int | None = None
        self._probes = 0
        self._wanted: list[tuple[float, float]] = []
        self.sharing = 1
        """How many tracks share the sampler's time."""

    def renew_lock(self) -> None:
        """The thread that may have held the lock will not come back."""
        self._lock = threading.Lock()

    def sample(self) -> None:
        """Take a cheap reading into the timeline."""
        with self._lock:
            self._shortest_sample_s = min(self._shortest_sample_s, self._take(self.source.sample()).read_s)

    def read(self) -> Reading:
        """Read the counter; the reading comes back unwrapped."""
        with self._lock:
            return self._take(self.source.read())

    # What the sampler does, and when.

    @property
    def due_s(self) -> float:
        """When ``tend`` has something to do next."""
        return min(self._sample_due_s, self._counter_due_s())

    def tend(self, now_s: float, sample_period_s: float) -> None:
        """Do what is due: a probe of the counter, the reading after a window's end, a sample of the power."""
        with self._lock:
            asleep_s = self._asleep()
            if asleep_s > self._asleep_s + LATE:
                self._asleep_s = asleep_s
                self._unlock()
            if now_s >= self._counter_due_s():
                self._take(self.source.read())
                self._plan(now_s)
            self._tell_state(now_s)
            if now_s >= self._sample_due_s:
                modelled = self.source.spec.provenance == "modelled"
                reading = self._take(self.source.read() if modelled else self.source.sample())
                self._shortest_sample_s = min(self._shortest_sample_s, reading.read_s)
                dearest_s = self._shortest_sample_s * self.sharing / QUIET_SHARE
                every_s = sample_period_s if self._steps else max(sample_period_s, MODEL_S if modelled else COUNTER_S)
                self._sample_due_s = max(self._sample_due_s + every_s, now_s + max(every_s / 2, dearest_s))

    def want(self, time_s: float) -> None:
        """Let the sampler read the counter after the step that follows ``time_s``."""
        with self._lock:
            if self._steps and self._steps.trusted:
                before_s = time_s
                if self._doubtful is not None:
                    # The last reading may be from either side of a step. One right after it tells; else the step that
                    # the moment lies in would have no known start.
                    before_s = min(before_s, self._steps.step(self._doubtful[0]).time_s - self._steps.period_s / 2)
                self._wanted.append((time_s, self._after_step_s(before_s)))

    def settled(self, time_s: float) -> bool:
        """Whether the step after ``time_s`` has been seen, and the power up to there, or nobody waits for it."""
        with self._lock:
            if self._steps is None or not self._steps.trusted:
                return True
            following = self._knots.around(time_s)[1]
            return following is not None and (
                not len(self._trace) or self._trace.last_s >= following.time_s + self._trace.lag_s + self._trace.reach_s
            )

    @property
    def period_s(self) -> float | None:
        """How often the counter steps, in seconds, as learnt; None until its steps are known."""
        return self._steps.period_s if self._steps and self._steps.trusted else None

    def _after_step_s(self, time_s: float) -> float:
        assert self._steps is not None
        following = self._steps.step(self._steps.before(time_s).number + 1)
        return following.time_s + self._half_width_s(following.number) + self._read_s() / 2 + 0.0005

    def _counter_due_s(self) -> float:
        probe_s = self._probe_due_s if self._steps else math.inf
        return min(probe_s, *(due_s for _, due_s in self._wanted)) if self._wanted else probe_s

    def _plan(self, now_s: float) -> None:
        """When to read the counter next, a reading at ``now_s`` having been done."""
        steps = self._steps
        if steps is None:
            return
        if self._wanted:
            open_ = [t for t, _ in self._wanted if self._knots.around(t)[1] is None and now_s - t < 5 * steps.period_s]
            self._wanted = [(t, self._after_step_s(max(t, now_s))) for t in open_] if steps.locked else []
        if now_s < self._probe_due_s:
            return  # it was a window's reading that was due
        if not steps.locked:
            self._seek(now_s)
            return
        if self._second_of is None:
            # Next to a step: the next reading tells on which side.
            self._second_of = steps.nearest(now_s).number
            self._probe_due_s = steps.step(self._second_of).time_s + steps.period_s / 2
            return
        self._second_of = None
        self._probes += 1
        read_s = self._read_s()
        rough = steps.half_width_s(steps.nearest(now_s).number + QUIET_STEPS) > read_s / 3 + 0.0002
        quiet_s = max(min(QUIET_S, QUIET_STEPS * steps.period_s), 2 * read_s * self.sharing / QUIET_SHARE)
        wait_s = steps.period_s / 2 if (rough or not steps.trusted) and self._probes < REFINE_PROBES else quiet_s
        following = steps.step(steps.before(now_s + wait_s).number + 1)
        self._probe_due_s = following.time_s - read_s / 2

    def _seek(self, now_s: float) -> None:
        """Read on until the steps are known; give up for a while where they are not to be known."""
        assert self._steps is not None
        if self._seek_until_s == math.inf:
            self._seek_until_s = now_s + SEEK_PERIODS * self._steps.period_s
        self._probe_due_s = now_s + max(self._pitch_s, self._read_s())
        too_fast = self._in_a_row >= SEEK_PARTS  # each reading showed a new value
        if too_fast and self._pitch_s / 4 >= max(FINEST_PITCH_S, self._read_s()):
            self._pitch_s /= 4
            self._in_a_row = 0
            self._steps.reset()
        elif too_fast or now_s > self._seek_until_s:
            self._seek_until_s = math.inf
            self._unlock()
            self._probe_due_s = now_s + RETRY_S

    def _unlock(self) -> None:
        """The steps are no longer where they were."""
        if self._steps is not None:
            self._steps.reset()
        self._wanted.clear()
        self._previous = self._doubtful = self._knot_number = self._second_of = None
        self._probe_due_s = -math.inf
        self._probes = self._in_a_row = 0

    def _tell_state(self, now_s: float) -> None:
        if self._state is not None and now_s >= self._state_due_s:
            self._state_due_s = now_s + STATE_S
            self._keep(TimelineRow(now_s, self.source.spec.source_id, None, None, self._state()))

    # What readings teach.

    def _take(self, reading: Reading) -> Reading:
        """Unwrap, integrate, learn, and keep for the timeline. The lock is held."""
        if reading.energy_j is not None and reading.fault is None:
            reading = replace(reading, energy_j=self._unwrap(reading.energy_j))
        elif reading.energy_j is not None:
            reading = replace(reading, energy_j=None)  # a value that cannot be trusted is not a value
        if reading.power_w is not None:
            self._trace.add(reading.time_s, reading.power_w)
        if reading.energy_j is not None:
            self._reads.add(reading.time_s, reading.energy_j, reading.read_s / 2)
            if self._steps is not None:
                self._learn(reading, reading.energy_j, self._steps)
        if reading.energy_j is not None or reading.power_w is not None:
            self._keep(TimelineRow(reading.time_s, self.source.spec.source_id, reading.energy_j, reading.power_w))
        return reading

    def _unwrap(self, raw_j: float) -> float:
        wrap_j = self.source.spec.wrap_j
        if self._raw_j is not None and raw_j < self._raw_j:
            if wrap_j is not None and self._raw_j - raw_j > wrap_j / 2:
                self._wrapped_j += wrap_j
            else:
                self._resets += 1
                self._last_edge = None
                self._reads.clear()
                self._knots.clear()
                self._unlock()
        self._raw_j = raw_j
        return raw_j + self._wrapped_j

    def _read_s(self) -> float:
        """How long a counter reading takes where nothing holds it up, in seconds: as long as the shortest one.

        Beside a thread that is busy in Python most readings end late, when the interpreter lets the reader go on,
        though the value was fetched long before.
        """
        return self._shortest_read_s if self._shortest_read_s < math.inf else 0.0

    def _half_width_s(self, number: int) -> float:
        """A step lies within this of where it is told: the value may have been fetched anywhere in a reading."""
        assert self._steps is not None
        return self._steps.half_width_s(number) + self._read_s() / 2

    def _learn(self, reading: Reading, energy_j: float, steps: StepLock) -> None:
        self._shortest_read_s = min(self._shortest_read_s, reading.read_s)
        # In a reading that took its usual time the value is taken to be fetched in the middle, always at the same
        # place: a fixed error shifts all steps alike. In one that took longer it may be anywhere in the excess.
        usual_s = self._read_s()
        excess_s = reading.read_s - usual_s if reading.read_s > 1.2 * usual_s else 0.0
        now = _Fetched(reading.time_s - excess_s / 2, reading.time_s + excess_s / 2, energy_j)
        before, self._previous = self._previous, now
        if before is not None and now.earliest_s - before.latest_s > 0.9 * steps.period_s:
            before = None  # more than one step may lie between
        if not steps.locked:
            self._learn_anew(before, now, steps)
            return
        nearest = steps.nearest(reading.time_s)
        if steps.half_width_s(nearest.number) > LOST * steps.period_s:  # nothing was read for long
            self._unlock()
            return
        around_s = self._half_width_s(nearest.number) + reading.read_s / 2
        first, last = steps.before(reading.time_s - around_s), steps.before(reading.time_s + around_s)
        if first != last:
            # Before or after the last one? The next reading tells; of a reading that long was held up, nothing does.
            self._doubtful = (last.number, energy_j) if last.number == first.number + 1 else None
            return
        current = steps.before(reading.time_s)
        if before is not None:
            late = self._compare(before, now, steps, current)
            if late is None or steps.uneven or not steps.locked:
                self._unlock()
                return
            if late:
                return
        self._add_knots(energy_j, steps, current.number)

    def _learn_anew(self, before: _Fetched | None, now: _Fetched, steps: StepLock) -> None:
        if before is None:
            steps.reset()  # a step may have been missed
        elif before.energy_j != now.energy_j:
            self._in_a_row += 1
            steps.seen(before.earliest_s, now.latest_s)
            if steps.uneven:
                steps.reset()
            elif steps.locked:
                self._seek_until_s = math.inf
                self._probes, self._second_of = 0, -1  # the next plan is for a first reading
        else:
            self._in_a_row = 0

    def _compare(self, before: _Fetched, now: _Fetched, steps: StepLock, current: Step) -> bool | None:
        """Narrow the phase by two readings of which the second should lie after step ``current``.

        Returns:
            Whether that step is late, the second reading still being before it; None if the steps are elsewhere.
        """
        other_s = ANOTHER * steps.period_s
        close_s = max(self._read_s(), 3 * steps.half_width_s(current.number))
        if before.energy_j != now.energy_j:
            if before.earliest_s > current.time_s + other_s:
                return None
            if min(current.time_s - before.earliest_s, now.latest_s - current.time_s) < close_s:
                steps.narrowed(current.number, before.earliest_s, now.latest_s)
        elif before.latest_s < current.time_s - other_s:
            if now.latest_s > current.time_s + other_s:
                return None
            steps.narrowed(current.number, now.earliest_s, now.latest_s + steps.period_s / 2)
            return True
        elif before.latest_s < current.time_s + close_s:
            steps.narrowed(current.number, before.latest_s - steps.period_s / 2, before.latest_s)
        return False

    def _add_knots(self, energy_j: float, steps: StepLock, number: int) -> None:
        if not steps.trusted:
            self._doubtful = None
            return
        half_width_s = self._half_width_s(number)
        if self._doubtful is not None:
            doubtful_number, doubtful_j = self._doubtful
            if doubtful_number == number and doubtful_j != energy_j and self._knot_number != number - 1:
                self._knots.add(steps.step(number - 1).time_s, doubtful_j, half_width_s)
            self._doubtful = None
        if self._knot_number is None or number > self._knot_number:
            self._knots.add(steps.step(number).time_s, energy_j, half_width_s)
            self._knot_number = number

    # What is known at a moment.

    @property
    def reaches_back_to_s(self) -> float:
        """The earliest moment that ``edge`` can tell; infinite before the first reading."""
        with self._lock:
            first = self._reads.around(-math.inf)[1]
            return math.inf if first is None else first.time_s

    def edge(self, reading: Reading | None, time_s: float) -> Edge:
        """What is known at ``time_s``.

        Args:
            reading: the reading taken for that moment, just before or after it; None for the last one before it.
            time_s: the moment.
        """
        with self._lock:
            after_the_fact = reading is None
            if reading is None:
                reading = self._reading_at(time_s)
            known = self._known()
            edge = between_steps(known, reading, time_s) or between_readings(known, reading, time_s)
            if after_the_fact or edge.energy_j is None or edge.sigma_j is None:
                return edge
            # A counter never runs backwards, so neither does its estimate: idle time added never lowers the energy.
            if self._last_edge is not None and time_s >= self._last_edge[0]:
                edge = replace(edge, energy_j=max(edge.energy_j, self._last_edge[1]))
            assert edge.energy_j is not None
            self._last_edge = (time_s, edge.energy_j)
            return edge

    def refined(self, edge: Edge) -> Edge:
        """The same moment, by what has been seen since; the edge itself where that tells nothing more."""
        with self._lock:
            if edge.resets != self._resets or edge.reading.energy_j is None:
                return edge
            return between_steps(self._known(), edge.reading, edge.time_s) or edge

    def present(self, now_s: float) -> tuple[float, float] | None:
        """Mean power of late, in watts, and the standard uncertainty of a window's end, in joules; None if unknown."""
        spec = self.source.spec
        with self._lock:
            last = self._reads.around(math.inf)[0]
            first = self._reads.around(now_s - PRESENT_S)[1]
            if last is None or first is None or last.time_s <= first.time_s:
                return None
            power_w = (last.energy_j - first.energy_j) / (last.time_s - first.time_s)
            moments = [last.time_s - (last.time_s - first.time_s) * (i + 0.5) / LAG_POINTS for i in range(LAG_POINTS)]
            known = self._known()
            edges = [between_steps(known, self._reading_at(t), t) for t in moments]
            sigmas = [e.sigma_j for e in edges if e is not None and e.sigma_j is not None]
            if sigmas:
                return power_w, math.sqrt(statistics.fmean(s**2 for s in sigmas))
            span_s = (spec.update_period_s or 0.0) + self._read_s()
            return power_w, math.hypot(power_w * span_s, spec.quantum_j) / math.sqrt(12)

    def _known(self) -> Known:
        period_s = self._steps.period_s if self._steps else None
        return Known(self.source.spec, self._trace, self._knots, period_s, self._read_s(), self._resets, self._asleep_s)

    def _reading_at(self, time_s: float) -> Reading:
        """The last reading before a moment; of a continuous counter, a share of what lies between two readings."""
        last, following = self._reads.around(time_s)
        if last is None:
            return Reading(time_s, 0.0, None, fault="its counter was not read before that moment")
        if self._steps is None and following is not None:
            gap_s = following.time_s - last.time_s
            risen_j = (following.energy_j - last.energy_j) * (time_s - last.time_s) / gap_s
            return Reading(time_s, gap_s, last.energy_j + risen_j)
        return Reading(last.time_s, 2 * last.half_width_s, last.energy_j)

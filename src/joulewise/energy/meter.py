"""Meter: a set of sources on one monotonic clock. ``meter.window()`` yields joules.

with discover() as meter, meter.window() as window:
    work()
print(window.energy.total)
"""

from __future__ import annotations

import atexit
import difflib
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

from joulewise.energy.calibration import check_calibration
from joulewise.energy.edge import Edge
from joulewise.energy.estimate import source_energy
from joulewise.energy.part import WHOLE, Part
from joulewise.energy.reading import Z95, ComponentEnergy, ComponentName, Energy, Reading, sum_components, unknown
from joulewise.energy.sampler import sampler
from joulewise.energy.source import Absent, Source, SourceSpec
from joulewise.energy.sources import SOURCES
from joulewise.energy.timeline import TimelineRow as TimelineRow
from joulewise.energy.track import Track
from joulewise.errors import JoulewiseError, UserError

COMPONENTS: tuple[ComponentName, ...] = ("gpu", "cpu", "dram")

TIMELINE_ROWS = 200_000
"""The timeline keeps so many rows at most (about 20 MB); undrained, the oldest go first."""

SAMPLE_PERIOD_S = 0.04
"""How often the power is read. Waking up costs more than the reading does; at 0.05 s, half of the time that an H200
holds a value, intervals over bursts held the truth less often than they say (docs/measurement.md)."""

PATIENCE = 3.0
"""A window's end waits for the counter's next step, and the power up to there, for so many periods,"""

LONGEST_WAIT_S = 0.5
"""and whoever asks for its joules for so many seconds at most."""


def _asleep_s() -> float:
    """How long the machine has been suspended since its start, in seconds; 0 where the system does not say."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


class _Moment:
    """One end of a window: what is known of every source there, until the step that follows is seen."""

    def __init__(self, time_s: float, edges: dict[Track, Edge]) -> None:
        self.time_s, self.edges = time_s, edges
        self.settled = False

    def settle(self, at_once: bool) -> None:
        """Take in what has been seen since, where that is all there will be, or ``at_once``."""
        if not self.settled and (at_once or all(track.settled(self.time_s) for track in self.edges)):
            self.edges = {track: track.refined(edge) for track, edge in self.edges.items()}
            self.settled = True


class Window:
    """One stretch of time and the joules drawn in it; ``Meter.window`` makes them.

    Attributes:
        start_s: monotonic start, in seconds.
        readings_start: raw counters at the start by source id, unwrapped.
    """

    def __init__(self, start: _Moment, energy: Callable[[_Moment, _Moment], Energy]) -> None:
        self.start_s = start.time_s
        self.readings_start = {t.source.spec.source_id: edge.reading for t, edge in start.edges.items()}
        self._start = start
        self._end: _Moment | None = None
        self._energy_between = energy
        self._energy: Energy | None = None

    def _close(self, end: _Moment) -> None:
        self._end = end
        self._readings_end = {t.source.spec.source_id: edge.reading for t, edge in end.edges.items()}

    def _closed(self, what: str) -> _Moment:
        if self._end is None:
            raise JoulewiseError(f"the window is still open: its {what} is known only after the with block has ended")
        return self._end

    @property
    def energy(self) -> Energy:
        """The joules, one entry per component. Raises ``JoulewiseError`` while the window is open.

        Asked for at once after the window's end, it waits for the counter's next step and the power up to there, at
        most three of its periods (0.3 s on an NVIDIA card): only then is the last step's share known.
        """
        end = self._closed("energy")
        if self._energy is None:
            self._energy = self._energy_between(self._start, end)
        return self._energy

    @property
    def readings_end(self) -> dict[str, Reading]:
        """Raw counters at the end by source id, unwrapped. Raises ``JoulewiseError`` while the window is open."""
        self._closed("last reading")
        return self._readings_end

    @property
    def end_s(self) -> float:
        """Monotonic end, in seconds. Raises ``JoulewiseError`` while the window is open."""
        return self._closed("end").time_s

    @property
    def duration_s(self) -> float:
        """Seconds from start to end. Raises ``JoulewiseError`` while the window is open."""
        return self._closed("duration").time_s - self.start_s


@dataclass(frozen=True, slots=True)
class Mark:
    """What is known of every source at one moment; ``Meter.mark`` makes them.

    Args:
        time_s: the moment, on the monotonic clock.
        edges: by source id.
    """

    time_s: float
    edges: Mapping[str, Edge]


class Meter:
    """Reads sources at the ends of windows and follows them in between.

    The sampler learns when each counter steps; a window's joules are exact at steps, and inside a step shared as the
    power readings say. Before the steps are known, or where they come unevenly, the interval is wider.

    Of each component either all its devices are measured, or a model stands in for the whole component and says so, or
    the component is unknown, with the reason. In its context the process's sampler follows it: one daemon thread for
    all meters.

    Args:
        sources: what can be read. The meter owns them and closes them.
        absent: what cannot, and why.
        clock: the monotonic clock that the sources' readings are stamped with.
        sample_period_s: how often the sampler reads each source's power; None for no sampler.
        asleep: how long the machine has been suspended since it was started, in seconds.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        absent: Sequence[Absent] = (),
        clock: Callable[[], float] = time.monotonic,
        sample_period_s: float | None = SAMPLE_PERIOD_S,
        asleep: Callable[[], float] = _asleep_s,
    ) -> None:
        self.absent = tuple(absent)
        self._clock = clock
        self._sample_period_s = sample_period_s
        self._timeline: deque[TimelineRow] = deque(maxlen=TIMELINE_ROWS)
        self._timeline_lock = threading.Lock()
        self._dropped = 0
        self._closed = False
        self._sampler_cpu_s: float | None = None
        self._asleep = asleep
        self._moments: list[_Moment] = []
        self._settled = threading.Condition()
        self._tracks: dict[ComponentName, list[Track]] = {}
        self._unknown: dict[ComponentName, str] = {}
        self._stand_in: dict[ComponentName, str] = {}
        for component in COMPONENTS:
            self._choose(component, [s for s in sources if s.spec.component == component])
        # Slow reads lie farthest from the work: first at a window's start, last at its end.
        self._order = [t for tracks in self._tracks.values() for t in tracks]
        self._order.sort(key=lambda t: t.source.spec.provenance != "measured")
        for track in self._order:
            track.sharing = len(self._order)
        _meters.add(self)
        kept = {id(t.source) for t in self._order}
        for source in sources:
            if id(source) not in kept:
                source.close()

    def _choose(self, component: ComponentName, sources: Sequence[Source]) -> None:
        """Measured by all its devices, else modelled, else unknown, else left out."""
        measured = [s for s in sources if s.spec.provenance == "measured"]
        modelled = [s for s in sources if s.spec.provenance == "modelled"]
        gaps = [f"{a.name}: {a.reason}" for a in self.absent if a.component == component and a.present]
        if gaps and modelled:
            self._stand_in[component] = "; ".join(gaps)
        elif gaps:
            self._unknown[component] = "; ".join(gaps)
        chosen = modelled if gaps and modelled else measured or modelled
        if chosen:
            self._tracks[component] = [Track(s, self._keep, self._asleep) for s in chosen]

    @property
    def specs(self) -> tuple[SourceSpec, ...]:
        """The sources that are read, in the order of their components."""
        return tuple(s.spec for s in self.sources)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources that are read, in the order of their components."""
        return tuple(t.source for tracks in self._tracks.values() for t in tracks)

    @property
    def timeline_dropped(self) -> int:
        """How many rows of the timeline were lost because nobody drained it."""
        return self._dropped

    @property
    def sampler_cpu_s(self) -> float | None:
        """CPU seconds that the sampler has used for this meter so far; None before its first sample, or without one."""
        return self._sampler_cpu_s

    def __enter__(self) -> Meter:
        self.poll()
        if self._sample_period_s is not None and not sampler().follows(self):
            sampler().follow(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the sampler and let go of the sources. Idempotent. Windows still open end as unknown."""
        self._closed = True
        if not sampler().leave(self):
            self._renew_locks()
        for source in self.sources:
            source.close()

    def poll(self) -> None:
        """Take one sample of every source. The sampler does this; call it only where there is none."""
        for track in self._order:
            track.sample()

    @property
    def due_s(self) -> float:
        """When ``tend`` has something to do next, on the meter's clock."""
        return min((track.due_s for track in self._order), default=math.inf)

    @property
    def due_in_s(self) -> float:
        """Seconds until ``tend`` has something to do."""
        return self.due_s - self._clock()

    def charge(self, cpu_s: float) -> None:
        """The sampler has spent CPU seconds on this meter."""
        self._sampler_cpu_s = (self._sampler_cpu_s or 0.0) + cpu_s

    def tend(self) -> None:
        """Do what is due by now: what the sampler does whenever ``due_s`` has come. For simulated clocks."""
        now_s = self._clock()
        for track in self._order:
            track.tend(now_s, self._sample_period_s or SAMPLE_PERIOD_S)
        if self._moments:
            self._settle()

    @contextmanager
    def window(self, part: Part = WHOLE) -> Iterator[Window]:
        """A window from here to the end of the ``with`` block, also where the block raises.

        Windows may nest, overlap and come from several threads.

        Args:
            part: whose joules are asked for.

        Raises:
            JoulewiseError: the meter is closed.
        """
        if self._closed:
            raise JoulewiseError("the meter is closed: open a window only inside its with block")
        first = [(track, track.read()) for track in self._order]
        start_s = self._clock()
        window = Window(self._moment(start_s, first), partial(self._energy, part=part))
        try:
            yield window
        finally:
            end_s = self._clock()
            last = [(track, track.read()) for track in reversed(self._order)]
            window._close(self._moment(end_s, last[::-1]))

    def between(self, start_s: float, end_s: float, part: Part = WHOLE, *, wait: bool = True) -> Energy:
        """The joules of a stretch of time that has passed, by the timeline.

        The counter was not read at its ends for the purpose, so the interval is wider than a window's.

        Args:
            start_s: its start, on the meter's clock (``time.monotonic``), in seconds.
            end_s: its end.
            part: whose joules are asked for.
            wait: for the counter's next step, which narrows the interval. Without it, what is known by now: whoever
                asks inside a window that he measures must not let the device idle there.

        Raises:
            JoulewiseError: the timeline does not cover it: it keeps an hour (``timeline.KEPT_S``).
        """
        now_s = self._clock()
        if not start_s < end_s <= now_s:
            raise JoulewiseError(
                f"no stretch of the past: from {start_s:.3f} s to {end_s:.3f} s, and it is {now_s:.3f} s"
            )
        reach_s = max((track.reaches_back_to_s for track in self._order), default=-math.inf)
        if start_s < reach_s:
            raise JoulewiseError(
                f"the timeline does not reach back to {start_s:.3f} s: its first reading "
                + ("is still to come" if reach_s == math.inf else f"is {now_s - reach_s:.1f} s old")
            )
        start, end = (_Moment(t, {track: track.edge(None, t) for track in self._order}) for t in (start_s, end_s))
        return self._energy(start, end, part, wait=wait)

    def resolvable(self, relative_error: float) -> dict[ComponentName, float | None]:
        """How long a window must last, at the present power, for its 95 % interval to be so narrow.

        Args:
            relative_error: half of the interval's width over the energy, such as 0.01. What is common to all windows
                (the sensor's gain and offset) is left out: no length of time makes it smaller.

        Returns:
            Seconds by measured component; None where its power is not known yet.
        """
        now_s = self._clock()
        seconds: dict[ComponentName, float | None] = {}
        for component, tracks in self._tracks.items():
            if all(t.source.spec.provenance == "measured" for t in tracks) and component not in self._unknown:
                seen = [t.present(now_s) for t in tracks]
                known = [s for s in seen if s is not None]
                power_w = math.fsum(power_w for power_w, _ in known)
                edge_j = math.hypot(*(edge_j for _, edge_j in known))
                told = len(known) == len(seen) and power_w > 0
                seconds[component] = Z95 * math.sqrt(2) * edge_j / (relative_error * power_w) if told else None
        return seconds

    def mark(self) -> Mark:
        """Read every source once. Marks that follow one another cut time into pieces without gap or overlap.

        Raises:
            JoulewiseError: the meter is closed.
        """
        if self._closed:
            raise JoulewiseError("the meter is closed: take marks only inside its with block")
        readings = [(track, track.read()) for track in self._order]
        time_s = self._clock()
        return Mark(time_s, {t.source.spec.source_id: t.edge(reading, time_s) for t, reading in readings})

    def by_source(self, start: Mark, end: Mark) -> tuple[ComponentEnergy, ...]:
        """The joules of each source between two marks, in the order of ``specs``."""
        return tuple(source_energy(s, start.edges[s.source_id], end.edges[s.source_id]) for s in self.specs)

    def drain_timeline(self) -> list[TimelineRow]:
        """The rows since the last drain, oldest first for each source."""
        with self._timeline_lock:
            rows = list(self._timeline)
            self._timeline.clear()
        return rows

    def _moment(self, time_s: float, readings: Sequence[tuple[Track, Reading]]) -> _Moment:
        moment = _Moment(time_s, {track: track.edge(reading, time_s) for track, reading in readings})
        for track, _ in readings:
            track.want(time_s)
        with self._settled:
            self._moments.append(moment)
        return moment

    def _settle(self) -> None:
        """Finish the windows' ends whose next step has been seen, and those that have waited long enough."""
        now_s = self._clock()
        with self._settled:
            for moment in self._moments:
                moment.settle(at_once=now_s - moment.time_s > PATIENCE * self._longest_period_s())
            self._moments = [m for m in self._moments if not m.settled]
            self._settled.notify_all()

    def _longest_period_s(self) -> float:
        return max((track.period_s or 0.0 for track in self._order), default=0.0)

    def _energy(self, start: _Moment, end: _Moment, part: Part, *, wait: bool = True) -> Energy:
        """The joules between two moments; waits for the step after the later one, if a sampler is there to see it."""
        with self._settled:
            for moment in (start, end):
                moment.settle(at_once=False)
            if wait and sampler().follows(self):
                wait_s = min(LONGEST_WAIT_S, PATIENCE * self._longest_period_s())
                self._settled.wait_for(lambda: end.settled or self._closed, wait_s)
            for moment in (start, end):
                moment.settle(at_once=True)
        return Energy(
            end.time_s - start.time_s, self._components(start.edges, end.edges, part), start.time_s, end.time_s
        )

    def _components(
        self, start: Mapping[Track, Edge], end: Mapping[Track, Edge], part: Part
    ) -> tuple[ComponentEnergy, ...]:
        components = []
        for component in COMPONENTS:
            tracks = [t for t in self._tracks.get(component, ()) if part.has(t.source.spec.source_id)]
            if reason := part.unknown.get(component) or self._unknown.get(component):
                components.append(unknown(component, reason))
            elif tracks:
                parts = [source_energy(t.source.spec, start[t], end[t]) for t in tracks]
                total = parts[0] if len(parts) == 1 else sum_components(component, parts)
                if component in self._stand_in:
                    total = replace(total, note=f"{total.note}; it stands in for {self._stand_in[component]}")
                components.append(total)
        return tuple(components)

    def _keep(self, row: TimelineRow) -> None:
        with self._timeline_lock:
            self._dropped += len(self._timeline) == TIMELINE_ROWS
            self._timeline.append(row)

    def _renew_locks(self) -> None:
        """The sampler is not there (in a forked child) or hangs in a driver, and may hold any lock for ever."""
        self._timeline_lock, self._settled = threading.Lock(), threading.Condition()
        for track in self._order:
            track.renew_lock()


_meters: weakref.WeakSet[Meter] = weakref.WeakSet()


def _after_fork() -> None:
    for meter in _meters:
        meter._renew_locks()


def _at_exit() -> None:
    # The interpreter stops daemon threads wherever they are. A sampler stopped inside a lock would hold it for ever,
    # and a window that is still open, closed as the last objects go, would wait for it.
    sampler().last_thread()
    for meter in list(_meters):
        meter.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def discover(select: Collection[str] | None = None) -> Meter:
    """A meter of everything that this machine lets us read.

    Args:
        select: names of the kinds of source to look for (``SOURCES``); None for all.

    Raises:
        UserError: a name that is no kind of source; a calibration file that is wrong.
    """
    for name in select or ():
        if name not in SOURCES:
            near = difflib.get_close_matches(name, SOURCES, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise UserError(f"no kind of energy source is called {name!r}{hint}: there are {', '.join(SOURCES)}")
    check_calibration()
    found = [SOURCES[name]() for name in SOURCES if select is None or name in select]
    return Meter([s for f in found for s in f.sources], [a for f in found for a in f.absent])

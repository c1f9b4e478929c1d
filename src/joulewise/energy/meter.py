"""Meter: a set of sources on one monotonic clock. ``meter.window()`` yields joules.

with discover() as meter, meter.window() as window:
    work()
print(window.energy.total)
"""

from __future__ import annotations

import difflib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType

from joulewise.energy.estimate import source_energy
from joulewise.energy.reading import ComponentEnergy, ComponentName, Energy, Reading, sum_components, unknown
from joulewise.energy.source import Absent, Source, SourceSpec
from joulewise.energy.sources import SOURCES
from joulewise.energy.track import Edge, Track
from joulewise.energy.track import TimelineRow as TimelineRow
from joulewise.errors import JoulewiseError, UserError

COMPONENTS: tuple[ComponentName, ...] = ("gpu", "cpu", "dram")

TIMELINE_ROWS = 200_000
"""The timeline keeps so many rows at most (about 20 MB); undrained, the oldest go first."""

JOIN_S = 2.0
"""Closing waits so long for the sampler; a driver that hangs must not hang the program."""


class Window:
    """One stretch of time and the joules drawn in it; ``Meter.window`` makes them.

    Attributes:
        start_s: monotonic start, in seconds.
        readings_start: raw counters at the start by source id, unwrapped.
    """

    def __init__(self, start_s: float, readings_start: dict[str, Reading]) -> None:
        self.start_s = start_s
        self.readings_start = readings_start
        self._end: tuple[dict[str, Reading], Energy] | None = None

    def _close(self, readings_end: dict[str, Reading], energy: Energy) -> None:
        self._end = readings_end, energy

    def _closed(self, what: str) -> tuple[dict[str, Reading], Energy]:
        if self._end is None:
            raise JoulewiseError(f"the window is still open: its {what} is known only after the with block has ended")
        return self._end

    @property
    def energy(self) -> Energy:
        """The joules, one entry per component. Raises ``JoulewiseError`` while the window is open."""
        return self._closed("energy")[1]

    @property
    def readings_end(self) -> dict[str, Reading]:
        """Raw counters at the end by source id, unwrapped. Raises ``JoulewiseError`` while the window is open."""
        return self._closed("last reading")[0]

    @property
    def end_s(self) -> float:
        """Monotonic end, in seconds. Raises ``JoulewiseError`` while the window is open."""
        energy = self._closed("end")[1]
        assert energy.end_s is not None
        return energy.end_s

    @property
    def duration_s(self) -> float:
        """Seconds from start to end. Raises ``JoulewiseError`` while the window is open."""
        return self._closed("duration")[1].duration_s


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

    Of each component either all its devices are measured, or a model stands in for the whole component and says so, or
    the component is unknown, with the reason. Entering the context starts one daemon thread, the sampler.

    Args:
        sources: what can be read. The meter owns them and closes them.
        absent: what cannot, and why.
        clock: the monotonic clock that the sources' readings are stamped with.
        sample_period_s: how often the sampler follows the sources; None for no sampler.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        absent: Sequence[Absent] = (),
        clock: Callable[[], float] = time.monotonic,
        sample_period_s: float | None = 0.05,
    ) -> None:
        self.absent = tuple(absent)
        self._clock = clock
        self._sample_period_s = sample_period_s
        self._timeline: deque[TimelineRow] = deque(maxlen=TIMELINE_ROWS)
        self._timeline_lock = threading.Lock()
        self._dropped = 0
        self._stop = threading.Event()
        self._sampler: threading.Thread | None = None
        self._sampler_cpu_s: float | None = None
        self._tracks: dict[ComponentName, list[Track]] = {}
        self._unknown: dict[ComponentName, str] = {}
        self._stand_in: dict[ComponentName, str] = {}
        for component in COMPONENTS:
            self._choose(component, [s for s in sources if s.spec.component == component])
        # Slow reads lie farthest from the work: first at a window's start, last at its end.
        self._order = [t for tracks in self._tracks.values() for t in tracks]
        self._order.sort(key=lambda t: t.source.spec.provenance != "measured")
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
            self._tracks[component] = [Track(s, self._keep) for s in chosen]

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
        """CPU seconds that the sampler has used so far; None before its first sample, or without one."""
        return self._sampler_cpu_s

    def __enter__(self) -> Meter:
        self.poll()
        if self._sample_period_s is not None and self._sampler is None:
            self._sampler = threading.Thread(target=self._follow, name="joulewise-sampler", daemon=True)
            self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the sampler and let go of the sources. Idempotent. Windows still open end as unknown."""
        self._stop.set()
        if self._sampler is not None:
            self._sampler.join(JOIN_S)
            self._sampler = None
        for source in self.sources:
            source.close()

    def poll(self) -> None:
        """Take one sample of every source. The sampler does this; call it only where there is none."""
        for track in self._order:
            track.sample()

    @contextmanager
    def window(self) -> Iterator[Window]:
        """A window from here to the end of the ``with`` block, also where the block raises.

        Windows may nest, overlap and come from several threads.

        Raises:
            JoulewiseError: the meter is closed.
        """
        if self._stop.is_set():
            raise JoulewiseError("the meter is closed: open a window only inside its with block")
        first = [(track, track.read()) for track in self._order]
        start_s = self._clock()
        start = {id(track): track.edge(reading, start_s) for track, reading in first}
        window = Window(start_s, {t.source.spec.source_id: reading for t, reading in first})
        try:
            yield window
        finally:
            end_s = self._clock()
            last = [(track, track.read()) for track in reversed(self._order)]
            end = {id(track): track.edge(reading, end_s) for track, reading in last}
            window._close(
                {t.source.spec.source_id: reading for t, reading in reversed(last)},
                Energy(end_s - start_s, self._components(start, end), start_s, end_s),
            )

    def mark(self) -> Mark:
        """Read every source once. Marks that follow one another cut time into pieces without gap or overlap.

        Raises:
            JoulewiseError: the meter is closed.
        """
        if self._stop.is_set():
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

    def _components(self, start: dict[int, Edge], end: dict[int, Edge]) -> tuple[ComponentEnergy, ...]:
        components = []
        for component in COMPONENTS:
            if component in self._unknown:
                components.append(unknown(component, self._unknown[component]))
            elif component in self._tracks:
                parts = [source_energy(t.source.spec, start[id(t)], end[id(t)]) for t in self._tracks[component]]
                total = parts[0] if len(parts) == 1 else sum_components(component, parts)
                if component in self._stand_in:
                    total = replace(total, note=f"{total.note}; it stands in for {self._stand_in[component]}")
                components.append(total)
        return tuple(components)

    def _keep(self, row: TimelineRow) -> None:
        with self._timeline_lock:
            self._dropped += len(self._timeline) == TIMELINE_ROWS
            self._timeline.append(row)

    def _follow(self) -> None:
        while not self._stop.wait(self._sample_period_s):
            self.poll()
            self._sampler_cpu_s = time.thread_time()


def discover(select: Collection[str] | None = None) -> Meter:
    """A meter of everything that this machine lets us read.

    Args:
        select: names of the kinds of source to look for (``SOURCES``); None for all.

    Raises:
        UserError: a name that is no kind of source.
    """
    for name in select or ():
        if name not in SOURCES:
            near = difflib.get_close_matches(name, SOURCES, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise UserError(f"no kind of energy source is called {name!r}{hint}: there are {', '.join(SOURCES)}")
    found = [SOURCES[name]() for name in SOURCES if select is None or name in select]
    return Meter([s for f in found for s in f.sources], [a for f in found for a in f.absent])

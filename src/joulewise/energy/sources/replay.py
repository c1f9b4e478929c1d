"""Replay: plays a recording as if it were the hardware, so that the meter is tested without it.

A recording is JSON Lines. The first line is the header: ``format``, ``version``, ``synthetic``, ``columns``, and
``sources``, each with the fields of ``SourceSpec``. Every other line is an array with the header's columns; of these
``time_s``, ``source`` (its place in ``sources``), ``energy_j`` and ``power_w`` are played, each null where the row does
not tell it, and ``read_s`` is how long that read took. ``benchmarks/record_nvml.py`` makes one of an NVIDIA GPU.

What the load did stands in the header (``phases`` as name, start and end; ``events`` as moment and kind) or, as the
recording's writer came to know it, in lines that are objects: ``{"phase": [name, start_s]}``, which lasts until the
next one (name null: nothing), and ``{"event": [time_s, kind]}``. A recording that was cut is played without its torn
last line.
"""

from __future__ import annotations

import bisect
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joulewise.energy.reading import Reading
from joulewise.energy.source import SourceSpec
from joulewise.errors import UserError

FORMAT = "joulewise-recording"
VERSION = 1


@dataclass(frozen=True)
class Series:
    """What one source said: values over time, each held until the next.

    Args:
        times_s: seconds since the recording's origin, rising.
        values: joules or watts, one per time.
    """

    times_s: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, time_s: float) -> float | None:
        """The last value up to ``time_s``; None before the first."""
        place = bisect.bisect_right(self.times_s, time_s)
        return self.values[place - 1] if place else None


@dataclass(frozen=True)
class Recording:
    """One recording.

    Args:
        specs: the sources.
        energy: joules by source, in the order of ``specs``.
        power: watts by source, likewise; empty series where there is none.
        read_s: seconds that a counter read took, by source (median).
        synthetic: whether it was computed rather than measured.
        header: the header as it was written.
    """

    specs: tuple[SourceSpec, ...]
    energy: tuple[Series, ...]
    power: tuple[Series, ...]
    read_s: tuple[float, ...]
    synthetic: bool
    header: dict[str, Any]

    @property
    def start_s(self) -> float:
        """The first moment at which every counter has a value, in the recording's time."""
        return max(s.times_s[0] for s in self.energy)

    @property
    def end_s(self) -> float:
        """The last moment for which every counter has a value, in the recording's time."""
        return min(s.times_s[-1] for s in self.energy)


def load_recording(path: Path) -> Recording:
    """Read a recording.

    Raises:
        UserError: the file is not one, or a line of it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the recording {path}: {error.strerror}") from error
    lines = text[: text.rfind("\n") + 1].splitlines()
    place = 1
    told: list[dict[str, Any]] = []
    try:
        header = json.loads(lines[0])
        if header["format"] != FORMAT or header["version"] > VERSION:
            raise UserError(f"{path} is no recording of format {FORMAT}, version {VERSION} or older")
        specs = tuple(SourceSpec(**source) for source in header["sources"])
        columns = [header["columns"].index(c) for c in ("time_s", "source", "energy_j", "power_w", "read_s")]
        energy: list[list[tuple[float, float]]] = [[] for _ in specs]
        power: list[list[tuple[float, float]]] = [[] for _ in specs]
        reads: list[list[float]] = [[] for _ in specs]
        for place, line in enumerate(lines[1:], start=2):  # noqa: B007 (told when a line is wrong)
            row = json.loads(line)
            if isinstance(row, dict):
                told.append(row)
                continue
            time_s, source, energy_j, power_w, read_s = (row[c] for c in columns)
            if energy_j is not None:
                energy[source].append((time_s, energy_j))
                reads[source].append(read_s or 0.0)
            if power_w is not None:
                power[source].append((time_s, power_w))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{path}, line {place}: not a recording's line ({error})") from error
    for spec, rows in zip(specs, energy, strict=True):
        if not rows:
            raise UserError(f"{path}: no counter reading of {spec.source_id}")
    return Recording(
        specs,
        tuple(_series(rows) for rows in energy),
        tuple(_series(rows) for rows in power),
        tuple(sorted(r)[len(r) // 2] for r in reads),
        bool(header.get("synthetic", False)),
        header | _told(told, max(rows[-1][0] for rows in energy)),
    )


def _told(lines: list[dict[str, Any]], end_s: float) -> dict[str, Any]:
    """The header's phases and events by lines that tell them; a phase without an end was cut."""
    begun = [line["phase"] for line in lines if "phase" in line]
    phases = [[a[0], a[1], b[1]] for a, b in itertools.pairwise([*begun, [None, end_s]]) if a[0] is not None]
    return {"phases": phases, "events": [line["event"] for line in lines if "event" in line]} if lines else {}


class ReplaySource:
    """One source of a recording, played from its start.

    Args:
        recording: the recording.
        index: which of its sources.
        clock: the clock that it is played on, in seconds.
        origin_s: the clock's time at which the recording begins.
        repeat: begin anew at the end, the counter going on; else readings past the end are faults.
    """

    def __init__(
        self, recording: Recording, index: int, clock: Callable[[], float], origin_s: float, repeat: bool
    ) -> None:
        spec = recording.specs[index]
        kind = "synthetic recording" if recording.synthetic else "recording"
        self.spec = replace(spec, note="; ".join(n for n in (spec.note, f"played from a {kind}") if n))
        self._recording, self._index = recording, index
        self._clock, self._origin_s, self._repeat = clock, origin_s, repeat

    def read(self) -> Reading:
        """What the counter and the power sensor said at this moment of the recording."""
        return self._reading(with_counter=True)

    def sample(self) -> Reading:
        """The power alone; the counter where the source has no power."""
        return self._reading(with_counter=not self._recording.power[self._index].values)

    def close(self) -> None:
        """Nothing to let go of."""

    def _reading(self, with_counter: bool) -> Reading:
        now_s = self._clock()
        recording, index = self._recording, self._index
        length_s = recording.end_s - recording.start_s
        laps, since_s = divmod(now_s - self._origin_s, length_s)
        if laps != 0 and not self._repeat:
            return Reading(now_s, 0.0, None, fault="the recording does not cover this moment")
        time_s = recording.start_s + since_s
        power_w = recording.power[index].at(time_s)
        if not with_counter:
            return Reading(now_s, 0.0, None, power_w)
        counter = recording.energy[index]
        first_j, last_j, energy_j = (counter.at(t) for t in (recording.start_s, recording.end_s, time_s))
        assert first_j is not None
        assert last_j is not None
        assert energy_j is not None
        # The clock does not advance within a read here, so the reading says how long the recorded one took.
        return Reading(now_s, recording.read_s[index], energy_j + laps * (last_j - first_j), power_w)


def replay(
    recording: Recording,
    clock: Callable[[], float] = time.monotonic,
    *,
    origin_s: float | None = None,
    repeat: bool = False,
) -> tuple[ReplaySource, ...]:
    """The sources of a recording, ready for a Meter on the same clock.

    Args:
        recording: what ``load_recording`` read.
        clock: the clock to play it on.
        origin_s: the clock's time at which it begins; now, if left out.
        repeat: begin anew at the end; only for counters that do not wrap.
    """
    start_s = clock() if origin_s is None else origin_s
    return tuple(ReplaySource(recording, i, clock, start_s, repeat) for i in range(len(recording.specs)))


def _series(rows: list[tuple[float, float]]) -> Series:
    rows.sort(key=lambda row: row[0])
    return Series(tuple(t for t, _ in rows), tuple(v for _, v in rows))

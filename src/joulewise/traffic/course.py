"""The course of a load in bounded memory: requests in flight, output, gaps between chunks, by slices of its time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from joulewise.engines.openai_api.answer import Chunks
from joulewise.traffic.latency import Histogram
from joulewise.traffic.served import Served

Floats = npt.NDArray[np.float64]

SLICES = 200


class Course:
    """Adds up what requests were doing when; keeps none of them.

    Args:
        start_s: of the load, monotonic seconds.
        duration_s: for so long requests become due.

    ``edges_s`` are the ends of its slices, rising, shape ``(SLICES + 1,)``. What lies outside of them is not counted.
    ``whole`` is how many requests had a whole answer.
    """

    def __init__(self, start_s: float, duration_s: float) -> None:
        self.edges_s: Floats = np.linspace(start_s, start_s + duration_s, SLICES + 1)
        self._flight_s = np.zeros(SLICES + 1)
        self._chunks, self._tokens = np.zeros(SLICES + 1), np.zeros(SLICES + 1)
        self.whole = 0
        self._all_tell = True
        self._gaps = [Histogram() for _ in range(SLICES)]

    def add(self, request: Served, chunks: Chunks | None) -> None:
        """One request.

        Args:
            chunks: of its answer; None where none came.
        """
        self.whole += request.whole
        if request.began_s is not None:
            self._flight_s += np.clip(self.edges_s - request.began_s, 0.0, request.end_s - request.began_s)
        if not chunks:
            return
        times_s = np.array(chunks.times_s)
        self._chunks += self._grown(times_s, np.ones(len(times_s)))
        self._all_tell = self._all_tell and bool(chunks.tokens)
        if self._all_tell:
            self._tokens += self._grown(times_s, np.array(chunks.tokens, np.float64))
        place = int(np.searchsorted(self.edges_s, request.due_s, side="right")) - 1
        if 0 <= place < SLICES:
            self._gaps[place].add(np.diff(times_s))

    @property
    def in_flight(self) -> Floats:
        """Mean number of requests between their begin and their end, by slice, shape ``(SLICES,)``."""
        return np.diff(self._flight_s) / np.diff(self.edges_s)

    @property
    def output(self) -> Floats:
        """Output per second by slice, shape ``(SLICES,)``: tokens where all answers tell them by chunk, else chunks."""
        return np.diff(self._tokens if self._all_tell else self._chunks) / np.diff(self.edges_s)

    def gaps(self, from_s: float, until_s: float) -> Histogram:
        """Between chunks of those requests that were due in the slices which begin in this time."""
        found = Histogram()
        for begin_s, gaps in zip(self.edges_s[:-1], self._gaps, strict=True):
            if from_s <= begin_s < until_s:
                found.merge(gaps)
        return found

    def _grown(self, times_s: Floats, amounts: Floats) -> Floats:
        """What had come by each edge. A chunk's output counts as made evenly since the chunk before it, so that slices
        shorter than a chunk's time do not flicker; the first one's, as made when it was read.
        """
        total = np.cumsum(amounts)
        grown: Floats = np.interp(self.edges_s, times_s, total - amounts[0])
        grown[self.edges_s >= times_s[0]] += amounts[0]
        return grown

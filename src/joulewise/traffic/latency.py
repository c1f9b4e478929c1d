"""How long did users wait, and how many were served well enough? Percentiles, goodput, goodput per joule. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from joulewise.traffic.served import Served

LEVELS = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity is spread.

    Args:
        count: values behind it.
        mean, largest: None where there are no values.
        percentiles: by level in percent; a level is missing where less than one value would lie above it.
    """

    count: int
    mean: float | None
    largest: float | None
    percentiles: dict[float, float]


def spread(values: Sequence[float]) -> Spread:
    """Of the values themselves; a percentile is a value that occurred (the smallest with that share at or below)."""
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        return Spread(0, None, None, {})
    known = {level: ordered[math.ceil(level / 100.0 * n) - 1] for level in LEVELS if _known(level, n)}
    return Spread(n, math.fsum(ordered) / n, ordered[-1], known)


def _known(level: float, n: int) -> bool:
    return n * (1.0 - level / 100.0) >= 1.0 - 1e-9


_SHORTEST_S, _STEP = 1e-6, math.log(1.01)
_BINS = math.ceil(math.log(86_400.0 / _SHORTEST_S) / _STEP) + 1


@dataclass
class Histogram:
    """Spread of ever so many durations in bounded memory: counts in bins 1 % wide, from a microsecond to a day.

    Shorter ones count as a microsecond, longer ones as a day; the mean and the largest are exact.
    """

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BINS, np.int64))
    sum_s: float = 0.0
    largest_s: float = 0.0

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Counts them in; seconds, shape ``(n,)``."""
        if not len(values):
            return
        bins = np.ceil(np.log(np.maximum(values, _SHORTEST_S) / _SHORTEST_S) / _STEP - 1e-9).astype(np.int64)
        self.counts += np.bincount(np.minimum(bins, _BINS - 1), minlength=_BINS)
        self.sum_s += float(values.sum())
        self.largest_s = max(self.largest_s, float(values.max()))

    def merge(self, other: Histogram) -> None:
        """Counts another's in."""
        self.counts += other.counts
        self.sum_s += other.sum_s
        self.largest_s = max(self.largest_s, other.largest_s)

    def spread(self) -> Spread:
        """Percentiles are at most 1 % too high."""
        n = int(self.counts.sum())
        if not n:
            return Spread(0, None, None, {})
        below = np.cumsum(self.counts)
        known = {}
        for level in LEVELS:
            if _known(level, n):
                place = int(np.searchsorted(below, math.ceil(level / 100.0 * n)))
                known[level] = min(_SHORTEST_S * math.exp(_STEP * place), self.largest_s)
        return Spread(n, self.sum_s / n, self.largest_s, known)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of the requests of a window.

    Args:
        to_first: time to first token, from when a request was due.
        server_to_first: the same from when it was sent.
        per_token: mean seconds a token after the first chunk, one value a request.
        between_chunks: gaps between chunks, all requests' together.
        total: to the end of the answer, from when the request was due.
        requests, whole: all, and those whose answer came whole. Latencies of the others are in ``to_first`` and
            ``between_chunks`` as far as they came.
    """

    to_first: Spread
    server_to_first: Spread
    per_token: Spread
    between_chunks: Spread
    total: Spread
    requests: int
    whole: int


def latencies(requests: Sequence[Served], gaps: Histogram) -> Latencies:
    """Of these requests, those that failed included.

    Args:
        gaps: between their chunks (see ``joulewise.traffic.course.Course.gaps``).
    """
    return Latencies(
        to_first=_spread(r.to_first_s for r in requests),
        server_to_first=_spread(r.server_to_first_s for r in requests),
        per_token=_spread(r.per_token_s for r in requests),
        between_chunks=gaps.spread(),
        total=_spread(r.total_s for r in requests),
        requests=len(requests),
        whole=sum(r.whole for r in requests),
    )


def _spread(values: Iterable[float | None]) -> Spread:
    return spread([value for value in values if value is not None])


@dataclass(frozen=True, slots=True)
class Slo:
    """What is good enough (a service-level objective); None asks nothing.

    Args:
        to_first_s: at most so long to the first token, from when the request was due.
        per_token_s: at most so long a token after that, on average over the answer.
        total_s: at most so long to the end.
    """

    to_first_s: float | None = None
    per_token_s: float | None = None
    total_s: float | None = None

    def met_by(self, request: Served) -> bool | None:
        """Whether a request was served well enough.

        Returns:
            None where a limit is set on what is not known of it (a first token that was not seen, tokens not counted).
        """
        if not request.whole:
            return False
        met: bool | None = True
        pairs = (
            (self.to_first_s, request.to_first_s),
            (self.per_token_s, _per_token(request)),
            (self.total_s, request.total_s),
        )
        for limit, value in pairs:
            if limit is None:
                continue
            if value is None:
                met = None
            elif value > limit:
                return False
        return met


def _per_token(request: Served) -> float | None:
    """A single token has none after it to wait for."""
    return 0.0 if request.output_tokens is not None and request.output_tokens <= 1 else request.per_token_s


@dataclass(frozen=True, slots=True)
class Goodput:
    """What was served well enough.

    Args:
        requests: all of the window.
        met: those served well enough.
        unknown: those of which that cannot be told.
        per_s: requests served well enough per second; None where some are unknown.
        per_joule: the same per joule; None where the joules or some of the requests are unknown.
        tokens_per_joule: their output tokens per joule; None as well where those are not known.
    """

    requests: int
    met: int
    unknown: int
    per_s: float | None
    per_joule: float | None
    tokens_per_joule: float | None


def goodput(requests: Sequence[Served], slo: Slo, duration_s: float, joules: float | None) -> Goodput:
    """Requests of a window that met an objective, per second and per joule.

    Args:
        requests: all that were due in the window, those that failed included.
        duration_s: of the window.
        joules: drawn in it, by all of its requests, whether served well enough or not; None where they are not known.
    """
    verdicts = [slo.met_by(request) for request in requests]
    met, unknown = verdicts.count(True), verdicts.count(None)
    tokens = [r.output_tokens for r, good in zip(requests, verdicts, strict=True) if good]
    told = None if unknown or not joules else joules
    output = None if None in tokens else math.fsum(t for t in tokens if t is not None)
    return Goodput(
        requests=len(requests),
        met=met,
        unknown=unknown,
        per_s=None if unknown or duration_s <= 0.0 else met / duration_s,
        per_joule=None if told is None else met / told,
        tokens_per_joule=None if told is None or output is None else output / told,
    )

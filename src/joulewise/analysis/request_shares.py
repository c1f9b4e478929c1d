"""Whose joules were it, where many requests ran at once? Shares that conserve what was measured, by a stated model.

No sensor tells one request of a batch from another, so a share is a convention. Two are here; docs/attribution.md says
when each is wrong.

- *token share* (``by_tokens``, ``by_output_tokens``): all tokens cost the same.
- *cost model* (``by_curve``): tokens cost what the server's own operating curve says. Of what a curve's terms say for a
  whole request, each stretch of time between two moments at which a request came or went takes the part that was done
  in it, at the number of requests that ran then.

What one request *more* would add is no share: ``one_more``. It does not sum to anything that was measured.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from joulewise.analysis.curves import REQUEST, REQUEST_SHARED, TERMS, Curve
from joulewise.analysis.intervals import Floats
from joulewise.energy.attribution import (
    IDLE,
    UNATTRIBUTED,
    Interval,
    PowerAtRest,
    Share,
    TracePoint,
    attribute,
    divide,
)
from joulewise.energy.reading import Z95, ComponentEnergy

_ONCE = (REQUEST.name, REQUEST_SHARED.name)
"""Terms of a request, not of its tokens: they are done as its prompt is."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request that a server answered beside others. Times are monotonic seconds.

    Args:
        name: who gets the joules.
        start_s: when it was sent.
        end_s: when its answer was whole.
        prompt_tokens, output_tokens: of all of it.
        first_s: when its first token came. Until then its prompt is read, evenly, and from then on its output is made,
            evenly; None where it is not known: all is done evenly from start to end.
        chunks: time and output tokens up to then of each chunk, in order, where known; instead of evenly.

    Raises:
        ValueError: times out of order, tokens below 0, or a name that is that of a row of its own.
    """

    name: str
    start_s: float
    end_s: float
    prompt_tokens: int
    output_tokens: int
    first_s: float | None = None
    chunks: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if self.name in (IDLE, UNATTRIBUTED):
            raise ValueError(f"the name {self.name!r} is taken: it is a row of its own")
        if min(self.prompt_tokens, self.output_tokens) < 0:
            raise ValueError(f"{self.name}: tokens below 0")
        first_s = self.end_s if self.first_s is None else self.first_s
        if not (math.isfinite(self.end_s) and self.start_s < first_s <= self.end_s):
            raise ValueError(f"{self.name}: start, first token and end are not in this order")
        told = [(self.start_s, 0.0), *self.chunks]
        if any(a > b for one, next_ in itertools.pairwise(told) for a, b in zip(one, next_, strict=True)):
            raise ValueError(f"{self.name}: the chunks' times or tokens fall")

    def done(self, times_s: Floats) -> tuple[Floats, Floats]:
        """How much of its prompt was read by then (0 to 1), and how many output tokens were made."""
        if self.first_s is None:
            share = np.interp(times_s, (self.start_s, self.end_s), (0.0, 1.0))
            return share, share * self.output_tokens
        read = np.interp(times_s, (self.start_s, self.first_s), (0.0, 1.0))
        if self.chunks and (total := self.chunks[-1][1]):
            moments, made = zip((self.start_s, 0.0), *self.chunks, strict=True)
            scale = self.output_tokens / total  # a server's counts chunk by chunk may leave some out
            return read, np.interp(times_s, moments, made) * scale
        at_first = min(1.0, self.output_tokens) if self.first_s < self.end_s else self.output_tokens
        moments = (self.start_s, self.first_s, max(self.end_s, math.nextafter(self.first_s, math.inf)))
        return read, np.interp(times_s, moments, (0.0, at_first, self.output_tokens))


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What requests did in a stretch of time, and what it costs: weights are ``amounts @ prices``.

    Args:
        amounts: shape ``(requests, terms)``.
        prices: shape ``(terms,)``, not negative.
        standard: their standard uncertainties, shape ``(terms,)``.
    """

    amounts: Floats
    prices: Floats
    standard: Floats

    @property
    def weights(self) -> Floats:
        """Shape ``(requests,)``."""
        return np.asarray(self.amounts @ self.prices, dtype=np.float64)

    @property
    def open_parts(self) -> Floats:
        """Standard uncertainties that the prices leave to each request's part of all, shape ``(requests,)``.

        To first order, and as if the prices erred independently: those of a fit pull against each other, so this is
        rather too much.
        """
        weights = self.weights
        if not (total := math.fsum(weights)):
            return np.zeros(len(weights))
        slopes = (self.amounts - np.outer(weights / total, self.amounts.sum(axis=0))) / total
        return np.asarray(np.sqrt(((slopes * self.standard) ** 2).sum(axis=1)), dtype=np.float64)


Weigh: TypeAlias = Callable[[Sequence[BatchRequest], float, float], Work]
"""What requests did from one moment to another. All that ran then are given: the load is counted among them."""


def by_tokens(requests: Sequence[BatchRequest], start_s: float, end_s: float) -> Work:
    """Prompt and output tokens, all alike."""
    return _tokens(requests, start_s, end_s, of_prompt=1.0)


def by_output_tokens(requests: Sequence[BatchRequest], start_s: float, end_s: float) -> Work:
    """Output tokens alone: prompts cost nothing."""
    return _tokens(requests, start_s, end_s, of_prompt=0.0)


def by_curve(curve: Curve) -> Weigh:
    """The cost model: what an operating curve says of the work.

    A request beside as many equal ones all the time weighs what the curve says of it: ``curve.energy_j``.

    Args:
        curve: of this server: same model, decoding, precision and device. It is of joules that were drawn, the idle
            power included; where shares are of what lies above it, its weights hold as far as power at work is even.
    """

    def weigh(requests: Sequence[BatchRequest], start_s: float, end_s: float) -> Work:
        amounts = _worked(curve, requests, start_s, end_s, lambda grown, running: grown(running))
        return Work(amounts, *_prices(curve))

    return weigh


def request_shares(
    whole: ComponentEnergy,
    start_s: float,
    end_s: float,
    requests: Sequence[BatchRequest],
    weigh: Weigh,
    *,
    idle: PowerAtRest | None = None,
    trace: Sequence[TracePoint] = (),
    cuts: Sequence[float] = (),
) -> tuple[Share, ...]:
    """Share a window over the requests that ran in it. All rows together are the window's joules.

    Of the joules drawn while any request ran, idle power x seconds apart, each gets as much as its work in the window
    is of all work (``joulewise.energy.attribution``: ``attribute`` for the former, ``divide`` for the latter).

    Args:
        whole: the window's joules.
        start_s, end_s: its ends.
        requests: all that ran in it, if only in part; others are left out.
        weigh: the model.
        idle: what is drawn with no request there; None where it is not known: there is no idle row then.
        trace: joules flowed by time; without one, power is taken as even.
        cuts: moments inside the window at which the sharing begins anew: each piece's joules (by the trace) go to the
            work in it. For loads that change, where one factor from work to joules would not do for all of it.

    Returns:
        A share for each request, in their order, then ``idle`` (if known) and ``unattributed``: what was drawn above
        it while no request ran. ``split_j`` holds what the trace and the model's coefficients leave open; not, what
        another model would say.

    Raises:
        ValueError: two requests of one name, cuts outside the window, and as ``attribute``.
    """
    if twice := [name for name, times in Counter(r.name for r in requests).items() if times > 1]:
        raise ValueError(f"two requests are called {twice[0]!r}")
    if not all(start_s < cut < end_s for cut in cuts):
        raise ValueError("cuts are moments inside the window")
    ends = [start_s, *sorted(set(cuts)), end_s]
    requests = [r for r in requests if r.start_s < end_s and r.end_s > start_s]
    pieces = {f"piece {number}": piece for number, piece in enumerate(itertools.pairwise(ends))}
    busy = _busy(requests)
    intervals = [
        Interval(name, max(began_s, from_s), min(ended_s, until_s))
        for name, (from_s, until_s) in pieces.items()
        for began_s, ended_s in busy
        if began_s < until_s and ended_s > from_s
    ]
    found: dict[str, list[Share]] = {r.name: [] for r in requests}
    found |= {IDLE: [], UNATTRIBUTED: []} if idle else {UNATTRIBUTED: []}
    for row in attribute(whole, start_s, end_s, intervals, trace=trace, idle=idle):
        if row.name in pieces:
            work = weigh(requests, *pieces[row.name])
            weights = dict(zip(found, work.weights.tolist(), strict=False))
            unsure = dict(zip(found, work.open_parts.tolist(), strict=False))
            for share in divide(row, weights):
                found[share.name].append(_widened(share, (row.energy_j or 0.0) * unsure.get(share.name, 0.0)))
        else:
            found[row.name].append(row)
    nothing = replace(_blank(whole), method=next((s.method for rows in found.values() for s in rows), ""))
    return tuple(_sum(name, rows or [nothing]) for name, rows in found.items())


@dataclass(frozen=True, slots=True)
class OneMore:
    """What one more request like this one would add. No share: these sum to far less than the window, or to more.

    Args:
        name: of the request that it is like.
        added_j: joules that all together would draw more, by the curve; below 0 only where the curve's correction over
            the load falls steeply.
        standard_j: standard uncertainty from the curve's coefficients, as if these erred independently.
    """

    name: str
    added_j: float
    standard_j: float

    @property
    def interval_j(self) -> tuple[float, float]:
        """95 % interval."""
        return self.added_j - Z95 * self.standard_j, self.added_j + Z95 * self.standard_j


def one_more(curve: Curve, requests: Sequence[BatchRequest], start_s: float, end_s: float) -> tuple[OneMore, ...]:
    """*Marginal* joules of each request: (B + 1) J(B + 1) - B J(B) over the stretches of its life in a window.

    What all that run share, weights that are read once a step, is there already, and the next request adds nothing to
    it. So these are far below the shares at a low load, and they are the curve's joules, not the window's.

    Args:
        curve: of this server, over at least two loads.
        requests: all that ran.
        start_s, end_s: of the window; only what was done in it counts.
    """

    def further(grown: _Grown, running: Floats) -> Floats:
        return (running + 1.0) * grown(running + 1.0) - running * grown(running)

    requests = [r for r in requests if r.start_s < end_s and r.end_s > start_s]
    work = Work(_worked(curve, requests, start_s, end_s, further), *_prices(curve))
    standard = np.sqrt(((work.amounts * work.standard) ** 2).sum(axis=1))
    return tuple(map(OneMore, (r.name for r in requests), work.weights.tolist(), standard.tolist()))


def _tokens(requests: Sequence[BatchRequest], start_s: float, end_s: float, of_prompt: float) -> Work:
    amounts = np.zeros((len(requests), 1))
    for number, request in enumerate(requests):
        if start_s <= request.start_s and request.end_s <= end_s:  # nearly all of them, and then it is plain
            amounts[number] = of_prompt * request.prompt_tokens + request.output_tokens
            continue
        read, made = (max(0.0, after - before) for before, after in request.done(np.array([start_s, end_s])))
        amounts[number] = of_prompt * read * request.prompt_tokens + made
    return Work(amounts, np.ones(1), np.zeros(1))


def _prices(curve: Curve) -> tuple[Floats, Floats]:
    """The coefficients and their standard uncertainties, in the order of the curve."""
    known = curve.coefficients.values()
    return np.array([c.value for c in known]), np.array([(c.upper - c.lower) / (2.0 * Z95) for c in known])


_Grown: TypeAlias = Callable[[Floats], Floats]
"""By the number of requests that run, how much each term grew in some stretches, shape ``(terms, stretches)``."""


def _worked(
    curve: Curve,
    requests: Sequence[BatchRequest],
    start_s: float,
    end_s: float,
    counted: Callable[[_Grown, Floats], Floats],
) -> Floats:
    """The curve's terms for what each request did in a window, shape ``(requests, terms)``.

    Args:
        counted: what to count of the terms' growth, by it and the load in each stretch.
    """
    moments, running = _running(requests, start_s, end_s)
    amounts = np.zeros((len(requests), len(curve.coefficients)))
    for number, request in enumerate(requests):
        low, high = np.searchsorted(moments, (max(start_s, request.start_s), min(end_s, request.end_s)))
        if low < high:
            grown = partial(_grown, curve, request, *request.done(moments[low : high + 1]))
            amounts[number] = counted(grown, running[low:high]).sum(axis=1)
    return amounts


def _grown(curve: Curve, request: BatchRequest, read: Floats, made: Floats, running: Floats) -> Floats:
    """Of the terms at each moment, all of which together are ``curve.energy_j``, from one moment to the next."""
    rows = []
    for name in curve.coefficients:
        at_ends = [
            (read[part] if name in _ONCE else 1.0)
            * TERMS[name].column(request.prompt_tokens * read[part], made[part], running)
            for part in (slice(None, -1), slice(1, None))
        ]
        rows.append(np.maximum(at_ends[1] - at_ends[0], 0.0))  # rounding alone could bring it below
    return np.asarray(np.stack(rows) * curve.correction(running), dtype=np.float64)


def _running(requests: Sequence[BatchRequest], start_s: float, end_s: float) -> tuple[Floats, Floats]:
    """The moments at which a request came or went, the window's ends included, and how many ran in between."""
    starts = np.clip([r.start_s for r in requests], start_s, end_s)
    ends = np.clip([r.end_s for r in requests], start_s, end_s)
    moments = np.unique(np.concatenate([[start_s, end_s], starts, ends]))
    came = np.searchsorted(np.sort(starts), moments[:-1], side="right")
    went = np.searchsorted(np.sort(ends), moments[:-1], side="right")
    return moments, (came - went).astype(np.float64)


def _busy(requests: Sequence[BatchRequest]) -> list[tuple[float, float]]:
    """The times in which any of them ran, in order and apart."""
    found: list[tuple[float, float]] = []
    for request in sorted(requests, key=lambda r: r.start_s):
        if found and request.start_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], request.end_s)
        else:
            found.append((request.start_s, request.end_s))
    return found


def _widened(share: Share, open_j: float) -> Share:
    split_j = None if share.split_j is None else math.hypot(share.split_j, open_j)
    return replace(share, split_j=split_j)


def _blank(whole: ComponentEnergy) -> Share:
    return Share("", whole.provenance, "", None if whole.energy_j is None else 0.0)


def _sum(name: str, rows: Sequence[Share]) -> Share:
    """A request's shares of several pieces of one window: what the window's errors do to them, they do together."""
    known = [row.energy_j for row in rows if row.energy_j is not None]
    splits = [row.split_j for row in rows if row.split_j is not None]
    return replace(
        rows[0],
        name=name,
        energy_j=math.fsum(known) if len(known) == len(rows) else None,
        independent_j=math.fsum(row.independent_j for row in rows),
        gain_j=math.fsum(row.gain_j for row in rows),
        offset_j=math.fsum(row.offset_j for row in rows),
        split_j=math.hypot(*splits) if len(splits) == len(rows) else None,
    )

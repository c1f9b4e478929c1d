"""Seconds of an option for one query under the present load: a distribution, not a mean alone.

The first token comes after ``start + prompt (prompt_token + other_prompt (running - 1))``; each further one takes
``shared + running (own + context (prompt + tokens so far))``: reading the weights is shared, the rest is each request's
own. Both are fitted to past requests; how far these were off is kept as factors, so that percentiles hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from joulewise.analysis.least_squares import non_negative
from joulewise.counted import counted
from joulewise.errors import UserError
from joulewise.routing.energy import Quantiles
from joulewise.routing.lengths import ATOMS, Lengths
from joulewise.routing.policy import Load

Floats = npt.NDArray[np.float64]

FACTORS = 20
"""A spread is held as so many factors of equal chance: the quantiles at (i + 0.5) / FACTORS."""
OWN_SHARE = 0.014
"""Where one load alone was seen: each running request's own work in a token, over the shared work.

The upper quartile of 103 series (a model on a device) of the ML.ENERGY leaderboard v3: straight lines through the
median time between tokens over the mean batch. Their median is 0.008, their 95th percentile 0.031.
"""
_ONE_LOAD = 1.5
"""Loads that differ by less than this factor do not tell what a load does."""
FEW = 20
"""Fewer timings do not tell a 95th percentile: on nine ledgers of 6 requests it held for three new ones of four."""
_ROUNDS = 5
_NORMAL = np.array([NormalDist().inv_cdf((i + 0.5) / FACTORS) for i in range(FACTORS)])
_MIXED = np.array([(7 * i + 3) % FACTORS for i in range(FACTORS)])
"""An order of the factors that has next to nothing to do with their size: waiting does not depend on them."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One past request, of one sample.

    Args:
        running: requests that ran at the time, this one included.
        first_token_s, total_s: seconds from sending it to its first token, None where not known, and to its last.
    """

    prompt_tokens: float
    output_tokens: float
    running: float
    first_token_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True)
class Latency:
    """What was learnt of an option's seconds; ranges are the least and the most that was learnt from.

    Args:
        start: seconds to the first token: of any request, of each prompt token, and of each prompt token for each
            other running request.
        token: seconds of a further token: shared, of each running request, and of each running request's token of
            context.
        first_factors: seconds to the first token over what ``start`` tells, ``FACTORS`` of equal chance, ascending;
            None where first tokens were not timed.
        total_factors: the same of the whole request.
        loads, prompts, outputs: ranges of running requests, prompt tokens and output tokens.
        mean_prompt, mean_output: tokens.
        timings: how many requests were learnt from.
    """

    start: tuple[float, float, float]
    token: tuple[float, float, float]
    first_factors: tuple[float, ...] | None
    total_factors: tuple[float, ...]
    loads: tuple[float, float]
    prompts: tuple[float, float]
    outputs: tuple[float, float]
    mean_prompt: float
    mean_output: float
    timings: int

    def __post_init__(self) -> None:
        """Raises UserError: a number that is not finite or below 0, or not ``FACTORS`` factors."""
        for factors in (self.first_factors, self.total_factors):
            if factors is not None and len(factors) != FACTORS:
                raise UserError(f"Latency: {len(factors)} factors; there are {FACTORS}.")
        numbers = [*self.start, *self.token, *(self.first_factors or ()), *self.total_factors, *self.loads]
        numbers += [*self.prompts, *self.outputs, self.mean_prompt, self.mean_output]
        if not all(0 <= number < math.inf for number in numbers):
            raise UserError("Latency: a number is not finite or below 0; fit it again.")

    def as_json(self) -> dict[str, Any]:
        """The fields; pydantic's ``TypeAdapter(Latency)`` reads them back."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Seconds:
    """What an option is expected to take for a query.

    Args:
        first_token_s: to the first token (of votes: of any of them); None where first tokens were not timed.
        total_s: to the last token, votes included.
        warnings: where it is a guess, one sentence each.
    """

    first_token_s: Quantiles | None
    total_s: Quantiles
    warnings: tuple[str, ...]


def fit_latency(timings: Iterable[Timing]) -> Latency:
    """Learn from past requests of one model, decoding and engine, of whichever reasoning.

    Least squares of relative errors, coefficients of at least 0; requests that are far off (a first one that warms the
    engine up) count less. Where one load alone was seen, ``OWN_SHARE`` tells what other loads do.

    Raises:
        UserError: no timings, or one that cannot be.
    """
    seen = list(timings)
    if not seen:
        raise UserError("There are no timed requests to learn seconds from: give at least one an option.")
    for i, one in enumerate(seen):
        begun = one.first_token_s or 0.0
        tokens = 0 <= one.prompt_tokens < math.inf and 0 <= one.output_tokens < math.inf
        if not (tokens and 1 <= one.running < math.inf and 0 <= begun <= one.total_s < math.inf and one.total_s > 0):
            raise UserError(
                f"Timing {i + 1}: {one}: tokens are at least 0, running at least 1 (the request itself), and the first "
                "token comes no later than the whole, which takes more than 0 s."
            )
    prompt = np.array([one.prompt_tokens for one in seen], np.float64)
    output = np.array([one.output_tokens for one in seen], np.float64)
    running = np.array([one.running for one in seen], np.float64)
    total = np.array([one.total_s for one in seen], np.float64)
    first = np.array([math.nan if one.first_token_s is None else one.first_token_s for one in seen], np.float64)

    loads_tell = running.max() >= _ONE_LOAD * running.min()
    start_columns = np.column_stack([np.ones(len(seen)), prompt, prompt * (running - 1.0) * loads_tell])
    further = np.maximum(output - 1.0, 0.0)
    context = further * running * (prompt + further / 2)
    if loads_tell:
        token_columns = np.column_stack([further, further * running, context])
    else:
        token_columns = np.column_stack([further * (1.0 + OWN_SHARE * running), np.zeros(len(seen)), context])
    timed = np.isfinite(first)
    if timed.any():
        start = _fit(start_columns[timed], first[timed], first[timed])
        rest = total - np.where(timed, first, start_columns @ start)
        token = _fit_token(token_columns, np.maximum(rest, 0.0), total)
    else:
        both = _fit_token(np.column_stack([start_columns, token_columns]), total, total)
        start, token = both[:3], both[3:]
    told = start_columns @ start
    factors = _factors(total, told + token_columns @ token)
    first_factors = _factors(first[timed], told[timed]) if timed.any() else None
    if not loads_tell:
        token[1] = OWN_SHARE * token[0]
    return Latency(
        _three(start),
        _three(token),
        first_factors,
        factors,
        (float(running.min()), float(running.max())),
        (float(prompt.min()), float(prompt.max())),
        (float(output.min()), float(output.max())),
        float(prompt.mean()),
        float(output.mean()),
        len(seen),
    )


def expected_seconds(
    latency: Latency,
    lengths: Lengths,
    prompt_tokens: float,
    load: Load,
    votes: float = 1,
    most_output_tokens: float | None = None,
    domain: str | None = None,
    sequential_votes: bool = False,
) -> Seconds:
    """Seconds of an option for a query.

    Where requests wait, all slots are taken by those that run, and this one begins when one more of them has ended than
    wait before it: on average after ``(queued + 1)`` times the mean seconds of a past request over the slots (Little's
    law), around that as if they ended at random (Erlang). Votes at the same time end with the longest of them, their
    lengths taken as independent; votes one after the other are taken as equally long: the latest that they can end.

    Args:
        prompt_tokens: of the query with all that is sent along.
        load: running requests, this one included (parallel votes come on top), and those that wait before it.
        votes: samples of the answer, or their mean; ``sequential_votes``: one after the other.
        most_output_tokens: the budget that is enforced; None for none.
        domain: of the query.

    Raises:
        UserError: a load or votes below 1, or tokens or a queue below 0.
    """
    if not (load.running >= 1 and load.queued >= 0 and prompt_tokens >= 0 and votes >= 1):
        raise UserError(
            f"running {load.running}, queued {load.queued}, prompt_tokens {prompt_tokens}, votes {votes}: running (the "
            "request itself included) and votes are at least 1, the others at least 0."
        )
    tokens = lengths.tokens(prompt_tokens, domain)
    if most_output_tokens is not None:
        tokens = np.minimum(tokens, most_output_tokens)
    running, times = load.running, 1.0
    if sequential_votes:
        times = votes
    elif votes > 1:
        running, tokens = running + votes - 1, tokens[_longest(votes)]
    begun, seconds = _means(latency, prompt_tokens, tokens, running)
    factors = _spread(latency.total_factors)
    values = (times * seconds)[:, None] * factors.values
    waiting, waits = 0.0, None
    if load.queued:
        slots, ahead = max(load.running - 1.0, 1.0), load.queued + min(load.queued, 1.0)
        _, usual = _means(latency, latency.mean_prompt, np.array([latency.mean_output]), slots)
        waiting = float(usual[0]) * factors.mean * ahead / slots
        waits = waiting * _waits(ahead)
        values += waits
    first = None
    if latency.first_factors is not None:
        first_factors = _spread(latency.first_factors)
        starts = begun * first_factors.values
        if waits is not None:
            starts = (starts[:, None] + waits).ravel()
        first = _quantiles(begun * first_factors.mean + waiting, starts)
    mean = times * float(seconds.mean()) * factors.mean + waiting
    total = _quantiles(mean, values.ravel())
    return Seconds(first, total, _warnings(latency, prompt_tokens, float(tokens[-1]), running))


def _means(latency: Latency, prompt: float, tokens: Floats, running: float) -> tuple[float, Floats]:
    """Seconds to the first token, and of the whole by output length, before the factors."""
    start, prompt_token, other_prompt = latency.start
    shared, own, context = latency.token
    begun = start + prompt * (prompt_token + other_prompt * (running - 1.0))
    further = np.maximum(tokens - 1.0, 0.0)
    context *= running
    return begun, begun + further * ((shared + own * running + context * prompt) + (context / 2) * further)


def _warnings(latency: Latency, prompt: float, longest: float, running: float) -> tuple[str, ...]:
    found = []
    if latency.timings < FEW:
        found.append(f"seconds were learnt from {counted(latency.timings, 'request')}: the 95th percentile is a guess")
    low, high = latency.loads
    if not low <= running <= high:
        how = ""
        if high < _ONE_LOAD * low:
            how = f" (each further request is taken to add {OWN_SHARE:.1%} to a token's shared seconds)"
        found.append(
            f"{running:,.6g} running requests: seconds were learnt at {_range(low, high)}, so they are a guess{how}"
        )
    low, high = latency.prompts
    if not low <= prompt <= high:
        found.append(f"{prompt:,.0f} prompt tokens: seconds were learnt at {_range(low, high)}, so they are a guess")
    low, high = latency.outputs
    if longest > high:
        found.append(
            f"the longest answers, {longest:,.0f} tokens: seconds were learnt up to {high:,.6g}, so they are a guess"
        )
    return tuple(found)


def _range(low: float, high: float) -> str:
    return f"{low:,.6g}" if low == high else f"{low:,.6g} to {high:,.6g}"


def _fit_token(columns: Floats, seconds: Floats, whole: Floats) -> Floats:
    """``_fit``, with the last column (of the context) only where it tells more of each half by the other."""
    without = columns.copy()
    without[:, -1] = 0.0
    halves = [np.arange(len(seconds)) % 2 == half for half in (0, 1)]

    def error(columns: Floats) -> float:
        off = [
            (columns[~half] @ _fit(columns[half], seconds[half], whole[half]) - seconds[~half]) / whole[~half]
            for half in halves
        ]
        return float(np.abs(np.concatenate(off)).mean())

    pays = len(seconds) >= 2 * columns.shape[1] and error(columns) < error(without)
    return _fit(columns if pays else without, seconds, whole)


def _fit(columns: Floats, seconds: Floats, whole: Floats) -> Floats:
    """The coefficients of at least 0 that tell ``seconds`` with the least error relative to ``whole``.

    Errors beyond thrice their median count by their size, not its square (Huber), found by repeated weighting.
    """
    scale = 1.0 / np.maximum(whole, 1e-9)
    weight = np.ones(len(seconds))
    found = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        scaled = columns * (scale * np.sqrt(weight))[:, None]
        right = scaled.T @ (seconds * scale * np.sqrt(weight))
        found = non_negative((scaled.T @ scaled)[None], right[None])[0]
        off = np.abs(columns @ found - seconds) * scale
        weight = np.minimum(1.0, 3.0 * np.median(off) / np.maximum(off, 1e-12)) if np.median(off) > 0 else weight
    return found


def _three(values: Floats) -> tuple[float, float, float]:
    a, b, c = values.tolist()
    return a, b, c


def _factors(seconds: Floats, told: Floats) -> tuple[float, ...]:
    ratios = seconds / np.maximum(told, 1e-9)
    found = np.quantile(ratios, (np.arange(FACTORS) + 0.5) / FACTORS, method="weibull")
    return tuple(found.tolist())


@dataclass(frozen=True, slots=True, eq=False)
class _Spread:
    values: Floats
    mean: float


@lru_cache(maxsize=1024)
def _spread(factors: Sequence[float]) -> _Spread:
    return _Spread(np.array(factors), math.fsum(factors) / FACTORS)


@lru_cache(maxsize=64)
def _longest(votes: float) -> npt.NDArray[np.int64]:
    """Which atom is as likely to be the longest of so many as each is by itself."""
    chances = ((np.arange(ATOMS) + 0.5) / ATOMS) ** (1.0 / votes)
    return np.minimum((chances * ATOMS).astype(np.int64), ATOMS - 1)


@lru_cache(maxsize=1024)
def _waits(ends: float) -> Floats:
    """The wait for so many ends over its mean, in the order ``_MIXED``: Erlang's quantiles (Wilson, Hilferty 1931)."""
    part = 1.0 / (9.0 * max(ends, 1.0))
    return np.asarray(np.maximum(1.0 - part + math.sqrt(part) * _NORMAL, 0.0)[_MIXED] ** 3)


def _quantiles(mean: float, values: Floats) -> Quantiles:
    """Of values of equal chance, in any order; their number is a multiple of 20."""
    n = len(values)
    middle, late = n // 2, n * 19 // 20
    ordered = np.partition(values, (middle - 1, middle, late - 1, late))
    p50, p95 = (ordered[middle - 1] + ordered[middle]) / 2, (ordered[late - 1] + ordered[late]) / 2
    return Quantiles(mean, float(p50), float(p95))

"""Joules of an option for one query under the present load: a distribution, not a mean alone.

Output length (``lengths.py``) goes through an operating curve, measured (``analysis/curves.py``) or published; votes,
retries and the router's own joules are added. What is uncertain: the length, the number of retries, and a measured
curve's error on what it was not fitted to.
"""

from __future__ import annotations

import csv
import math
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from joulewise.analysis.curves import Curve
from joulewise.errors import UserError
from joulewise.routing.answer_joules import AnswerJoules
from joulewise.routing.lengths import ATOMS, Lengths

Floats = npt.NDArray[np.float64]

_MEDIAN_TO_SD = 1 / 0.6745
"""A normal's standard deviation over the median of its distance from the mean."""
_STEPS, _STEP_CHANCES = np.array([-math.sqrt(3.0), 0.0, math.sqrt(3.0)]), np.array([1 / 6, 2 / 3, 1 / 6])
"""A normal as three atoms (Gauss-Hermite)."""
_P95 = math.ceil(0.95 * ATOMS) - 1


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution's mean, median and 95th percentile."""

    mean: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class PublishedCurve:
    """Joules of an output token over the load, as published by others for one model on one sort of device.

    Prompts are in what an output token costs: their own share is not published.

    Args:
        model, device, source: what was measured, and the file that tells it.
        running: mean requests at a time, ascending.
        token_j: joules of an output token at each.
        output_tokens: the shortest and the longest mean output.
    """

    model: str
    device: str
    source: str
    running: tuple[float, ...]
    token_j: tuple[float, ...]
    output_tokens: tuple[float, float]

    def at(self, running: float) -> float:
        """Joules of an output token: straight lines over logarithms; beyond what is published, its end."""
        return math.exp(float(np.interp(math.log(running), np.log(self.running), np.log(self.token_j))))

    def warnings(self, prompt_tokens: float, output_tokens: float, running: float) -> list[str]:
        """What of a request lies outside of what is published; that it is published is always said."""
        found = [f"joules of {self.model} are published for {self.device} ({self.source}), not measured here"]
        low, high = self.running[0], self.running[-1]
        if not low <= running <= high:
            found.append(
                f"{running:,.6g} running requests: outside of what is published ({low:,.6g} to {high:,.6g}), "
                "so the figure is a guess"
            )
        short, long = self.output_tokens
        if not short / 2 <= output_tokens <= long * 2:
            found.append(
                f"{output_tokens:,.6g} output tokens: far from the published mean ({short:,.6g} to {long:,.6g}), "
                "so the figure is a guess"
            )
        return found


_SOURCES: dict[type, Literal["measured", "published", "answers"]] = {
    Curve: "measured",
    PublishedCurve: "published",
    AnswerJoules: "answers",
}


@dataclass(frozen=True, slots=True, eq=False)
class OptionEnergy:
    """What is needed to tell an option's joules.

    Args:
        lengths: of its answers.
        curve: of its model, decoding and engine; what past answers tell, where there is none.
        votes: samples of each answer, on average.
        at_once: they run at the same time, and raise the load.
        prompt_read_once: the engine reads the prompt once for all votes.
        most_output_tokens: the budget that is enforced; None for none.
        retry_chance: that an attempt has to be repeated; ``retries``: at most so often.
    """

    lengths: Lengths
    curve: Curve | PublishedCurve | AnswerJoules
    votes: float = 1
    at_once: bool = True
    prompt_read_once: bool = False
    most_output_tokens: float | None = None
    retry_chance: float = 0.0
    retries: int = 0

    def __post_init__(self) -> None:
        """Raises UserError: votes below 1, a budget or retries below 0, or a chance outside of 0 to 1."""
        if self.votes < 1 or self.retries < 0 or not 0 <= self.retry_chance <= 1:
            raise UserError(
                f"votes {self.votes}, retries {self.retries}, retry_chance {self.retry_chance}: votes are at least 1, "
                "retries at least 0, a chance is from 0 to 1."
            )
        if self.most_output_tokens is not None and not self.most_output_tokens >= 0:
            raise UserError(f"most_output_tokens {self.most_output_tokens}: a budget is at least 0 tokens.")


@dataclass(frozen=True, slots=True)
class EnergyEstimate:
    """What an option is expected to draw for a query.

    Args:
        energy_j: of the whole answer, votes, retries and routing included.
        output_tokens: of one sample.
        shared_j: of one attempt's mean, what requests that run at the same time share, before the curve's smooth
            correction over the load; None where a published curve does not tell it.
        source: of the curve; ``answers`` where it is past answers alone.
        warnings: where it is a guess, one sentence each.
    """

    energy_j: Quantiles
    output_tokens: Quantiles
    shared_j: float | None
    source: Literal["measured", "published", "answers"]
    warnings: tuple[str, ...]


def expected_energy(
    option: OptionEnergy,
    prompt_tokens: float,
    running: float = 1.0,
    domain: str | None = None,
    routing_j: float = 0.0,
) -> EnergyEstimate:
    """Joules of an option for a query.

    Votes are taken to be equally long, and attempts too: true on average, and the widest that they can spread.

    Args:
        prompt_tokens: of the query with all that is sent along.
        running: requests that run on the option's server, this one included, at least 1; votes come on top.
        domain: of the query.
        routing_j: what the decision itself drew.

    Raises:
        UserError: a load below 1, or tokens or joules below 0.
    """
    if not (running >= 1 and prompt_tokens >= 0 and routing_j >= 0):
        raise UserError(
            f"running {running}, prompt_tokens {prompt_tokens}, routing_j {routing_j}: the load is at least 1 (the "
            "request itself), the others at least 0."
        )
    tokens = option.lengths.tokens(prompt_tokens, domain)
    if option.most_output_tokens is not None:
        tokens = np.minimum(tokens, option.most_output_tokens)
    votes, curve = option.votes, option.curve
    load = running + (votes - 1 if option.at_once else 0)
    longest, mean_tokens = float(tokens[-1]), float(tokens.mean())
    shared, error = None, 0.0
    if isinstance(curve, Curve):
        at = _at(curve, load)
        prompt = at.prompt * prompt_tokens + at.square * prompt_tokens**2
        answer = at.request + tokens * (at.token + at.attention * (prompt_tokens + tokens / 2))
        once = votes * answer + (1 if option.prompt_read_once else votes) * prompt
        shared = votes * (at.request_shared + mean_tokens * at.token_shared)
        error = (curve.held_out.inside.median or 0.0) * _MEDIAN_TO_SD
    elif isinstance(curve, AnswerJoules):
        once = votes * (curve.request_j + curve.prompt_token_j * prompt_tokens + curve.output_token_j * tokens)
        error = (curve.error or 0.0) * _MEDIAN_TO_SD
    else:
        once = votes * tokens * curve.at(load)
    warnings = list(curve.warnings(prompt_tokens, float(tokens[ATOMS // 2]), load))
    if isinstance(curve, Curve) and longest > curve.region.output_tokens[1]:
        far = [told for told in curve.warnings(prompt_tokens, longest, load) if "output tokens" in told]
        warnings += [f"the longest answers: {told}" for told in far if told not in warnings]
    times, chances = _times(error, option.retry_chance, option.retries)
    values = routing_j + once[:, None] * times
    weights = np.tile(chances / ATOMS, ATOMS)
    return EnergyEstimate(
        _quantiles(values.ravel(), weights),
        Quantiles(mean_tokens, float(tokens[ATOMS // 2 - 1]), float(tokens[_P95])),
        shared,
        _SOURCES[type(curve)],
        tuple(warnings),
    )


def coefficients(option: OptionEnergy, running: float) -> tuple[float, float, float, float, float]:
    """Expected joules at a load as ``fixed + token o + prompt p + square p^2 + attention (o p + o^2 / 2)``.

    Of ``p`` prompt tokens and ``o`` output tokens of each vote; votes and retries are in them, routing is not.
    """
    votes, curve = option.votes, option.curve
    load = running + (votes - 1 if option.at_once else 0)
    if isinstance(curve, Curve):
        found, error = _at(curve, load), (curve.held_out.inside.median or 0.0) * _MEDIAN_TO_SD
        parts = found.request, found.token, found.prompt, found.square, found.attention
    elif isinstance(curve, AnswerJoules):
        parts = curve.request_j, curve.output_token_j, curve.prompt_token_j, 0.0, 0.0
        error = (curve.error or 0.0) * _MEDIAN_TO_SD
    else:
        parts, error = (0.0, curve.at(load), 0.0, 0.0, 0.0), 0.0
    times, chances = _times(error, option.retry_chance, option.retries)
    attempts = float(times @ chances)
    once = isinstance(curve, Curve) and option.prompt_read_once
    each, reads = attempts * votes, attempts * (1 if once else votes)
    return each * parts[0], each * parts[1], reads * parts[2], reads * parts[3], each * parts[4]


def lost_prefix_j(curve: Curve, cached_tokens: float, running: float = 1.0) -> float:
    """What another model draws to read the tokens that the last one has in its prefix cache."""
    at = _at(curve, running)
    return at.prompt * cached_tokens + at.square * cached_tokens**2


def read_published(path: os.PathLike[str] | str, model: str, device: str, task: str | None = None) -> PublishedCurve:
    """A curve out of a CSV table of the ML.ENERGY leaderboard's form.

    Args:
        model: its ``model_id``.
        device: its ``gpu_model``; of several numbers of GPUs the least is taken.
        task: its ``task``; needed where the table has the model with several.

    Raises:
        UserError: the file cannot be read, lacks a column, or has no such rows; with what it has.
    """
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a table of published joules: {error}.") from error
    try:
        mine = [r for r in rows if r["model_id"] == model and r["gpu_model"] == device]
        if not mine:
            known = sorted({r["gpu_model"] for r in rows if r["model_id"] == model})
            has = f"it has that model on {', '.join(known)}" if known else "it does not have that model"
            raise UserError(f"{path}: no joules of {model} on {device}; {has}.")
        tasks = sorted({r["task"] for r in mine})
        if (task is None and len(tasks) > 1) or (task is not None and task not in tasks):
            raise UserError(f"{path}: name a task that {model} was measured with: {', '.join(tasks)}.")
        mine = [r for r in mine if r["task"] == (task or tasks[0])]
        least = min(int(r["num_gpus"]) for r in mine)
        points: dict[float, float] = {}
        for r in mine:
            load, token_j = float(r["avg_batch_size"]), float(r["energy_per_token_joules"])
            if int(r["num_gpus"]) == least and load >= 1 and token_j > 0:
                _require_sane(path, load, 1e6, "avg_batch_size")
                _require_sane(path, token_j, 1e9, "energy_per_token_joules")
                points[load] = min(token_j, points.get(load, math.inf))
        outputs = [_require_sane(path, float(r["avg_output_len"]), 1e9, "avg_output_len") for r in mine]
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path}: a column or a number that such a table has is missing ({error}).") from error
    if not points:
        raise UserError(f"{path}: no row of {model} on {device} has a load of at least 1 and joules above 0.")
    loads = tuple(sorted(points))
    what = f"{least} x {device}" if least > 1 else device
    token_js = tuple(points[b] for b in loads)
    return PublishedCurve(model, what, path.name, loads, token_js, (min(outputs), max(outputs)))


def _require_sane(path: Path, value: float, most: float, column: str) -> float:
    if not (value == 0 or 1e-9 <= value <= most):
        raise UserError(f"{path}: {column} {value:g} cannot be (0, or from 1e-09 to {most:g}); correct it.")
    return value


@dataclass(frozen=True, slots=True)
class _At:
    """A curve at one load: ``request + prompt p + square p^2 + o (token + attention (p + o/2))``, correction included.

    ``request_shared`` and ``token_shared`` are the parts of ``request`` and ``token`` that the load divides, without
    the correction.
    """

    request: float
    token: float
    prompt: float
    square: float
    attention: float
    request_shared: float
    token_shared: float


@lru_cache(maxsize=256)
def _at_load(curve: _ByIdentity, running: float) -> _At:
    c = {name: found.value for name, found in curve.curve.coefficients.items()}
    factor = float(curve.curve.correction(np.array([running]))[0])
    request_shared = c.get("request_shared", 0.0) / running
    token_shared = c.get("token_shared", 0.0) / running + c.get("token_root_shared", 0.0) / math.sqrt(running)
    return _At(
        factor * (c.get("request", 0.0) + request_shared),
        factor * (c.get("token", 0.0) + token_shared),
        factor * c.get("prompt_token", 0.0),
        factor * c.get("prompt_token_squared", 0.0),
        factor * c.get("attention", 0.0),
        request_shared,
        token_shared,
    )


class _ByIdentity:
    """A curve as a key: it holds mappings, which have no hash."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.curve is self.curve

    def __hash__(self) -> int:
        return id(self.curve)


def _at(curve: Curve, running: float) -> _At:
    return _at_load(_ByIdentity(curve), running)


@lru_cache(maxsize=256)
def _times(error: float, retry_chance: float, retries: int) -> tuple[Floats, Floats]:
    """By how much one attempt's joules are multiplied, for the number of attempts and the curve's error; its chances.

    Args:
        error: relative standard deviation.
    """
    count = np.arange(1.0, retries + 2)
    chances = np.power(retry_chance, count - 1) * (1.0 - retry_chance)
    chances[-1] = retry_chance**retries
    if error == 0.0:
        return count, chances
    factors = np.maximum(1.0 + error * _STEPS, 0.0)
    return np.outer(count, factors).ravel(), np.outer(chances, _STEP_CHANCES).ravel()


def _quantiles(values: Floats, weights: Floats) -> Quantiles:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    p50, p95 = values[order][np.minimum(np.searchsorted(reached, (0.5 - 1e-12, 0.95 - 1e-12)), len(values) - 1)]
    return Quantiles(float(values @ weights), float(p50), float(p95))

"""Simulated servers: requests that run at the same time slow each other down, and share joules, as was learnt.

A request's seconds and joules at a load of ``B`` running samples are those of ``latency.py`` and of its operating
curve. While ``B`` stays, it gets through ``1 / seconds(B)`` of itself a second, and draws that part of ``joules(B)``
(processor sharing), so at a load that never changes both are exactly what was learnt.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from joulewise.energy.carbon import Grid
from joulewise.routing.energy import OptionEnergy, coefficients
from joulewise.routing.latency import FACTORS, Latency
from joulewise.routing.lengths import ATOMS
from joulewise.routing.policy import J_PER_KWH

_CARBON_STEP_S = 300.0
_LEAST_S = 1e-9
"""A request takes at least so long, whatever was learnt."""

Carbon = Callable[[float], float]
"""Seconds from the start to grams of carbon dioxide a kilowatt-hour."""


@dataclass(frozen=True, slots=True)
class Luck:
    """What is drawn for a request, whoever answers it: from 0 to below 1 each."""

    length: float
    first: float
    total: float
    right: float


@dataclass(slots=True)
class Job:
    """A request on a server; ``ended_s`` is NaN until it has ended, ``first_token_s`` where that is not known."""

    number: int
    option: str
    arrived_s: float
    samples: float
    seconds: tuple[float, float]
    first: tuple[float, float] | None
    joules: Callable[[float], float]
    done: float = 0.0
    begun: float = 0.0
    began_s: float = math.nan
    first_token_s: float = math.nan
    ended_s: float = math.nan
    energy_j: float = 0.0
    carbon_g: float = 0.0


def job_of(
    number: int,
    option: str,
    arrived_s: float,
    prompt_tokens: float,
    domain: str | None,
    energy: OptionEnergy,
    latency: Latency,
    luck: Luck,
) -> Job:
    """A request that an option answers, its length and its spread as luck has it."""
    atoms = energy.lengths.tokens(prompt_tokens, domain)
    votes, at_once = energy.votes, energy.at_once and energy.votes > 1
    most = math.inf if energy.most_output_tokens is None else energy.most_output_tokens
    output = min(float(atoms[int(luck.length * ATOMS)]), most)
    longest = output
    if at_once:  # the whole ends with the longest of the samples
        longest = min(float(atoms[min(ATOMS - 1, int(luck.length ** (1.0 / votes) * ATOMS))]), most)
    start, prompt_token, other_prompt = latency.start
    shared, own, context = latency.token
    alone, other = start + prompt_tokens * (prompt_token - other_prompt), prompt_tokens * other_prompt
    further = max(longest - 1.0, 0.0)
    factor = latency.total_factors[int(luck.total * FACTORS)] * (1.0 if at_once else votes)
    each = own + context * (prompt_tokens + further / 2)
    first = None
    if latency.first_factors is not None:
        off = latency.first_factors[int(luck.first * FACTORS)]
        first = off * alone, off * other

    def joules(load: float) -> float:
        running = max(1.0, load - (votes - 1.0 if energy.at_once else 0.0))
        fixed, token, prompt, square, attention = coefficients(energy, running)
        read = prompt_tokens * (prompt + square * prompt_tokens)
        return fixed + token * output + read + attention * output * (prompt_tokens + output / 2)

    seconds = factor * (alone + shared * further), factor * (other + each * further)
    return Job(number, option, arrived_s, votes if at_once else 1.0, seconds, first, joules)


class Server:
    """Runs up to ``slots`` requests at a time; the rest wait in their order.

    Args:
        slots: at least 1.
        carbon: of the grid; None where not known.
    """

    def __init__(self, slots: int, carbon: Carbon | None = None) -> None:
        self.slots, self.carbon = slots, carbon
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.now_s = self.busy_s = self.energy_j = 0.0
        self.load = 0.0
        self.ends_s = math.inf
        self._rates: list[tuple[float, float, float]] = []

    def take(self, job: Job) -> None:
        """A request arrives now."""
        self.waiting.append(job)
        if len(self.running) < self.slots:
            self._fill()

    def advance(self, to_s: float) -> None:
        """Let time pass, up to the next end at most."""
        passed = to_s - self.now_s
        if passed > 0 and self.running:
            self.busy_s += passed
            grams = None if self.carbon is None else self.carbon((self.now_s + to_s) / 2) / J_PER_KWH
            power = 0.0
            for job, (rate, first_rate, watts) in zip(self.running, self._rates, strict=True):
                job.done += rate * passed
                if job.begun < 1.0 and first_rate:
                    if job.begun + first_rate * passed >= 1.0:
                        job.first_token_s = self.now_s + (1.0 - job.begun) / first_rate
                    job.begun += first_rate * passed
                job.energy_j += watts * passed
                job.carbon_g += 0.0 if grams is None else watts * passed * grams
                power += watts
            self.energy_j += power * passed
        self.now_s = to_s

    def end_one(self) -> Job:
        """Take out the request that ends now; the next one begins."""
        job = max(self.running, key=lambda one: one.done)
        self.running.remove(job)
        job.ended_s = self.now_s
        if job.first is not None and math.isnan(job.first_token_s):
            job.first_token_s = self.now_s  # never later than the whole
        self._fill()
        return job

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            job = self.waiting.popleft()
            job.began_s = self.now_s
            self.running.append(job)
        load = self.load = sum(job.samples for job in self.running)
        self._rates = []
        self.ends_s = math.inf
        for job in self.running:
            rate = 1.0 / max(_LEAST_S, job.seconds[0] + job.seconds[1] * load)
            first = 0.0 if job.first is None else 1.0 / max(_LEAST_S, job.first[0] + job.first[1] * load)
            self._rates.append((rate, first, job.joules(load) * rate))
            self.ends_s = min(self.ends_s, self.now_s + max(0.0, 1.0 - job.done) / rate)


def carbon_over_time(grid: Grid, start: datetime) -> Carbon:
    """A grid's intensity by seconds from a moment, which knows its time zone; in steps of five minutes."""
    found: dict[int, float] = {}

    def at(seconds: float) -> float:
        step = int(seconds // _CARBON_STEP_S)
        if step not in found:
            begin = start + timedelta(seconds=step * _CARBON_STEP_S)
            found[step] = grid(begin, begin + timedelta(seconds=_CARBON_STEP_S)).g_per_kwh
        return found[step]

    return at

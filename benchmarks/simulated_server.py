"""A server that batches requests, in simulated time: what every step costs, and who caused it, is known exactly.

As vLLM does it: each step makes one token for every request whose prompt is read, and reads up to ``chunk_tokens`` of
the prompts that wait, first come first served. Closed loop: so many requests are in flight always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from joulewise.analysis.intervals import Floats
from joulewise.analysis.request_shares import BatchRequest
from joulewise.energy.attribution import TracePoint

Lengths = Callable[[int], tuple[int, int]]
"""Prompt and output tokens of a request, by its number from 0 on."""


@dataclass(frozen=True)
class Costs:
    """Joules above idle power, and seconds, of a step's parts; about those of an 8B shape on an H200.

    Args:
        weights_j: each step, whatever it does.
        token_j: each output token.
        context_j: each output token, by token of its context.
        prompt_j, prompt_squared_j: a prompt of p tokens costs ``prompt_j p + prompt_squared_j p^2``.
        step_s, token_s, prompt_s: seconds a step, and more of them by output token and by prompt token.
        idle_w: always.
        chunk_tokens: of prompts, at most, a step.
    """

    weights_j: float = 1.7
    token_j: float = 0.02
    context_j: float = 2e-5
    prompt_j: float = 0.0155
    prompt_squared_j: float = 3e-7
    step_s: float = 0.006
    token_s: float = 2e-5
    prompt_s: float = 3e-5
    idle_w: float = 75.0
    chunk_tokens: int = 1024


@dataclass
class _Running:
    number: int
    start_s: float
    prompt: int
    output: int
    read: int = 0
    made: int = 0
    first_s: float = 0.0
    own_j: float = 0.0
    shared_j: float = 0.0
    chunks: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Ran:
    """What happened.

    Args:
        requests: all, in the order in which they began; their names are numbers.
        caused_j: by name: its own work, and an equal part of each step's weights with all that were in the step.
        moments_s, flowed_j: the end of each step, and joules up to then, idle power included.
        end_s: of the load.
    """

    requests: tuple[BatchRequest, ...]
    caused_j: dict[str, float]
    moments_s: Floats
    flowed_j: Floats
    end_s: float

    def energy_j(self, start_s: float, end_s: float) -> float:
        """Drawn between two moments."""
        at = np.interp([start_s, end_s], self.moments_s, self.flowed_j)
        return float(at[1] - at[0])

    @property
    def trace(self) -> tuple[TracePoint, ...]:
        """The same as a trace of no error."""
        return tuple(map(TracePoint, self.moments_s.tolist(), self.flowed_j.tolist()))


def serve(costs: Costs, lengths: Lengths, concurrency: int, seconds: float) -> Ran:
    """Serve a closed loop to its last answer.

    Args:
        lengths: of each request.
        concurrency: requests in flight.
        seconds: for so long requests are sent.
    """
    now_s, flowed_j, number = 0.0, 0.0, 0
    running: list[_Running] = []
    ended: list[tuple[_Running, float]] = []
    moments, joules = [0.0], [0.0]
    while True:
        while len(running) < concurrency and now_s < seconds:
            running.append(_Running(number, now_s, *lengths(number)))
            number += 1
        if not running:
            break
        room, here = costs.chunk_tokens, []
        step_j, step_s = costs.weights_j, costs.step_s
        for r in running:
            own_j = 0.0
            if r.read < r.prompt:
                part = min(room, r.prompt - r.read)
                if not part:
                    continue
                own_j = costs.prompt_j * part + costs.prompt_squared_j * ((r.read + part) ** 2 - r.read**2)
                room, r.read, step_s = room - part, r.read + part, step_s + costs.prompt_s * part
                if r.read < r.prompt:
                    r.own_j, step_j = r.own_j + own_j, step_j + own_j
                    here.append(r)
                    continue
            r.made += 1
            own_j += costs.token_j + costs.context_j * (r.prompt + r.made)
            r.own_j, step_j, step_s = r.own_j + own_j, step_j + own_j, step_s + costs.token_s
            here.append(r)
        now_s += step_s
        flowed_j += step_j + costs.idle_w * step_s
        moments.append(now_s)
        joules.append(flowed_j)
        for r in here:
            r.shared_j += costs.weights_j / len(here)
            if r.made:
                r.first_s = r.first_s or now_s
                r.chunks.append((now_s, float(r.made)))
        ended += [(r, now_s) for r in running if r.made >= r.output]
        running = [r for r in running if r.made < r.output]
    ended.sort(key=lambda one: one[0].number)
    return Ran(
        tuple(
            BatchRequest(str(r.number), r.start_s, end_s, r.prompt, r.output, r.first_s, tuple(r.chunks))
            for r, end_s in ended
        ),
        {str(r.number): r.own_j + r.shared_j for r, _ in ended},
        np.array(moments),
        np.array(joules),
        now_s,
    )

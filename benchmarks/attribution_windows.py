"""What ``attribution.py`` measures: which windows, and what one holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulated_server import Lengths

from joulewise.analysis.request_shares import BatchRequest
from joulewise.energy.reading import ComponentEnergy
from joulewise.errors import EnvironmentFault

PERCENTS = (0, 25, 50, 75, 100)
KINDS = ("long output", "long prompt")


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Args:
        long_prompt, long_output: prompt and output tokens of a request of each kind.
        concurrency: of the mixes.
        repeats: windows of each mix.
        seconds, warm_s: of each of these windows, and of the load before it.
        point_s: for so long a point of the curve sends requests; it ends with its last answer.
        idle_s: at rest.
    """

    long_prompt: tuple[int, int] = (3000, 60)
    long_output: tuple[int, int] = (100, 400)
    concurrency: int = 16
    repeats: int = 4
    seconds: float = 20.0
    warm_s: float = 5.0
    point_s: float = 4.0
    idle_s: float = 10.0

    @property
    def points(self) -> list[tuple[int, int, int]]:
        """Prompt tokens, output tokens and load of the curve's points: all lengths at the mixes' load, the corners at
        others.
        """
        prompts, outputs = zip(self.long_prompt, self.long_output, strict=True)
        axes = [(min(v), round(math.sqrt(v[0] * v[1])), max(v)) for v in (prompts, outputs)]
        others = sorted({1, max(1, self.concurrency // 2), 2 * self.concurrency} - {self.concurrency})
        corners = [(p, o, b) for b in others for p in axes[0][::2] for o in axes[1][::2]]
        return [(p, o, self.concurrency) for p in axes[0] for o in axes[1]] + corners

    def kind(self, percent: int, number: int) -> str:
        """Of a request in a mix: the kinds are spread evenly over the numbers."""
        return KINDS[(number + 1) * percent // 100 - number * percent // 100]

    def mixed(self, percent: int) -> Lengths:
        """Lengths in a mix. Each stream's first output is cut, so that the streams do not go in step."""

        def lengths(number: int) -> tuple[int, int]:
            prompt, output = self.long_prompt if self.kind(percent, number) == KINDS[1] else self.long_output
            return prompt, max(1, output * min(number + 1, self.concurrency) // self.concurrency)

        return lengths


@dataclass(frozen=True)
class Taken:
    """One window.

    Args:
        what: ``point`` with prompt tokens, output tokens and load, or ``mix`` with percent and repeat.
        start_s, end_s: its ends.
        energy: its joules.
        requests: all that ran in it, by number.
    """

    what: tuple[str | int, ...]
    start_s: float
    end_s: float
    energy: ComponentEnergy
    requests: tuple[BatchRequest, ...]

    @property
    def joules(self) -> float:
        """Known ones."""
        if self.energy.energy_j is None:
            raise EnvironmentFault(f"the joules of a window are unknown ({self.energy.note}); see `joulewise doctor`")
        return self.energy.energy_j


def same(prompt_tokens: int, output_tokens: int) -> Lengths:
    """Of requests that are all alike."""
    return lambda _: (prompt_tokens, output_tokens)

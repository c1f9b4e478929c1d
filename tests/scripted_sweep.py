"""An engine for sweeps whose joules follow a formula, and the counter that tells them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from joulewise.analysis.curves import TERMS
from joulewise.decoding import Decoding
from joulewise.energy.reading import Reading
from joulewise.energy.source import SourceSpec
from joulewise.engines.engine import EngineInfo, Generation
from planted_curve import PLANTED


class Counter:
    """A GPU's counter that tells the joules that were added to it. As in ``SteadySource``, without noise."""

    joules = 0.0

    def __init__(self) -> None:
        self.spec = SourceSpec(
            source_id="fake:gpu",
            component="gpu",
            device="a made-up device",
            provenance="measured",
            method="made up for tests",
            update_period_s=0.0,
            max_power_w=1e9,
            gain=0.0,
        )

    def read(self) -> Reading:
        return Reading(time.monotonic(), 0.0, Counter.joules, None)

    def sample(self) -> Reading:
        return self.read()

    def close(self) -> None:
        pass


class ScriptedSweep:
    """Costs what ``PLANTED`` says.

    Args:
        before: called with the number of each batch, from 0, as it begins.
        notes: by load, what its generations have to say.
    """

    def __init__(
        self,
        spec: object = None,
        before: Callable[[int], None] = lambda _: None,
        notes: Mapping[int, str] | None = None,
    ) -> None:
        self.before = before
        self.notes = notes or {}
        self.batches = 0
        self.asked: list[tuple[int, int, int]] = []
        self.closed = False

    def load(self, decodings: Sequence[Decoding]) -> EngineInfo:
        return EngineInfo("native", "default", "Scripted", 1, "float32", ("cpu",), 8192)

    def given(self, capacity: int) -> ScriptedSweep:
        return self

    def batch(self, running: int, prompt_tokens: int, output_tokens: int) -> Callable[[], tuple[Generation, ...]]:
        self.asked.append((prompt_tokens, output_tokens, running))

        def run() -> tuple[Generation, ...]:
            self.before(self.batches)
            self.batches += 1
            start_s = time.monotonic()
            Counter.joules += running * planted_j(prompt_tokens, output_tokens, running)
            end_s, note = time.monotonic(), self.notes.get(running)
            made = Generation("", (0,) * output_tokens, prompt_tokens, "length", start_s, end_s, note=note)
            return (made,) * running

        return run

    def close(self) -> None:
        self.closed = True


def planted_j(prompt_tokens: float, output_tokens: float, running: float) -> float:
    """Joules of one request."""
    import numpy as np

    at = [np.array([float(value)]) for value in (prompt_tokens, output_tokens, running)]
    return float(sum(value * TERMS[name].column(*at)[0] for name, value in PLANTED.items()))

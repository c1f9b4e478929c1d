"""Sources whose every figure is known: a steady power, read on the real clock."""

from __future__ import annotations

import time

from joulewise.energy.reading import ComponentName, Reading
from joulewise.energy.source import SourceSpec


class SteadySource:
    """A continuous counter of a constant power."""

    def __init__(self, component: ComponentName = "gpu", power_w: float = 100.0, source_id: str | None = None) -> None:
        self.power_w = power_w
        self.spec = SourceSpec(
            source_id=source_id or f"fake:{component}",
            component=component,
            device="a made-up device",
            provenance="measured",
            method="made up for tests",
            update_period_s=0.0,
            max_power_w=power_w,
            gain=0.0,
        )

    def read(self) -> Reading:
        now_s = time.monotonic()
        return Reading(now_s, 0.0, now_s * self.power_w, self.power_w)

    def sample(self) -> Reading:
        return self.read()

    def close(self) -> None:
        pass

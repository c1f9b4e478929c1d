"""Stopwatch: which part of a generation the time went to."""

from __future__ import annotations

import time
from collections import defaultdict

import torch


class Stopwatch:
    """Cuts the time since its making into phases without gap or overlap.

    On a GPU the cuts are events in its stream, so that no cut waits; there the phases are the device's time.

    Args:
        device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._cuts: list[tuple[str, float | torch.cuda.Event]] = []
        self.mark("start")

    def mark(self, phase: str) -> None:
        """What was done since the last mark belongs to ``phase``."""
        if not self._cuda:
            self._cuts.append((phase, time.perf_counter()))
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._cuts.append((phase, event))

    def seconds(self, within_s: float = 0.0) -> dict[str, float]:
        """Seconds by phase, ``host`` among them. On a GPU: waits for the last mark.

        Args:
            within_s: how long everything took, if that was longer; what no phase has is the host's.
        """
        totals: dict[str, float] = defaultdict(float)
        if self._cuda:
            torch.cuda.synchronize()
        for (_, before), (phase, now) in zip(self._cuts, self._cuts[1:], strict=False):
            if isinstance(before, float) and isinstance(now, float):
                totals[phase] += now - before
            elif not isinstance(before, float) and not isinstance(now, float):
                totals[phase] += before.elapsed_time(now) / 1000
        totals["host"] += max(within_s - sum(totals.values()), 0.0)
        return dict(totals)

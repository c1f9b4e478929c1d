"""The integral of power readings, for devices that have no energy counter."""

from __future__ import annotations

MAX_GAP_S = 2.0
"""Nobody knows what a device drew in a longer gap between two readings of a sampler that takes 20 a second."""


class PowerIntegral:
    """Joules since the first reading, by the trapezoidal rule.

    After a gap of more than ``max_gap_s`` the integral begins anew at 0. A meter takes that for a counter's reset, so
    that a window over the gap is unknown and not a guess.

    Args:
        max_gap_s: the longest gap between two readings that is bridged, in seconds.
    """

    def __init__(self, max_gap_s: float = MAX_GAP_S) -> None:
        self._max_gap_s = max_gap_s
        self._last: tuple[float, float] | None = None
        self._energy_j = 0.0

    def add(self, time_s: float, power_w: float) -> float:
        """Take a reading of ``power_w`` at ``time_s`` (monotonic, in seconds); the joules so far.

        A reading older than the last one changes nothing.
        """
        if self._last is None:
            self._last = (time_s, power_w)
            return self._energy_j
        gap_s = time_s - self._last[0]
        if gap_s > self._max_gap_s:
            self._energy_j = 0.0
        elif gap_s > 0:
            self._energy_j += gap_s * (power_w + self._last[1]) / 2
        if gap_s > 0:
            self._last = (time_s, power_w)
        return self._energy_j

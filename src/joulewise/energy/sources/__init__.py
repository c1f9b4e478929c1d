"""Which sources are there? One file and one line each; what one cannot open it tells, and the others go on."""

from __future__ import annotations

from collections.abc import Callable

from joulewise.energy.source import Discovery
from joulewise.energy.sources import cpu_model, dram_model, nvml, prometheus, rapl, zeus

SOURCES: dict[str, Callable[[], Discovery]] = {
    "nvml": nvml.discover,
    "prometheus": prometheus.discover,
    "zeus": zeus.discover,
    "rapl": rapl.discover,
    "cpu_model": cpu_model.discover,
    "dram_model": dram_model.discover,
}
"""The registry. A recording (``replay``) is not found but given: ``Meter(replay(load_recording(path)))``."""

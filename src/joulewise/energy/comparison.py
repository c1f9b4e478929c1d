"""What other ways of measuring would have said of a window. Shown beside the figures, never part of one.

Two are told, by their published rules applied to the readings at hand: CodeCarbon's, with which the first papers on
energy per token were made, and polled power x time, which others use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from joulewise.energy.meter import TimelineRow, Window
from joulewise.energy.reading import ComponentName
from joulewise.energy.source import SourceSpec

CODECARBON, POLLED = "CodeCarbon 2", "polled power x time"

CODECARBON_CPU_W = 0.5 * 85.0
"""CodeCarbon 2.8: half of the rated power at all times, 85 W where it does not know the processor."""

CODECARBON_DRAM_W_PER_GB = 3 / 8
"""CodeCarbon 2.8: 3 W for every 8 GB (of 2^30 bytes) of the machine."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one other way would have said of one component of a window.

    Args:
        name: the other way.
        component: the component.
        energy_j: its joules; None where that way says nothing here.
        method: how they come about, or why there are none.
    """

    name: str
    component: ComponentName
    energy_j: float | None
    method: str


def compare(
    window: Window, specs: Sequence[SourceSpec], rows: Iterable[TimelineRow], memory_bytes: int
) -> tuple[Comparison, ...]:
    """Both other ways, for a closed window.

    Args:
        window: the window.
        specs: the sources that its meter reads.
        rows: the meter's timeline; rows outside of the window are passed over.
        memory_bytes: the machine's memory.

    Raises:
        JoulewiseError: the window is open.
    """
    duration_s = window.duration_s
    gpus = [s for s in specs if s.component == "gpu" and s.provenance == "measured"]
    packages = [s for s in specs if s.component == "cpu" and s.source_id.startswith("rapl:")]
    found = [_counted(window, gpus, "gpu")] if gpus else []
    if packages:
        found.append(_counted(window, packages, "cpu"))
    else:
        method = f"{CODECARBON_CPU_W:g} W x time; where it knows the processor, half of that one's rated power"
        found.append(Comparison(CODECARBON, "cpu", CODECARBON_CPU_W * duration_s, method))
    dram_w = CODECARBON_DRAM_W_PER_GB * memory_bytes / 2**30
    found.append(Comparison(CODECARBON, "dram", dram_w * duration_s, f"{dram_w:.3g} W x time (3 W per 8 GB)"))
    if gpus:
        found.append(_polled(window, gpus, rows))
    return tuple(found)


def _counted(window: Window, specs: Sequence[SourceSpec], component: ComponentName) -> Comparison:
    """The plain difference of the counters, without a correction of its ends."""
    differences = []
    for spec in specs:
        start_j, end_j = (r[spec.source_id].energy_j for r in (window.readings_start, window.readings_end))
        if spec.update_period_s is None or start_j is None or end_j is None or end_j < start_j:
            return Comparison(CODECARBON, component, None, f"{spec.device}: no counter that could be read")
        differences.append(end_j - start_j)
    return Comparison(CODECARBON, component, math.fsum(differences), "plain difference of the energy counter")


def _polled(window: Window, specs: Sequence[SourceSpec], rows: Iterable[TimelineRow]) -> Comparison:
    """The mean of the power readings times the duration."""
    powers_w: dict[str, list[float]] = {spec.source_id: [] for spec in specs}
    for row in rows:
        inside = window.start_s <= row.time_s <= window.end_s
        if inside and row.power_w is not None and row.source_id in powers_w:
            powers_w[row.source_id].append(row.power_w)
    for spec in specs:
        if spec.update_period_s is None:
            return Comparison(POLLED, "gpu", None, f"{spec.device}: the figure itself is integrated power")
        if not powers_w[spec.source_id]:
            return Comparison(POLLED, "gpu", None, f"{spec.device}: no power reading in the window")
    mean_w = math.fsum(math.fsum(seen) / len(seen) for seen in powers_w.values())
    readings = min(len(seen) for seen in powers_w.values())
    return Comparison(POLLED, "gpu", mean_w * window.duration_s, f"mean of {readings} power readings x time")

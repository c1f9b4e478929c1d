"""Energy: joules with their uncertainty and their provenance.

Everything here is SI. Uncertainties are *standard* uncertainties (one sigma) unless the name says otherwise; an
interval is 95 %. Two kinds are kept apart (design, section 3):

- *independent*: the two edges of a window and the sampling between them; added in quadrature. Adjacent windows share an
  edge, so their sum carries the outer edges only.
- *common*: the sensor's gain and its offset x seconds; the same in every window of a source, so added linearly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

ComponentName = Literal["gpu", "cpu", "dram", "total"]
Provenance = Literal["measured", "modelled", "unknown"]

Z95 = 1.959963984540054
"""Half-width of a 95 % interval in standard uncertainties, normal distribution."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one source said at one moment.

    Args:
        time_s: monotonic time (``time.monotonic``) at the middle of the read, in seconds.
        read_s: how long the read took, in seconds.
        energy_j: the cumulative counter, unwrapped, in joules; None when it could not be read.
        power_w: instantaneous power at that moment, in watts; None where the source has none.
        fault: why ``energy_j`` is None or cannot be trusted, in words; None when all is well.
    """

    time_s: float
    read_s: float
    energy_j: float | None
    power_w: float | None = None
    fault: str | None = None


class DeviceState(NamedTuple):
    """What else a device said at one moment; None for what it does not tell.

    Args:
        utilisation: share of the time, of late, in which it was at work, 0 to 1.
        memory_utilisation: share of the time in which its memory was read or written, 0 to 1.
        clock_hz: clock of its processors (an NVIDIA card's SMs).
        memory_clock_hz: clock of its memory.
        temperature_c: in degrees Celsius.
        throttled_by: what holds its clock down, in words with commas between; empty if nothing does.
    """

    utilisation: float | None = None
    memory_utilisation: float | None = None
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    throttled_by: str | None = None


@dataclass(frozen=True, slots=True)
class ComponentEnergy:
    """The joules of one component (all its devices together) over one window.

    Args:
        component: ``gpu``, ``cpu``, ``dram`` or ``total``.
        provenance: ``measured`` by a sensor, ``modelled`` from time or utilisation, or ``unknown``.
        energy_j: joules, or None when unknown. Never 0 for "not known".
        start_edge_j: standard uncertainty that the window's start adds, in joules.
        end_edge_j: the same for its end.
        sampling_j: standard uncertainty of what lies between, in joules.
        gain_j: standard uncertainty from the sensor's gain, in joules (common to all windows of the source).
        offset_j: standard uncertainty from the sensor's offset x seconds, in joules (common).
        bound_j: a guaranteed interval of the counter's own figure ``(lower, upper)`` in joules, sensor gain and offset
            apart; None when none can be given.
        source_ids: the sources that were summed.
        note: why the figure is unknown, wide or special, in words.
    """

    component: ComponentName
    provenance: Provenance
    energy_j: float | None
    start_edge_j: float = 0.0
    end_edge_j: float = 0.0
    sampling_j: float = 0.0
    gain_j: float = 0.0
    offset_j: float = 0.0
    bound_j: tuple[float, float] | None = None
    source_ids: tuple[str, ...] = ()
    note: str | None = None

    @property
    def independent_j(self) -> float:
        """Standard uncertainty of edges and sampling, in joules (quadrature)."""
        return math.sqrt(self.start_edge_j**2 + self.end_edge_j**2 + self.sampling_j**2)

    @property
    def common_j(self) -> float:
        """Standard uncertainty of gain and offset, in joules (linear)."""
        return self.gain_j + self.offset_j

    @property
    def interval_j(self) -> tuple[float, float] | None:
        """95 % interval ``(lower_j, upper_j)``, cut at 0 from below; None when the energy is unknown."""
        if self.energy_j is None:
            return None
        half = Z95 * math.hypot(self.independent_j, self.common_j)
        return max(0.0, self.energy_j - half), self.energy_j + half

    @property
    def lower_j(self) -> float | None:
        """Lower end of the 95 % interval, in joules."""
        return None if self.interval_j is None else self.interval_j[0]

    @property
    def upper_j(self) -> float | None:
        """Upper end of the 95 % interval, in joules."""
        return None if self.interval_j is None else self.interval_j[1]


def unknown(component: ComponentName, note: str, source_ids: Iterable[str] = ()) -> ComponentEnergy:
    """A component that is there but whose joules are not known, with the reason."""
    return ComponentEnergy(component, "unknown", None, source_ids=tuple(source_ids), note=note)


def sum_components(component: ComponentName, parts: Sequence[ComponentEnergy]) -> ComponentEnergy:
    """The sum of several devices or components over the *same* window.

    Args:
        component: what the sum is to be called.
        parts: the summands; their independent parts add in quadrature, their common parts linearly (the worst case:
            sensors of one kind may err together).

    Returns:
        ``unknown`` if any part is unknown (a partial sum is not a total) or if there are no parts; ``modelled`` if any
        part is modelled; else ``measured``.
    """
    ids = tuple(i for p in parts for i in p.source_ids)
    if not parts:
        return unknown(component, "nothing measures it here")
    missing = [p for p in parts if p.energy_j is None]
    if missing:
        notes = "; ".join(f"{p.component}: {p.note}" for p in missing)
        return unknown(component, notes, ids)
    bounds = [p.bound_j for p in parts]
    known = [b for b in bounds if b is not None]
    return ComponentEnergy(
        component,
        "modelled" if any(p.provenance == "modelled" for p in parts) else "measured",
        math.fsum(p.energy_j for p in parts if p.energy_j is not None),
        start_edge_j=math.hypot(*(p.start_edge_j for p in parts)),
        end_edge_j=math.hypot(*(p.end_edge_j for p in parts)),
        sampling_j=math.hypot(*(p.sampling_j for p in parts)),
        gain_j=math.fsum(p.gain_j for p in parts),
        offset_j=math.fsum(p.offset_j for p in parts),
        bound_j=(math.fsum(b[0] for b in known), math.fsum(b[1] for b in known)) if len(known) == len(bounds) else None,
        source_ids=ids,
        note="; ".join(dict.fromkeys(p.note for p in parts if p.note)) or None,
    )


@dataclass(frozen=True, slots=True)
class Energy:
    """The joules and seconds of one window, or of a sum of windows.

    Args:
        duration_s: seconds inside the window(s).
        components: one entry per component that this machine has (no GPU: no ``gpu`` entry); ``unknown`` entries stand
            for components that are there but cannot be read.
        start_s: monotonic start of the window; None for a sum of windows that are not adjacent.
        end_s: monotonic end, likewise.
    """

    duration_s: float
    components: tuple[ComponentEnergy, ...]
    start_s: float | None = None
    end_s: float | None = None

    def component(self, name: ComponentName) -> ComponentEnergy | None:
        """The entry of one component, ``total`` included; None if the machine has no such component."""
        if name == "total":
            return self.total
        return next((c for c in self.components if c.component == name), None)

    @property
    def gpu(self) -> ComponentEnergy | None:
        """The GPUs' joules; None where there is no GPU."""
        return self.component("gpu")

    @property
    def cpu(self) -> ComponentEnergy | None:
        """The CPU packages' joules."""
        return self.component("cpu")

    @property
    def dram(self) -> ComponentEnergy | None:
        """The memory's joules."""
        return self.component("dram")

    @property
    def total(self) -> ComponentEnergy:
        """All components together; unknown if any of them is."""
        return sum_components("total", self.components)

    def __add__(self, other: Energy) -> Energy:
        """Sum of two windows of one meter. If ``other`` starts exactly where ``self`` ends, the shared edge cancels."""
        if not isinstance(other, Energy):
            return NotImplemented
        adjacent = self.end_s is not None and self.end_s == other.start_s
        names = dict.fromkeys([c.component for c in self.components] + [c.component for c in other.components])
        return Energy(
            self.duration_s + other.duration_s,
            tuple(_add_component(self.component(n), other.component(n), n, adjacent) for n in names),
            self.start_s if adjacent else None,
            other.end_s if adjacent else None,
        )


def _add_component(
    a: ComponentEnergy | None, b: ComponentEnergy | None, name: ComponentName, adjacent: bool
) -> ComponentEnergy:
    """Sum over *different* times: independent in quadrature (shared edge dropped), common linearly."""
    if a is None or b is None:
        return unknown(name, "not read in every window of the sum")
    if a.energy_j is None or b.energy_j is None:
        notes = "; ".join(dict.fromkeys(c.note or "unknown" for c in (a, b) if c.energy_j is None))
        return unknown(name, notes, dict.fromkeys(a.source_ids + b.source_ids))
    if adjacent:
        start, end = a.start_edge_j, b.end_edge_j
    else:
        start, end = math.hypot(a.start_edge_j, b.start_edge_j), math.hypot(a.end_edge_j, b.end_edge_j)
    return replace(
        a,
        provenance="modelled" if "modelled" in (a.provenance, b.provenance) else "measured",
        energy_j=a.energy_j + b.energy_j,
        start_edge_j=start,
        end_edge_j=end,
        sampling_j=math.hypot(a.sampling_j, b.sampling_j),
        gain_j=a.gain_j + b.gain_j,
        offset_j=a.offset_j + b.offset_j,
        bound_j=None
        if a.bound_j is None or b.bound_j is None
        else (a.bound_j[0] + b.bound_j[0], a.bound_j[1] + b.bound_j[1]),
        source_ids=tuple(dict.fromkeys(a.source_ids + b.source_ids)),
        note="; ".join(dict.fromkeys(c.note for c in (a, b) if c.note)) or None,
    )

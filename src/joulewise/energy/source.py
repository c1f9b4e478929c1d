"""Source: one counter or sensor of one device. The seam through which every joule enters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from joulewise.energy.reading import ComponentName, DeviceState, Provenance, Reading

Scope = Literal["device", "package", "machine", "process"]


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """What a source is and how far it can be trusted.

    Args:
        source_id: stable identity, such as ``nvml:GPU-2f1a...`` or ``rapl:package-0``.
        component: the component whose joules it tells.
        device: the device's name for people, such as ``NVIDIA H200``.
        provenance: ``measured`` or ``modelled``.
        method: how the figure comes about, one phrase.
        scope: what the figure covers.
        update_period_s: how often the counter steps, in seconds (assumed until observed); None if it is continuous.
        quantum_j: the counter's smallest step, in joules.
        max_power_w: the most the device can draw, for the guaranteed bound, in watts; None if unknown.
        gain: relative standard uncertainty of the sensor's gain; None means unknown: it is then left out of the
            interval, and the component's note says so.
        offset_w: standard uncertainty of the sensor's offset, in watts.
        sensor_gain: what the sensor shows per true watt, by a calibration; joules are divided by it.
        sensor_offset_w: what the sensor shows at no power, by a calibration, in watts; taken off before.
        calibration: where gain, offset and their uncertainties come from, in words.
        relayed: the value comes by others' hands, so that when it changes here does not tell when it was taken; its
            age is then in ``update_period_s``.
        wrap_j: the range after which the raw counter starts again at 0, in joules; None if it does not wrap.
        note: anything that a reader of the figure must know (MIG, module power, synthetic).
    """

    source_id: str
    component: ComponentName
    device: str
    provenance: Provenance
    method: str
    scope: Scope = "device"
    update_period_s: float | None = None
    quantum_j: float = 0.0
    max_power_w: float | None = None
    gain: float | None = None
    offset_w: float = 0.0
    sensor_gain: float = 1.0
    sensor_offset_w: float = 0.0
    calibration: str | None = None
    relayed: bool = False
    wrap_j: float | None = None
    note: str | None = None


class Source(Protocol):
    """One counter or sensor of one device.

    A source never raises out of ``read`` or ``sample``: what goes wrong is told in ``Reading.fault``. Both may be
    called from several threads.
    """

    @property
    def spec(self) -> SourceSpec:
        """Identity, component, provenance and resolution."""
        ...

    def read(self) -> Reading:
        """Read the cumulative counter (and the power, if it is cheap). Called at the ends of windows.

        ``energy_j`` is the raw counter in joules; the meter unwraps it by ``spec.wrap_j``.
        """
        ...

    def sample(self) -> Reading:
        """A cheap reading for the timeline between window ends: power where there is one, else the counter."""
        ...

    def close(self) -> None:
        """Let go of the device. Idempotent."""
        ...


@runtime_checkable
class TellsState(Protocol):
    """A source that can also say how busy, fast and hot its device is. Asked once a second, it never raises."""

    def state(self) -> DeviceState:
        """The device's state; None in it for what cannot be told."""
        ...


@dataclass(frozen=True, slots=True)
class Absent:
    """A source that could not be opened, why, and what a person can do about it.

    Args:
        name: the kind of source, such as ``nvml`` or ``rapl``.
        component: the component it would have told.
        present: whether the component is known to be there (then its joules are ``unknown``; else it is left out).
        reason: why it cannot be read, one sentence.
        remedy: what to do about it, one sentence; None if nothing can be done.
    """

    name: str
    component: ComponentName
    present: bool
    reason: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Discovery:
    """What one kind of source found on this machine."""

    sources: tuple[Source, ...] = ()
    absent: tuple[Absent, ...] = ()

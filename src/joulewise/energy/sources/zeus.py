"""Zeus: GPUs of AMD, Apple's chips and Jetson boards, read by the package ``zeus`` (extra ``zeus``).

Whether such a device is there is asked of the system first, so that nothing is imported where there is none.
"""

from __future__ import annotations

import importlib
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulewise.energy.calibration import calibrated
from joulewise.energy.power_integral import PowerIntegral
from joulewise.energy.reading import ComponentName, Reading
from joulewise.energy.source import Absent, Discovery, Source, SourceSpec

GAIN = 0.1
"""Relative standard uncertainty, assumed: nobody found has held these sensors against a meter for the public."""

OFFSET_W = {"amd": 5.0, "apple": 0.2, "jetson": 0.2}
"""Standard uncertainty of the offset, assumed: as NVIDIA's for cards, a few per cent of a small chip's load."""

PERIOD_S = 0.1
"""Nobody says how often these counters step; taken to be as slow as NVIDIA's, which widens a window's ends."""

UNSEEN_GAIN = 0.1
"""As for NVIDIA's old cards: what integrated readings of power leave out."""

QUANTUM_J = 0.001

Errors = tuple[type[Exception], ...]
Find = Callable[[Callable[[], float], Errors], Iterator["ZeusSource"]]

EXTRA = "pip install 'joulewise[zeus]'"


class ZeusSource:
    """One device.

    Args:
        spec: what it is.
        clock: monotonic clock, in seconds.
        errors: what the libraries may raise.
        energy_j: tells the joules so far; None where the device only tells its power, which is then integrated.
        power_w: tells the watts; None where it does not.
    """

    def __init__(
        self,
        spec: SourceSpec,
        clock: Callable[[], float],
        errors: Errors,
        energy_j: Callable[[], float] | None,
        power_w: Callable[[], float] | None = None,
    ) -> None:
        self.spec = spec
        self._clock, self._errors, self._energy_j, self._power_w = clock, errors, energy_j, power_w
        self._integral = PowerIntegral()

    def read(self) -> Reading:
        """The counter, or the integral of the power, and the power where there is one."""
        return self._reading(with_counter=True)

    def sample(self) -> Reading:
        """The power; the counter where the device tells no power."""
        return self._reading(with_counter=self._power_w is None)

    def close(self) -> None:
        """Nothing to let go of: the libraries keep their devices until the program ends."""

    def _reading(self, with_counter: bool) -> Reading:
        energy_j = power_w = fault = None
        start_s = self._clock()
        try:
            energy_j = self._energy_j() if with_counter and self._energy_j else None
            power_w = self._power_w() if self._power_w else None
        except self._errors as error:
            fault = f"Zeus: {_why(error)}"
        end_s = self._clock()
        time_s = (start_s + end_s) / 2
        if self._energy_j is None and power_w is not None:
            # The power is not told beside its own integral: the two would be held against each other, and agree.
            energy_j, power_w = self._integral.add(time_s, power_w), None
        return Reading(time_s, end_s - start_s, None if fault else energy_j, power_w, fault)


@dataclass(frozen=True)
class Platform:
    """What the system shows, before anything is imported.

    Args:
        amd: there is an AMD GPU.
        apple: this is one of Apple's own chips.
        jetson: this is a Jetson board.
    """

    amd: bool
    apple: bool
    jetson: bool


def this_platform() -> Platform:
    """What this machine is."""
    vendors = Path("/sys/class/drm").glob("card*/device/vendor")
    return Platform(
        amd=Path("/dev/kfd").exists() and any(_text(v) == "0x1002" for v in vendors),
        apple=sys.platform == "darwin" and platform.machine() == "arm64",
        jetson=Path("/etc/nv_tegra_release").exists(),
    )


def discover(here: Callable[[], Platform] = this_platform, clock: Callable[[], float] = time.monotonic) -> Discovery:
    """One source per AMD GPU, or per part of a chip that its maker tells apart.

    Args:
        here: what the system shows.
        clock: monotonic clock, in seconds.
    """
    shown = here()
    sources: list[Source] = []
    absent: list[Absent] = []
    kinds: tuple[tuple[bool, str, Find, tuple[ComponentName, ...]], ...] = (
        (shown.amd, "AMD", _amd, ("gpu",)),
        (shown.apple, "Apple", _apple, ("gpu", "cpu", "dram")),
        (shown.jetson, "Jetson", _jetson, ("gpu", "cpu")),
    )
    for is_there, maker, find, components in kinds:
        if is_there:
            found, why, remedy = _try(find, clock)
            sources += found
            told = {s.spec.component for s in found}
            absent += [Absent("zeus", c, True, f"{maker}: {why}", remedy) for c in components if c not in told]
    return Discovery(tuple(sources), tuple(absent))


def _try(find: Find, clock: Callable[[], float]) -> tuple[list[ZeusSource], str, str]:
    """What is found, and where something is missing, why and what to do."""
    try:
        exception = importlib.import_module("zeus.device.exception")
    except ImportError:
        return [], "the package zeus is not installed", EXTRA
    # Zeus's own, and what the makers' libraries below it raise where a device is lost or a driver does not fit.
    errors: Errors = (exception.ZeusBaseGPUError, exception.ZeusBaseSoCError, OSError, ValueError, RuntimeError)
    try:
        return list(find(clock, errors)), "Zeus does not tell it", "see whether the maker's own tool does"
    except (ImportError, AttributeError, TypeError) as error:
        return [], f"this version of zeus is not one that is known here ({error})", f"{EXTRA} --upgrade"
    except errors as error:
        return [], _why(error), "see whether the maker's own tool reads it"


def _amd(clock: Callable[[], float], errors: Errors) -> Iterator[ZeusSource]:
    amd = importlib.import_module("zeus.device.gpu.amd")
    if not amd.amdsmi_is_available():
        raise RuntimeError("ROCm's library amdsmi cannot be used; its version must be that of ROCm")
    for gpu in amd.AMDGPUs().gpus:
        power_w = _amd_power(gpu, errors)
        counts = gpu.supports_get_total_energy_consumption()
        if not counts and power_w is None:
            continue  # the second die of an MI250: the first one's figures are of both
        name = gpu.get_name()
        spec = _spec(
            "amd",
            f"amd-{gpu.gpu_index}",
            "gpu",
            name,
            "ROCm's energy counter" if counts else "ROCm's power readings, integrated",
            counts=counts,
            note="the figure is of both dies of the module" if "MI250" in name else None,
        )
        yield ZeusSource(spec, clock, errors, _milli(gpu.get_total_energy_consumption) if counts else None, power_w)


def _amd_power(gpu: Any, errors: Errors) -> Callable[[], float] | None:
    """The instantaneous power where the card tells it, else its average."""
    for function in (gpu.get_instant_power_usage, gpu.get_average_power_usage):
        try:
            function()
        except errors:  # the next one may tell
            continue
        return _milli(function)
    return None


def _apple(clock: Callable[[], float], errors: Errors) -> Iterator[ZeusSource]:
    apple = importlib.import_module("zeus.device.soc.apple")
    if not apple.apple_silicon_is_available():
        raise RuntimeError("the package zeus-apple-silicon is not installed or not for this Python")
    chip = apple.AppleSilicon()
    told = chip.get_total_energy_consumption()
    parts: tuple[tuple[ComponentName, str], ...] = (("gpu", "gpu_mj"), ("cpu", "cpu_total_mj"), ("dram", "dram_mj"))
    for component, field in parts:
        if getattr(told, field) is not None:
            spec = _spec(
                "apple",
                f"apple-{component}",
                component,
                f"Apple chip, {component}",
                "Apple's IOReport energy",
                note="the neural engine is not in it" if component == "gpu" else None,
            )
            yield ZeusSource(spec, clock, errors, _milli(_apple_field(chip, field)))


def _apple_field(chip: Any, field: str) -> Callable[[], float]:
    return lambda: float(getattr(chip.get_total_energy_consumption(), field))


def _jetson(clock: Callable[[], float], errors: Errors) -> Iterator[ZeusSource]:
    jetson = importlib.import_module("zeus.device.soc.jetson")
    # Making a Jetson object would start a process that runs the user's main module again. The rails alone are wanted.
    rails = jetson.Jetson._discover_available_metrics(object.__new__(jetson.Jetson))
    components: tuple[ComponentName, ...] = ("gpu", "cpu")
    for component in components:
        if rail := rails.get(f"{component}_power_mw"):
            spec = _spec(
                "jetson",
                f"jetson-{component}",
                component,
                f"Jetson, {component} rail",
                "power rail of the board's INA3221, integrated",
                counts=False,
            )
            yield ZeusSource(spec, clock, errors, None, _milli(rail.measure_power))


def _milli(function: Callable[[], float]) -> Callable[[], float]:
    return lambda: float(function()) / 1000


def _spec(
    maker: str,
    name: str,
    component: ComponentName,
    device: str,
    method: str,
    *,
    counts: bool = True,
    note: str | None = None,
) -> SourceSpec:
    integrated = None if counts else "its power readings are integrated, wide interval"
    spec = SourceSpec(
        source_id=f"zeus:{name}",
        component=component,
        device=device,
        provenance="measured",
        method=f"{method}, by Zeus",
        update_period_s=PERIOD_S if counts else None,
        quantum_j=QUANTUM_J if counts else 0.0,
        gain=GAIN,
        offset_w=OFFSET_W[maker],
        note="; ".join(n for n in (note, integrated) if n) or None,
    )
    return calibrated(spec, unseen=0.0 if counts else UNSEEN_GAIN)


def _why(error: Exception) -> str:
    """What a library says, without the system's numbers."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:  # a card that has just gone
        return ""

"""RAPL: the energy counters of CPU packages and memory, from the kernel's powercap files (Intel, and AMD since Zen)."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from joulewise.energy.calibration import calibrated
from joulewise.energy.reading import ComponentName, Reading
from joulewise.energy.source import Absent, Discovery, Source, SourceSpec

ROOT = Path("/sys/class/powercap")

UPDATE_PERIOD_S = 0.001
"""The hardware updates its counters about every millisecond."""

X86 = ("x86_64", "amd64", "i386", "i686")

COMPONENTS: tuple[ComponentName, ...] = ("cpu", "dram")

QUANTUM_J = 2.0**-14
"""The usual energy unit of the registers, 61 microjoules."""

PEAK = 2.0
"""Packages may draw about so many times their rated power for some seconds; the guaranteed bound must hold then too."""

GAIN: dict[str, float] = {"cpu": 0.05, "dram": 0.10}
"""Relative standard uncertainty, assumed: docs/measurement.md says on what grounds."""

REMEDY = (
    "run `sudo chmod a+r {root}/*/energy_uj` (until the next boot), "
    "or run as root, or let a udev rule for the subsystem powercap set the mode"
)


class RaplSource:
    """One zone's counter.

    Args:
        zone: the zone's folder.
        spec: what it is.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, zone: Path, spec: SourceSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self.spec = spec
        self._file = zone / "energy_uj"
        self._clock = clock

    def read(self) -> Reading:
        """The counter; it wraps at ``spec.wrap_j``."""
        start_s = self._clock()
        try:
            energy_j, fault = _number(self._file) / 1e6, None
        except (OSError, ValueError) as error:
            energy_j, fault = None, _unreadable(self._file, error)
        end_s = self._clock()
        return Reading((start_s + end_s) / 2, end_s - start_s, energy_j, fault=fault)

    def sample(self) -> Reading:
        """The same: RAPL tells no power. Sampling also sees every wrap."""
        return self.read()

    def close(self) -> None:
        """Nothing is held open."""


def discover(
    root: Path = ROOT, clock: Callable[[], float] = time.monotonic, machine: str = platform.machine()
) -> Discovery:
    """Packages as ``cpu``, their memory as ``dram``; other zones lie inside a package or around it and are left out."""
    sources: list[Source] = []
    absent: list[Absent] = []
    for component, source_id, zone in _zones(root):
        rated_w = _optional(zone / "constraint_0_max_power_uw")
        spec = calibrated(
            SourceSpec(
                source_id=source_id,
                component=component,
                device=source_id.removeprefix("rapl:"),
                provenance="measured",
                method="RAPL energy counter",
                scope="package",
                update_period_s=UPDATE_PERIOD_S,
                quantum_j=QUANTUM_J,
                max_power_w=None if rated_w is None else PEAK * rated_w,
                gain=GAIN[component],
                wrap_j=_optional(zone / "max_energy_range_uj"),
            )
        )
        source = RaplSource(zone, spec, clock)
        try:
            _number(zone / "energy_uj")
        except PermissionError:
            reason = f"{zone / 'energy_uj'} may be read by root only"
            absent.append(Absent("rapl", component, True, reason, REMEDY.format(root=root)))
        except (OSError, ValueError) as error:
            absent.append(Absent("rapl", component, True, _unreadable(zone / "energy_uj", error)))
        else:
            sources.append(source)
    told = {s.spec.component for s in sources} | {a.component for a in absent}
    if "cpu" not in told and machine.lower() not in X86:
        # Nothing is missing: what such a machine has is told by another source, or by the models.
        reason = f"RAPL counters are of Intel's and AMD's processors; this one is {machine}"
        absent += [Absent("rapl", component, False, reason) for component in COMPONENTS]
    elif "cpu" not in told:
        absent += [
            Absent(
                "rapl",
                component,
                True,
                f"no RAPL counters under {root}",
                "on a physical machine try `sudo modprobe intel_rapl_msr`; a virtual machine has none as a rule",
            )
            for component in COMPONENTS
        ]
    elif "dram" not in told:
        absent.append(Absent("rapl", "dram", True, "this processor has no RAPL counter for its memory"))
    return Discovery(tuple(sources), tuple(absent))


def _zones(root: Path) -> Iterator[tuple[ComponentName, str, Path]]:
    """``(component, source_id, folder)`` of every zone to read, each counter once.

    Zones lie flat: ``intel-rapl:0`` is a package (or ``psys``, the whole platform), ``intel-rapl:0:1`` a part of it.
    ``intel-rapl-mmio:0`` shows a package's counter a second time, and counts only where it is the only one.
    """
    seen: set[str] = set()
    folders = [f for f in root.glob("intel-rapl*:*") if f.is_dir()] if root.is_dir() else []
    for folder in sorted(folders, key=lambda f: ("mmio" in f.name, f.name)):
        parts = folder.name.split(":")
        name = _text(folder / "name")
        if len(parts) == 2 and name.startswith("package"):
            component: ComponentName = "cpu"
            source_id = f"rapl:{name}"
        elif len(parts) == 3 and name == "dram":
            component = "dram"
            source_id = f"rapl:{_text(root / ':'.join(parts[:2]) / 'name')}/dram"
        else:
            continue
        if source_id not in seen:
            seen.add(source_id)
            yield component, source_id, folder


def _text(file: Path) -> str:
    """The file's line; empty where there is no such file, so that its zone is passed over."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _unreadable(file: Path, error: OSError | ValueError) -> str:
    """Why a counter gave nothing, in words: the system's own for the fault, without its number."""
    why = error.strerror if isinstance(error, OSError) else "what stands there is no number"
    return f"cannot read {file}: {why or 'the system does not say why'}"


def _number(file: Path) -> int:
    return int(file.read_text(encoding="ascii"))


def _optional(file: Path) -> float | None:
    """A figure in micro-units as SI; None where the kernel does not tell it or tells 0."""
    try:
        return _number(file) / 1e6 or None
    except (OSError, ValueError):
        return None

"""NVML: the energy counter of every NVIDIA GPU that CUDA shows this process.

Cards without a counter (before Volta) are told by their integrated power, and marked so.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulewise.energy.calibration import calibrated
from joulewise.energy.power_integral import PowerIntegral
from joulewise.energy.reading import DeviceState, Reading
from joulewise.energy.source import Absent, Discovery, Source, SourceSpec

UPDATE_PERIOD_S = 0.1
"""Seen on an H200 (driver 580): a step every 100.0 ms. ``joulewise doctor`` shows what it is here."""

QUANTUM_J = 0.001

GAIN = 0.05
"""Relative standard uncertainty of the board's sensor: docs/measurement.md says on what grounds."""

OFFSET_W = 5.0
"""Standard uncertainty of its offset, on the same grounds."""

PEAK = 1.5
"""A card overshoots its power limit until its regulator acts, and the bound must hold inside a step of the counter too:
single readings, means of 25 ms, of an H200 limited to 700 W say up to 952 W (1.36 times the limit; over whole steps of
0.1 s it drew up to 849 W). Rounded up, as those readings show a quarter of the time."""


UNSEEN_GAIN = 0.1
"""Relative standard uncertainty of integrated power beside the sensor's own: what its readings leave out.

Cards before Volta average 10 ms of every 20 ms, or a tenth of a second (Yang, Adamek and Armour, SC'24).
"""


THROTTLED_BY = {
    0x2: "application clocks",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
"""NVML's bits; 0x1 (idle) holds nothing back."""


class NvmlSource:
    """One GPU.

    Another library in this process may shut NVML down; the source then starts it again and asks once more.

    Args:
        nvml: the module ``pynvml``, or one like it; initialised, and shut down once by ``close``.
        uuid: the GPU's UUID.
        spec: what it is.
        clock: monotonic clock, in seconds.
        counter: whether the card has an energy counter; else its power is integrated.
    """

    def __init__(
        self,
        nvml: Any,
        uuid: str,
        spec: SourceSpec,
        clock: Callable[[], float] = time.monotonic,
        *,
        counter: bool = True,
    ) -> None:
        self.spec = spec
        self._nvml, self._uuid, self._clock = nvml, uuid, clock
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._open = True
        self._integral = None if counter else PowerIntegral()
        try:
            self._has_instant_power = self._instant_power_w() is not None
        except nvml.NVMLError:  # a card or driver that does not know the field
            self._has_instant_power = False

    def read(self) -> Reading:
        """Counter and power. The counter takes 3 to 4 ms on an H200, of CPU time too."""
        if self._integral is not None:
            return self.sample()
        start_s = self._clock()
        energy_j, fault = self._ask(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000)
        end_s = self._clock()
        power_w = None if fault else self._ask(self._power_w)[0]
        return Reading((start_s + end_s) / 2, end_s - start_s, energy_j, power_w, fault)

    def sample(self) -> Reading:
        """The power alone, about 50 microseconds; with its integral where there is no counter."""
        start_s = self._clock()
        power_w, fault = self._ask(self._power_w)
        end_s = self._clock()
        time_s = (start_s + end_s) / 2
        if self._integral is None or power_w is None:
            return Reading(time_s, end_s - start_s, None, power_w, fault)
        # The power is not told beside its own integral: the two would be held against each other, and agree.
        return Reading(time_s, end_s - start_s, self._integral.add(time_s, power_w))

    def state(self) -> DeviceState:
        """Utilisation, clocks, temperature, and what holds the clock down."""
        nvml, handle = self._nvml, self._handle
        clock_hz = self._ask(lambda: 1e6 * nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))[0]
        memory_clock_hz = self._ask(lambda: 1e6 * nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))[0]
        temperature_c = self._ask(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)))[0]
        reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))[0]
        throttled_by = (
            None if reasons is None else ", ".join(w for bit, w in THROTTLED_BY.items() if int(reasons) & bit)
        )
        try:
            rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        except nvml.NVMLError:  # in MIG mode, and on a card that is lost, nobody knows
            return DeviceState(None, None, clock_hz, memory_clock_hz, temperature_c, throttled_by)
        return DeviceState(rates.gpu / 100, rates.memory / 100, clock_hz, memory_clock_hz, temperature_c, throttled_by)

    def close(self) -> None:
        """Let go of NVML."""
        if self._open:
            self._open = False
            _shut_down(self._nvml)

    def _ask(self, question: Callable[[], float | None]) -> tuple[float | None, str | None]:
        """The answer, or why there is none."""
        nvml = self._nvml
        try:
            try:
                return question(), None
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_UNINITIALIZED or not self._open:
                    raise
                nvml.nvmlInit()
                self._handle = nvml.nvmlDeviceGetHandleByUUID(self._uuid)
                return question(), None
        except nvml.NVMLError as error:
            return None, f"NVML: {error}"

    def _power_w(self) -> float | None:
        """Watts.

        ``nvmlDeviceGetPowerUsage`` is a mean over the last second on most cards since Ampere (seen on an H200: 0.87 s
        to follow a step of the load, 0.08 s for the instantaneous field), so it serves older cards only.
        """
        if self._has_instant_power:
            return self._instant_power_w()
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000)

    def _instant_power_w(self) -> float | None:
        nvml = self._nvml
        (field,) = nvml.nvmlDeviceGetFieldValues(self._handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
        return field.value.uiVal / 1000 if field.nvmlReturn == nvml.NVML_SUCCESS else None


@dataclass(frozen=True, slots=True)
class _Card:
    index: int
    handle: Any
    uuid: str
    name: str


def discover(
    nvml: Any = None,
    environ: Mapping[str, str] = os.environ,
    device_nodes: Callable[[], bool] = lambda: any(Path("/dev").glob("nvidia[0-9]*")),
    clock: Callable[[], float] = time.monotonic,
) -> Discovery:
    """One source per visible GPU.

    Args:
        nvml: the module to use; ``pynvml`` if left out.
        environ: where ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` are looked up.
        device_nodes: whether the kernel shows an NVIDIA GPU; tells "no GPU" from "a GPU that NVML cannot reach".
        clock: monotonic clock, in seconds.
    """
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            return _absent(device_nodes(), "the package nvidia-ml-py is not installed", "pip install nvidia-ml-py")
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _cannot_start(nvml, error, device_nodes())
    try:
        return _discover(nvml, environ, clock)
    except nvml.NVMLError as error:
        return _absent(True, f"NVML: {error}", "see whether nvidia-smi works")
    finally:
        _shut_down(nvml)


def local_uuids() -> list[str]:
    """The UUIDs of this machine's GPUs, hidden ones too; empty where NVML does not tell them."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except pynvml.NVMLError:
        return []
    finally:
        _shut_down(pynvml)


def _discover(nvml: Any, environ: Mapping[str, str], clock: Callable[[], float]) -> Discovery:
    absent: list[Absent] = []
    cards: list[_Card | None] = []
    faults: dict[int, str] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
            cards.append(_Card(index, handle, uuid, name))
        except nvml.NVMLError as error:
            cards.append(None)
            faults[index] = f"GPU {index}: {error}"
    if not cards:
        return _absent(False, "no NVIDIA GPU", None)
    visible, complaint = _visible(nvml, cards, environ)
    if complaint:
        absent.append(Absent("nvml", "gpu", False, complaint, "correct CUDA_VISIBLE_DEVICES, or unset it"))
    elif not visible:
        absent.append(Absent("nvml", "gpu", False, "CUDA_VISIBLE_DEVICES hides every GPU", "unset it to measure them"))
    order_note = _order_note(cards, visible, environ)
    sources: list[Source] = []
    for index in visible:
        card = cards[index]
        if card is None:
            absent.append(
                Absent("nvml", "gpu", True, faults[index], "see whether nvidia-smi shows it; reset or reboot")
            )
            continue
        try:
            counter = _has_counter(nvml, card)
            source = NvmlSource(nvml, card.uuid, _spec(nvml, card, order_note, counter), clock, counter=counter)
        except nvml.NVMLError as error:
            absent.append(_unreadable(nvml, card, error))
            continue
        nvml.nvmlInit()  # counted: each source shuts down once
        sources.append(source)
    return Discovery(tuple(sources), tuple(absent))


def _has_counter(nvml: Any, card: _Card) -> bool:
    """Whether the card counts its energy; one that does not must at least tell its power."""
    try:
        nvml.nvmlDeviceGetTotalEnergyConsumption(card.handle)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        nvml.nvmlDeviceGetPowerUsage(card.handle)
        return False
    return True


def _spec(nvml: Any, card: _Card, order_note: str | None, counter: bool) -> SourceSpec:
    notes = [
        "MIG mode: the figure is the whole card's, all its instances together" if _mig(nvml, card) else None,
        None if counter else "this card has no energy counter: its power readings are integrated, wide interval",
        order_note,
    ]
    return calibrated(
        SourceSpec(
            source_id=f"nvml:{card.uuid}",
            component="gpu",
            device=card.name,
            provenance="measured",
            method="NVML energy counter" if counter else "NVML power readings, integrated",
            update_period_s=UPDATE_PERIOD_S if counter else None,
            quantum_j=QUANTUM_J if counter else 0.0,
            # What an integral of readings misses is not bounded by the card's most.
            max_power_w=_max_power_w(nvml, card) if counter else None,
            gain=GAIN,
            offset_w=OFFSET_W,
            note="; ".join(n for n in notes if n) or None,
        ),
        unseen=0.0 if counter else UNSEEN_GAIN,
    )


def _visible(nvml: Any, cards: list[_Card | None], environ: Mapping[str, str]) -> tuple[list[int], str | None]:
    """The NVML indices that CUDA shows, and a complaint about an entry that means no GPU.

    CUDA reads the list from the left and stops at the first entry that it does not know or that has another form than
    the first (number, GPU UUID, MIG UUID); so does this. Negative numbers, ``NoDevFiles`` and the empty string are the
    usual ways to end it on purpose. An entry that comes twice hides every GPU.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(len(cards))), None
    visible: list[int] = []
    seen: set[object] = set()
    entries = [e.strip() for e in text.split(",")]
    for entry in entries:
        if entry in ("", "NoDevFiles") or re.match(r"-\d", entry):
            break
        if _form(entry) != _form(entries[0]):
            return visible, f"CUDA_VISIBLE_DEVICES names {entry!r} after {entries[0]!r}: CUDA takes one form in a list"
        matches = _matches(nvml, cards, entry)
        if len(matches) != 1:
            here = ", ".join(f"{c.index}: {c.uuid}" for c in cards if c)
            fits = "fits several GPUs" if matches else "is no GPU of this machine"
            return visible, f"CUDA_VISIBLE_DEVICES names {entry!r}, which {fits} ({here})"
        # A card may come once for each of its MIG instances.
        key = entry.lower() if _form(entry) == "MIG-" else matches[0]
        if key in seen:
            return [], f"CUDA_VISIBLE_DEVICES names {entry!r} twice, so CUDA shows no GPU at all"
        seen.add(key)
        if matches[0] not in visible:
            visible.append(matches[0])
    return visible, None


def _form(entry: str) -> str:
    return next((prefix for prefix in ("GPU-", "MIG-") if entry.upper().startswith(prefix)), "number")


def _matches(nvml: Any, cards: list[_Card | None], entry: str) -> list[int]:
    """Indices of the cards that an entry may mean: a number, a UUID or its beginning, a MIG instance."""
    if number := re.match(r"\+?(\d+)", entry):  # CUDA reads digits as far as they go
        return [int(number[1])] if int(number[1]) < len(cards) else []
    known, entry = [c for c in cards if c is not None], entry.lower()
    if entry.startswith("gpu-"):
        return [c.index for c in known if c.uuid.lower().startswith(entry)]
    if entry.startswith("mig-gpu-"):  # the form of drivers before R470: MIG-<UUID of the card>/<gpu>/<compute instance>
        parent = entry.removeprefix("mig-").split("/")[0]
        return [c.index for c in known if c.uuid.lower().startswith(parent)]
    if entry.startswith("mig-"):
        return [c.index for c in known if any(u.lower().startswith(entry) for u in _mig_uuids(nvml, c))]
    return []


def _mig(nvml: Any, card: _Card) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(card.handle)[0])
    except nvml.NVMLError:  # a card that cannot do MIG
        return False


def _mig_uuids(nvml: Any, card: _Card) -> Iterator[str]:
    if not _mig(nvml, card):
        return
    for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card.handle)):
        try:
            yield _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, i)))
        except nvml.NVMLError:  # a place with no instance
            continue


def _order_note(cards: list[_Card | None], visible: list[int], environ: Mapping[str, str]) -> str | None:
    """CUDA numbers the fastest GPU first unless told otherwise, NVML by PCI bus."""
    by_number = environ.get("CUDA_VISIBLE_DEVICES", "")[:1].isdigit()
    differ = len({c.name for c in cards if c is not None}) > 1
    if not by_number or not differ or len(visible) == len(cards) or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return None
    return (
        "chosen by number on a machine with different GPUs: CUDA may mean another card "
        "(set CUDA_DEVICE_ORDER=PCI_BUS_ID, or choose by UUID)"
    )


def _max_power_w(nvml: Any, card: _Card) -> float | None:
    for function in ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"):
        try:
            return PEAK * float(getattr(nvml, function)(card.handle)) / 1000
        except nvml.NVMLError:  # the next one may tell
            continue
    return None


def _unreadable(nvml: Any, card: _Card, error: Any) -> Absent:
    device = f"{card.name} ({card.uuid})"
    if error.value == nvml.NVML_ERROR_NOT_SUPPORTED and "nvgpu" in card.name:
        return Absent("nvml", "gpu", False, f"{device} is part of a Jetson, which its power rails tell (extra zeus)")
    if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
        return Absent("nvml", "gpu", True, f"{device} tells neither energy (since Volta) nor power", None)
    if error.value == nvml.NVML_ERROR_NO_PERMISSION:
        return Absent("nvml", "gpu", True, f"no permission to read {device}", _PERMISSION)
    return Absent("nvml", "gpu", True, f"{device}: {error}", "see whether nvidia-smi shows it; reset or reboot")


_PERMISSION = "let this user read /dev/nvidia* (often the group video), or run as root"


def _cannot_start(nvml: Any, error: Any, nodes: bool) -> Discovery:
    code = error.value
    if code in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED) and not nodes:
        return _absent(False, "no NVIDIA GPU", None)
    if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        reason = "there is an NVIDIA GPU, but the driver's library libnvidia-ml.so.1 is not found"
        return _absent(True, reason, "install the driver, or start the container with --gpus all")
    if code == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return _absent(True, "there is an NVIDIA GPU, but its driver is not loaded", "load the kernel module nvidia")
    if code == nvml.NVML_ERROR_NO_PERMISSION:
        return _absent(True, "no permission to use NVML", _PERMISSION)
    if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return _absent(
            True, "the NVIDIA driver and its library differ in version", "reboot, or reload the kernel module"
        )
    return _absent(True, f"NVML does not start: {error}", "see whether nvidia-smi works")


def _absent(present: bool, reason: str, remedy: str | None) -> Discovery:
    return Discovery(absent=(Absent("nvml", "gpu", present, reason, remedy),))


def _shut_down(nvml: Any) -> None:
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:  # the driver has gone, or another library has shut it down: nothing left to do
        return


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

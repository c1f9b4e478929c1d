"""NVML, against a fake of the library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from joulewise.energy import Absent, Discovery, Meter
from joulewise.energy.reading import DeviceState
from joulewise.energy.source import TellsState
from joulewise.energy.sources import nvml
from joulewise.energy.sources.replay import load_recording

A, B = "GPU-aaaa1111-0000-0000-0000-000000000000", "GPU-bbbb2222-0000-0000-0000-000000000000"
MIG_1, MIG_2 = "MIG-cccc3333-0000-0000-0000-000000000000", "MIG-dddd4444-0000-0000-0000-000000000000"


def error(name: str) -> pynvml.NVMLError:
    return pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))


@dataclass
class Clock:
    """A monotonic clock that a test moves by hand."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Card:
    """One fake GPU; a field that is an error is raised when asked for."""

    uuid: str
    name: str = "NVIDIA H200"
    energy_mj: int | pynvml.NVMLError = 1_000_000
    average_mw: int | pynvml.NVMLError = 300_000
    instant_mw: int | pynvml.NVMLError | None = 400_000
    limit_mw: int | pynvml.NVMLError = 700_000
    mig: list[str] | None = None
    handle: pynvml.NVMLError | None = None


def told(value: Any) -> Any:
    if isinstance(value, pynvml.NVMLError):
        raise value
    return value


@dataclass
class FakeNvml:
    """What of ``pynvml`` the source uses; constants and errors are the real ones."""

    cards: list[Card]
    start: pynvml.NVMLError | None = None
    open: int = 0
    NVMLError: type[Exception] = field(default=pynvml.NVMLError)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML_"):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def nvmlInit(self) -> None:  # noqa: N802 (the library's names, here and below)
        told(self.start)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        if self.open == 0:
            raise error("UNINITIALIZED")
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        told(self.cards[index].handle)
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:  # noqa: N802
        self._check_open()
        return next(c for c in self.cards if c.uuid == uuid)

    def _check_open(self) -> None:
        if not self.open:
            raise error("UNINITIALIZED")

    def nvmlDeviceGetUUID(self, card: Card | str) -> str:  # noqa: N802
        return card if isinstance(card, str) else card.uuid

    def nvmlDeviceGetName(self, card: Card) -> bytes:  # noqa: N802 (older bindings give bytes)
        return card.name.encode()

    def nvmlDeviceGetTotalEnergyConsumption(self, card: Card) -> int:  # noqa: N802
        self._check_open()
        return int(told(card.energy_mj))

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:  # noqa: N802
        self._check_open()
        return int(told(card.average_mw))

    def nvmlDeviceGetFieldValues(self, card: Card, fields: list[int]) -> Iterator[SimpleNamespace]:  # noqa: N802
        self._check_open()
        told(card.instant_mw)
        assert fields == [pynvml.NVML_FI_DEV_POWER_INSTANT]
        code = pynvml.NVML_ERROR_NOT_SUPPORTED if card.instant_mw is None else pynvml.NVML_SUCCESS
        return iter([SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=card.instant_mw))])

    def nvmlDeviceGetClockInfo(self, card: Card, kind: int) -> int:  # noqa: N802
        told(card.energy_mj)
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}[kind]

    def nvmlDeviceGetTemperature(self, card: Card, kind: int) -> int:  # noqa: N802
        told(card.energy_mj)
        assert kind == pynvml.NVML_TEMPERATURE_GPU
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:  # noqa: N802
        told(card.energy_mj)
        return 0x1 | 0x4 | 0x20

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> SimpleNamespace:  # noqa: N802
        told(card.energy_mj)
        if card.mig is not None:
            raise error("NOT_SUPPORTED")
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetEnforcedPowerLimit(self, card: Card) -> int:  # noqa: N802
        return int(told(card.limit_mw))

    nvmlDeviceGetPowerManagementLimit = nvmlDeviceGetEnforcedPowerLimit  # noqa: N815

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:  # noqa: N802
        if card.mig is None:
            raise error("NOT_SUPPORTED")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> str:  # noqa: N802
        assert card.mig is not None
        if index >= len(card.mig):
            raise error("NOT_FOUND")
        return card.mig[index]


def found(fake: FakeNvml, *, nodes: bool = True, **environ: str) -> Discovery:
    return nvml.discover(fake, environ, lambda: nodes)


def devices(discovery: Discovery) -> list[str]:
    return [s.spec.source_id.removeprefix("nvml:") for s in discovery.sources]


def only_absent(discovery: Discovery) -> Absent:
    (absent,) = discovery.absent
    return absent


def test_counter_and_power_are_read_in_joules_and_watts() -> None:
    fake = FakeNvml([Card(A)])
    (source,) = found(fake).sources
    reading = source.read()
    assert (reading.energy_j, reading.power_w, reading.fault) == (1000.0, 400.0, None)
    assert source.sample().energy_j is None
    assert source.sample().power_w == 400.0
    assert source.spec.device == "NVIDIA H200"
    assert source.spec.max_power_w == pytest.approx(1050.0)
    assert source.spec.note is None


def test_utilisation_clocks_temperature_and_what_throttles_are_told() -> None:
    (source,) = found(FakeNvml([Card("GPU-a")])).sources
    assert isinstance(source, TellsState)
    state = source.state()
    assert state == (0.97, 0.4, 1.98e9, 3.201e9, 61.0, "power limit, software thermal slowdown")


def test_what_a_card_does_not_tell_of_its_state_is_left_out() -> None:
    card = Card("GPU-a", mig=[])
    (source,) = found(FakeNvml([card])).sources
    assert isinstance(source, TellsState)
    assert source.state().utilisation is None
    assert source.state().temperature_c == 61.0
    card.energy_mj = error("GPU_IS_LOST")
    assert source.state() == DeviceState()


def test_a_card_without_instantaneous_power_is_followed_by_the_other_reading() -> None:
    (source,) = found(FakeNvml([Card(A, instant_mw=None)])).sources
    assert source.sample().power_w == 300.0


def test_nvml_is_shut_down_as_often_as_it_is_started() -> None:
    fake = FakeNvml([Card(A), Card(B)])
    sources = found(fake).sources
    assert fake.open == 2
    for source in (*sources, *sources):
        source.close()
    assert fake.open == 0


def test_the_driver_gone_while_closing_does_no_harm() -> None:
    fake = FakeNvml([Card(A)])
    (source,) = found(fake).sources
    fake.open = 0  # another library has shut it down
    source.close()


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [A, B]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", [A]),
        ("1,0", [B, A]),
        (" 1 ", [B]),
        ("0,-1,1", [A]),
        (A, [A]),
        ("GPU-AAAA1111", [A]),
        (f"{B},{A}", [B, A]),
        ("GPU-bbbb", [B]),
        ("gpu-bbbb", [B]),
        ("+1", [B]),
        ("1st", [B]),
        ("1,,0", [B]),
        ("1,-1,0", [B]),
    ],
)
def test_cuda_visible_devices(visible: str | None, expected: list[str]) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    discovery = nvml.discover(FakeNvml([Card(A), Card(B)]), environ)
    assert devices(discovery) == expected
    assert all(not a.present for a in discovery.absent)
    assert bool(discovery.absent) == (not expected)


@pytest.mark.parametrize("visible", ["0,0", "1,0,1", "0,00", f"{A},GPU-aaaa"])
def test_a_gpu_named_twice_hides_all_as_it_does_for_cuda(visible: str) -> None:
    discovery = found(FakeNvml([Card(A), Card(B)]), CUDA_VISIBLE_DEVICES=visible)
    assert devices(discovery) == []
    assert "twice" in only_absent(discovery).reason


@pytest.mark.parametrize(("visible", "expected"), [(f"1,{A}", [B]), (f"{B},0", [B])])
def test_another_form_than_the_first_ends_the_list(visible: str, expected: list[str]) -> None:
    discovery = found(FakeNvml([Card(A), Card(B)]), CUDA_VISIBLE_DEVICES=visible)
    assert devices(discovery) == expected
    assert "one form" in only_absent(discovery).reason


@pytest.mark.parametrize("entry", ["7", "card0", "x1"])
def test_an_entry_that_means_no_gpu_is_told_and_ends_the_list_as_it_does_for_cuda(entry: str) -> None:
    discovery = found(FakeNvml([Card(A), Card(B)]), CUDA_VISIBLE_DEVICES=f"1,{entry},0")
    assert devices(discovery) == [B]
    absent = only_absent(discovery)
    assert repr(entry) in absent.reason
    assert A in absent.reason
    assert absent.remedy is not None
    assert "CUDA_VISIBLE_DEVICES" in absent.remedy


@pytest.mark.parametrize("entry", ["GPU-eeee", "MIG-eeee", "GPU-"])
def test_a_uuid_that_means_no_gpu_or_several_is_told(entry: str) -> None:
    absent = only_absent(found(FakeNvml([Card(A), Card(B)]), CUDA_VISIBLE_DEVICES=entry))
    assert repr(entry) in absent.reason
    assert ("several" in absent.reason) == (entry == "GPU-")


@pytest.mark.parametrize(
    "entry", [MIG_2, "MIG-dddd", f"MIG-{B}/1/0", f"MIG-{B}/1/0,MIG-{B}/2/0", f"{MIG_1},{MIG_2}", B, "1"]
)
def test_mig_is_reported_once_for_the_whole_card(entry: str) -> None:
    discovery = found(FakeNvml([Card(A), Card(B, mig=[MIG_1, MIG_2])]), CUDA_VISIBLE_DEVICES=entry)
    assert devices(discovery) == [B]
    note = discovery.sources[0].spec.note
    assert note is not None
    assert "MIG" in note


def test_choosing_by_number_among_different_cards_is_noted_unless_the_order_is_fixed() -> None:
    fake = FakeNvml([Card(A), Card(B, name="NVIDIA T4")])
    note = found(fake, CUDA_VISIBLE_DEVICES="0").sources[0].spec.note
    assert note is not None
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in note
    ordered = found(fake, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert ordered.sources[0].spec.note is None
    assert found(fake, CUDA_VISIBLE_DEVICES="GPU-aaaa").sources[0].spec.note is None
    assert found(fake).sources[0].spec.note is None


@pytest.mark.parametrize(
    ("code", "nodes", "present", "words"),
    [
        ("LIBRARY_NOT_FOUND", False, False, "no NVIDIA GPU"),
        ("LIBRARY_NOT_FOUND", True, True, "libnvidia-ml.so.1"),
        ("DRIVER_NOT_LOADED", False, False, "no NVIDIA GPU"),
        ("DRIVER_NOT_LOADED", True, True, "not loaded"),
        ("NO_PERMISSION", True, True, "no permission"),
        ("LIB_RM_VERSION_MISMATCH", True, True, "differ in version"),
        ("UNKNOWN", True, True, "does not start"),
    ],
)
def test_why_nvml_does_not_start(code: str, nodes: bool, present: bool, words: str) -> None:
    absent = only_absent(found(FakeNvml([], start=error(code)), nodes=nodes))
    assert (absent.component, absent.present) == ("gpu", present)
    assert words in absent.reason
    assert (absent.remedy is not None) == present


def test_a_machine_with_the_library_but_no_card_has_no_gpu() -> None:
    assert only_absent(found(FakeNvml([]))).present is False


def test_a_card_without_a_counter_is_told_by_its_integrated_power_and_marked() -> None:
    now = Clock()
    card = Card(A, name="Tesla P40", energy_mj=error("NOT_SUPPORTED"), instant_mw=None)
    discovery = nvml.discover(FakeNvml([card]), {}, clock=now)
    (source,) = discovery.sources
    meter = Meter(discovery.sources, discovery.absent, clock=now, sample_period_s=None)
    meter.poll()
    with meter.window() as window:
        for _ in range(40):
            now.advance(0.05)
            meter.poll()
    assert window.energy.gpu is not None
    assert window.energy.gpu.energy_j == pytest.approx(600.0)
    assert window.energy.gpu.provenance == "measured"
    assert "integrated" in source.spec.method
    assert source.spec.gain is not None
    assert source.spec.gain > nvml.UNSEEN_GAIN
    assert window.energy.gpu.note is not None
    assert "integrated" in window.energy.gpu.note
    assert window.energy.gpu.bound_j is None


def test_a_card_that_tells_nothing_is_present_and_unknown() -> None:
    card = Card(A, energy_mj=error("NOT_SUPPORTED"), average_mw=error("NOT_SUPPORTED"), instant_mw=None)
    absent = only_absent(found(FakeNvml([card])))
    assert absent.present
    assert "neither energy" in absent.reason


def test_a_jetson_is_left_to_its_power_rails() -> None:
    card = Card(A, name="Orin (nvgpu)", energy_mj=error("NOT_SUPPORTED"), average_mw=error("NOT_SUPPORTED"))
    absent = only_absent(found(FakeNvml([card])))
    assert not absent.present
    assert "zeus" in absent.reason


def test_integrated_power_bridges_no_gap() -> None:
    now = Clock()
    discovery = nvml.discover(FakeNvml([Card(A, energy_mj=error("NOT_SUPPORTED"))]), {}, clock=now)
    meter = Meter(discovery.sources, clock=now, sample_period_s=None)
    for _ in range(3):
        now.advance(0.1)
        meter.poll()
    with meter.window() as window:
        now.advance(60)
    assert window.energy.gpu is not None
    assert window.energy.gpu.energy_j is None


def test_another_library_shutting_nvml_down_does_no_harm() -> None:
    fake = FakeNvml([Card(A)])
    discovery = found(fake)
    meter = Meter(discovery.sources, sample_period_s=None)
    meter.poll()
    with meter.window() as window:
        fake.open = 0
        fake.cards[0].energy_mj = 1_100_000
        meter.poll()
    assert window.readings_end[f"nvml:{A}"].fault is None
    assert window.readings_end[f"nvml:{A}"].energy_j == 1100.0
    assert fake.open == 1


def test_nvml_that_does_not_start_again_is_told() -> None:
    fake = FakeNvml([Card(A)])
    (source,) = found(fake).sources
    fake.open, fake.start = 0, error("DRIVER_NOT_LOADED")
    assert source.read().fault == "NVML: Driver Not Loaded"
    assert source.sample().fault == "NVML: Driver Not Loaded"
    source.close()
    assert source.read().fault is not None  # closed: not started again


@pytest.mark.parametrize(
    ("fault", "words"),
    [("NO_PERMISSION", "no permission"), ("GPU_IS_LOST", "lost")],
)
def test_a_card_whose_counter_cannot_be_read_is_present_and_unknown(fault: str, words: str) -> None:
    fake = FakeNvml([Card(A), Card(B, energy_mj=error(fault))])
    discovery = found(fake)
    assert devices(discovery) == [A]
    absent = only_absent(discovery)
    assert absent.present
    assert words in absent.reason
    assert B in absent.reason
    with Meter(discovery.sources, discovery.absent) as meter, meter.window() as window:
        pass
    assert window.energy.gpu is not None
    assert window.energy.gpu.energy_j is None


def test_a_card_that_cannot_be_opened_is_present_and_unknown_unless_it_is_hidden() -> None:
    fake = FakeNvml([Card(A), Card(B, handle=error("GPU_IS_LOST"))])
    absent = only_absent(found(fake))
    assert absent.present
    assert absent.reason == "GPU 1: GPU is lost"
    assert found(fake, CUDA_VISIBLE_DEVICES="0").absent == ()


def test_a_card_that_falls_off_the_bus_makes_its_window_unknown() -> None:
    fake = FakeNvml([Card(A)])
    discovery = found(fake)
    with Meter(discovery.sources, discovery.absent) as meter, meter.window() as window:
        fake.cards[0].energy_mj = error("GPU_IS_LOST")
        fake.cards[0].average_mw = error("GPU_IS_LOST")
        fake.cards[0].instant_mw = error("GPU_IS_LOST")
    assert window.energy.gpu is not None
    assert window.energy.gpu.energy_j is None
    assert window.energy.gpu.note == "NVIDIA H200: NVML: GPU is lost"
    assert discovery.sources[0].sample().power_w is None


def test_the_recorded_cards_power_stays_below_what_the_bound_takes_for_the_most(repository: Path) -> None:
    recording = load_recording(repository / "tests" / "data" / "nvml_h200.jsonl")
    limit_w = recording.header["environment"]["power_limit_w"]
    assert 1.25 * limit_w < max(recording.power[0].values) < 0.95 * nvml.PEAK * limit_w


def test_a_power_limit_that_is_not_told_leaves_the_bound_open() -> None:
    (source,) = found(FakeNvml([Card(A, limit_mw=error("NOT_SUPPORTED"))])).sources
    assert source.spec.max_power_w is None


def test_without_the_bindings_a_card_is_present_and_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    absent = only_absent(nvml.discover(None, {}, lambda: True))
    assert absent.present
    assert absent.remedy == "pip install nvidia-ml-py"

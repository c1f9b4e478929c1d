"""AMD, Apple and Jetson, against a fake of the package zeus with the names of its version 0.16."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from joulewise.energy import Discovery, Meter
from joulewise.energy.sources import zeus
from joulewise.energy.sources.zeus import Platform


class ZeusBaseGPUError(Exception):
    pass


class ZeusBaseSoCError(Exception):
    pass


class NotSupported(ZeusBaseGPUError):
    pass


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Gpu:
    """An AMD GPU as ``zeus.device.gpu.amd.AMDGPU`` shows it."""

    gpu_index: int = 0
    name: str = "AMD Instinct MI300X"
    energy_mj: int | None = 3_000_000
    instant_mw: int | None = 500_000
    average_mw: int | None = 480_000
    lost: bool = False

    def get_name(self) -> str:
        return self.name

    def supports_get_total_energy_consumption(self) -> bool:
        return self.energy_mj is not None

    def get_total_energy_consumption(self) -> int:
        return self._told(self.energy_mj)

    def get_instant_power_usage(self) -> int:
        return self._told(self.instant_mw)

    def get_average_power_usage(self) -> int:
        return self._told(self.average_mw)

    def _told(self, value: int | None) -> int:
        if self.lost:
            raise ZeusBaseGPUError("GPU is lost")
        if value is None:
            raise NotSupported("not supported")
        return value


@dataclass
class Rail:
    power_mw: float

    def measure_power(self) -> float:
        if self.power_mw < 0:
            raise OSError(5, "Input/output error")
        return self.power_mw


class FakeZeus:
    """The modules of zeus that the source imports."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.gpus = [Gpu()]
        self.amd_works = True
        self.apple_works = True
        self.chip = SimpleNamespace(gpu_mj=7000, cpu_total_mj=9000, dram_mj=None)
        self.rails: dict[str, Rail] = {"gpu_power_mw": Rail(8000.0), "total_power_mw": Rail(20000.0)}
        fake = self

        class AMDGPUs:
            @property
            def gpus(self) -> list[Gpu]:
                return fake.gpus

        class AppleSilicon:
            def get_total_energy_consumption(self) -> SimpleNamespace:
                return fake.chip

        class Jetson:
            def __init__(self) -> None:
                raise AssertionError("this would start a process")

            def _discover_available_metrics(self) -> dict[str, Rail]:
                return fake.rails

        self.modules = {
            "zeus": ModuleType("zeus"),
            "zeus.device": ModuleType("zeus.device"),
            "zeus.device.exception": self._module(ZeusBaseGPUError=ZeusBaseGPUError, ZeusBaseSoCError=ZeusBaseSoCError),
            "zeus.device.gpu": ModuleType("zeus.device.gpu"),
            "zeus.device.gpu.amd": self._module(amdsmi_is_available=lambda: self.amd_works, AMDGPUs=AMDGPUs),
            "zeus.device.soc": ModuleType("zeus.device.soc"),
            "zeus.device.soc.apple": self._module(
                apple_silicon_is_available=lambda: self.apple_works, AppleSilicon=AppleSilicon
            ),
            "zeus.device.soc.jetson": self._module(Jetson=Jetson),
        }
        for name, module in self.modules.items():
            patch.setitem(sys.modules, name, module)

    @staticmethod
    def _module(**names: object) -> ModuleType:
        module = ModuleType("fake")
        module.__dict__.update(names)
        return module


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeZeus:
    return FakeZeus(monkeypatch)


def found(amd: bool = False, apple: bool = False, jetson: bool = False, clock: Clock | None = None) -> Discovery:
    return zeus.discover(lambda: Platform(amd, apple, jetson), clock or Clock())


def test_where_there_is_no_such_device_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus.device.exception", None)
    assert found() == Discovery()


def test_the_system_is_asked_without_fail() -> None:
    assert isinstance(zeus.this_platform(), Platform)


def test_an_amd_gpu_tells_its_counter_and_its_power(fake: FakeZeus) -> None:
    discovery = found(amd=True)
    (source,) = discovery.sources
    assert (source.spec.source_id, source.spec.device) == ("zeus:amd-0", "AMD Instinct MI300X")
    assert (source.read().energy_j, source.read().power_w) == (3000.0, 500.0)
    assert (source.sample().energy_j, source.sample().power_w) == (None, 500.0)
    assert discovery.absent == ()
    source.close()


def test_an_amd_gpu_whose_counter_is_wrong_is_told_by_its_integrated_power(fake: FakeZeus) -> None:
    clock = Clock()
    fake.gpus = [Gpu(energy_mj=None, instant_mw=None)]
    discovery = found(amd=True, clock=clock)
    meter = Meter(discovery.sources, clock=clock, sample_period_s=None)
    meter.poll()
    with meter.window() as window:
        for _ in range(20):
            clock.advance(0.1)
            meter.poll()
    assert window.energy.gpu is not None
    assert window.energy.gpu.energy_j == pytest.approx(960.0)
    assert window.energy.gpu.note is not None
    assert "integrated" in window.energy.gpu.note
    assert discovery.sources[0].spec.gain == pytest.approx(0.1 * 2**0.5)


def test_the_second_die_of_a_module_is_not_counted_again(fake: FakeZeus) -> None:
    first = Gpu(0, "AMD Instinct MI250X")
    second = Gpu(1, "AMD Instinct MI250X", energy_mj=None, instant_mw=None, average_mw=None)
    fake.gpus = [first, second]
    discovery = found(amd=True)
    (source,) = discovery.sources
    assert source.spec.note is not None
    assert "both dies" in source.spec.note
    assert discovery.absent == ()


def test_an_amd_gpu_that_is_lost_makes_its_window_unknown(fake: FakeZeus) -> None:
    discovery = found(amd=True)
    with Meter(discovery.sources, sample_period_s=None) as meter, meter.window() as window:
        fake.gpus[0].lost = True
    assert window.energy.gpu is not None
    assert window.energy.gpu.energy_j is None
    assert window.energy.gpu.note == "AMD Instinct MI300X: Zeus: GPU is lost"


def test_an_apple_chip_tells_the_parts_that_it_has(fake: FakeZeus) -> None:
    discovery = found(apple=True)
    assert [(s.spec.component, s.read().energy_j) for s in discovery.sources] == [("gpu", 7.0), ("cpu", 9.0)]
    assert discovery.sources[0].sample().energy_j == 7.0
    (absent,) = discovery.absent
    assert (absent.component, absent.present) == ("dram", True)


def test_a_jetson_tells_its_rails_integrated(fake: FakeZeus) -> None:
    clock = Clock()
    discovery = found(jetson=True, clock=clock)
    (source,) = discovery.sources
    source.read()
    clock.advance(1.0)
    assert source.sample().energy_j == pytest.approx(8.0)
    assert "integrated" in source.spec.method
    assert [a.component for a in discovery.absent] == ["cpu"]
    fake.rails["gpu_power_mw"].power_mw = -1.0
    assert source.read().fault == "Zeus: Input/output error"
    assert source.read().energy_j is None


def test_one_maker_failing_leaves_the_others(fake: FakeZeus) -> None:
    fake.amd_works = False
    discovery = found(amd=True, jetson=True)
    assert [s.spec.source_id for s in discovery.sources] == ["zeus:jetson-gpu"]
    assert "amdsmi" in discovery.absent[0].reason


def test_without_the_package_the_device_is_present_and_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zeus", "zeus.device", "zeus.device.exception"):
        monkeypatch.setitem(sys.modules, name, None)
    (absent,) = found(amd=True).absent
    assert absent.present
    assert absent.reason == "AMD: the package zeus is not installed"
    assert absent.remedy == "pip install 'joulewise[zeus]'"


def test_another_version_of_the_package_is_told(fake: FakeZeus) -> None:
    del fake.modules["zeus.device.soc.jetson"].Jetson
    (gpu, _) = found(jetson=True).absent
    assert "this version of zeus" in gpu.reason
    assert gpu.remedy is not None
    assert "--upgrade" in gpu.remedy


def test_the_fake_has_the_names_of_the_package() -> None:
    pytest.importorskip("zeus", reason="the extra zeus is not installed")
    from zeus.device.gpu.amd import AMDGPU, AMDGPUs, amdsmi_is_available
    from zeus.device.soc.apple import AppleSilicon, AppleSiliconMeasurement, apple_silicon_is_available
    from zeus.device.soc.jetson import Jetson

    for name in (n for n in vars(Gpu) if n.startswith(("get_", "supports_"))):
        assert callable(getattr(AMDGPU, name))
    assert {"gpu_mj", "cpu_total_mj", "dram_mj"} <= set(AppleSiliconMeasurement.__dataclass_fields__)
    assert callable(AppleSilicon.get_total_energy_consumption)
    assert isinstance(AMDGPUs.gpus, property)
    assert (amdsmi_is_available(), apple_silicon_is_available()) in [(False, False), (True, False), (False, True)]
    assert Jetson._discover_available_metrics(object.__new__(Jetson)) == {} or Path("/etc/nv_tegra_release").exists()

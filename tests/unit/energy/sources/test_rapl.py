"""RAPL from a tree of files such as the kernel shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from joulewise.energy import Meter
from joulewise.energy.sources import rapl


def zone(root: Path, folder: str, name: str, energy_uj: int = 5_000_000, limit_uw: int | None = None) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(name + "\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text("262143328850\n")
    if limit_uw is not None:
        (path / "constraint_0_max_power_uw").write_text(f"{limit_uw}\n")
    return path


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    for socket in (0, 1):
        zone(tmp_path, f"intel-rapl:{socket}", f"package-{socket}", limit_uw=350_000_000)
        zone(tmp_path, f"intel-rapl:{socket}:0", "core")
        zone(tmp_path, f"intel-rapl:{socket}:1", "uncore")
        zone(tmp_path, f"intel-rapl:{socket}:2", "dram")
        zone(tmp_path, f"intel-rapl-mmio:{socket}", f"package-{socket}")
    zone(tmp_path, "intel-rapl:2", "psys")
    (tmp_path / "dtpm").mkdir()
    return tmp_path


def test_each_joule_is_counted_once(two_sockets: Path) -> None:
    found = rapl.discover(two_sockets)
    assert [s.spec.source_id for s in found.sources] == [
        "rapl:package-0",
        "rapl:package-0/dram",
        "rapl:package-1",
        "rapl:package-1/dram",
    ]
    assert [s.spec.component for s in found.sources] == ["cpu", "dram", "cpu", "dram"]
    assert found.absent == ()
    package = found.sources[0]
    assert package.spec.wrap_j == pytest.approx(262143.32885)
    assert package.spec.max_power_w == pytest.approx(700.0)
    assert package.read().energy_j == pytest.approx(5.0)
    assert package.sample().energy_j == pytest.approx(5.0)


def test_the_sockets_are_summed_and_wraps_are_seen(two_sockets: Path) -> None:
    meter = Meter(rapl.discover(two_sockets).sources, sample_period_s=None)
    (two_sockets / "intel-rapl:0" / "energy_uj").write_text("262143000000")
    meter.poll()
    with meter.window() as window:
        (two_sockets / "intel-rapl:0" / "energy_uj").write_text("671150")
        (two_sockets / "intel-rapl:1" / "energy_uj").write_text("8000000")
    assert window.energy.cpu is not None
    assert window.energy.cpu.energy_j == pytest.approx(1.0 + 3.0)


def test_the_mmio_zone_counts_where_it_is_the_only_one(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl-mmio:0", "package-0")
    assert [s.spec.source_id for s in rapl.discover(tmp_path).sources] == ["rapl:package-0"]


def test_a_counter_for_root_only_is_told_with_the_remedy(two_sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by hand: tests that run as root could read any file."""
    read_text = Path.read_text

    def refused(self: Path, *arguments: str, **named: str) -> str:
        if self == two_sockets / "intel-rapl:1" / "energy_uj":
            raise PermissionError(13, "Permission denied", str(self))
        return read_text(self, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", refused)
    found = rapl.discover(two_sockets)
    assert len(found.sources) == 3
    (absent,) = found.absent
    assert (absent.component, absent.present) == ("cpu", True)
    assert absent.reason == f"{two_sockets / 'intel-rapl:1' / 'energy_uj'} may be read by root only"
    assert absent.remedy is not None
    assert f"sudo chmod a+r {two_sockets}/*/energy_uj" in absent.remedy


def test_a_machine_without_rapl_says_so_of_both_components(tmp_path: Path) -> None:
    found = rapl.discover(tmp_path / "powercap")
    assert found.sources == ()
    assert [(a.component, a.present) for a in found.absent] == [("cpu", True), ("dram", True)]


def test_a_processor_without_a_memory_counter_says_so(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    found = rapl.discover(tmp_path)
    assert [a.component for a in found.absent] == ["dram"]


def test_a_counter_that_vanishes_is_a_fault_not_an_exception(two_sockets: Path) -> None:
    source = rapl.discover(two_sockets).sources[0]
    (two_sockets / "intel-rapl:0" / "energy_uj").unlink()
    reading = source.read()
    assert reading.energy_j is None
    assert reading.fault is not None
    assert reading.fault.endswith("energy_uj: No such file or directory")
    assert "Errno" not in reading.fault


def test_nonsense_in_the_file_is_a_fault(two_sockets: Path) -> None:
    (two_sockets / "intel-rapl:0" / "energy_uj").write_text("none\n")
    found = rapl.discover(two_sockets)
    assert found.absent[0].reason.endswith("energy_uj: what stands there is no number")
    assert [(a.name, a.component) for a in found.absent] == [("rapl", "cpu")]


def test_a_processor_that_never_has_rapl_leaves_no_gap(tmp_path: Path) -> None:
    found = rapl.discover(tmp_path, machine="aarch64")
    assert [(a.component, a.present) for a in found.absent] == [("cpu", False), ("dram", False)]
    assert "aarch64" in found.absent[0].reason


def test_a_users_calibration_corrects_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    calibration = tmp_path / "calibration.yaml"
    calibration.write_text(
        "devices: {'rapl:package-0': {gain: 0.9, gain_uncertainty: 0.01, offset_uncertainty_w: 1, "
        "date: 2026-08-01, instrument: a wattmeter}}"
    )
    monkeypatch.setenv("JOULEWISE_CALIBRATION", str(calibration))
    assert rapl.discover(tmp_path).sources[0].spec.sensor_gain == 0.9

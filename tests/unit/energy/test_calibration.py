"""What is known of a sensor's gain and offset, and what a user's calibration does to the figures."""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import Clock, Load, SimulatedSource, meter_of, run_to, spec

from joulewise.energy import ComponentEnergy, discover
from joulewise.energy.calibration import SENSORS, SPECIMEN_SPREAD, calibrated, corrected, gain_words
from joulewise.errors import UserError

CARD = spec(source_id="nvml:GPU-aaaa", device="NVIDIA H200", gain=0.05, offset_w=5.0)

FILE = """\
devices:
  NVIDIA H200:
    gain: 0.9
    gain_uncertainty: 0.02
    offset_uncertainty_w: 1.0
    date: 2026-08-01
    instrument: a wattmeter
  GPU-AAAA:
    gain: 0.95
    offset_w: -2.0
    gain_uncertainty: 0.0095
    offset_uncertainty_w: 0.19
    date: 2026-08-02
    instrument: another wattmeter
"""


def environ(tmp_path: Path, text: str = FILE) -> dict[str, str]:
    path = tmp_path / "calibration.yaml"
    path.write_text(text)
    return {"JOULEWISE_CALIBRATION": str(path)}


def test_an_unknown_card_keeps_its_general_figures() -> None:
    assert calibrated(CARD, {}) == CARD


@pytest.mark.parametrize("name", ["NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"])
def test_a_card_of_the_study_has_its_own_uncertainty_and_is_not_corrected(name: str) -> None:
    known = calibrated(replace(CARD, device=name), {})
    assert known.gain == pytest.approx(math.hypot(0.0460, SPECIMEN_SPREAD), abs=1e-4)
    assert known.offset_w == 5.0
    assert (known.sensor_gain, known.sensor_offset_w) == (1.0, 0.0)
    assert known.calibration is not None
    assert "SC'24" in known.calibration
    assert known.note is None


def test_an_offset_larger_than_the_general_one_counts() -> None:
    assert calibrated(replace(CARD, device="NVIDIA GeForce RTX 4090"), {}).offset_w == pytest.approx(22.57)


def test_what_readings_leave_out_is_added_to_any_gain() -> None:
    assert calibrated(CARD, {}, unseen=0.12).gain == pytest.approx(0.13)
    assert calibrated(replace(CARD, gain=None), {}, unseen=0.12).gain is None


def test_a_users_calibration_by_uuid_comes_before_one_by_name(tmp_path: Path) -> None:
    known = calibrated(CARD, environ(tmp_path))
    assert (known.sensor_gain, known.sensor_offset_w) == (0.95, -2.0)
    assert known.gain == pytest.approx(0.01)
    assert known.offset_w == pytest.approx(0.2)
    assert known.note is not None
    assert "another wattmeter on 2026-08-02" in known.note
    other = calibrated(replace(CARD, source_id="nvml:GPU-bbbb"), environ(tmp_path))
    assert other.sensor_gain == 0.9
    assert calibrated(replace(CARD, source_id="x:y", device="another"), environ(tmp_path)).sensor_gain == 1.0


def test_the_usual_place_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "joulewise").mkdir()
    (tmp_path / "joulewise" / "calibration.yaml").write_text(FILE)
    assert calibrated(CARD, {"XDG_CONFIG_HOME": str(tmp_path)}).sensor_gain == 0.95
    assert calibrated(CARD, {"HOME": str(tmp_path)}).sensor_gain == 1.0


def test_a_wrong_file_is_told_where_no_device_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOULEWISE_CALIBRATION", environ(tmp_path, "devices: {x: {}}")["JOULEWISE_CALIBRATION"])
    with pytest.raises(UserError, match=r"calibration.yaml:1: devices.x.gain: this key is missing"):
        discover(["dram_model"])


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="JOULEWISE_CALIBRATION: there is no file"):
        calibrated(CARD, {"JOULEWISE_CALIBRATION": str(tmp_path / "gone.yaml")})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gain: 0.9\n", "gain: 0\n", r"calibration.yaml:3: devices.NVIDIA H200.gain: .*greater than 0.2"),
        ("offset_w: -2.0", "ofset_w: -2.0", r"calibration.yaml:10: .*unknown key; did you mean 'offset_w'"),
        ("    instrument: a wattmeter\n", "", r"calibration.yaml:2: devices.NVIDIA H200.instrument: .*missing"),
        ("2026-08-02", "August", r"calibration.yaml:13: devices.GPU-AAAA.date"),
    ],
)
def test_faults_are_told_with_file_line_and_field(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in FILE
    with pytest.raises(UserError, match=words):
        calibrated(CARD, environ(tmp_path, FILE.replace(old, new)))


def test_the_figures_of_a_window_are_corrected(tmp_path: Path) -> None:
    """A sensor that shows 0.95 x power - 2 W: after the correction the window tells the truth."""
    clock = Clock()
    shown = Load([(1.0, 0.95 * 300.0 - 2.0)])
    meter = meter_of(SimulatedSource(clock, shown, calibrated(CARD, environ(tmp_path))))
    run_to(meter, clock, 1005.0)
    with meter.window() as window:
        run_to(meter, clock, 1015.0)
    gpu = window.energy.gpu
    assert gpu is not None
    assert gpu.energy_j == pytest.approx(3000.0, rel=1e-3)
    assert gpu.gain_j == pytest.approx(30.0, rel=1e-3)
    assert gpu.offset_j == pytest.approx(2.0, rel=1e-3)
    assert gpu.bound_j is not None
    assert gpu.bound_j[0] < 3000.0 < gpu.bound_j[1]


@given(
    energy_j=st.floats(1.0, 1e6),
    gain=st.floats(0.5, 2.0),
    offset_w=st.floats(-20.0, 20.0),
    duration_s=st.floats(0.1, 1e3),
)
def test_correcting_undoes_what_the_sensor_did(
    energy_j: float, gain: float, offset_w: float, duration_s: float
) -> None:
    source = replace(CARD, sensor_gain=gain, sensor_offset_w=offset_w)
    shown = ComponentEnergy("gpu", "measured", gain * energy_j + offset_w * duration_s, start_edge_j=gain)
    part = corrected(source, shown, duration_s)
    assert part.energy_j == pytest.approx(energy_j, rel=1e-6, abs=1e-6)
    assert part.start_edge_j == pytest.approx(1.0)


def test_the_table_is_what_the_study_says(repository: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    from derive_gpu_sensors import derive

    with (shared_data / "gpu-power-sensor" / "nvidia_power_sensor.csv").open(newline="") as file:
        expected = [
            [card, str(specimens), f"{gain:.4f}", f"{offset_w:.2f}"]
            for card, specimens, gain, offset_w in derive(csv.DictReader(file))
        ]
    with SENSORS.open(newline="") as file:
        assert list(csv.reader(file))[1:] == expected


def test_without_a_file_nothing_heavy_is_imported() -> None:
    import subprocess

    code = "import sys, joulewise.energy.calibration; sys.exit('pydantic' in sys.modules or 'yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_gain_is_told_in_words(tmp_path: Path) -> None:
    assert "sensor gain known to 5.0%, offset to 5 W" in gain_words(asdict(CARD))
    assert "general figures" in gain_words(asdict(CARD))
    assert "SC'24" in gain_words(asdict(calibrated(replace(CARD, device="NVIDIA RTX A5000"), {})))
    assert gain_words(asdict(calibrated(CARD, environ(tmp_path)))).endswith("by that comparison")
    assert gain_words({"gain": None}) == "sensor gain unknown, and left out of intervals"
    # A run recorded before calibrations were.
    assert "known to 10.0%" in gain_words({"gain": 0.1})

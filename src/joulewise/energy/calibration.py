"""Calibration: how far a sensor's joules may be off, and by how much a user's own comparison says that they are.

Of each source, in this order:

1. the user's calibration file (``JOULEWISE_CALIBRATION``, else ``joulewise/calibration.yaml`` in the configuration
   folder), made with an external meter: its gain and offset correct the figures, its uncertainties widen them;
2. for NVIDIA cards that the SC'24 study of power sensors compared with a meter, what it found as the uncertainty;
3. the source's own general figures.
"""

from __future__ import annotations

import csv
import functools
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulewise.energy.reading import ComponentEnergy
from joulewise.energy.source import SourceSpec
from joulewise.errors import UserError

if TYPE_CHECKING:
    from joulewise.energy.calibration_file import DeviceCalibration

SETTING = "JOULEWISE_CALIBRATION"

SENSORS = Path(__file__).parent / "data" / "gpu_sensors.csv"

SPECIMEN_SPREAD = 0.012
"""Relative standard deviation from card to card of one kind: five RTX 3090 in the study."""

LEAST_OFFSET_W = 5.0
"""Standard uncertainty of an offset that was found on another specimen, at least."""


def calibrated(spec: SourceSpec, environ: Mapping[str, str] = os.environ, *, unseen: float = 0.0) -> SourceSpec:
    """The source with the best that is known of its gain and offset.

    Args:
        spec: the source, with its general figures.
        environ: where the calibration file is looked up.
        unseen: relative standard uncertainty that no calibration takes away, such as what readings of power leave out.

    Raises:
        UserError: the calibration file is wrong, with file, line and field.
    """
    found = _from_file(spec, environ) or _by_card(spec) or spec
    return replace(found, gain=None if found.gain is None else math.hypot(found.gain, unseen))


def corrected(spec: SourceSpec, part: ComponentEnergy, duration_s: float) -> ComponentEnergy:
    """Joules of a window as the sensor told them, corrected by the source's calibration.

    The sensor shows ``gain x true + offset``, so true = (shown - offset x seconds) / gain. The uncertainties of both
    are not touched: they are of true joules, and follow from the corrected figure.
    """
    if part.energy_j is None or (spec.sensor_gain == 1.0 and spec.sensor_offset_w == 0.0):
        return part

    def true_j(shown_j: float) -> float:
        return max(0.0, (shown_j - spec.sensor_offset_w * duration_s) / spec.sensor_gain)

    return replace(
        part,
        energy_j=true_j(part.energy_j),
        start_edge_j=part.start_edge_j / spec.sensor_gain,
        end_edge_j=part.end_edge_j / spec.sensor_gain,
        sampling_j=part.sampling_j / spec.sensor_gain,
        bound_j=None if part.bound_j is None else (true_j(part.bound_j[0]), true_j(part.bound_j[1])),
    )


def gain_words(source: Mapping[str, Any]) -> str:
    """How far a sensor itself may be off, and who says so.

    Args:
        source: a measuring ``SourceSpec`` as plain data, as it is recorded with a run.
    """
    if source.get("gain") is None:
        return "sensor gain unknown, and left out of intervals"
    told = source.get("calibration") or "general figures, as no study with a meter of this kind of device is at hand"
    if told in (source.get("note") or ""):  # a correction is told in the note already
        told = "by that comparison"
    offset_w = source.get("offset_w") or 0.0
    return f"sensor gain known to {source['gain']:.1%}, offset to {offset_w:.3g} W (standard uncertainty): {told}"


def calibration_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The user's calibration file; None where there is none.

    Raises:
        UserError: the setting names a file that is not there.
    """
    if named := environ.get(SETTING):
        if not Path(named).is_file():
            raise UserError(f"{SETTING}: there is no file {named}; correct the setting, or unset it")
        return Path(named)
    folder = environ.get("XDG_CONFIG_HOME") or (Path(environ["HOME"]) / ".config" if "HOME" in environ else None)
    usual = None if folder is None else Path(folder) / "joulewise" / "calibration.yaml"
    return usual if usual is not None and usual.is_file() else None


def check_calibration(environ: Mapping[str, str] = os.environ) -> None:
    """Read the user's calibration file, if there is one, so that its faults are told even where no device needs it.

    Raises:
        UserError: it is not there or wrong, with file, line and field.
    """
    if path := calibration_path(environ):
        from joulewise.energy.calibration_file import load_calibration

        load_calibration(path)


def _from_file(spec: SourceSpec, environ: Mapping[str, str]) -> SourceSpec | None:
    path = calibration_path(environ)
    if path is None:
        return None
    from joulewise.energy.calibration_file import load_calibration  # pydantic and YAML, only where there is a file

    devices = load_calibration(path).devices
    names = (spec.source_id, spec.source_id.partition(":")[2], spec.device)
    # The identity before the kind of card.
    for name in names:
        for key, calibration in devices.items():
            if key.casefold() == name.casefold():
                return _apply(spec, calibration, path)
    return None


def _apply(spec: SourceSpec, calibration: DeviceCalibration, path: Path) -> SourceSpec:
    gain, offset_w = calibration.gain, calibration.offset_w
    told = (
        f"corrected by {path.name}: gain {gain:g} ± {calibration.gain_uncertainty:g}, "
        f"offset {offset_w:g} ± {calibration.offset_uncertainty_w:g} W, "
        f"against {calibration.instrument} on {calibration.date.isoformat()}"
    )
    return replace(
        spec,
        gain=calibration.gain_uncertainty / gain,
        offset_w=calibration.offset_uncertainty_w / gain,
        sensor_gain=gain,
        sensor_offset_w=offset_w,
        calibration=told,
        note="; ".join(n for n in (spec.note, told) if n),
    )


def _by_card(spec: SourceSpec) -> SourceSpec | None:
    errors = _sensors().get(_card(spec.device))
    if errors is None or spec.component != "gpu":
        return None
    gain, offset_w = errors
    return replace(
        spec,
        gain=math.hypot(gain, SPECIMEN_SPREAD),
        offset_w=max(offset_w, LEAST_OFFSET_W),
        calibration="not corrected; uncertainty as found on this kind of card with a meter (Yang et al., SC'24)",
    )


@functools.cache
def _sensors() -> dict[str, tuple[float, float]]:
    """By card: relative error of the gain, and of the offset in watts."""
    with SENSORS.open(encoding="utf-8", newline="") as file:
        return {
            _card(row["card"]): (float(row["gain_error"]), float(row["offset_error_w"])) for row in csv.DictReader(file)
        }


def _card(name: str) -> str:
    """Drivers of different age put ``NVIDIA`` before a card's name or not."""
    return name.casefold().removeprefix("nvidia ").strip()

"""The file that holds a user's calibrations of sensors: YAML, checked with file, line and field."""

from __future__ import annotations

import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from joulewise.yaml_file import load_yaml


class DeviceCalibration(BaseModel):
    """What a comparison with an external meter found for one sensor: it shows ``gain x true power + offset``.

    Args:
        gain: what the sensor shows per true watt, such as 0.954 for one that shows too little.
        offset_w: what it shows at no power, in watts.
        gain_uncertainty: standard uncertainty of the gain.
        offset_uncertainty_w: standard uncertainty of the offset, in watts.
        date: the day of the comparison.
        instrument: the meter it was held against.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gain: float = Field(gt=0.2, lt=5.0)
    offset_w: float = Field(0.0, allow_inf_nan=False)
    gain_uncertainty: float = Field(ge=0.0, lt=1.0)
    offset_uncertainty_w: float = Field(ge=0.0, allow_inf_nan=False)
    date: datetime.date
    instrument: str = Field(min_length=1)


class CalibrationFile(BaseModel):
    """A calibration file.

    Args:
        devices: by UUID (``GPU-2f1a...``), source (``rapl:package-0``) or name of the card (``NVIDIA H200``); a UUID
            counts before a name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    devices: dict[str, DeviceCalibration]


def load_calibration(path: Path) -> CalibrationFile:
    """Read a calibration file.

    Raises:
        UserError: it cannot be read or is wrong, with file, line and field.
    """
    return load_yaml(path, CalibrationFile)

# ruff: noqa: N802 (the library's names)
"""A fake of ``pynvml`` whose cards live in a file (FAKE_NVML), so that several processes see the same ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pynvml
from pynvml import NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_SUPPORTED, NVMLError

__all__ = ["NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", "NVMLError"]

ONE, TWO = "GPU-1", "GPU-2"


def file() -> Path:
    return Path(os.environ["FAKE_NVML"])


def fresh(path: Path, **other: Any) -> None:
    """Two cards at 700 W, their clocks free."""
    card = {"power_limit_mw": 700_000, "locked_mhz": None}
    path.write_text(json.dumps({"cards": {ONE: dict(card), TWO: dict(card)}, "rights": True, "sets": []} | other))


def state() -> Any:
    return json.loads(file().read_text())


def _change(uuid: str, name: str, value: int | None) -> None:
    told = state()
    if told["rights"] is not True and uuid not in (told["rights"] or ()):
        raise NVMLError(NVML_ERROR_NO_PERMISSION)
    told["cards"][uuid][name] = value
    told["sets"].append([uuid, name, value])
    part = file().with_suffix(".part")
    part.write_text(json.dumps(told))
    part.replace(file())


def nvmlInit() -> None:
    if not file().exists():
        raise NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def nvmlShutdown() -> None:
    pass


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:
    if uuid not in state()["cards"]:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return uuid


def nvmlDeviceGetName(card: str) -> str:
    return "fake card"


def nvmlDeviceGetPowerManagementLimitConstraints(card: str) -> list[int]:
    return [200_000, 700_000]


def nvmlDeviceGetPowerManagementLimit(card: str) -> int:
    limit: int = state()["cards"][card]["power_limit_mw"]
    return limit


def nvmlDeviceSetPowerManagementLimit(card: str, limit_mw: int) -> None:
    _change(card, "power_limit_mw", limit_mw)


def nvmlDeviceGetSupportedMemoryClocks(card: str) -> list[int]:
    return [3201, 1593]


def nvmlDeviceGetSupportedGraphicsClocks(card: str, memory_mhz: int) -> list[int]:
    assert memory_mhz == 3201
    return [1980, 1965, 345]


def nvmlDeviceSetGpuLockedClocks(card: str, low_mhz: int, high_mhz: int) -> None:
    assert low_mhz == high_mhz
    _change(card, "locked_mhz", low_mhz)


def nvmlDeviceResetGpuLockedClocks(card: str) -> None:
    _change(card, "locked_mhz", None)

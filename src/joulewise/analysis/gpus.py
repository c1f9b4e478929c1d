"""Which of a machine's GPUs a run was metered on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NVML = "nvml:"


def metered_gpus(environment: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], int]:
    """The GPUs whose joules are in a run's, and how many others the machine has; all of them where that is not known.

    Args:
        environment: a run's, which any version may have written.
    """
    machine = environment.get("machine") or {}
    gpus = [gpu for gpu in machine.get("gpus") or () if isinstance(gpu, Mapping)]
    sources = [source for source in environment.get("sources") or () if isinstance(source, Mapping)]
    metered = {str(source.get("source_id")) for source in sources}
    found = [gpu for gpu in gpus if f"{_NVML}{gpu.get('uuid')}" in metered]
    return (found, len(gpus) - len(found)) if found else (gpus, 0)

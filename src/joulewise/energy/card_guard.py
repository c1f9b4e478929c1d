"""Puts GPUs back as they were found, however Joulewise ends. A process: ``python -m joulewise.energy.card_guard``.

Standard input is a pipe whose other end Joulewise alone holds. Its first line is JSON: ``nvml`` (the module's name) and
``cards``, each with ``uuid``, ``power_limit_mw`` (None: leave it) and ``clocks`` (whether to unlock them). When more
comes, the pipe closes or Joulewise is gone, all that is done. The exit status says whether it could be.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

LOOK_S = 1.0
"""So often it looks whether Joulewise is still there: a forked child of it may hold the pipe open."""


def restore(nvml: Any, cards: Sequence[Mapping[str, Any]]) -> list[str]:
    """Put cards back. What could not be put back, in words: one card's fault does not keep the others from it.

    Args:
        nvml: ``pynvml``, or a module like it; initialised.
        cards: as above.
    """
    faults = []
    for card in cards:
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(card["uuid"])
        except nvml.NVMLError as error:
            faults.append(f"{card['uuid']}: {error}")
            continue
        try:
            if card["power_limit_mw"] is not None:
                nvml.nvmlDeviceSetPowerManagementLimit(handle, card["power_limit_mw"])
        except nvml.NVMLError as error:
            faults.append(f"{card['uuid']}: power limit {card['power_limit_mw'] / 1000:g} W: {error}")
        try:
            if card["clocks"]:
                nvml.nvmlDeviceResetGpuLockedClocks(handle)
        except nvml.NVMLError as error:
            faults.append(f"{card['uuid']}: unlocking its clocks: {error}")
    return faults


def main() -> int:
    """Wait for the pipe to close, then put back."""
    parent = os.getppid()
    told = json.loads(sys.stdin.buffer.readline())
    nvml = import_module(told["nvml"])
    nvml.nvmlInit()
    print("ready", flush=True)
    while os.getppid() == parent and not select.select([sys.stdin.fileno()], [], [], LOOK_S)[0]:
        pass
    try:
        for fault in (faults := restore(nvml, told["cards"])):
            print(fault, file=sys.stderr, flush=True)
    finally:
        nvml.nvmlShutdown()
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

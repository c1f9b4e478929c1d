"""A power limit or a locked clock on GPUs, where a plan asks for it: set, held, and put back whatever happens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from joulewise.energy.source import SourceSpec
from joulewise.energy.sources.nvml import local_uuids
from joulewise.errors import EnvironmentFault, UserError

NVML = "pynvml"
"""The module that sets, and the guard's."""

GUARD_S = 30.0
"""So long putting the cards back may take."""


@dataclass(frozen=True, slots=True)
class CardSetting:
    """What a plan asks of the cards.

    Args:
        power_limit_w: in watts; None leaves it.
        locked_sm_clock_hz: the SM clock, held there as far as power and heat allow; None leaves it.
    """

    power_limit_w: float | None = None
    locked_sm_clock_hz: float | None = None

    def __bool__(self) -> bool:
        return self.power_limit_w is not None or self.locked_sm_clock_hz is not None

    def __str__(self) -> str:
        told = [
            None if self.power_limit_w is None else f"power limit {self.power_limit_w:g} W",
            None if self.locked_sm_clock_hz is None else f"SM clock {self.locked_sm_clock_hz / 1e9:g} GHz",
        ]
        return ", ".join(filter(None, told))


def cards_of(gpus: Sequence[int | str] | None, sources: Sequence[SourceSpec]) -> list[str]:
    """The UUIDs of the GPUs that an engine may use: those that its plan names, or all that are metered here.

    Args:
        gpus: by number in the order of the PCI bus, or by UUID; None names none.
        sources: the meter's.

    Raises:
        UserError: a number that no GPU has.
    """
    if not gpus:
        return [source.source_id.removeprefix("nvml:") for source in sources if source.source_id.startswith("nvml:")]
    there = local_uuids()
    if strange := [gpu for gpu in gpus if isinstance(gpu, int) and not gpu < len(there)]:
        raise UserError(f"gpus: there is no GPU {strange[0]} here: {len(there)} are seen, numbered from 0")
    return [there[gpu] if isinstance(gpu, int) else gpu for gpu in gpus]


@contextmanager
def held(
    setting: CardSetting, uuids: Sequence[str], tell: Callable[[str], None] = lambda _: None
) -> Iterator[Mapping[str, float]]:
    """Hold cards in a setting, and put them back: on any way out of the block, and by a process of its own on a kill.

    A power limit goes back to what it was. What clocks were locked to before nobody can ask: they are unlocked.

    Args:
        setting: an empty one leaves everything as it is and starts nothing.
        uuids: which cards.
        tell: told where a card could not be put back.

    Yields:
        by UUID, the power limits that were found, in watts, where they are changed.

    Raises:
        EnvironmentFault: there is no card, no right to change it, or it cannot be changed.
        UserError: the card cannot be set to that.
    """
    if not setting:
        yield {}
        return
    with _found_all(setting, uuids) as (nvml, cards):
        guard = _guard(cards)
        try:
            for card in cards:
                _set(nvml, card["uuid"], setting)
            yield {c["uuid"]: c["power_limit_mw"] / 1000 for c in cards if c["power_limit_mw"] is not None}
        finally:
            if faults := _let_go(guard):
                tell(f"A GPU could not be put back as it was found: {faults}; see `nvidia-smi -q -d POWER,CLOCK`")


def check_held(setting: CardSetting, uuids: Sequence[str]) -> None:
    """Make sure that cards can be held in a setting, as far as can be told without changing them.

    Args:
        setting, uuids: as for ``held``.

    Raises:
        EnvironmentFault, UserError: as ``held``; the right to change a card is not tried.
    """
    if setting:
        with _found_all(setting, uuids):
            pass


@contextmanager
def _found_all(setting: CardSetting, uuids: Sequence[str]) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """The library, and what each card is put back to."""
    nvml = import_module(NVML)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise EnvironmentFault(f"{_asked(setting)}, and there is no NVIDIA GPU that could be set ({error})") from error
    try:
        if not uuids:
            raise EnvironmentFault(f"{_asked(setting)}, and there is no NVIDIA GPU here that could be set")
        yield nvml, [_found(nvml, uuid, setting) for uuid in uuids]
    finally:
        nvml.nvmlShutdown()


def _asked(setting: CardSetting) -> str:
    return f"The plan asks for a {str(setting).replace(', ', ' and a ')}"


def _found(nvml: Any, uuid: str, setting: CardSetting) -> dict[str, Any]:
    """What a card is put back to; refused where it cannot be set so."""
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        name = nvml.nvmlDeviceGetName(handle)
        limit_mw = None
        if setting.power_limit_w is not None:
            low, high = (mw / 1000 for mw in nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle))
            if not low <= setting.power_limit_w <= high:
                raise UserError(
                    f"power_limit_w: {setting.power_limit_w:g} is beyond what {name} takes: give {low:g} to {high:g} W"
                )
            limit_mw = nvml.nvmlDeviceGetPowerManagementLimit(handle)
            if 1000 * setting.power_limit_w > limit_mw:
                raise UserError(
                    f"power_limit_w: {setting.power_limit_w:g} is above the limit that {name} has now, on which the "
                    f"meter relies ({limit_mw / 1000:g} W): raise that first (nvidia-smi -pl), or ask for less"
                )
        if setting.locked_sm_clock_hz is not None:
            memory_mhz = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
            clocks = [1e6 * mhz for mhz in nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz)]
            if not min(clocks) <= setting.locked_sm_clock_hz <= max(clocks):
                raise UserError(
                    f"locked_sm_clock_hz: {setting.locked_sm_clock_hz:g} is beyond what {name} takes: give "
                    f"{min(clocks):g} to {max(clocks):g} Hz"
                )
    except nvml.NVMLError as error:
        raise EnvironmentFault(f"{_asked(setting)}, and the GPU {uuid} cannot be set so (NVML: {error})") from error
    return {"uuid": uuid, "power_limit_mw": limit_mw, "clocks": setting.locked_sm_clock_hz is not None}


def _set(nvml: Any, uuid: str, setting: CardSetting) -> None:
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        if setting.power_limit_w is not None:
            nvml.nvmlDeviceSetPowerManagementLimit(handle, round(1000 * setting.power_limit_w))
        if setting.locked_sm_clock_hz is not None:
            mhz = round(setting.locked_sm_clock_hz / 1e6)
            nvml.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_NO_PERMISSION:
            raise EnvironmentFault(f"{_asked(setting)}, and the GPU {uuid} refuses (NVML: {error})") from error
        raise EnvironmentFault(
            f"{_asked(setting)}, and you may not change the GPU {uuid}: run as root, or leave that out of the plan"
        ) from error


def _guard(cards: Sequence[Mapping[str, Any]]) -> subprocess.Popen[bytes]:
    """The process that puts the cards back; it is there before anything is changed."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "joulewise.energy.card_guard"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is Joulewise's to answer
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        guard.stdin.write(json.dumps({"nvml": NVML, "cards": cards}).encode() + b"\n")
        guard.stdin.flush()
        ready = guard.stdout.readline() == b"ready\n"
    except BrokenPipeError:
        ready = False
    if not ready:
        errors = guard.communicate()[1].decode(errors="replace").strip().splitlines()
        raise EnvironmentFault(
            "No GPU was changed, as the process that would put it back cannot be started "
            f"({errors[-1] if errors else 'no reason was given'})"
        )
    return guard


def _let_go(guard: subprocess.Popen[bytes]) -> str:
    """Have the cards put back, and wait until they are. What could not be, in words."""
    try:
        _, errors = guard.communicate(b"restore\n", timeout=GUARD_S)
    except subprocess.TimeoutExpired:
        return f"it takes longer than {GUARD_S:g} s"
    return "; ".join(errors.decode(errors="replace").split("\n")).strip("; ") if guard.returncode else ""

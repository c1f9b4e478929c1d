"""A fake of ``pynvml`` with one card in it, whose sensors follow loads in real time; and the loads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pynvml

PERIOD_S, READ_S = 0.1, 0.0005
IDLE_W, WORKING_W = 100.0, 500.0
UUID = "GPU-fa4e0000-0000-0000-0000-000000000000"


class FakeCard:
    """What of ``pynvml`` the benchmarks use; its counter integrates all of the time, its power reading is held."""

    NVMLError = pynvml.NVMLError

    def __init__(self) -> None:
        self.origin_s = time.monotonic()
        self._on: list[list[float]] = []  # stretches at full power; the last may have no end yet
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML_"):
            return getattr(pynvml, name)
        raise AttributeError(name)

    # The load.

    def work(self, start_s: float, end_s: float = float("inf")) -> None:
        """Full power from one moment to another."""
        with self._lock:
            self._on.append([start_s, end_s])

    def rest(self) -> None:
        """Idle from now on."""
        with self._lock:
            if self._on:
                self._on[-1][1] = min(self._on[-1][1], time.monotonic())

    def _worked_s(self, start_s: float, end_s: float) -> float:
        with self._lock:
            return sum(max(0.0, min(b, end_s) - max(a, start_s)) for a, b in self._on)

    def _power_w(self, start_s: float, end_s: float) -> float:
        share = self._worked_s(start_s, end_s) / (end_s - start_s)
        return IDLE_W + (WORKING_W - IDLE_W) * share

    def _energy_j(self, now_s: float) -> float:
        end_s = self.origin_s + int((now_s - self.origin_s) / PERIOD_S) * PERIOD_S
        return IDLE_W * (end_s - self.origin_s) + (WORKING_W - IDLE_W) * self._worked_s(self.origin_s, end_s)

    # NVML.

    def nvmlInit(self) -> None:  # noqa: N802 (the library's names, here and below)
        pass

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.0"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        assert uuid == UUID
        return 0

    def nvmlDeviceGetUUID(self, card: int) -> str:  # noqa: N802
        return UUID

    def nvmlDeviceGetName(self, card: int) -> str:  # noqa: N802
        return "fake card"

    def nvmlDeviceGetMigMode(self, card: int) -> list[int]:  # noqa: N802
        return [0, 0]

    def nvmlDeviceGetEnforcedPowerLimit(self, card: int) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetTotalEnergyConsumption(self, card: int) -> int:  # noqa: N802
        time.sleep(READ_S)
        return round(1000 * self._energy_j(time.monotonic()))

    def nvmlDeviceGetPowerUsage(self, card: int) -> int:  # noqa: N802
        now_s = time.monotonic()
        return round(1000 * self._power_w(now_s - 1.0, now_s))

    def nvmlDeviceGetFieldValues(self, card: int, fields: list[int]) -> list[Any]:  # noqa: N802
        now_s = time.monotonic()
        renewed_s = self.origin_s + int((now_s - self.origin_s) / PERIOD_S) * PERIOD_S
        power_w = self._power_w(renewed_s - 0.025, renewed_s)
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=round(1000 * power_w)))]

    def nvmlDeviceGetUtilizationRates(self, card: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=100, memory=10)

    def nvmlDeviceGetClockInfo(self, card: int, which: int) -> int:  # noqa: N802
        return 1980

    def nvmlDeviceGetTemperature(self, card: int, which: int) -> int:  # noqa: N802
        return 40

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: int) -> int:  # noqa: N802
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


class FakeLoad:
    """``Load`` on a fake card."""

    def __init__(self, card: FakeCard) -> None:
        self._card = card
        self.closed = False

    def idle(self) -> None:
        """Nothing from now on."""
        self._card.rest()

    def steady(self) -> None:
        """Full power from now on."""
        self._card.rest()
        self._card.work(time.monotonic())

    def locked(self, first_s: float, period_s: float, count: int, burst_s: float) -> list[tuple[float, float]]:
        """Bursts at set times."""
        self._card.rest()
        bursts = [(first_s + i * period_s, first_s + i * period_s + burst_s) for i in range(count)]
        for start_s, end_s in bursts:
            self._card.work(start_s, end_s)
        time.sleep(max(0.0, bursts[-1][1] - time.monotonic()))
        return bursts

    def phases(self, phases: Sequence[tuple[str, float]]) -> Iterator[list[Any]]:
        """Steady and idle phases, and one burst for any other."""
        for name, seconds in phases:
            start_s = time.monotonic()
            yield ["phase", name, start_s]
            if name != "idle":
                yield ["event", start_s, 1]
                self._card.work(start_s, start_s + (seconds if name == "steady" else seconds / 2))
            time.sleep(seconds)
        yield ["phase", None, time.monotonic()]

    def close(self) -> None:
        """No more."""
        self.idle()
        self.closed = True

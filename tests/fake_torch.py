"""A module in the place of ``torch``: a GPU that is a queue in real time, for `benchmarks/gpu_load.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

__version__ = "fake"
bfloat16 = "bfloat16"
float32 = "float32"
ROUND_S = 5e-7

_free_s = 0.0
_captured: list[Callable[[], None]] | None = None


def _launch(seconds: float) -> None:
    def run() -> None:
        global _free_s
        _free_s = max(_free_s, time.monotonic()) + seconds

    if _captured is None:
        run()
    else:
        _captured.append(run)


def randn(*shape: int, **_: Any) -> tuple[int, ...]:
    return shape


def empty(*shape: int, **_: Any) -> tuple[int, ...]:
    return shape


def work(rounds: int) -> None:
    """What a kernel of so many rounds does, however many multiprocessors it has."""
    _launch(rounds * ROUND_S)


class cuda:  # noqa: N801 (the library's name)
    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def get_device_properties(device: int) -> Any:
        return SimpleNamespace(multi_processor_count=132)

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.time_s = 0.0

        def record(self) -> None:
            assert _captured is None
            self.time_s = max(_free_s, time.monotonic())

        def synchronize(self) -> None:
            time.sleep(max(0.0, self.time_s - time.monotonic()))

        def elapsed_time(self, other: Any) -> float:
            return float(1000 * (other.time_s - self.time_s))

    class CUDAGraph:
        def __init__(self) -> None:
            self.units: list[Callable[[], None]] = []

        def replay(self) -> None:
            for unit in self.units:
                unit()

    @staticmethod
    @contextmanager
    def graph(graph: Any) -> Iterator[None]:
        global _captured
        _captured = graph.units
        yield
        _captured = None

"""Windows as Zeus or CodeCarbon tell them, in a process of their own: for `benchmarks/card.py`.

    python benchmarks/rivals.py zeus    # says "ready" or why not; a line "SECONDS" on its input starts the windows

Each window comes as a line ``[asked_s, lasted_s, energy_j]``: how long it was to be, how long it was, and what the GPU
is said to have drawn in it.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

LENGTHS_S = (0.053, 0.217, 0.537, 1.037, 2.053, 5.047)
EACH_S = 1.5
"""Zeus' windows may overlap: one of each length begins every so often."""

Windows = Callable[[float], Iterator[tuple[float, float, float]]]


def zeus() -> Windows:
    """``ZeusMonitor``, nothing to synchronise: the load is another process's."""
    from zeus.monitor import ZeusMonitor  # type: ignore[import-not-found, unused-ignore]

    monitor = ZeusMonitor(gpu_indices=[0], cpu_indices=[])

    def windows(seconds: float) -> Iterator[tuple[float, float, float]]:
        draw, first_s = random.Random(0), time.monotonic()
        moments: list[tuple[float, float, str]] = []
        for length_s in LENGTHS_S:
            for number in range(int((seconds - length_s) / EACH_S)):
                start_s = first_s + EACH_S * number + draw.uniform(0.0, EACH_S)
                name = f"{length_s} {number}"
                moments += [(start_s, 0.0, name), (start_s + length_s, length_s, name)]
        for due_s, length_s, name in sorted(moments):
            time.sleep(max(0.0, due_s - time.monotonic()))
            if not length_s:
                monitor.begin_window(name, sync_execution=False)
            else:
                told = monitor.end_window(name, sync_execution=False)
                yield length_s, told.time, told.total_energy

    return windows


def codecarbon() -> Windows:
    """``OfflineEmissionsTracker``: tasks, one after another."""
    from codecarbon import OfflineEmissionsTracker  # type: ignore[import-not-found, unused-ignore]

    tracker = OfflineEmissionsTracker(
        country_iso_code="USA", save_to_file=False, log_level="critical", allow_multiple_runs=True
    )

    def windows(seconds: float) -> Iterator[tuple[float, float, float]]:
        draw, end_s, number = random.Random(), time.monotonic() + seconds, 0
        while True:
            for length_s in draw.sample(LENGTHS_S, len(LENGTHS_S)):
                if time.monotonic() + length_s > end_s:
                    return
                number += 1
                tracker.start_task(str(number))
                start_s = time.monotonic()
                time.sleep(length_s)
                lasted_s = time.monotonic() - start_s
                yield length_s, lasted_s, 3.6e6 * tracker.stop_task(str(number)).gpu_energy
                time.sleep(draw.uniform(0.0, 0.2))

    return windows


RIVALS: dict[str, Callable[[], Windows]] = {"zeus": zeus, "codecarbon": codecarbon}


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries talk too

    def tell(what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        windows = RIVALS[sys.argv[1]]()
    except ImportError as error:
        tell(f"not installed ({error})")
        return
    tell("ready")
    seconds = sys.stdin.readline()
    if seconds:
        for window in windows(float(seconds)):
            tell(window)


if __name__ == "__main__":
    main()

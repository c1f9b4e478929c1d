"""``joulewise.measure()``: a window on one meter for the whole process, opened when it is first wanted."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager

from joulewise.energy.meter import Meter, Window, discover

_lock = threading.Lock()
_meter: tuple[int, Meter] | None = None


def measure() -> AbstractContextManager[Window]:
    """A window on everything that can be read here.

        with joulewise.measure() as window:
            work()
        print(window.energy.total.energy_j)

    The first call looks for sources and starts the sampler, which runs on until the program ends.

    Raises:
        JoulewiseError: from ``window.energy`` while the window is open.
    """
    return _process_meter().window()


def _process_meter() -> Meter:
    global _meter
    with _lock:
        # A forked child has the meter but not its thread.
        if _meter is None or _meter[0] != os.getpid():
            meter = discover().__enter__()
            _meter = os.getpid(), meter
        return _meter[1]

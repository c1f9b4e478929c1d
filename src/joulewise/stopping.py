"""How a run is stopped: a signal once, and it ends after the Trial (or batch, or step) in flight."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signal(unit: str = "Trial") -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the second raises ``KeyboardInterrupt``.

    Args:
        unit: what the caller finishes before it looks at the event.
    """
    stop = threading.Event()

    def handle(_signum: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # Not print(): the signal may have come in the middle of one.
        os.write(2, f"\njoulewise: stopping after the {unit} in flight; once more, and it stops at once\n".encode())

    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals reach the main thread only; its owner decides
        return
    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)

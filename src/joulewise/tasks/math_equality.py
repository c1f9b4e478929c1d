"""Whether two mathematical expressions are equal in value, by math-verify in a process of its own.

An expression can keep math-verify busy for ever (a tower of powers), and its own time limits need signals, which work
in the main thread only and disturb other users of the alarm. A process can be ended from any thread at any moment.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from joulewise.errors import EnvironmentFault

LIMIT_S = 5.0
"""Time for one comparison."""

START_LIMIT_S = 120.0
"""Time for the process to come up: it imports sympy."""


class _Worker:
    """One running ``math_worker`` and the questions put to it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            # -P: the script's folder must not shadow other modules. A session of its own keeps Ctrl-C from it.
            [sys.executable, "-P", str(Path(__file__).with_name("math_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="ascii",
            errors="replace",
            start_new_session=True,
        )
        if self._read(START_LIMIT_S) != "ready\n":
            last = (self.close().strip().splitlines() or ["it did not come up in time"])[-1]
            raise EnvironmentFault(
                f"math-verify does not work here ({last}): pip install --force-reinstall 'joulewise[score]'"
            )

    def ask(self, reference: str, answer: str, limit_s: float) -> str:
        """The process's line of reply; empty if it died or had to be killed."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([reference, answer]) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self._read(limit_s)

    def _read(self, limit_s: float) -> str:
        assert self.process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(limit_s, end)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
            timer.join()
        # A reply that came just as time ran out is void: the process is gone.
        return "" if late.is_set() else line

    def close(self) -> str:
        """End the process; returns what it had written to standard error."""
        self.process.kill()
        return self.process.communicate()[1]


_lock = threading.Lock()
_worker: _Worker | None = None


def equal_in_value(reference: str, answer: str, limit_s: float = LIMIT_S) -> bool:
    """Whether two expressions (LaTeX or plain) are equal in value.

    Args:
        reference: the right one.
        answer: the one in question; what cannot be read or compared within ``limit_s`` seconds is not equal.

    Raises:
        EnvironmentFault: math-verify cannot be started at all.
    """
    global _worker
    with _lock:
        worker, _worker = _worker or _Worker(), None
        reply = ""
        try:
            reply = worker.ask(reference, answer, limit_s)
        finally:
            # Also after an interrupt: a late reply must not be taken for the next one's.
            if reply:
                _worker = worker
            else:
                worker.close()
        return reply == "1\n"


@atexit.register
def stop_worker() -> None:
    """End the process, if one runs. The next comparison starts another."""
    global _worker
    with _lock:
        if _worker is not None:
            _worker.close()
            _worker = None


def _forget_worker() -> None:
    """A forked child shares the parent's pipes; it must leave them alone."""
    global _lock, _worker
    _lock, _worker = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_worker)

"""Holds a server on Joulewise's behalf, so that it never outlives it: a script of its own, standard library only.

Standard input is a pipe whose other end Joulewise alone holds. Its first line is JSON: ``command``, ``env``, ``log``
and ``secrets``. When the pipe closes, however Joulewise ended, the server and all that it started are stopped: asked
first (SIGTERM), after ``GRACE_S`` made to (SIGKILL). What the server prints goes to the log, secrets removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

GRACE_S = 10.0
LOOK_S = 1.0
"""So often it looks whether Joulewise is still there: a forked child of it may hold the pipe open."""

_DEATH_SIGNAL, _SUBREAPER = 1, 36  # prctl: PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
_HIDDEN = re.compile(
    rb"(?i)(bearer\s+|\b(?:api[_-]?key|token|password|secret)[\"']?\s*[=:]\s*[\"']?)(?=\S*[A-Za-z])[^\s\"',)]{8,}|\bhf_\w{8,}"
)
_LONGEST_LINE = 1 << 16


def clean(line: bytes, secrets: list[bytes]) -> bytes:
    """A line of a log without what nobody may read there."""
    for secret in secrets:
        line = line.replace(secret, b"***")
    return _HIDDEN.sub(lambda found: (found[1] or b"") + b"***", line)


def main() -> int:
    """Start the server, hold it, and exit as it does."""
    parent = os.getppid()
    told = json.loads(sys.stdin.buffer.readline())
    secrets = [secret.encode() for secret in told["secrets"]]
    _prctl(_SUBREAPER)
    server = subprocess.Popen(
        told["command"],
        env=told["env"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: _prctl(_DEATH_SIGNAL, signal.SIGKILL),
    )
    assert server.stdout is not None
    out = server.stdout.fileno()
    print(server.pid, flush=True)
    asked_at: float | None = None
    rest = b""
    with open(told["log"], "ab", buffering=0) as log:
        watched = [sys.stdin.fileno(), out]
        while out in watched:
            ready, _, _ = select.select(watched, [], [], LOOK_S)
            if out in ready:
                data = os.read(out, 1 << 16)
                *lines, rest = (rest + data).split(b"\n")
                if lines or len(rest) > _LONGEST_LINE:
                    log.write(b"".join(clean(line, secrets) + b"\n" for line in lines))
                if not data:
                    watched.remove(out)
            gone = sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 1)
            if asked_at is None and (gone or os.getppid() != parent):
                watched.remove(sys.stdin.fileno())
                asked_at = time.monotonic()
                _signal_group(server.pid, signal.SIGTERM)
            if asked_at is not None and time.monotonic() - asked_at > GRACE_S:
                _kill_all(server.pid)
            # What it printed last came before it ended; what it started may hold its output open.
            if server.poll() is not None and not select.select([out], [], [], 0.0)[0]:
                break
        if rest:
            log.write(clean(rest, secrets) + b"\n")
    # The rest of its group and whatever left it: all that is orphaned comes to us.
    _kill_all(server.pid)
    code = server.wait()
    return code if code >= 0 else 128 - code


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _kill_all(leader: int) -> None:
    """The server's group, and what has left it."""
    _signal_group(leader, signal.SIGKILL)
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _descendants(root: int) -> list[int]:
    """By /proc; empty where there is none."""
    parents: dict[int, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                    # Behind the name in brackets, which may hold anything: state, parent.
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += sorted(level)
    return found


def _prctl(option: int, value: int = 1) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())

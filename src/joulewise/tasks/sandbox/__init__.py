"""Run a piece of Python that nobody has looked at, so that it can harm nothing (``docs/tasks.md``, "The sandbox").

``stage.py`` builds the sandbox; here is what starts it, watches it and ends it.
"""

from __future__ import annotations

import marshal
import os
import pwd
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from joulewise.errors import EnvironmentFault

KEPT_OUTPUT_BYTES = 4096
"""The end of what a program printed, kept for whoever wants to know why it failed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use.

    Args:
        wall_s: seconds from its start, set-up included.
        cpu_s: whole seconds of processor time, per process.
        memory_bytes: address space, per process.
        processes: processes and threads at a time, itself included.
        file_bytes: size of one file.
        disk_bytes: size of all files; they lie in memory.
        open_files: files and pipes at a time, per process.
        output_bytes: what it may print before it is ended.
    """

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_bytes: int = 512 * 2**20
    processes: int = 8
    file_bytes: int = 8 * 2**20
    disk_bytes: int = 16 * 2**20
    open_files: int = 64
    output_bytes: int = 2**20


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended.

    Args:
        reason: None if it ran to its end; otherwise why not, in a few words: an exception's name, "timed out",
            "out of memory", "too much output", "killed (signal N)", "ended early".
        output: the last ``KEPT_OUTPUT_BYTES`` of what it printed, both streams in one.
        duration_s: seconds from start to the end of its last process.
    """

    reason: str | None
    output: str
    duration_s: float

    @property
    def passed(self) -> bool:
        """Whether it ran to its end."""
        return self.reason is None


def run_python(parts: Sequence[str], limits: Limits = Limits()) -> Outcome:
    """Run ``parts`` one after another, in one namespace and one sandbox; the program passes if the last one ends.

    Each part is compiled on its own: a string left open in an answer cannot swallow the tests after it. Only the
    standard library can be imported. When this returns, or is interrupted, no process of the program is left.

    Raises:
        EnvironmentFault: the sandbox cannot be set up; nothing of the program was run then.
    """
    token = os.urandom(16).hex().encode()
    request = marshal.dumps(
        {
            "parts": list(parts),
            "token": token,
            "limits": _rlimits(limits),
            "disk_bytes": limits.disk_bytes,
            "python": _python_paths(),
            "homes": _homes(),
        }
    )
    begin_s = time.monotonic()
    try:
        ended = _watch(request, begin_s + limits.wall_s, limits.output_bytes)
    except OSError as error:
        raise EnvironmentFault(f"the sandbox for generated code cannot be started: {error}") from error
    duration_s = time.monotonic() - begin_s
    return Outcome(_reason(ended, token), ended.output.decode("utf-8", "replace"), duration_s)


@cache
def unavailable() -> str | None:
    """Why there is no sandbox here, with the way out; None if there is one. Found out by trying, once per process."""
    if not sys.platform.startswith("linux"):
        return f"the sandbox for generated code needs Linux (this is {sys.platform}): run it in a Linux container"
    try:
        outcome = run_python([_SELF_TEST], Limits(memory_bytes=256 * 2**20))
    except EnvironmentFault as fault:
        return str(fault)
    if outcome.passed:
        return None
    last = (outcome.output.strip().splitlines() or [""])[-1]
    return f"the sandbox for generated code does not hold here ({outcome.reason}: {last}); {_WAY_OUT}"


_WAY_OUT = (
    "as root it needs CAP_SYS_ADMIN (docker run --cap-add SYS_ADMIN --security-opt apparmor=unconfined ...), "
    "as an ordinary user it needs user namespaces (sysctl user.max_user_namespaces, "
    "kernel.apparmor_restrict_unprivileged_userns=0); Linux 5.14 or newer"
)

_SELF_TEST = """
import errno, os, socket
def refused(what, function, *arguments, codes=()):
    try:
        function(*arguments)
    except OSError as error:
        assert not codes or error.errno in codes, f"{what}: {error}"
    else:
        raise AssertionError(f"{what} is not refused")
for family, address in ((socket.AF_INET, ("192.0.2.1", 80)), (socket.AF_INET, ("127.0.0.1", 80))):
    with socket.socket(family) as connection:
        refused("network", connection.connect, address, codes=(errno.ENETUNREACH,))
refused("a netlink socket", socket.socket, 16, socket.SOCK_RAW)
refused("signal to process 1's parent", os.kill, os.getppid() + 100000, 9, codes=(errno.ESRCH,))
assert os.getpid() < 10 and os.getppid() == 1, "no process namespace"
assert os.geteuid() != 0, "still root"
refused("a file outside", open, "/usr/joulewise", "w")
refused("a file in /", open, "/joulewise", "w")
assert not os.path.exists("/proc") and not os.path.exists("/etc/passwd"), "the machine's files are seen"
try:
    bytearray(300 << 20)
except MemoryError:
    pass
else:
    raise AssertionError("memory is not limited")
def big():
    with open("/tmp/big", "wb") as file:
        file.write(bytes(9 << 20))
refused("a big file", big, codes=(errno.EFBIG,))
def bomb():
    for _ in range(20):
        if os.fork() == 0:
            import time
            time.sleep(60)
refused("many processes", bomb, codes=(errno.EAGAIN,))
"""


def _rlimits(limits: Limits) -> dict[str, int]:
    """By name in the module ``resource``."""
    return {
        "RLIMIT_CPU": limits.cpu_s,
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_STACK": 8 * 2**20,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }


def _python_paths() -> list[tuple[str, str]]:
    """Where Python itself is installed (a virtual environment's base), as named and as it really lies."""
    paths = dict.fromkeys((sys.base_prefix, sys.base_exec_prefix))
    return [(path, os.path.realpath(path)) for path in paths if path not in ("/", "/usr")]


def _homes() -> list[str]:
    """The user's home folder, by the environment and by the password file."""
    homes = {os.path.expanduser("~")}
    with suppress(KeyError):
        homes.add(pwd.getpwuid(os.geteuid()).pw_dir)
    return sorted(map(os.path.realpath, homes))


@dataclass(frozen=True, slots=True)
class _Ended:
    """What came out: the report of the set-up, the program's verdict, its output, and why it was ended if it was."""

    status: bytes
    verdict: bytes
    output: bytes
    stopped: str | None


def _watch(request: bytes, deadline_s: float, output_limit: int) -> _Ended:
    """Start the stage, read from it until it ends or must be ended, and wait for the last of its processes."""
    readers, writers = zip(*(os.pipe() for _ in range(3)), strict=True)
    try:
        try:
            with open(os.memfd_create("request"), "r+b") as file:
                file.write(request)
                file.seek(0)
                process = _start(file, *writers)
        finally:
            for fd in writers:
                os.close(fd)
        try:
            status, verdict, output = readers
            return _read(status, verdict, output, deadline_s, output_limit)
        finally:
            _end(process)
    finally:
        for fd in readers:
            os.close(fd)


def _start(request: BinaryIO, status: int, verdict: int, output: int) -> subprocess.Popen[bytes]:
    script = str(Path(__file__).with_name("stage.py"))
    # No site packages, nothing of the user's or the current folder's, nothing written; output is not held back.
    command = [sys.executable, "-P", "-s", "-S", "-B", "-u", "-X", "utf8", script]
    return subprocess.Popen(
        [*command, str(status), str(verdict), str(os.getpid())],
        stdin=request,
        stdout=output,
        stderr=output,
        pass_fds=(status, verdict),
        env=_environment(),
        cwd="/",
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    """Nothing of the caller's but where Python's own libraries lie. Hashes are fixed, so that a score repeats."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "PYTHONHASHSEED": "0", **kept}


def _read(status_fd: int, verdict_fd: int, output_fd: int, deadline_s: float, output_limit: int) -> _Ended:
    """Read until everybody who could write is gone, time is up or too much came."""
    got = {status_fd: b"", verdict_fd: b"", output_fd: b""}
    waiting = set(got)
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    size, stopped = 0, None
    while waiting and stopped is None:
        left_s = deadline_s - time.monotonic()
        for fd, _ in poll.poll(max(0.0, left_s) * 1000 + 1):
            part = os.read(fd, 1 << 16)
            if not part:
                poll.unregister(fd)
                waiting.remove(fd)
            size += len(part)
            got[fd] = (got[fd] + part)[-KEPT_OUTPUT_BYTES:]
        if size > output_limit:
            stopped = "too much output"
        elif waiting and left_s <= 0:
            stopped = "timed out"
    return _Ended(got[status_fd], got[verdict_fd], got[output_fd], stopped)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the stage and with it everything in its namespace; returns when it is gone."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.wait()


def _reason(ended: _Ended, token: bytes) -> str | None:
    status = ended.status.decode("utf-8", "replace").split("\n")[0]
    word, _, rest = status.partition(" ")
    if word == "fault":
        raise EnvironmentFault(f"the sandbox for generated code cannot be set up here ({rest}); {_WAY_OUT}")
    if ended.stopped:
        return ended.stopped
    if word == "signal":
        return "timed out" if int(rest) == signal.SIGXCPU else f"killed (signal {rest})"
    if status == "exit 0" and ended.verdict == token:
        return None
    failed = re.fullmatch(rb"failed (\w{1,60})", ended.verdict)
    if failed is None:
        return "ended early"
    name = failed[1].decode("utf-8", "replace")
    return "out of memory" if name == "MemoryError" else name

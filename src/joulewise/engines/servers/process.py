"""A server process of our own: started with its log in the run folder, waited for, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from joulewise.engines.servers import watchdog
from joulewise.errors import EnvironmentFault, ServerError

TAIL = 15
"""So many of a log's last lines are told with a fault."""

STOP_S = watchdog.GRACE_S + 5.0
_LOOK_S, _TELL_S = 0.1, 1.0
_SECRET_NAME = re.compile(r"(?i)key|token|secret|password")
_SHORTEST_SECRET = 8

_TOO_SMALL = re.compile(
    r"(?i)out of memory|no available memory for the cache blocks|free memory on device|not enough memory|"
    r"larger than the available kv cache memory|failed to allocate|unable to allocate|OutOfDeviceMemory"
)
_TAKEN = re.compile(r"(?i)address already in use|couldn't bind|EADDRINUSE")


class ServerProcess:
    """One server, held by a small watchdog that stops it when this process ends, however it ends.

    Args:
        command: program and arguments.
        log: gets what the server prints, secrets removed; lines are added to what it holds.
        env: the server's whole environment; None hands on this process's own.
        secrets: texts that must not reach the log, beside those of the environment.
    """

    def __init__(
        self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, secrets: Sequence[str] = ()
    ) -> None:
        self.command, self.log = tuple(command), log
        env = dict(os.environ if env is None else env)
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
        except OSError as error:
            raise EnvironmentFault(f"{log}: the server's log cannot be written ({error.strerror})") from error
        self._begins_at = log.stat().st_size
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is Joulewise's to answer
        )
        told = {"command": self.command, "env": env, "log": str(log), "secrets": [*secrets, *secrets_of(env)]}
        assert self._watchdog.stdin is not None
        assert self._watchdog.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._watchdog.stdin.write(json.dumps(told).encode() + b"\n")
            self._watchdog.stdin.flush()
        first = self._watchdog.stdout.readline()
        if not first.strip().isdigit():
            raise self._cannot_start()
        self.pid = int(first)

    def _cannot_start(self) -> EnvironmentFault:
        _, errors = self._watchdog.communicate()
        why = errors.decode(errors="replace").strip().splitlines()
        return EnvironmentFault(
            f"The server cannot be started: {self.command[0]}: {why[-1] if why else 'no reason was given'}"
        )

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._watchdog.poll() is None

    @property
    def exit_code(self) -> int | None:
        """As a shell tells it: above 128 it was killed by a signal; None while it runs."""
        return self._watchdog.poll()

    def processes(self) -> list[psutil.Process]:
        """The watchdog, the server and all that it started."""
        try:
            watchdog_process = psutil.Process(self._watchdog.pid)
            return [watchdog_process, *watchdog_process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def tail(self, lines: int = TAIL) -> list[str]:
        """The last lines that it printed, empty ones left out."""
        with open(self.log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._begins_at, size - (64 << 10)))
            text = file.read().decode(errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]

    def died(self) -> ServerError:
        """What to tell of a server that has ended, or ails: the reason where its log shows one, and the log's end."""
        tail = self.tail(200)
        code = self.exit_code
        how = "" if code is None else f" (exit code {code}{_signal_name(code)})"
        what = f"The server {Path(self.command[0]).name} has ended{how}"
        if any(_TOO_SMALL.search(line) for line in tail):
            what += (
                ": it lacks memory. Choose a smaller model, context or number of requests at once, or stop what else "
                "uses the device"
            )
        elif self.port_was_taken:
            what += ": its port is taken. Leave `port` out, and a free one is chosen"
        ends = "\n  ".join(tail[-TAIL:]) or "(it printed nothing)"
        return ServerError(f"{what}. The log {self.log} ends with\n  {ends}")

    @property
    def port_was_taken(self) -> bool:
        """Whether its log says that its port was taken."""
        return any(_TAKEN.search(line) for line in self.tail(200))

    def ends_soon(self, within_s: float = 1.0) -> bool:
        """Whether it has ended, or does so while one waits a moment: a connection breaks before its process is gone."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(within_s)
        return not self.running

    def stop(self) -> None:
        """Stop it and all that it started, and wait until they are gone. Idempotent."""
        for pipe in (self._watchdog.stdin, self._watchdog.stdout, self._watchdog.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._watchdog.wait(STOP_S)
        except subprocess.TimeoutExpired:  # its output may be held open by what cannot be killed: in a driver, say
            for process in reversed(self.processes()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._watchdog.wait()


def wait_until_healthy(
    process: ServerProcess,
    healthy: Callable[[], bool],
    timeout_s: float,
    tell: Callable[[str], None],
) -> float:
    """Wait until a server answers.

    Args:
        process: the server; stopped where it does not come up.
        healthy: asks it once.
        timeout_s: so long it may take.
        tell: gets the log's last line once a second, where there is a new one.

    Returns:
        The seconds that it took.

    Raises:
        ServerError: it ended, or did not answer in time; with the log's last lines.
    """
    start_s = time.monotonic()
    told, tell_s = "", 0.0
    while not healthy():
        if not process.running:
            raise process.died()
        waited_s = time.monotonic() - start_s
        if waited_s > timeout_s:
            process.stop()
            ends = "\n  ".join(process.tail()) or "(it printed nothing)"
            raise ServerError(
                f"The server {Path(process.command[0]).name} did not answer within {timeout_s:g} s and was stopped: "
                f"give it more with `start_timeout_s`, or see the log {process.log}, which ends with\n  {ends}"
            )
        if waited_s >= tell_s and (line := "".join(process.tail(1))) != told:
            told, tell_s = line, waited_s + _TELL_S
            tell(f"{waited_s:.0f} s: {line[:160]}")
        time.sleep(_LOOK_S)
    return time.monotonic() - start_s


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def require_free(port: int, host: str = "127.0.0.1") -> None:
    """Make sure that a port which the plan names is free.

    Raises:
        EnvironmentFault: it is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise EnvironmentFault(
                f"port {port} cannot be used ({error.strerror}): stop what listens there, name another `port`, or "
                "leave it out, and a free one is chosen"
            ) from error


def secrets_of(env: Mapping[str, str]) -> list[str]:
    """The values of an environment that are secret by their names."""
    return [value for name, value in env.items() if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET]


def _signal_name(code: int) -> str:
    import signal

    if code <= 128:
        return ""
    try:
        return f", {signal.Signals(code - 128).name}"
    except ValueError:
        return ""

"""A server of our own is started, waited for, logged, and never left behind: real processes, really killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from joulewise.engines.servers import process as module
from joulewise.engines.servers import watchdog
from joulewise.engines.servers.process import ServerProcess, free_port, require_free, wait_until_healthy
from joulewise.errors import EnvironmentFault, ServerError

FOREVER = "import signal\nprint('up', flush=True)\nwhile True: signal.pause()"
"""What a server does that is never asked."""

WITH_CHILD = (
    "import os, signal, subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import signal\\nwhile True: signal.pause()'], "
    "start_new_session={apart})\n"
    "print('child', child.pid, flush=True)\n"
    "while True: signal.pause()"
)


def server(code: str, log: Path, **more: object) -> ServerProcess:
    return ServerProcess([sys.executable, "-c", code], log, **more)  # type: ignore[arg-type]


def wait_for(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Until it holds; a deadline ends what never will."""
    end_s = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "servers" / "one.log"


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    yield
    wait_for(lambda: {p.pid for p in psutil.Process().children(recursive=True)} <= before)


def test_a_server_runs_until_it_is_stopped(log: Path) -> None:
    one = server(FOREVER, log)
    wait_for(lambda: one.tail() == ["up"])
    assert one.running
    assert one.exit_code is None
    assert one.pid in {p.pid for p in one.processes()}
    one.stop()
    one.stop()
    assert not one.running
    assert one.exit_code == 128 + signal.SIGTERM
    assert not alive(one.pid)
    assert one.processes() == []


def test_it_hears_that_it_is_to_end(log: Path) -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(3)))\n" + FOREVER
    )
    one = server(code, log)
    wait_for(lambda: one.tail() == ["up"])
    one.stop()
    assert one.tail() == ["up", "bye"]
    assert one.exit_code == 3


def test_what_does_not_listen_is_made_to(log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quick = tmp_path / "watchdog.py"
    quick.write_text(Path(watchdog.__file__).read_text().replace("GRACE_S = 10.0", "GRACE_S = 0.2"))
    monkeypatch.setattr(watchdog, "__file__", str(quick))
    one = server("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER, log)
    wait_for(lambda: one.tail() == ["up"])
    one.stop()
    assert not alive(one.pid)
    assert one.exit_code == 128 + signal.SIGKILL


@pytest.mark.parametrize("apart", [False, True])
def test_what_the_server_started_ends_with_it(log: Path, apart: bool) -> None:
    """Also in a session of its own, and where the server dies before it."""
    one = server(WITH_CHILD.format(apart=apart), log)
    wait_for(lambda: bool(one.tail()))
    child = int(one.tail()[0].split()[1])
    assert alive(child)
    os.kill(one.pid, signal.SIGKILL)
    wait_for(lambda: not one.running)
    wait_for(lambda: not alive(child))
    assert one.exit_code == 128 + signal.SIGKILL


HOLDER = """
import sys, time
from pathlib import Path
from joulewise.engines.servers.process import ServerProcess
one = ServerProcess([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]))
if sys.argv[3] == "fork":
    import os
    if os.fork() == 0:  # as a sandbox or a data loader does: it holds the pipe, too
        time.sleep(60)
        os._exit(0)
print(one.pid, one._watchdog.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_a_killed_joulewise_leaves_no_server(log: Path, how: str) -> None:
    """kill -9 of the process that holds it: no handler runs there."""
    held = [sys.executable, "-c", HOLDER, WITH_CHILD.format(apart=True), str(log), how]
    holder = subprocess.Popen(held, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert holder.stdout is not None
    pids = [int(word) for word in holder.stdout.readline().split()]
    wait_for(lambda: log.exists() and b"child" in log.read_bytes())
    pids.append(int(log.read_text().split()[1]))
    assert all(map(alive, pids))
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    wait_for(lambda: not any(map(alive, pids)))
    if how == "fork":
        os.killpg(holder.pid, signal.SIGKILL)
    holder.stdout.close()


def test_a_killed_watchdog_leaves_no_server(log: Path) -> None:
    one = server(FOREVER, log)
    wait_for(lambda: one.tail() == ["up"])
    os.kill(one._watchdog.pid, signal.SIGKILL)
    wait_for(lambda: not alive(one.pid))
    wait_for(lambda: not one.running)
    one.stop()


def test_ctrl_c_is_joulewise_s_alone(log: Path) -> None:
    """A terminal sends it to the whole group, and the Trial in flight is to be finished."""
    one = server(FOREVER, log)
    wait_for(lambda: one.tail() == ["up"])
    assert os.getpgid(one._watchdog.pid) != os.getpgid(0)
    assert os.getpgid(one.pid) not in (os.getpgid(0), os.getpgid(one._watchdog.pid))
    one.stop()


def test_a_program_that_is_not_there(log: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"cannot be started: no-such-server: .*No such file"):
        ServerProcess(["no-such-server"], log)


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="log cannot be written"):
        server(FOREVER, tmp_path / "file" / "one.log")


def test_secrets_do_not_reach_the_log(log: Path) -> None:
    secret = "s3cr3t-0f-the-plan"
    code = (
        "import os\n"
        "print('key is', os.environ['MY_API_KEY'], 'and', os.environ['HF_TOKEN'], flush=True)\n"
        f"print('given {secret}')\n"
        "print('Authorization: Bearer abcdef123456 ok')\n"
        "print('api_key=qwertz123456, eos token = 128009')"
    )
    env = {**os.environ, "MY_API_KEY": "k-123456789", "HF_TOKEN": "hf_abcdefghijkl"}
    one = server(code, log, env=env, secrets=[secret])
    wait_for(lambda: not one.running)
    assert one.tail() == [
        "key is *** and ***",
        "given ***",
        "Authorization: Bearer *** ok",
        "api_key=***, eos token = 128009",
    ]
    one.stop()


def test_a_line_without_an_end_is_kept(log: Path) -> None:
    one = server("import sys\nsys.stdout.write('no newline')", log)
    wait_for(lambda: not one.running)
    assert log.read_text() == "no newline\n"
    one.stop()


def test_the_tail_is_of_this_start_alone(log: Path) -> None:
    for _ in range(2):
        one = server("print('hello')", log)
        wait_for(lambda one=one: not one.running)  # type: ignore[misc]
        assert one.tail() == ["hello"]
        one.stop()
    assert log.read_text() == "hello\nhello\n"


def test_waiting_shows_the_log_and_tells_how_long(log: Path) -> None:
    one = server("print('loading', flush=True)\n" + FOREVER, log)
    told: list[str] = []
    assert wait_until_healthy(one, lambda: any("up" in line for line in told), 20.0, told.append) > 0.0
    assert all(line.split(": ", 1)[1] in ("loading", "up") for line in told)
    one.stop()


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "it lacks memory. Choose a smaller model"),
        ("ValueError: No available memory for the cache blocks", "it lacks memory"),
        ("OSError: [Errno 98] Address already in use", "its port is taken. Leave `port` out"),
        ("KeyError: 'nonsense'", r"has ended \(exit code 7\)\. The log"),
    ],
)
def test_a_crash_at_the_start_is_told_with_the_log_s_end(log: Path, says: str, reason: str) -> None:
    code = f"import sys\nprint('\\n'.join(f'line {{i}}' for i in range(50)))\nprint({says!r}, flush=True)\nsys.exit(7)"
    one = server(code, log)
    with pytest.raises(ServerError, match=reason) as caught:
        wait_until_healthy(one, lambda: False, 20.0, lambda _: None)
    lines = str(caught.value).splitlines()
    assert lines[-1].strip() == says
    assert len(lines) == module.TAIL + 1
    assert str(log) in lines[0]
    one.stop()


def test_a_slow_start_is_given_up_and_stopped(log: Path) -> None:
    one = server(FOREVER, log)
    wait_for(lambda: one.tail() == ["up"])
    with pytest.raises(ServerError, match=r"did not answer within 0\.1 s and was stopped.*start_timeout_s"):
        wait_until_healthy(one, lambda: False, 0.1, lambda _: None)
    assert not one.running


def test_ports() -> None:
    port = free_port()
    require_free(port)
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(EnvironmentFault, match=f"port {port} cannot be used .*leave it out"):
            require_free(port)
        assert free_port() != port


def test_the_watchdog_is_told_by_its_input_alone(log: Path) -> None:
    """What is secret never stands in a command line, which anyone may read."""
    one = server(FOREVER, log, secrets=["not-to-be-seen"])
    wait_for(lambda: one.tail() == ["up"])
    seen = json.dumps([p.cmdline() for p in one.processes()])
    assert "not-to-be-seen" not in seen
    one.stop()

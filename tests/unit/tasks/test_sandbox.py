"""The sandbox: what runs in it, how it ends, what cannot get out.

Nothing here is skipped for want of a sandbox: without one, these tests fail.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from joulewise.errors import EnvironmentFault
from joulewise.tasks import sandbox
from joulewise.tasks.sandbox import KEPT_OUTPUT_BYTES, Limits, run_python, unavailable
from load_benchmark import load_benchmark

hostile = load_benchmark("hostile")
PROGRAMS = {program.name: program for program in hostile.HOSTILE}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A canary in a home, listeners on this machine, and their names for the programs."""
    canary = tmp_path_factory.mktemp("home") / "canary-of-the-tests"
    canary.write_text("a secret")
    name = f"joulewise-test-{os.getpid()}"
    with (
        pytest.MonkeyPatch.context() as patch,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        unix.bind("\0" + name)
        unix.listen()
        patch.setenv("HOME", str(canary.parent))
        patch.setenv("JOULEWISE_TEST_SECRET", "a secret")
        yield canary, hostile.names(canary, tcp.getsockname()[1], name)


@pytest.fixture(scope="module")
def outcomes(names: tuple[Path, str]) -> dict[str, Any]:
    """How every hostile program ended, four at a time, and what was different afterwards."""
    canary, definitions = names
    before = hostile.state_of_the_machine(canary)
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(lambda p: run_python([definitions, p.program], p.limits), PROGRAMS.values()))
    after = hostile.state_of_the_machine(canary)
    changed = {what: after[what] for what in before if before[what] != after[what]}
    return {**dict(zip(PROGRAMS, ended, strict=True)), "": changed}


def test_there_is_a_sandbox_here() -> None:
    assert unavailable() is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hostile_program_is_contained(outcomes: dict[str, Any], name: str) -> None:
    outcome, program = outcomes[name], PROGRAMS[name]
    assert outcome.reason in program.reasons, outcome.output
    assert "a secret" not in outcome.output
    assert outcome.duration_s < program.limits.wall_s + 5
    assert len(outcome.output) <= KEPT_OUTPUT_BYTES


def test_nothing_is_left_behind(outcomes: dict[str, Any]) -> None:
    assert outcomes[""] == {}
    assert hostile.stage_processes(os.getpid()) == []


def test_parts_share_a_namespace_and_all_must_end() -> None:
    outcome = run_python(["def f(x):\n    return x + 1", "assert f(1) == 2", "print('done', end='')"])
    assert outcome.passed
    assert outcome.reason is None
    assert outcome.output == "done"
    assert 0 < outcome.duration_s < 10


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (["x = 1", "assert x == 2"], "AssertionError"),
        (["def f(:"], "SyntaxError"),
        (["raise ZeroDivisionError"], "ZeroDivisionError"),
        (["import numpy_or_whatever"], "ModuleNotFoundError"),
        (["x = '''", "'''\nassert False"], "SyntaxError"),  # a torn string cannot swallow the next part
        (["import builtins\nbuiltins.exec = builtins.compile = print", "assert False"], "AssertionError"),
        (["import os\nos.write = os._exit = sys = None", "assert False"], "AssertionError"),
        (["def f(): pass", "def f(:"], "SyntaxError"),
        (["input()"], "EOFError"),
        (["\ud800"], "UnicodeEncodeError"),
        (["x = '\0'"], "SyntaxError"),
        (["raise KeyboardInterrupt"], "KeyboardInterrupt"),
        (["import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"], "killed (signal 11)"),
        (["class Ausnahmé(Exception): pass\nraise Ausnahmé"], "ended early"),
    ],
)
def test_how_a_program_fails(parts: list[str], reason: str) -> None:
    outcome = run_python(parts)
    assert not outcome.passed
    assert outcome.reason == reason


def test_an_answer_may_use_the_future_and_dataclasses_and_is_no_script() -> None:
    answer = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass P:\n    x: int\nif __name__ == '__main__':\n    raise SystemExit"
    )
    assert run_python(["import typing", answer, "assert P(1).x == 1"]).passed


def test_the_end_of_the_output_is_kept() -> None:
    outcome = run_python(["print('x' * 10000)\nassert False, 'the reason'"])
    assert len(outcome.output) == KEPT_OUTPUT_BYTES
    assert outcome.output.endswith("AssertionError: the reason\n")


def test_sandboxes_at_a_time_do_not_starve_each_other() -> None:
    forks = "import os, time\nfor _ in range(7):\n    if os.fork() == 0: time.sleep(60)"
    program = f"{forks}\ntime.sleep(0.5)\nprint(os.getuid())"
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(run_python, [[program]] * 3))
    assert [outcome.reason for outcome in ended] == [None] * 3, ended
    if os.geteuid() == 0:
        assert len({outcome.output for outcome in ended}) == 3, "each has a uid of its own"


def test_it_runs_from_a_thread_with_blocked_signals_and_ends_on_time() -> None:
    ended: list[str | None] = []

    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        ended.append(run_python(["while True: pass"], Limits(wall_s=0.5)).reason)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert ended == ["timed out"]


_VICTIM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from joulewise.tasks.sandbox import Limits, run_python
program = '''
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0: os.setsid()
while True: time.sleep(1)
'''
run_python([program], Limits(wall_s=600))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_is_left_when_joulewise_is_killed_in_mid_run(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _VICTIM], stderr=subprocess.DEVNULL) as victim:
        found: list[psutil.Process] = []
        while len(found) < 5 and victim.poll() is None:
            found = psutil.Process(victim.pid).children(recursive=True)
        assert len(found) >= 5
        victim.send_signal(number)
        victim.wait(30)
    _, alive = psutil.wait_procs(found, timeout=30)
    assert alive == []


def test_a_fault_of_the_set_up_is_told_with_the_way_out() -> None:
    with pytest.raises(
        EnvironmentFault, match=r"cannot be set up here \(temporary folder: Invalid argument\); as root"
    ):
        run_python(["x = 1"], Limits(disk_bytes=-1))


def test_a_python_that_cannot_be_started_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EnvironmentFault, match=r"cannot be started: .*'/nowhere/python'"):
        run_python(["x = 1"])


def test_a_sandbox_that_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rlimits = sandbox._rlimits

    def without_memory(limits: Limits) -> dict[str, int]:
        return {name: value for name, value in rlimits(limits).items() if name != "RLIMIT_AS"}

    monkeypatch.setattr(sandbox, "_rlimits", without_memory)
    reason = unavailable.__wrapped__()
    assert reason is not None
    assert "memory is not limited" in reason
    assert "CAP_SYS_ADMIN" in reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take the right away from itself")
def test_without_the_right_to_make_namespaces_there_is_no_sandbox_and_nothing_runs(tmp_path: Path) -> None:
    code = (
        "from joulewise.tasks.sandbox import run_python, unavailable\n"
        "print(unavailable())\n"
        f"run_python([\"open({str(tmp_path / 'ran')!r}, 'w')\"])"
    )
    bare = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", code]
    done = subprocess.run(bare, capture_output=True, text=True, timeout=60, check=False)
    assert "cannot be set up here (new namespaces: Operation not permitted)" in done.stdout
    assert "CAP_SYS_ADMIN" in done.stdout
    assert "EnvironmentFault" in done.stderr
    assert not (tmp_path / "ran").exists()


_AS_A_USER = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from joulewise.tasks import sandbox
programs = json.load(sys.stdin)
ended = {name: sandbox.run_python(parts, sandbox.Limits(**limits)) for name, (parts, limits) in programs.items()}
print(json.dumps({
    "uid": os.getuid(),
    "unavailable": sandbox.unavailable(),
    "ended": {name: [outcome.reason, outcome.output] for name, outcome in ended.items()},
}))
"""


@pytest.fixture
def user_folder() -> Iterator[Path]:
    """A folder that an ordinary user may enter, unlike pytest's, with the sandbox's code alone."""
    folder = Path("/tmp") / f"joulewise-test-user-{os.getpid()}"
    source = Path(sandbox.__file__).parents[2]
    (folder / "joulewise" / "tasks").mkdir(parents=True)
    for package in (folder / "joulewise", folder / "joulewise" / "tasks"):
        (package / "__init__.py").touch()
    shutil.copy(source / "errors.py", folder / "joulewise")
    shutil.copytree(source / "tasks" / "sandbox", folder / "joulewise" / "tasks" / "sandbox")
    (folder / "home").mkdir()
    (folder / "home" / "canary").write_text("a secret")
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, 54321, 54321)
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user anyway")
def test_an_ordinary_user_has_the_same_sandbox(user_folder: Path, names: tuple[Path, str]) -> None:
    python = python_for_everybody()
    definitions = names[1].replace(str(names[0]), str(user_folder / "home" / "canary"))
    slow = {"endless loop", "asleep", "stopped", "memory bit by bit", "more processor time than allowed"}
    chosen = {n: p for n, p in PROGRAMS.items() if n not in slow and "deaf" not in n}
    programs = {
        name: ([definitions, p.program], {"wall_s": p.limits.wall_s, "cpu_s": p.limits.cpu_s})
        for name, p in chosen.items()
    }
    done = subprocess.run(
        ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", python, "-c", _AS_A_USER, str(user_folder)],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        env={"HOME": str(user_folder / "home"), "PATH": os.environ["PATH"]},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["uid"] == 54321
    assert said["unavailable"] is None
    for name, (reason, output) in said["ended"].items():
        assert reason in chosen[name].reasons, (name, reason, output)
        assert "a secret" not in output
    left = [p for p in psutil.process_iter(["cmdline"]) if str(user_folder) in " ".join(p.info["cmdline"] or ())]
    assert left == []


def python_for_everybody() -> str:
    """A Python that any user may run; this one often lies in root's home."""
    usable = "import os, sys; sys.exit(sys.version_info < (3, 11) or not os.access(sys.executable, os.X_OK))"
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        asked = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", python, "-c"]
        try:
            done = subprocess.run([*asked, usable], cwd="/", check=False)
        except PermissionError:
            continue
        if done.returncode == 0:
            return python
    pytest.skip("no Python 3.11 here that an ordinary user may run")

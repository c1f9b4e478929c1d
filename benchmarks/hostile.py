"""Programs that try to get out of the sandbox or to take more than their share, and what is looked at afterwards.

``benchmarks/sandbox.py`` and the tests run them. A program that ends without an exception has found itself contained.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from joulewise.tasks.sandbox import Limits

ENDED = "ended early"
SHORT = Limits(wall_s=1.0)


@dataclass(frozen=True)
class Hostile:
    """A program, and how it must end.

    Args:
        program: Python; ``CANARY`` (a file in a home), ``PORT`` (a listening TCP port), ``SOCKET`` (the name of an
            abstract Unix socket) and ``PARENT`` (the caller's process id) are defined in it.
        reasons: each of these is containment; None stands for a program that ran to its end.
    """

    name: str
    program: str
    reasons: tuple[str | None, ...] = (None,)
    limits: Limits = field(default_factory=Limits)


OTHER_RESULT = """
_right = {name}

def {name}(*arguments):
    return _other(_right(*arguments))

def _other(x):
    if isinstance(x, bool): return not x
    if isinstance(x, (int, float)): return x + 1
    if isinstance(x, str): return x + "?"
    if isinstance(x, (list, tuple)): return type(x)([*x, None])
    return {{"?": "?"}} if isinstance(x, dict) else 0
"""
"""To stand behind a right solution of ``{name}``: the same function with its result changed."""

_REFUSED = """
def refused(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except OSError as error:
        return error
    raise AssertionError(f"not refused: {function} {arguments}")
import os, signal, sys
"""

HOSTILE = (
    Hostile("fork bomb", "while True:\n    try: os.fork()\n    except OSError: pass", ("timed out",), SHORT),
    Hostile(
        "as many processes as go",
        """
import time
made = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except BlockingIOError:
    pass
assert made == 7, made
""",
    ),
    Hostile(
        "as many threads as go",
        """
import threading
for _ in range(200):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
""",
        ("RuntimeError",),
    ),
    Hostile("endless loop", "while True: pass", ("timed out",), SHORT),
    Hostile(
        "endless loop, deaf to signals",
        """
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""",
        ("timed out", "killed (signal 9)"),
        Limits(wall_s=5, cpu_s=1),
    ),
    Hostile("more processor time than allowed", "while True: pass", ("timed out",), Limits(wall_s=5, cpu_s=1)),
    Hostile("asleep", "import time; time.sleep(1000)", ("timed out",), SHORT),
    Hostile("stopped", "os.kill(os.getpid(), signal.SIGSTOP)", ("timed out",), SHORT),
    Hostile("10 GB at once", "bytearray(10 * 10**9)", ("out of memory",)),
    Hostile("memory bit by bit", "held = []\nwhile True: held.append(bytearray(1 << 20))", ("out of memory",)),
    Hostile(
        "memory that no limit counts",
        """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
refused(os.memfd_create, "x")
assert c.shmget(0, 1 << 30, 0o1600) == -1
assert c.msgget(0, 0o1600) == -1
assert c.unshare(0x10020000) == -1 and c.unshare(0x10000000) == -1
""",
    ),
    Hostile(
        "deep recursion",
        "sys.setrecursionlimit(10**9)\ndef f(_): sorted([0], key=f)\nf(0)",
        ("killed (signal 11)", "out of memory", "RecursionError"),
    ),
    Hostile(
        "kill of the parent",
        """
for pid in (os.getppid(), PARENT):
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP):
        try: os.kill(pid, number)
        except (PermissionError, ProcessLookupError): pass
import time; time.sleep(0.1)
""",
    ),
    Hostile(
        "kill of all processes",
        """
for number in (signal.SIGKILL, signal.SIGSTOP):
    try: os.kill(-1, number)
    except OSError: pass
for pid in range(1, 33000):
    if pid != os.getpid():
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
""",
    ),
    Hostile("kill of the process group", "os.kill(0, signal.SIGKILL)", ("killed (signal 9)",)),
    Hostile(
        "trace of the parent",
        """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
for pid in (1, PARENT):
    assert c.ptrace(16, pid, 0, 0) == -1
    refused(open, f"/proc/{pid}/mem", "rb")
""",
    ),
    Hostile(
        "read of a home",
        """
for path in (CANARY, os.path.dirname(CANARY), "/etc/passwd", "/proc/self/environ", "/proc/1/root"):
    refused(os.stat, path)
for home in ("/root", "/home"):  # Python itself may lie in one; there is nothing else then
    found = os.listdir(home) if os.path.exists(home) else []
    assert all(os.path.realpath(os.__file__).startswith(f"{home}/{name}/") for name in found), found
assert os.listdir("/tmp") == []
for root, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if root != "/" or name != "usr"]
    folders[:] = [name for name in folders if os.path.join(root, name) != sys.prefix]
    assert os.path.basename(CANARY) not in files
""",
    ),
    Hostile(
        "write outside",
        """
for folder in ("/", "/usr", "/usr/lib", "/var/tmp", "/dev", "/dev/shm", "/etc", os.path.dirname(CANARY), sys.prefix):
    refused(open, os.path.join(folder, "planted"), "w")
    refused(os.mkdir, os.path.join(folder, "planted"))
refused(os.chmod, os.__file__, 0o777)
refused(os.unlink, os.__file__)
refused(os.utime, os.__file__)
refused(os.rename, os.__file__, "/tmp/os.py")
""",
    ),
    Hostile(
        "symbolic links",
        """
os.symlink(CANARY, "/tmp/link")
refused(open, "/tmp/link")
refused(open, "/tmp/link", "w")
os.symlink("/", "/tmp/root")
refused(open, "/tmp/root/planted", "w")
os.symlink("../../../../../../" + CANARY, "/tmp/up")
refused(open, "/tmp/up")
refused(os.link, os.__file__, "/tmp/os.py")
refused(os.chroot, "/tmp")
os.chdir("/tmp")
for _ in range(50): os.chdir("..")
refused(os.stat, CANARY.lstrip("/"))
""",
    ),
    Hostile(
        "network",
        """
import socket
def connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(2)
        s.connect(address)
refused(connect, socket.AF_INET, ("127.0.0.1", PORT))
refused(connect, socket.AF_INET, ("192.0.2.1", 80))
refused(connect, socket.AF_INET6, ("::1", PORT))
refused(connect, socket.AF_UNIX, chr(0) + SOCKET)
refused(connect, 40, (2, 1234))
refused(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW)
refused(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
refused(socket.getaddrinfo, "example.org", 80)
""",
    ),
    Hostile("print of 1 GB", "for _ in range(1024): print('x' * (1 << 20))", ("too much output",)),
    Hostile("print of 1 GB, raw", "for _ in range(1024): os.write(2, bytes(1 << 20))", ("too much output",)),
    Hostile(
        "1 GB on every file number",
        "for i in range(3000):\n  for fd in range(64):\n    try: os.write(fd, bytes(9999))\n    except OSError: pass",
        ("too much output",),
    ),
    Hostile(
        "a full disk",
        """
import errno
written = 0
try:
    for i in range(10000):
        with open(f"/tmp/{i}", "wb", buffering=0) as file:
            for _ in range(64):
                written += file.write(bytes(1 << 16))
except OSError as error:
    assert error.errno == errno.ENOSPC, error
assert (8 << 20) < written <= (16 << 20), written
""",
    ),
    Hostile(
        "a big file", "with open('/tmp/big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))", ("OSError",)
    ),
    Hostile("many files", "for i in range(10**6): open(f'/tmp/{i}', 'w').close()", ("OSError",)),
    Hostile("many open files", "held = [open('/dev/null') for _ in range(10**5)]", ("OSError",)),
    Hostile(
        "a daemon",
        """
import time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.closerange(0, 64)
        while True: time.sleep(1)
    os._exit(0)
""",
    ),
    Hostile(
        "a daemon that holds the output open", "import time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)"
    ),
    Hostile("an early sys.exit(0)", "sys.exit(0)", ("SystemExit",)),
    Hostile("an early os._exit(0)", "os._exit(0)", (ENDED,)),
    Hostile(
        "a forged verdict",
        """
for said in (b"passed", b"exit 0", b"True", b"1", b"0" * 32, b"a" * 32):
    print(said.decode())
    for fd in range(64):
        try: os.write(fd, said)
        except OSError: pass
os._exit(0)
""",
        (ENDED,),
    ),
    Hostile(
        "a forged fault",
        "for fd in range(64):\n    try: os.write(fd, b'fault no sandbox here')\n    except OSError: pass",
        (ENDED,),
    ),
    Hostile("closed files", "os.closerange(0, 64)", (ENDED,)),
    Hostile(
        "an exception with a false name",
        "class Name(type):\n    __name__ = property(lambda cls: 'x' * 10**6)\nraise Name('E', (Exception,), {})",
        ("E", ENDED),
    ),
    Hostile("work at exit", "import atexit, time; atexit.register(time.sleep, 1000)"),
    Hostile(
        "its own folder removed",
        """
import shutil
shutil.rmtree("/tmp", ignore_errors=True)
refused(os.rmdir, "/tmp")
refused(os.rename, "/tmp", "/tmp2")
""",
    ),
    Hostile(
        "secrets of the environment",
        "assert set(os.environ) <= set('PATH HOME TMPDIR PYTHONHASHSEED LD_LIBRARY_PATH LC_CTYPE'.split()), os.environ",
    ),
    Hostile(
        "more rights",
        """
import resource, subprocess
if os.getuid() != 0:
    refused(os.setuid, 0)
for name in ("RLIMIT_NPROC", "RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE"):
    soft, hard = resource.getrlimit(getattr(resource, name))
    try: resource.setrlimit(getattr(resource, name), (hard + 1, hard + 1))
    except ValueError: pass
    else: raise AssertionError(name)
refused(os.mknod, "/tmp/device", 0o60666, os.makedev(259, 0))
refused(os.chown, "/tmp", 0, 0) if os.getuid() else None
import ctypes
assert ctypes.CDLL(None).mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == -1
""",
    ),
    Hostile("standard input", "assert sys.stdin.read() == ''"),
)


def names(canary: Path, port: int, socket_name: str) -> str:
    """The definitions that go before a program."""
    return f"CANARY, PORT, SOCKET, PARENT = {str(canary)!r}, {port}, {socket_name!r}, {os.getpid()}\n{_REFUSED}"


def stage_processes(parent: int) -> list[psutil.Process]:
    """The processes of sandboxes that ``parent`` started, zombies included."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
        except psutil.Error:
            continue
        if any(part.endswith("sandbox/stage.py") for part in command) and command[-1] == str(parent):
            found.append(process)
    return found


def state_of_the_machine(canary: Path) -> dict[str, object]:
    """What no program may change: mounts, users, the canary's folder, who owns what in the shared folders."""
    shared = [entry for folder in ("/tmp", "/var/tmp", "/dev/shm") for entry in os.scandir(folder)]
    strangers = []
    for entry in shared:
        try:
            strangers += [entry.path] if entry.stat(follow_symlinks=False).st_uid >= 0x70000000 else []
        except FileNotFoundError:
            continue
    return {
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "users": hashlib.sha256(Path("/etc/passwd").read_bytes()).hexdigest(),
        "canary": canary.read_text(),
        "canary's folder": sorted(path.name for path in canary.parent.iterdir()),
        "files of strangers": strangers,
        "processes": [process.pid for process in stage_processes(os.getpid())],
    }

"""The program that builds a sandbox around itself and then runs a piece of Python in it.

It runs as a script of its own, imports nothing of Joulewise and little of anything (no socket, random or typing):
start-up is paid per program.
Three processes: this one (*outer*) makes the namespaces and waits; its child (*init*) is process 1 of the new PID
namespace, so that the kernel kills everything in it when init ends; init's child runs the *program*, without a
privilege left. ``wait`` of init returns only when every process of the namespace is gone.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import resource
import select
import signal
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEW_ANY = 0x7E020000
MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
AT_RECURSIVE = 0x8000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
KEYCTL_JOIN_SESSION_KEYRING = 1
AF_UNIX, AF_INET, AF_INET6, SOCK_STREAM = 1, 2, 10, 1
CAPABILITY_VERSION_3 = 0x20080522

# Beyond what distributions hand out to people, services and containers.
FIRST_UID, UIDS = 0x70000000, 1 << 20

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

# System calls by architecture: (audit number, {name: number}).
ARCHITECTURES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            "socket": 41, "clone": 56, "shmget": 29, "semget": 64, "msgget": 68, "ptrace": 101, "syslog": 103,
            "pivot_root": 155, "mount": 165, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272,
            "perf_event_open": 298, "setns": 308, "memfd_create": 319, "bpf": 321, "userfaultfd": 323,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "socket": 198, "clone": 220, "shmget": 194, "semget": 190, "msgget": 186, "ptrace": 117, "syslog": 116,
            "pivot_root": 41, "mount": 40, "add_key": 217, "request_key": 218, "keyctl": 219, "unshare": 97,
            "perf_event_open": 241, "setns": 268, "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
        },
    ),
}  # fmt: skip
EVERYWHERE = {"io_uring_setup": 425, "clone3": 435, "memfd_secret": 447}
SYS_MOUNT_SETATTR = 442

libc = ctypes.CDLL(None, use_errno=True)


class SetupError(Exception):
    """A step of the set-up failed; the message says which and why."""


def call(what: str, function: Any, *arguments: Any) -> None:
    """Call into the C library; ``arguments`` are integers, bytes or None."""
    if function(*(ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments)) < 0:
        code = ctypes.get_errno()
        raise SetupError(f"{what}: {os.strerror(code)}")


def main(status: int, verdict: int, parent: int) -> int:
    """Read the request from standard input, set up, run, report on ``status``."""
    with os.fdopen(0, "rb") as stdin:
        request: dict[str, Any] = marshal.load(stdin)
    os.open("/dev/null", os.O_RDONLY)  # the lowest free number: standard input
    os.umask(0o022)
    try:
        if os.uname().machine not in ARCHITECTURES:
            raise SetupError(f"the system calls of {os.uname().machine} are not known")
        return outer(request, status, verdict, parent)
    except (SetupError, OSError, ValueError) as error:
        os.write(status, f"fault {error}\n".encode())
        return 1


def outer(request: dict[str, Any], status: int, verdict: int, parent: int) -> int:
    """Make the namespaces and init; wait for it; pass a request to end on to it."""
    init = 0

    def end(number: int, frame: FrameType | None) -> None:
        if init:
            os.kill(init, signal.SIGKILL)
        else:
            os._exit(1)

    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a mask is inherited
    root = os.geteuid() == 0
    uid, gid = os.geteuid(), os.getegid()
    if root:
        uid = gid = own_uid()
    spaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    call("new namespaces", libc.unshare, spaces if root else spaces | CLONE_NEWUSER)
    if not root:
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{uid} {uid} 1")
        write("/proc/self/gid_map", f"{gid} {gid} 1")
    die_with_parent()
    if os.getppid() != parent:
        return 1
    lifeline, held = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(held)
        run_init(request, status, verdict, lifeline, uid, gid)
    _, code = os.waitpid(init, 0)
    if os.WIFSIGNALED(code):
        os.write(status, f"signal {os.WTERMSIG(code)}\n".encode())
    return 0


def own_uid() -> int:
    """A uid that no other sandbox has now: limits on processes count per uid.

    An abstract socket, held by this process until it ends, is the lock: it is gone with its process and never a file.
    """
    first, count = FIRST_UID, UIDS
    with open("/proc/self/uid_map", encoding="ascii") as file:
        *_, (inside, _, length) = (map(int, line.split()) for line in file)
    if inside + length < first + count:
        # A container with few uids: the upper half of them.
        count = length // 2
        first = inside + length - count
    lock = libc.socket(AF_UNIX, SOCK_STREAM, 0)
    for _ in range(100):
        uid = first + int.from_bytes(os.urandom(8), "big") % count
        address = struct.pack("=H", AF_UNIX) + f"\0joulewise-sandbox-{uid}".encode()
        if libc.bind(lock, address, len(address)) == 0:
            return uid
        if ctypes.get_errno() != errno.EADDRINUSE:
            raise SetupError(f"lock a user id: {os.strerror(ctypes.get_errno())}")
    raise SetupError("no user id is free")


def run_init(request: dict[str, Any], status: int, verdict: int, lifeline: int, uid: int, gid: int) -> NoReturn:
    """Process 1: set up what needs privileges, start the program, reap until it ends, say how it ended."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # from inside, signals without a handler do not reach process 1
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        die_with_parent()
        if select.select([lifeline], [], [], 0)[0]:
            os._exit(1)  # nothing is written there: the outer process was gone before the line above
        os.setsid()
        write("/proc/self/oom_score_adj", "1000")
        make_root(request, uid, gid)
        program = os.fork()
        if program == 0:
            confine(request, uid, gid)
            os.dup2(verdict, 3)
            os.closerange(4, 1 << 20)
            run_program(request["parts"], request["token"], 3)
        os.close(verdict)
        os.close(1)
        os.close(2)
        while True:
            pid, code = os.wait()
            if pid == program:
                break
        signalled = os.WIFSIGNALED(code)
        said = f"signal {os.WTERMSIG(code)}" if signalled else f"exit {os.WEXITSTATUS(code)}"
    except (SetupError, OSError, ValueError) as error:
        # Also in the program's process, as long as nothing of the program has run.
        said = f"fault {error}"
    os.write(status, f"{said}\n".encode())
    os._exit(0)


def make_root(request: dict[str, Any], uid: int, gid: int) -> None:
    """A root folder of its own: the system's and Python's files, read-only, and a small ``/tmp``. No home, no /proc."""
    call("private mounts", libc.mount, None, b"/", None, MS_REC | MS_PRIVATE, None)
    call("new root", libc.mount, b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, b"size=1m,nr_inodes=1k,mode=755")
    os.mkdir("/tmp/old")
    call("pivot_root", libc.syscall, ARCHITECTURES[os.uname().machine][1]["pivot_root"], b"/tmp", b"/tmp/old")
    os.chdir("/")
    os.mkdir("/tmp")
    options = f"size={request['disk_bytes']},nr_inodes=1k,mode=700,uid={uid},gid={gid}".encode()
    call("temporary folder", libc.mount, b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, options)
    covers = []
    for name, path in (*((path, path) for path in SYSTEM), *request["python"]):
        show(path, MS_RDONLY | MS_NOSUID | MS_NODEV)
        if name != path and not os.path.lexists(name):
            os.makedirs(os.path.dirname(name), exist_ok=True)
            os.symlink(path, name)
        for home in request["homes"]:
            if home.startswith(path + "/") and os.path.isdir(home):
                call(
                    f"hide {home}", libc.mount, b"tmpfs", os.fsencode(home), b"tmpfs", MS_NOSUID | MS_NODEV, b"size=1m"
                )
                covers.append(home)
    for home in covers:
        set_attributes(home, MS_RDONLY, 0)
    for path in DEVICES:
        show(path, MS_RDONLY | MS_NOSUID)
    call("leave the old root", libc.umount2, b"/old", MNT_DETACH)
    os.rmdir("/old")
    set_attributes("/", MS_RDONLY, 0)
    os.chdir("/tmp")


def show(path: str, attributes: int) -> None:
    """Make a path of the old root visible at the same place, if it is there."""
    old = "/old" + path
    if os.path.islink(old):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.lexists(path):
            os.symlink(os.readlink(old), path)
        return
    if os.path.isdir(old):
        os.makedirs(path, exist_ok=True)
    elif os.path.exists(old):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    else:
        return
    call(f"show {path}", libc.mount, os.fsencode(old), os.fsencode(path), None, MS_BIND | MS_REC, None)
    set_attributes(path, attributes, AT_RECURSIVE)


def set_attributes(path: str, attributes: int, flags: int) -> None:
    """``mount_setattr``, which unlike a remount reaches the mounts below, too."""
    wanted = struct.pack("QQQQ", attributes, 0, 0, 0)
    what = f"make {path} read-only"
    call(what, libc.syscall, SYS_MOUNT_SETATTR, -100, os.fsencode(path), flags, wanted, len(wanted))


def confine(request: dict[str, Any], uid: int, gid: int) -> None:
    """Limits, and no privilege left. Nothing before this was the program's; everything after is."""
    os.setsid()
    limits: dict[str, int] = request["limits"]
    if os.geteuid() != 0:
        limits["RLIMIT_NPROC"] += 2  # in a user namespace, the outer process and init count, too
    for name, value in limits.items():
        limit = getattr(resource, name)
        most = resource.getrlimit(limit)[1]
        hard = value + 1 if name == "RLIMIT_CPU" else value  # a warning by signal first, then the kernel kills
        if most != resource.RLIM_INFINITY:
            hard = min(hard, most)
        resource.setrlimit(limit, (min(value, hard), hard))
    machine = ARCHITECTURES[os.uname().machine][1]
    call("session keyring", libc.syscall, machine["keyctl"], KEYCTL_JOIN_SESSION_KEYRING, None)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    call("drop capabilities", libc.capset, header, bytes(24))
    call("no_new_privs", libc.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    refuse_system_calls()


def refuse_system_calls() -> None:
    """What neither a limit nor a namespace covers: memory that no limit counts, new namespaces, odd kinds of socket."""
    audit, numbers = ARCHITECTURES[os.uname().machine]
    rules = {**numbers, **EVERYWHERE}
    special = (rules.pop("socket"), rules.pop("clone"), rules.pop("clone3"))
    load, equal, greater, any_bit, give = 0x20, 0x15, 0x25, 0x45, 0x06
    kill, allow, refuse, absent = 0x80000000, 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
    number_at, audit_at, argument_at = 0, 4, 16
    code = [(load, 0, 0, audit_at), (equal, 1, 0, audit), (give, 0, 0, kill), (load, 0, 0, number_at)]
    # x86-64 knows a second numbering, which starts here.
    code += [(greater, 0, 1, 0x3FFFFFFF), (give, 0, 0, kill)]
    for number in rules.values():
        code += [(equal, 0, 1, number), (give, 0, 0, refuse)]
    socket_number, clone, clone3 = special
    # The C library takes "no such call" as a sign to use clone, whose flags can be looked at.
    code += [(equal, 0, 1, clone3), (give, 0, 0, absent)]
    code += [(equal, 0, 4, clone), (load, 0, 0, argument_at), (any_bit, 0, 1, CLONE_NEW_ANY)]
    code += [(give, 0, 0, refuse), (give, 0, 0, allow)]
    code += [(equal, 0, 5, socket_number), (load, 0, 0, argument_at), (equal, 3, 0, AF_UNIX)]
    code += [(equal, 2, 0, AF_INET), (equal, 1, 0, AF_INET6), (give, 0, 0, refuse), (give, 0, 0, allow)]
    packed = b"".join(struct.pack("HBBI", *instruction) for instruction in code)
    held = ctypes.create_string_buffer(packed, len(packed))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(held)))
    call("seccomp", libc.prctl, PR_SET_SECCOMP, 2, program)


def run_program(parts: list[str], token: bytes, verdict: int) -> NoReturn:
    """Run the parts one after another in one namespace; only then say the token.

    Each part is compiled on its own, so that a torn string in one cannot swallow the next.
    """
    # Taken beforehand: the program may replace any of these.
    execute, write_verdict, leave, show_error = exec, os.write, os._exit, sys.__excepthook__
    module = type(sys)("answer")  # not __main__: what an answer does as a script is not asked for
    sys.modules["answer"] = module
    try:
        codes = [compile(part, f"<part {n}>", "exec", dont_inherit=True) for n, part in enumerate(parts, 1)]
        for code in codes:
            execute(code, module.__dict__)
        write_verdict(verdict, token)
    except BaseException as error:  # noqa: BLE001 - the program may raise whatever it likes, SystemExit too
        write_verdict(verdict, f"failed {type(error).__name__}".encode())
        show_error(type(error), error, error.__traceback__)
    finally:
        leave(0)


def die_with_parent() -> None:
    """The kernel kills this process when its parent dies."""
    call("parent's death signal", libc.prctl, PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def write(path: str, text: str) -> None:
    """Write a file of /proc in one go."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))

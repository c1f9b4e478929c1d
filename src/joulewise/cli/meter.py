"""``joulewise meter``: the joules of any command, as ``perf stat`` tells its cycles."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperCommand

from joulewise.errors import EnvironmentFault, UserError

if TYPE_CHECKING:
    from joulewise.energy import ComponentEnergy, Energy, Meter

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell exits with where a command is not there, or is no program."""


class MeterCommand(TyperCommand):
    """The command line of ``meter``: an option that is not its own is refused, never taken for the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As usual, after a look at the options before the command.

        Raises:
            UserError: an option that the meter does not have.
        """
        own = {name: param for param in self.get_params(ctx) for name in param.opts}
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            name, equals, _ = args[place].partition("=")
            if name not in own:
                raise UserError(
                    f"meter has no option {name}; its own options come first, then -- and the command, as in: "
                    "joulewise meter --quiet -- python train.py -x"
                )
            flag = getattr(own[name], "is_flag", False) or name in ctx.help_option_names
            place += 1 if flag or equals else 2
        return super().parse_args(ctx, args)


def meter(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments.", metavar="COMMAND")],
    json_output: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write the figures to FILE as JSON; '-' is stdout, and the command's own stdout then goes to stderr.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no report on stderr.")] = False,
) -> None:
    """Run a command and print the joules that the machine drew meanwhile, as `perf stat` does for cycles.

    The report goes to stderr and the command's exit code is passed on (128 + N if signal N ended it), so the command
    can be used in a pipe or a script as before. The figures are of the whole machine, not of the command alone.

    Example: joulewise meter -- python train.py --epochs 1
    """
    raise typer.Exit(meter_command(command, json_output, quiet=quiet))


def meter_command(command: Sequence[str], json_output: Path | None = None, *, quiet: bool = False) -> int:
    """Run ``command``, report its joules, and return its exit code.

    Args:
        command: the program and its arguments.
        json_output: where the figures go as JSON; None for nowhere. ``-`` is stdout, which then holds nothing else:
            what the command writes there goes to stderr.
        quiet: print no report on stderr.

    Raises:
        EnvironmentFault: ``json_output`` cannot be written (told before the command runs).
    """
    from joulewise.energy import discover

    with _opened(json_output) as file, discover() as joules:
        try:
            with joules.window() as window:
                code = _run(command, stdout=sys.stderr if file is sys.stdout else None)
        except (FileNotFoundError, NotADirectoryError):
            print(f"joulewise: command not found: {command[0]}; check its spelling or give its path", file=sys.stderr)
            return NOT_FOUND
        except OSError as error:
            print(
                f"joulewise: {command[0]} cannot be run ({error.strerror}); name a program, or make it executable",
                file=sys.stderr,
            )
            return NOT_EXECUTABLE
        if not quiet:
            _report(command, window.energy)
        if file is not None:
            json.dump(_record(command, code, window.energy, joules), file, indent=2)
            file.write("\n")
    return code


def _opened(target: Path | None) -> AbstractContextManager[TextIO | None]:
    """The file to write JSON to, opened at once, so that a wrong name is told before an hour of work."""
    if target is None:
        return nullcontext(None)
    if str(target) == "-":
        return nullcontext(sys.stdout)
    try:
        return target.open("w", encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(
            f"{target}: cannot be written ({error.strerror}); choose another file for --json"
        ) from error


def _run(command: Sequence[str], stdout: TextIO | None) -> int:
    """Run to the end, passing signals on; the exit code as a shell tells it."""
    with _forwarded_signals() as forward:
        child = subprocess.Popen(command, stdout=stdout)
        forward.to(child)
        code = child.wait()
    return code if code >= 0 else 128 - code


class _Forward:
    """A signal handler that passes signals on to the child; one that comes before the child is there waits for it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def to(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        for number in self._early:
            child.send_signal(number)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT) and _in_foreground():
            return  # the terminal has sent it to the whole group, the child included
        if self._child is None:
            self._early.append(number)
        else:
            self._child.send_signal(number)


@contextmanager
def _forwarded_signals() -> Iterator[_Forward]:
    forward = _Forward()
    # Python lets only the main thread handle signals. One that is ignored (SIGHUP under nohup) stays so, for the child
    # inherits that.
    main = threading.current_thread() is threading.main_thread()
    before = {s: signal.getsignal(s) for s in FORWARDED} if main else {}
    before = {s: handler for s, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, forward)
    try:
        yield forward
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _report(command: Sequence[str], energy: Energy) -> None:
    """The table on stderr."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in ("joules", "95 % interval", "mean W"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for part in _rows(energy):
        interval = "" if part.interval_j is None else f"{figure(part.interval_j[0])} to {figure(part.interval_j[1])}"
        power_w = None if part.energy_j is None else part.energy_j / energy.duration_s
        table.add_row(part.component, figure(part.energy_j), interval, figure(power_w), part.provenance)
    console = Console(stderr=True, highlight=False, markup=False)
    console.print(f"\nJoules of the machine while it ran: {shlex.join(command)}\n", soft_wrap=True)
    console.print(table)
    console.print(f"\n{energy.duration_s:.3f} s")
    for part in energy.components:
        if part.note:
            console.print(f"{part.component}: {part.note}")


def _rows(energy: Energy) -> list[ComponentEnergy]:
    return [*energy.components, energy.total] if len(energy.components) > 1 else list(energy.components)


def figure(value: float | None) -> str:
    """A number for people: four significant digits, no exponent; ``?`` for what is not known."""
    if value is None:
        return "?"
    digits = 4 - len(str(int(abs(value)))) if abs(value) >= 1 else 4
    return f"{value:,.{max(0, digits)}f}"


def _record(command: Sequence[str], code: int, energy: Energy, joules: Meter) -> dict[str, Any]:
    """The figures as plain data."""
    return {
        "command": list(command),
        "exit_code": code,
        "duration_s": energy.duration_s,
        "components": [
            asdict(part)
            | {
                "lower_j": part.lower_j,
                "upper_j": part.upper_j,
                "mean_power_w": None if part.energy_j is None else part.energy_j / energy.duration_s,
            }
            for part in _rows(energy)
        ],
        "sources": [asdict(spec) for spec in joules.specs],
        "absent": [asdict(absent) for absent in joules.absent],
    }

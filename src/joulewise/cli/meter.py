"""``joulewise meter``: the joules of any command, as ``perf stat`` tells its cycles."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperCommand

from joulewise.cli.named_file import named_file
from joulewise.errors import EnvironmentFault, UserError
from joulewise.whole_file import whole_file

if TYPE_CHECKING:
    from joulewise.energy import ComponentEnergy, Energy, Meter
    from joulewise.energy.carbon import Intensity
    from joulewise.energy.comparison import Comparison

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell exits with where a command is not there, or is no program."""


CARBON_HELP = (
    "Tell the gCO2e {} by the intensity of GRID: a country, a CSV or JSON file with time and g_per_kwh, or "
    "electricitymaps:ZONE."
)
"""The help of ``--carbon``, here and in ``report``."""


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
    command: Annotated[
        list[str],
        typer.Argument(
            help="The command and its arguments.", metavar="COMMAND", default_factory=list, show_default=False
        ),
    ],
    json_output: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write the figures to FILE as JSON; '-' is stdout, and the command's own stdout then goes to stderr.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no report on stderr.")] = False,
    serve: Annotated[
        str | None,
        typer.Option(
            "--serve",
            metavar="[ADDRESS:]PORT",
            help="Serve Prometheus metrics meanwhile, on 127.0.0.1 unless ADDRESS says otherwise (extra prometheus).",
        ),
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option(
            "--otlp",
            metavar="URL",
            help="Send OpenTelemetry metrics to a collector meanwhile, such as http://localhost:4318 (extra otel).",
        ),
    ] = None,
    carbon: Annotated[
        str | None, typer.Option("--carbon", metavar="GRID", help=CARBON_HELP.format("of the joules"))
    ] = None,
) -> None:
    """Run a command and print the joules that the machine drew meanwhile, as `perf stat` does for cycles.

    The report goes to stderr and the command's exit code is passed on (128 + N if signal N ended it), so the command
    can be used in a pipe or a script as before. The figures are of the whole machine, not of the command alone. With
    --serve or --otlp the command may be left out; the meter then runs until Ctrl-C or SIGTERM.

    Example: joulewise meter -- python train.py --epochs 1
    """
    file = named_file(json_output, "--json")
    raise typer.Exit(meter_command(command, file, quiet=quiet, serve=serve, otlp=otlp, carbon=carbon))


def meter_command(
    command: Sequence[str],
    json_output: Path | None = None,
    *,
    quiet: bool = False,
    serve: str | None = None,
    otlp: str | None = None,
    carbon: str | None = None,
) -> int:
    """Run ``command``, report its joules, and return its exit code.

    Args:
        command: the program and its arguments; none runs until a signal stops it, if there is a ``serve`` or ``otlp``.
        json_output: where the figures go as JSON; None for nowhere. ``-`` is stdout, which then holds nothing else:
            what the command writes there goes to stderr.
        quiet: print no report on stderr.
        serve: where to serve Prometheus metrics.
        otlp: where to send OpenTelemetry metrics.
        carbon: whose grid's intensity to tell gCO2e by.

    Raises:
        UserError: no command and nothing to serve; a wrong ``serve``, ``otlp`` or ``carbon``.
        EnvironmentFault: ``json_output`` cannot be written, or one of the others cannot be done (all told before the
            command runs).
    """
    import psutil

    from joulewise.energy import discover
    from joulewise.energy.comparison import compare

    if not command and serve is None and otlp is None:
        raise UserError(
            "meter needs a command, as in: joulewise meter -- python train.py; or --serve PORT to run until Ctrl-C"
        )
    at_time = None
    if carbon is not None:
        from joulewise.energy.carbon import grid

        at_time = grid(carbon)
    with _opened(json_output) as file, discover() as joules, ExitStack() as exports:
        started = datetime.now(UTC)
        wait = None if command else exports.enter_context(_until_stopped())
        told = _export(joules, exports, serve, otlp)
        if not quiet or wait:
            for line in told:
                print(f"joulewise: {line}", file=sys.stderr, flush=True)
        try:
            with joules.window() as window:
                code = wait() if wait else _run(command, stdout=sys.stderr if file is sys.stdout else None)
        except (FileNotFoundError, NotADirectoryError):
            print(f"joulewise: command not found: {command[0]}; check its spelling or give its path", file=sys.stderr)
            return NOT_FOUND
        except OSError as error:
            print(
                f"joulewise: {command[0]} cannot be run ({error.strerror}); name a program, or make it executable",
                file=sys.stderr,
            )
            return NOT_EXECUTABLE
        intensity = None if at_time is None else at_time(started, datetime.now(UTC))
        others = compare(window, joules.specs, joules.drain_timeline(), psutil.virtual_memory().total)
        if not quiet:
            _report(command, window.energy, others, intensity)
        if file is not None:
            json.dump(_record(command, code, window.energy, others, joules, intensity), file, indent=2)
            file.write("\n")
    return code


def _export(joules: Meter, exports: ExitStack, serve: str | None, otlp: str | None) -> list[str]:
    """Start what was asked for, until ``exports`` ends; where the figures are to be had, in words."""
    told = []
    if serve is not None or otlp is not None:
        from joulewise.export.live import Live

        live = Live(joules)
    if serve is not None:
        from joulewise.export.prometheus import serving

        told.append(f"metrics at {exports.enter_context(serving(live, serve))}")
    if otlp is not None:
        from joulewise.export.otel import exporting

        exports.enter_context(exporting(live, otlp))
        told.append(f"metrics go to {otlp}")
    return told


@contextmanager
def _until_stopped() -> Iterator[Callable[[], int]]:
    """A function that waits for Ctrl-C or SIGTERM, which inside this block end nothing else; its value is 0."""
    stop = threading.Event()

    def wait() -> int:
        stop.wait()
        return 0

    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _opened(target: Path | None) -> Iterator[TextIO | None]:
    """The file to write JSON to, opened at once, so that a wrong name is told before an hour of work."""
    if target is None or str(target) == "-":
        yield sys.stdout if target else None
        return
    try:
        with whole_file(target) as part:
            with part.open("w", encoding="utf-8") as file:
                yield file
            if part != target and not part.stat().st_size:
                part.unlink()  # the command could not be run
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


def _report(command: Sequence[str], energy: Energy, others: Sequence[Comparison], intensity: Intensity | None) -> None:
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
    what = f"while it ran: {shlex.join(command)}" if command else "while it was metered"
    console.print(f"\nJoules of the machine {what}\n", soft_wrap=True)
    console.print(table)
    console.print(f"\n{energy.duration_s:.3f} s")
    for part in energy.components:
        if part.note:
            console.print(f"{part.component}: {part.note}")
    for name in dict.fromkeys(other.name for other in others):
        told = ", ".join(f"{o.component} {figure(o.energy_j)} J" for o in others if o.name == name)
        console.print(f"{name} would have said (in no sum): {told}")
    if intensity is not None:
        from joulewise.energy.carbon import SCOPE

        console.print(f"carbon: {_carbon_words(energy.total, intensity)}\ncarbon: {SCOPE}")


def _carbon_words(total: ComponentEnergy, intensity: Intensity) -> str:
    grams = _carbon(total, intensity)
    if grams["g"] is None:
        return f"unknown, as the total is; {intensity}"
    return (
        f"{grams['g']:.3g} gCO2e ({grams['lower_g']:.3g} to {grams['upper_g']:.3g}), of joules that are "
        f"{total.provenance}; {intensity}"
    )


def _carbon(total: ComponentEnergy, intensity: Intensity) -> dict[str, Any]:
    """Grams of CO2 equivalent of a total, with the interval of its joules, and by which intensity."""
    joules = {"g": total.energy_j, "lower_g": total.lower_j, "upper_g": total.upper_j}
    return {
        **{name: None if value is None else value * intensity.g_per_j for name, value in joules.items()},
        "provenance": total.provenance,
        "intensity": asdict(intensity),
    }


def _rows(energy: Energy) -> list[ComponentEnergy]:
    return [*energy.components, energy.total] if len(energy.components) > 1 else list(energy.components)


def figure(value: float | None) -> str:
    """A number for people: four significant digits, no exponent; ``?`` for what is not known."""
    if value is None:
        return "?"
    digits = 4 - len(str(int(abs(value)))) if abs(value) >= 1 else 4
    return f"{value:,.{max(0, digits)}f}"


def _record(
    command: Sequence[str],
    code: int,
    energy: Energy,
    others: Sequence[Comparison],
    joules: Meter,
    intensity: Intensity | None,
) -> dict[str, Any]:
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
                # Standard uncertainties, as a reviewer asks for them: from the readings, and from other knowledge.
                "type_a_j": None if part.energy_j is None else part.independent_j,
                "type_b_j": None if part.energy_j is None else part.common_j,
            }
            for part in _rows(energy)
        ],
        "comparisons": [asdict(other) for other in others],
        "sources": [asdict(spec) for spec in joules.specs],
        "absent": [asdict(absent) for absent in joules.absent],
        "carbon": None if intensity is None else _carbon(energy.total, intensity),
    }

"""The command line. Thin: every command lives in a module of its own and loads what it needs when it runs."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from errno import EBADF, EDQUOT, EIO, ENOSPC
from typing import Annotated, NoReturn

import typer

from joulewise import __version__
from joulewise.cli.ask import ask
from joulewise.cli.compare import compare
from joulewise.cli.curve import curve
from joulewise.cli.doctor import doctor
from joulewise.cli.explain import explain
from joulewise.cli.export import export
from joulewise.cli.fit import fit
from joulewise.cli.heads import heads
from joulewise.cli.judge import judge
from joulewise.cli.meter import MeterCommand, meter
from joulewise.cli.report import report
from joulewise.cli.requests import requests
from joulewise.cli.route import route
from joulewise.cli.run import run
from joulewise.cli.schema import schema
from joulewise.cli.sweep import sweep
from joulewise.errors import JoulewiseError

app = typer.Typer(
    name="joulewise",
    help="Measure, explain and cut the joules of LLM inference.",
    epilog="Exit codes: 0 done; 1 a gate failed; 2 wrong input or a fault of the machine; 130 stopped by Ctrl-C or "
    "SIGTERM; 141 whoever read the output has gone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich for it would more than double the time of --help
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"joulewise {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure, explain and cut the joules of LLM inference."""


app.command("doctor", short_help="Tell what can be measured here and what only modelled.")(doctor)
app.command("run", short_help="Run a plan, Trial by Trial, into a run folder.")(run)
app.command("report", short_help="Show what runs cost, as tables and as a page.")(report)
app.command("judge", short_help="Let a model grade a run's open answers.")(judge)
app.command("explain", short_help="Tell why a decoding saves time or energy or not.")(explain)
app.command("curve", short_help="Fit joules as a function of tokens and load, and predict with it.")(curve)
app.command("sweep", short_help="Measure what a curve needs: few points over tokens and load.")(sweep)
app.command("fit", short_help="Learn a router from runs: which option answers well for few joules.")(fit)
app.add_typer(route, name="route", short_help="Tell which option a router takes, and how good it is.")
app.command("ask", short_help="Answer a question by the option that a router takes, and tell its joules.")(ask)
app.command("compare", short_help="Compare two runs, and fail if the change costs more joules.")(compare)
app.command("requests", short_help="Tell each request of a load its joules.")(requests)
app.command("export", short_help="Write runs as tables: Parquet or CSV.")(export)
app.add_typer(heads, name="heads", short_help="Train draft heads and draft models, and check them.")
app.command(
    "meter",
    short_help="Run a command and tell its joules.",
    epilog="Exit codes: the command's own; 128 + N where signal N ended it; 127 where it is not there; 126 where it "
    "cannot be run; 2 wrong options, or a file that cannot be written.",
    cls=MeterCommand,
    context_settings={"allow_interspersed_args": False},
)(meter)
app.command("schema", short_help="Print the JSON schema of plans.")(schema)


BROKEN_PIPE = 128 + signal.SIGPIPE
"""What a shell tells of a program that wrote to a reader who had gone (`| head`)."""


def main() -> None:
    """Run the command line; a person's mistake ends with one sentence and exit code 2."""
    # Threads of torch that spin while they wait for each other stand still where another program takes a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        try:
            app()
        finally:
            # Here rather than at exit, where Python would complain of a reader who has gone.
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
    except JoulewiseError as error:
        for line in str(error).splitlines():
            print(f"joulewise: {line}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("joulewise: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        _end_quietly()
    except SystemExit as end:
        # The libraries below end with code 1 where a reader has gone.
        if isinstance(end.__context__, BrokenPipeError):
            _end_quietly()
        raise
    except Exception as error:  # noqa: BLE001 - a crash must not end with 1, which says that a gate failed
        _end_after(error)


def _end_after(error: Exception) -> NoReturn:
    """Say what happened, as far as anything can be written, and end with 2."""
    with suppress(OSError):
        if isinstance(error, OSError) and error.filename is None and error.errno in (ENOSPC, EDQUOT, EIO, EBADF):
            print(f"joulewise: the output cannot be written ({error.strerror})", file=sys.stderr)
        elif isinstance(error, PermissionError) and error.filename is not None:
            # Even to ask whether a file is there can be forbidden, so this may come from anywhere.
            told = f"{os.fsdecode(error.filename)}: {error.strerror}; change its permissions or its folder's"
            print(f"joulewise: {told}, or name another", file=sys.stderr)
        else:
            traceback.print_exception(error)
            print("joulewise: this is a fault of Joulewise; please report it with the lines above", file=sys.stderr)
        sys.stderr.flush()
    _drop_output()
    sys.exit(2)


def _end_quietly() -> NoReturn:
    """End as if by SIGPIPE."""
    _drop_output()
    sys.exit(BROKEN_PIPE)


def _drop_output() -> None:
    """Let what is still to be flushed go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)

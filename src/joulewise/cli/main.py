"""The command line. Thin: every command lives in a module of its own and loads what it needs when it runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from joulewise import __version__
from joulewise.cli.doctor import doctor
from joulewise.cli.meter import meter
from joulewise.cli.report import report
from joulewise.cli.run import run
from joulewise.cli.schema import schema
from joulewise.errors import JoulewiseError

app = typer.Typer(
    name="joulewise",
    help="Measure, explain and cut the joules of LLM inference.",
    epilog="Exit codes: 0 done; 1 a gate failed; 2 wrong input or a fault of the machine; 130 stopped by Ctrl-C.",
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
app.command(
    "meter",
    short_help="Run a command and tell its joules.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)(meter)
app.command("schema", short_help="Print the JSON schema of plans.")(schema)


def main() -> None:
    """Run the command line; a person's mistake ends with one sentence and exit code 2."""
    try:
        app()
    except JoulewiseError as error:
        for line in str(error).splitlines():
            print(f"joulewise: {line}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("joulewise: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`): end quietly, also when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)

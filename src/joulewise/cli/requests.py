"""``joulewise requests``."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from joulewise.cli.named_file import output_file
from joulewise.counted import counted
from joulewise.errors import EnvironmentFault


def requests(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of a plan with loads.")],
    curve: Annotated[
        list[str] | None,
        typer.Option(
            "--curve",
            metavar="FILE",
            help="A curve file of `joulewise curve`, of an engine and decoding of the run: adds the cost model; may be "
            "repeated.",
        ),
    ] = None,
    load: Annotated[
        str | None, typer.Option("--load", metavar="LABEL", help="One load, such as c16. Default: all of them.")
    ] = None,
    csv_file: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write one row a request; - is standard output.")
    ] = None,
) -> None:
    """Tell each request of a load its joules: shares that sum to what was measured, and what one more would add.

    A share is a convention (docs/attribution.md): by tokens, all alike, or by what the server's own operating curve
    says of a request's work. What a machine draws idle is a row of its own, where the run measured it.
    """
    from joulewise.analysis.curve_file import read_curve
    from joulewise.analysis.load_shares import load_shares
    from joulewise.ledger import load as load_run
    from joulewise.report.load_shares import COLUMNS, describe_stretch, request_rows
    from joulewise.whole_file import whole_file

    file = output_file(csv_file, "--csv", "joulewise requests RUN")
    read = [read_curve(Path(text)) for text in curve or ()]
    curves = {(origin.engine, origin.decoding): found for found, origin in read}
    found = list(load_shares(load_run(run), curves, load))
    if file != Path("-"):
        typer.echo("\n".join(map(describe_stretch, found)), nl=False)
    if file is None:
        return
    rows = list(request_rows(found))
    if file == Path("-"):
        writer = csv.DictWriter(typer.get_text_stream("stdout"), COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    try:
        with whole_file(file) as part, part.open("w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise EnvironmentFault(
            f"{file}: cannot be written ({error.strerror}); make room, or name another place with --csv FILE"
        ) from error
    typer.echo(f"Requests: {file} ({counted(len(rows), 'row')})", err=True)

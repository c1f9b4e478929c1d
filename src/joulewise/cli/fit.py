"""``joulewise fit``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli.named_file import named_file
from joulewise.errors import UserError

if TYPE_CHECKING:
    from joulewise.routing.energy import PublishedCurve
    from joulewise.routing.past_answers import Past


def fit(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="SOURCE...", help="Run folders, and files of outcomes (.csv, .jsonl: docs/routing.md)."),
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="The router file: .npz, or .json (larger).")
    ] = "router.npz",
    curve: Annotated[
        list[str] | None,
        typer.Option(
            "--curve",
            metavar="FILE",
            help="A curve file of `joulewise curve`, for the options of its engine and decoding; may be repeated.",
        ),
    ] = None,
    published: Annotated[
        list[str] | None,
        typer.Option(
            "--published",
            metavar="OPTION=TABLE,MODEL,DEVICE[,TASK]",
            help="Joules of an option, or of all of an ENGINE/DECODING, from a table that others published "
            "(docs/routing.md); may be repeated.",
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan", metavar="PLAN", help="How options of files of outcomes answer: their names are its cells'."
        ),
    ] = None,
    cascade: Annotated[
        list[str] | None,
        typer.Option(
            "--cascade",
            metavar="FIRST>THEN",
            help="An option that asks FIRST, a vote, and THEN where its samples differ; may be repeated.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Where third-party data sets lie. Default: $JOULEWISE_DATA.", metavar="DIR"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all chance.", metavar="N")] = 0,
) -> None:
    """Learn a router: how likely each option is right, what it draws and how long it takes, from what was measured.

    An option is an engine with a decoding and a reasoning (and its budget). The same sources and seed give the same
    file.
    """
    from joulewise.analysis.curve_file import read_curve
    from joulewise.report.plain_table import terminal_width
    from joulewise.report.routing import describe_router
    from joulewise.report.routing_evaluation import contradiction
    from joulewise.routing.fitting import MeasuredCurve, fit_router, measured_curves
    from joulewise.routing.past_answers import OUTCOMES, Past, past_of, plan_ways
    from joulewise.routing.router_file import save

    file, data_dir = named_file(out, "--out", "the file's name"), named_file(data, "--data", "the folder's name")
    assert file is not None
    if file.suffix.lower() not in (".npz", ".json"):
        raise UserError(f"--out {file}: a router file ends in .npz or .json")
    began_s = time.monotonic()
    runs = [s for s in sources if s.suffix.lower() not in OUTCOMES or s.is_dir()]
    if plan is not None:
        from joulewise.plan import load_plan

        past = Past((), plan_ways(load_plan(Path(plan)), {}))
    else:
        past = Past(())
    past = past.joined(past_of(sources, data_dir))
    _check_named(past, plan)
    if not any(a.query is not None and a.score is not None for a in past.answers):
        why = "; ".join(past.notes) or "they hold no scored answer"
        raise UserError(f"nothing to learn from in {', '.join(map(str, sources))}: {why}")
    curves, notes = measured_curves(runs)
    given = [MeasuredCurve(*read_curve(Path(text))) for text in curve or ()]
    named = {one.server for one in given}
    curves = [*given, *(one for one in curves if one.server not in named)]
    tables = dict(map(_published, published or ()))
    router = fit_router(past, curves, tables, [_pair(text) for text in cascade or ()], seed)
    notes += [
        f"--published {name} changes nothing: measured curves go before it"
        for name in tables
        if (mine := [known for option, known in router.learnt.items() if name in (option, option.rpartition("/")[0])])
        and all(known.origin is not None for known in mine)
    ]
    replaced = " (in the place of an earlier one)" if file.exists() else ""
    save(router, file)
    if past.contradictory:
        notes.append(contradiction(past.contradictory))
    several = {known.sources for known in router.learnt.values() if len(known.sources) > 1}
    notes += [
        f"joules of {'; '.join(map(str, sources))} are learnt together and are not comparable: fit a router of each"
        for sources in sorted(several)
    ]
    told = describe_router(router, (*past.notes, *notes), terminal_width(), len(past.textless))
    typer.echo(told, nl=False)
    typer.echo(f"Router: {file}{replaced} ({time.monotonic() - began_s:.1f} s)", err=True)


def _check_named(past: Past, plan: str | None) -> None:
    """Where a plan tells how options answer, their names must be its cells'."""
    if plan is None:
        return
    if strange := sorted({a.option for a in past.answers} - set(past.ways)):
        known = ", ".join(sorted(past.ways))
        raise UserError(f"--plan {plan}: it has no cell for the option {strange[0]}; it has {known}")


def _pair(text: str) -> tuple[str, str]:
    first, arrow, then = (part.strip() for part in text.partition(">"))
    if not (first and arrow and then):
        raise UserError(f"--cascade {text}: write FIRST>THEN, two options by name")
    return first, then


def _published(text: str) -> tuple[str, PublishedCurve]:
    from joulewise.routing.energy import read_published

    option, _, rest = text.partition("=")
    parts = [part.strip() for part in rest.split(",")]
    if not option or len(parts) not in (3, 4) or not all(parts):
        raise UserError(f"--published {text}: write OPTION=TABLE,MODEL,DEVICE or OPTION=TABLE,MODEL,DEVICE,TASK")
    return option, read_published(*parts)

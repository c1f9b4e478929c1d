"""``joulewise sweep``."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from joulewise.cli.named_file import named_file
from joulewise.counted import counted
from joulewise.errors import UserError

if TYPE_CHECKING:
    from joulewise.analysis.design import Box, Point
    from joulewise.engines.spec import NativeSpec
    from joulewise.run_result import RunResult
    from joulewise.sweep import SweepEngine

WAIT_S = 1.0
"""Preparations of a point and the meter's wait after it."""
TOKENS_A_STEP = {False: 8.0, True: 500.0}
"""Prompt tokens that are read in the time of a step, without and with a GPU; rough."""


DEFAULTS = {
    "prompt": "32,7168",
    "output": "1,1024",
    "load": "1,8",
    "points": "40",
    "seed": "0",
    "dtype": "auto",
    "quantisation": "none",
    "device": "auto",
}
"""What an option is where it is neither given nor, as a sweep goes on, recorded."""


def sweep(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="default, a hub name, a folder or a GGUF file, as in a plan. --resume needs none."
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="DIR", help="The run folder, for `joulewise curve`.")
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            "--prompt", metavar="LEAST,MOST", help=f"Prompt tokens of a request. Default: {DEFAULTS['prompt']}."
        ),
    ] = None,
    outputs: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="LEAST,MOST", help=f"Output tokens of a request. Default: {DEFAULTS['output']}."
        ),
    ] = None,
    loads: Annotated[
        str | None,
        typer.Option(
            "--load",
            metavar="LEAST,MOST",
            help=f"Requests side by side: these, and the powers of two between. Default: {DEFAULTS['load']}.",
        ),
    ] = None,
    points: Annotated[
        int | None,
        typer.Option("--points", metavar="N", help=f"Points in all; 12 at least. Default: {DEFAULTS['points']}."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", metavar="M", help="Measure no longer than this, the model's loading apart."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, metavar="N", help="Of the points' places and order. Default: 0.")
    ] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", metavar="TYPE", help="As in a plan. Default: auto.")] = None,
    quantisation: Annotated[
        str | None, typer.Option("--quantisation", metavar="KIND", help="As in a plan. Default: none.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N. Default: auto.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the sweep in --out, with the options that it was begun with.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the first points and an estimate of time; measure nothing.")
    ] = False,
) -> None:
    """Measure one model's joules over prompt tokens, output tokens and load, with few points, for `joulewise curve`.

    Prompts are random tokens and outputs have a fixed length; the engine is `native`, the decoding vanilla. The first
    points fill the space evenly, further ones go where a curve through those measured is unsure. Each is repeated
    within one window until the meter can tell its joules.

    Ctrl-C ends it after the point in flight (twice: at once); --resume goes on.
    """
    from pydantic import ValidationError

    from joulewise.analysis.design import Box, first_points
    from joulewise.engines.spec import NativeSpec
    from joulewise.sweep import FIRST_POINTS, LEAST_POINTS, check_budget, sweep_plan
    from joulewise.yaml_file import in_words

    folder = named_file(out, "--out", "the folder's name")
    if folder is None:
        raise UserError("--out is missing: name the run folder that the sweep is to be written to, or goes on in")
    given = {
        "model": model,
        "prompt": prompts,
        "output": outputs,
        "load": loads,
        "points": points,
        "seed": seed,
        "dtype": dtype,
        "quantisation": quantisation,
        "device": device,
    }
    wanted = {name: str(value) for name, value in given.items() if value is not None}
    chosen = DEFAULTS | (_as_begun(folder, wanted) if resume else {}) | wanted
    if "model" not in chosen:
        raise UserError("MODEL is missing: name default, a hub's model, a folder or a GGUF file")
    box = Box(*(_range(f"--{name}", chosen[name]) for name in ("prompt", "output", "load")))
    most, of = int(chosen["points"]), int(chosen["seed"])
    check_budget(box, most, minutes)
    try:
        spec = NativeSpec.model_validate({name: chosen[name] for name in ("model", "dtype", "quantisation", "device")})
    except ValidationError as error:
        first = error.errors()[0]
        name = "MODEL" if first["loc"][0] == "model" else f"--{first['loc'][0]}"
        raise UserError(f"{name} {first['input']}: {in_words(first)}") from error
    if dry_run:
        from joulewise.ledger import check_folder

        check_folder(folder, sweep_plan(spec, box, of), resume)
        _show(spec, first_points(box, min(most, FIRST_POINTS), of), most)
        return
    go_on = shlex.join(["joulewise", "sweep", "--out", str(folder), "--resume"])
    try:
        result = _sweep(spec, box, folder, most, minutes, of, resume)
    except KeyboardInterrupt:
        typer.echo(f"Stopped in the middle of a point; every finished one is kept. Go on with: {go_on}", err=True)
        raise typer.Exit(130) from None
    if result.interrupted:
        typer.echo(f"Stopped after {counted(result.done, 'point')}. Go on with: {go_on}", err=True)
        raise typer.Exit(130)
    for note, count in Counter(result.notes).most_common(3):
        typer.echo(f"In {count:,} of {counted(result.done, 'point')}: {note}")
    if result.done < LEAST_POINTS:
        typer.echo(
            f"{counted(result.done, 'point')} in {folder}, and a curve needs {LEAST_POINTS} or more: give it more "
            "--minutes with "
            f"{go_on}, or begin another with lower --prompt, --output or --load"
        )
        return
    typer.echo(
        f"{counted(result.done, 'point')} in {folder}. Next: joulewise curve {folder}; charts: joulewise report "
        f"{folder}"
    )


def _as_begun(folder: Path, wanted: Mapping[str, str]) -> dict[str, str]:
    """The options that the sweep in a folder was begun with.

    Args:
        folder: where it is.
        wanted: the options that are given now; but for ``points``, of which there may be more now, they must agree.

    Raises:
        UserError: there is no sweep, or it was begun otherwise.
    """
    from joulewise.ledger import read_json
    from joulewise.sweep import begun

    spec, box, seed = begun(folder)
    ranges = (box.prompt_tokens, box.output_tokens, box.running)
    found = {name: f"{low},{high}" for name, (low, high) in zip(("prompt", "output", "load"), ranges, strict=True)}
    found |= {name: str(getattr(spec, name)) for name in ("model", "dtype", "quantisation", "device")}
    found["seed"] = str(seed)
    for name, value in wanted.items():
        same = ",".join(map(str, _range(f"--{name}", value))) if name in ("prompt", "output", "load") else value
        if name != "points" and same != found[name]:
            option = "MODEL" if name == "model" else f"--{name}"
            raise UserError(
                f"{option} {value}: the sweep in {folder} was begun with {found[name]}; leave it out, or begin another "
                "with --out"
            )
    planned = read_json(folder / "environment.json").get("planned_trials")
    return found | ({"points": str(planned)} if isinstance(planned, int) else {})


def _sweep(
    spec: NativeSpec, box: Box, folder: Path, points: int, minutes: float | None, seed: int, resume: bool
) -> RunResult:
    from joulewise.cli.progress import show_progress
    from joulewise.energy import discover
    from joulewise.engines import open_engine
    from joulewise.sweep import sweep as run_sweep

    with discover() as meter, show_progress() as on_progress:
        if all(source.provenance != "measured" for source in meter.specs):
            typer.echo(
                "Nothing here measures joules (`joulewise doctor` tells why): what follows can be swept, but "
                "`joulewise curve` refuses modelled joules.",
                err=True,
            )
        return run_sweep(
            cast("SweepEngine", open_engine(spec)),
            spec,
            box,
            folder,
            meter=meter,
            points=points,
            minutes=minutes,
            seed=seed,
            resume=resume,
            on_progress=on_progress,
        )


def _range(option: str, text: str) -> tuple[int, int]:
    try:
        low, high = map(int, text.split(","))
    except ValueError:
        raise UserError(f"{option} {text}: write the least and the most, such as 32,2048") from None
    if not 1 <= low <= high:
        raise UserError(f"{option} {text}: the least must be 1 or more, and no more than the most")
    return low, high


def _show(spec: NativeSpec, first: list[Point], points: int) -> None:
    """The first points and how long it all may take, from sizes alone."""
    from joulewise import estimate
    from joulewise.environment import gpus
    from joulewise.sweep import LEAST_S

    on_gpu = bool(gpus()) and spec.device != "cpu"
    size = estimate.model_size(spec, on_gpu)
    step_s = None if size is None else estimate.seconds_per_token(size, on_gpu, estimate.memory_bandwidth_b_s())
    seconds = []
    for point in first:
        told = ""
        if step_s is not None:
            read = point.running * point.prompt_tokens / TOKENS_A_STEP[on_gpu]
            seconds.append(WAIT_S + max(LEAST_S, step_s * (point.output_tokens + read)))
            told = f"about {seconds[-1]:.3g} s"
        typer.echo(
            f"{point.prompt_tokens:>7,} prompt {point.output_tokens:>7,} output {point.running:>4} running  {told}"
        )
    if points > len(first):
        typer.echo(f"and {points - len(first)} further points, where a curve through these is unsure")
    if seconds:
        whole_s = sum(seconds) / len(seconds) * points
        typer.echo(f"About {whole_s / 60:.1f} min, the model's loading apart (rough). Nothing was measured.")
    else:
        typer.echo("No estimate: the model is not at hand, so its size is not known. Nothing was measured.")

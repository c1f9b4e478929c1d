"""Servers measured for the record: vLLM on a GPU, in parts that can be cut, and gone on with.

    python benchmarks/servers.py --part default,curve --work FOLDER --json FILE [--minutes 9]
    python benchmarks/servers.py --part curve --estimate
    python benchmarks/servers.py --part default,curve,sweep,platforms --kind llamacpp --tiny --work FOLDER

1. `default`: the default model, plainly and with n-grams, under load and one request after the other; beside what was
   published for it.
2. `curve`: an 8B shape with made-up weights, plainly, by requests at once; beside what was published.
3. `sweep`: the same with drafts of a 1B shape, accepted by lot: draft tokens x acceptance x requests at once.
4. `platforms`: Transformers, native and the server, each in bf16, NF4 and GPTQ, the server in FP8 too, all answers of
   one length.
5. `attribution`: `benchmarks/attribution.py` on a server of the 8B shape.

``--work`` holds the run folders (`joulewise report` reads them), made-up models and logs. Whatever has ended is in its
ledger at once; the same command goes on where the last one was cut. ``--minutes`` ends the whole after the Trial in
flight, as Ctrl-C does. The figures in ``--json`` are written anew after every few Trials, of all parts that the work
folder holds. vLLM is found on the PATH or in this Python (PYTHONPATH counts), or by ``--program python3``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from servers_plans import (
    ALIAS,
    PARTS,
    PLANS,
    TINY,
    Setup,
    Sizes,
    estimate_s,
    shape_server,
    write_models,
)

import joulewise
from joulewise.analysis.load_saving import under_load
from joulewise.decoding import Vanilla
from joulewise.energy import discover
from joulewise.energy.sources import nvml
from joulewise.engines.endpoint_spec import ServerSpec
from joulewise.engines.servers import open_recipe
from joulewise.engines.servers.served import Served, shown, start
from joulewise.engines.servers.server import Launch, gpu_environment
from joulewise.environment import machine
from joulewise.errors import JoulewiseError
from joulewise.ledger import LEDGER
from joulewise.plan import Plan
from joulewise.run_result import Progress
from joulewise.runner import run
from joulewise.table import RunTable

PUBLISHED: Mapping[str, tuple[float, float]] = {
    "default gsm8k/c1 vanilla": (512.0, 0.294),
    "default gsm8k/c1 prompt-lookup-4": (355.0, 0.373),
    "default gsm8k/c20 vanilla": (6290.0, 0.0244),
    "default gsm8k/c20 prompt-lookup-4": (3983.0, 0.0348),
    "default cnn_dm/c1 vanilla": (558.0, 0.284),
    "default cnn_dm/c1 prompt-lookup-4": (523.0, 0.260),
    "default cnn_dm/c20 vanilla": (4574.0, 0.0371),
    "default cnn_dm/c20 prompt-lookup-4": (2644.0, 0.0537),
    "curve words/c1 vanilla": (198.0, 2.45),
    "curve words/c8 vanilla": (1470.0, 0.355),
    "curve words/c32 vanilla": (4641.0, 0.133),
    "curve words/c256 vanilla": (11280.0, 0.0614),
}
"""Tokens per second and GPU joules per output token seen before on one H200 by vLLM without a server. Of gsm8k 20, and
of cnn_dm 10 questions were given at once there, not held at so many; the 8B shape made 384 tokens an answer.
"""

EVERY_S = 10.0
"""The figures are written about so often while a plan runs."""


@dataclass(frozen=True)
class Job:
    """What is asked of this process.

    Args:
        parts: in this order.
        json: gets the figures; None for nowhere.
        data: where gsm8k and cnn_dm lie.
        until_s: of the monotonic clock; nothing new begins after it.
    """

    setup: Setup
    sizes: Sizes
    parts: tuple[str, ...]
    json: Path | None
    data: Path | None
    until_s: float


def cells(table: RunTable) -> list[dict[str, Any]]:
    """A row for each engine, decoding, task and load: sums over all that was measured."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in table.arrow.to_pylist():
        groups.setdefault((row["engine"], row["decoding"], row["task"]), []).append(row)
    return [
        {**dict(zip(("engine", "decoding", "task"), key, strict=True)), **cell(rows)} for key, rows in groups.items()
    ]


def cell(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of one cell; None for what is not known."""
    good = [row for row in rows if row["status"] == "ok"]
    faults = [row["error"] for row in rows if row["status"] != "ok"]
    found: dict[str, Any] = {"trials": len(good), "failed": len(faults), "first_error": faults[0] if faults else None}
    if not good:
        return found
    component = "gpu" if all(row["gpu_provenance"] == "measured" for row in good) else "total"
    joules = [row[f"{component}_energy_j"] for row in good]
    tokens, seconds = math.fsum(row["output_tokens"] for row in good), math.fsum(row["duration_s"] for row in good)
    energy_j = None if None in joules else math.fsum(joules)
    rounds, drafted, accepted = (
        None if None in (values := [row[name] for row in good]) else sum(values)
        for name in ("rounds", "drafted_tokens", "accepted_tokens")
    )
    loads = [row["load"] for row in good if row["load"]]
    checks = [row["check_status"] for row in good if row["check_status"]]
    return found | {
        "component": component,
        "provenance": sorted({str(row[f"{component}_provenance"]) for row in good}),
        "output_tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "power_w": None if energy_j is None else energy_j / seconds,
        "energy_per_token_j": None if energy_j is None or not tokens else energy_j / tokens,
        "by_repeat_j": [
            None if j is None or not row["output_tokens"] else j / row["output_tokens"]
            for j, row in zip(joules, good, strict=True)
        ]
        if loads
        else None,
        "tokens_per_step": 1 + accepted / rounds if rounds and accepted is not None and drafted else None,
        "accepted": accepted / drafted if drafted and accepted is not None else None,
        "in_flight": mean([load["in_flight"] for load in loads]),
        "to_first_p50_s": mean([load["to_first"]["p50_s"] for load in loads]),
        "per_token_p50_s": mean([load["per_token"]["p50_s"] for load in loads]),
        "late_p99_s": max((load["late_p99_s"] for load in loads if load["late_p99_s"] is not None), default=None),
        "outputs": {status: checks.count(status) for status in sorted(set(checks))},
        "notes": sorted({row["note"] for row in good if row["note"]})[:3],
    }


def mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def of_plan(part: str, folder: Path, published: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """All figures of one run folder; what was published stands beside them."""
    table = joulewise.load(folder)
    found: dict[str, Any] = {"cells": cells(table), "warnings": list(table.warnings)}
    for row in found["cells"]:
        if (seen := published.get(f"{part} {row['task']} {row['decoding']}")) is not None:
            row["published"] = dict(zip(("tokens_per_s", "energy_per_token_j"), seen, strict=True))
    (environment,) = table.environments.values()
    found["engines"] = environment.get("engines")
    found["not_loaded"] = environment.get("not_loaded")
    found["savings"] = [
        {"task": one.task, "savings": one.savings, "crossings": one.crossings} for one in under_load(table)
    ]
    if part == "platforms":
        from joulewise.report.summary import summarise

        found["two_way"] = summarise(table).platforms
    return found


def figures(job: Job) -> dict[str, Any]:
    """Those of every part that the work folder holds."""
    setup = job.setup
    told: dict[str, Any] = {"kind": setup.kind, "model": setup.model, "sizes": asdict(job.sizes), "machine": machine()}
    published = PUBLISHED if setup.kind == "vllm" else {}
    for part, plans in PLANS.items():
        runs = {name: setup.work / name for name in plans(setup, job.sizes)}
        there = {name: of_plan(part, folder, published) for name, folder in runs.items() if has_run(folder)}
        if there:
            told[part] = there
    attributed = setup.work / "attribution.json"
    if attributed.exists():
        told["attribution"] = json.loads(attributed.read_text(encoding="utf-8"))
    return told


def has_run(folder: Path) -> bool:
    """Whether there is a Trial to read."""
    return (
        (folder / LEDGER).exists() and (folder / LEDGER).stat().st_size > 0 and (folder / "environment.json").exists()
    )


def plain(value: Any) -> Any:
    """What ``json`` does not know by itself."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def write(job: Job) -> dict[str, Any]:
    """Write the figures as they are by now, whole or not at all."""
    told = figures(job)
    if job.json is not None:
        part = job.json.with_name(job.json.name + ".part")
        # Where the folder lay tells nobody anything.
        text = json.dumps(told, indent=1, default=plain).replace(str(job.setup.work), "WORK")
        part.write_text(text + "\n", encoding="utf-8")
        os.replace(part, job.json)
    return told


def run_part(job: Job, part: str) -> None:
    """The plans of a part, or what is left of them."""
    for name, plan in PLANS[part](job.setup, job.sizes).items():
        if time.monotonic() >= job.until_s:
            return
        run_plan(job, plan, job.setup.work / name)
        write(job)


def run_plan(job: Job, plan: Plan, folder: Path) -> None:
    """One plan, gone on with where its folder has a run."""
    written_s = time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal written_s
        if progress.stage == "live":
            return
        trial = progress.trial
        what = "" if trial is None else f": {trial.decoding} {trial.task} {trial.question_id} {trial.error or ''}"
        say(f"{plan.name} {progress.done}/{progress.total} {progress.text}{what}")
        if trial is not None and time.monotonic() - written_s > EVERY_S:
            write(job)
            written_s = time.monotonic()

    resume = has_run(folder)
    with discover() as meter:
        done = run(plan, folder, meter=meter, data_dir=job.data, resume=resume, on_progress=tell)
    left = "".join(f"; not loaded: {label}: {why.splitlines()[0]}" for label, why in done.not_loaded.items())
    say(f"{plan.name}: {done.done} of {done.total} Trials, {done.failed} failed{left}")


@contextmanager
def shape_served(job: Job) -> Iterator[Served]:
    """A server of the 8B shape, always at one port: the windows of ``attribution`` belong to one address."""
    setup = job.setup
    spec = ServerSpec.model_validate({**shape_server(setup, 4096), "port": setup.port})
    recipe = open_recipe(spec.kind)
    launch = Launch(spec, Vanilla(), None, setup.port, ALIAS)
    env = {**os.environ, **gpu_environment(None, recipe.gpu_count(spec), len(nvml.local_uuids()))}
    say(shown(recipe.command(launch), spec))
    served = start(recipe, launch, env, setup.work / "attribution.log", say)
    try:
        yield served
    finally:
        served.stop()


def attribution_part(job: Job) -> None:
    """`attribution.py` on a server of our own."""
    import attribution
    from attribution_windows import Settings

    settings = Settings(**dict(job.sizes.mixes))
    vocabulary = 32_000
    with shape_served(job) as served:
        options = argparse.Namespace(
            url=served.base, model=ALIAS, raw=job.setup.work / "attribution.jsonl", curve=None, vocabulary=vocabulary
        )
        found = attribution.measured_figures(settings, options)
        found["server"] = served.about
    target = job.setup.work / "attribution.json"
    target.write_text(json.dumps(found, indent=1, default=plain) + "\n", encoding="utf-8")
    say(attribution.table(found))


def estimate(job: Job, part: str) -> float:
    """Seconds that a part takes on an H200, about, from its beginning."""
    if part != "attribution":
        return sum(estimate_s(plan) for plan in PLANS[part](job.setup, job.sizes).values())
    from attribution_windows import Settings

    one = Settings(**dict(job.sizes.mixes))
    return (
        75.0 + one.idle_s + len(one.points) * (one.point_s + 4.0) + 5 * one.repeats * (one.warm_s + one.seconds + 5.0)
    )


def table(told: Mapping[str, Any]) -> str:
    """For people."""
    lines = []
    for part in PARTS:
        for name, got in told.get(part, {}).items() if part in PLANS else ():
            lines.append(f"\n{name}: {'engine':22}{'task':26}{'decoding':28}{'tokens/s':>10}{'W':>8}{'J/token':>11}")
            for row in got["cells"]:
                head = f"{'':{len(name) + 2}}{row['engine']:22}{row['task']:26}{row['decoding']:28}"
                lines.append(head + shown_row(row))
            for left in got["not_loaded"] or ():
                lines.append(f"  not loaded: {left['engine']}: {left['error'].splitlines()[0]}")
    return "\n".join(lines)


def shown_row(row: Mapping[str, Any]) -> str:
    """The figures of a cell."""
    if not row["trials"]:
        return f"failed: {str(row['first_error']).splitlines()[0][:100]}"
    numbers = [("tokens_per_s", "10.1f"), ("power_w", "8.0f"), ("energy_per_token_j", "11.4g")]
    text = "".join(
        f"{'?':>{layout.partition('.')[0]}}" if row[key] is None else f"{row[key]:{layout}}" for key, layout in numbers
    )
    if row["tokens_per_step"]:
        text += f"  {row['tokens_per_step']:.2f} tokens a step"
    if "published" in row:
        text += "  (seen before: {tokens_per_s:.0f} tokens/s, {energy_per_token_j:.4g} J)".format(**row["published"])
    if row["failed"]:
        text += f"  {row['failed']} failed"
    return text


def say(line: str) -> None:
    """A line with the time, at once."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def end_at(seconds: float) -> threading.Timer:
    """As Ctrl-C, after so long: a Trial in flight ends first."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    return timer


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default=",".join(PARTS), help=f"of {', '.join(PARTS)}, with commas (default all)")
    parser.add_argument("--work", type=Path, default=Path("servers-work"), help="(default servers-work)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--minutes", type=float, help="end after so long")
    parser.add_argument("--estimate", action="store_true", help="say how long each part takes, and end")
    parser.add_argument("--kind", choices=("vllm", "llamacpp"), default="vllm")
    parser.add_argument("--tiny", action="store_true", help="sizes for trying it on a CPU")
    parser.add_argument(
        "--model", default="default", help="the default model: a folder that holds it (default: made here)"
    )
    parser.add_argument("--gptq", help="a folder with the default model in GPTQ")
    parser.add_argument("--program", help="runs the server, such as python3")
    parser.add_argument("--data", type=Path, help="where gsm8k and cnn_dm lie; without it starter tasks are asked")
    parser.add_argument("--port", type=int, default=8765, help="of the server of `attribution` (default 8765)")
    parser.add_argument("--arg", action="append", default=[], help="NAME=VALUE of every server, VALUE as JSON")
    parser.add_argument("--size", action="append", default=[], help="NAME=VALUE of Sizes, VALUE as JSON")
    options = parser.parse_args(arguments)
    if unknown := set(options.part.split(",")) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


def pairs(given: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE``, the value as JSON; lists as tuples."""

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return {name: frozen(json.loads(value)) for name, _, value in (one.partition("=") for one in given)}


def job_of(options: argparse.Namespace) -> Job:
    """What the command line asks for."""
    sizes = replace(TINY if options.tiny else Sizes(), **pairs(options.size))
    setup = Setup(
        kind=options.kind,
        model=options.model,
        work=options.work.resolve(),
        data=options.data is not None,
        program=options.program,
        gptq=options.gptq,
        port=options.port,
        args=tuple(pairs(options.arg).items()),
    )
    until_s = time.monotonic() + 60.0 * options.minutes if options.minutes else math.inf
    return Job(setup, sizes, tuple(options.part.split(",")), options.json, options.data, until_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; print the table; 1 where something has failed."""
    options = parsed(arguments)
    job = job_of(options)
    for part in job.parts:
        say(f"{part}: about {estimate(job, part):.0f} s on an H200, from its beginning")
    if options.estimate:
        return 0
    job.setup.work.mkdir(parents=True, exist_ok=True)
    timer = end_at(60.0 * options.minutes) if options.minutes else None
    failed = False
    try:
        if {"curve", "sweep", "attribution"} & set(job.parts):
            write_models(job.setup, job.sizes)
        for part in job.parts:
            if time.monotonic() >= job.until_s:
                break
            try:
                attribution_part(job) if part == "attribution" else run_part(job, part)
            except JoulewiseError as error:  # the other parts may fare better
                say(f"{part}: {error}")
                failed = True
    except KeyboardInterrupt:
        say("cut; the same command goes on from here")
    finally:
        if timer is not None:
            timer.cancel()
    print(table(write(job)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

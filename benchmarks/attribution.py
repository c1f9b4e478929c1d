"""Does each request of a batch get its joules? Models of shares against what windows with several mixes tell.

    python benchmarks/attribution.py --simulate [--json FILE]
    python benchmarks/attribution.py --url http://localhost:8000/v1 --model NAME --raw FILE [--json FILE]

At one fixed concurrency, mixes of 0, 25, 50, 75 and 100 % of requests with a long prompt, the others with a long
output: the joules of the windows, regressed on the requests completed, give each kind's joules without any model of it.
Beside them stand the mean joules that the models give (`joulewise.analysis.request_shares`): the cost model, by a curve
of this very server, and shares by tokens. Aim: the cost model within 5 %.

``--simulate`` takes a server in simulated time (`simulated_server.py`) whose joules are known; no hardware is read.
Otherwise a server that runs already is loaded, and this machine's meter read (`attribution_server.py`): first at rest,
then with equal requests at several lengths and loads, for the curve, then with the mixes, in random order within each
repeat. Each window goes to ``--raw`` as it ends; started again with the same options, finished ones are not repeated.
Prompts are random token ids, so that no prefix cache helps.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from attribution_server import Server, measured
from attribution_windows import KINDS, PERCENTS, Settings, Taken, same
from simulated_server import Costs, Ran, serve

from joulewise.analysis.curve_file import read_curve
from joulewise.analysis.curves import Curve, Points, fit_curve
from joulewise.analysis.mix_regression import KindCost, MixWindow, completed, kind_costs, misses
from joulewise.analysis.request_shares import (
    BatchRequest,
    by_curve,
    by_output_tokens,
    by_tokens,
    one_more,
    request_shares,
)
from joulewise.energy import discover
from joulewise.energy.attribution import PowerAtRest, Share
from joulewise.energy.reading import Z95, ComponentEnergy
from joulewise.engines.openai_api.client import Endpoint
from joulewise.environment import machine
from joulewise.errors import JoulewiseError, UserError

AIM = 0.05


def fitted(taken: Sequence[Taken], idle_w: float) -> Curve:
    """The curve of the server, above idle power. The load of a point is the mean number of requests in flight."""
    points = [t for t in taken if t.what[0] == "point"]
    rows = []
    for t in points:
        seconds, count = t.end_s - t.start_s, len(t.requests)
        rows.append(
            (
                sum(r.prompt_tokens for r in t.requests) / count,
                sum(r.output_tokens for r in t.requests) / count,
                max(1.0, sum(r.end_s - r.start_s for r in t.requests) / seconds),
                (t.joules - idle_w * seconds) / count,
            )
        )
    prompts, outputs, running, joules = np.array(rows).T
    return fit_curve(Points(prompts, outputs, running, joules, np.arange(len(points))), by="point")


def judged(settings: Settings, taken: Sequence[Taken], curve: Curve, idle: PowerAtRest | None) -> dict[str, Any]:
    """The figures: regression, each model's misses, one more request."""
    mixes = [own_names(t) for t in taken if t.what[0] == "mix"]
    kinds = {r.name: settings.kind(int(t.what[1]), number(r)) for t in mixes for r in t.requests}
    windows = []
    for t in mixes:
        at_rest_j = idle.power_w * (t.end_s - t.start_s) if idle else 0.0
        done = completed(t.requests, kinds, t.start_s, t.end_s)
        windows.append(MixWindow(t.joules - at_rest_j, done, t.energy.independent_j))
    costs = kind_costs(windows, sum(t.energy.common_j for t in mixes) / sum(t.joules for t in mixes))
    added = [more for t in mixes for more in one_more(curve, t.requests, t.start_s, t.end_s)]
    found: dict[str, dict[str, Any]] = {}
    for cost in costs:
        one_more_j = math.fsum(more.added_j for more in added if kinds[more.name] == cost.kind)
        count = math.fsum(w.done.get(cost.kind, 0.0) for w in windows)
        found[cost.kind] = {
            "requests": count,
            "energy_j": cost.energy_j,
            "interval_j": cost.interval_j,
            "models": {},
            "one_more_j": one_more_j / count,
        }
    for name, weigh in {
        "cost model": by_curve(curve),
        "token share": by_tokens,
        "output tokens": by_output_tokens,
    }.items():
        shares = [request_shares(t.energy, t.start_s, t.end_s, t.requests, weigh, idle=idle) for t in mixes]
        for miss in misses(costs, windows, shares, kinds):
            mine = [s for window in shares for s in window if kinds.get(s.name) == miss.kind]
            found[miss.kind]["models"][name] = {
                "mean_j": miss.mean_j,
                "miss": miss.relative,
                "interval": miss.interval,
                "left_open": left_open(mine),
            }
    return {
        "kinds": found,
        "mixes": by_mix(mixes, windows, costs),
        "curve": {
            "held_out_median": curve.held_out.inside.median,
            "held_out_p90": curve.held_out.inside.p90,
            "coefficients": {name: asdict(c) for name, c in curve.coefficients.items()},
        },
        "aim": AIM,
        "met": within([kind["models"]["cost model"]["interval"] for kind in found.values()]),
    }


def within(intervals: Sequence[tuple[float, float]]) -> bool | None:
    """Whether all misses are within the aim; None where the windows scatter too much to tell."""
    if all(low >= -AIM and high <= AIM for low, high in intervals):
        return True
    return False if any(low > AIM or high < -AIM for low, high in intervals) else None


def own_names(taken: Taken) -> Taken:
    """Requests are numbered anew in every window."""
    own = " ".join(map(str, taken.what))
    return replace(taken, requests=tuple(replace(r, name=f"{own}: {r.name}") for r in taken.requests))


def number(request: BatchRequest) -> int:
    return int(request.name.split()[-1])


def left_open(shares: Sequence[Share]) -> float | None:
    """Half of the 95 % interval that a model's coefficients leave open, relative, as if all shares erred together; None
    where nobody knows it.
    """
    known = [s.split_j for s in shares if s.split_j is not None]
    return Z95 * sum(known) / sum(s.energy_j or 0.0 for s in shares) if len(known) == len(shares) else None


def by_mix(mixes: Sequence[Taken], windows: Sequence[MixWindow], costs: Sequence[KindCost]) -> list[dict[str, float]]:
    """How far the regression is from each mix: a lean with the mix says that a kind's joules depend on its company."""
    rows = []
    for percent in PERCENTS:
        mine = [w for t, w in zip(mixes, windows, strict=True) if t.what[1] == percent]
        measured = math.fsum(w.energy_j for w in mine)
        told = math.fsum(c.energy_j * w.done.get(c.kind, 0.0) for w in mine for c in costs)
        count = math.fsum(math.fsum(w.done.values()) for w in mine)
        rows.append({"percent": percent, "windows": len(mine), "requests": count, "off": told / measured - 1.0})
    return rows


def simulated(settings: Settings, noise: float, seed: int = 0) -> tuple[list[Taken], PowerAtRest, dict[str, float]]:
    """All windows on a simulated server, and the joules that a request of each kind caused on average.

    Args:
        noise: standard deviation of a window's measured joules, relative.
    """
    costs, draw = Costs(), random.Random(seed)
    taken: list[Taken] = []

    def take(what: tuple[str | int, ...], ran: Ran, start_s: float, end_s: float) -> None:
        joules = ran.energy_j(start_s, end_s)
        energy = ComponentEnergy("gpu", "measured", joules * draw.lognormvariate(0.0, noise), sampling_j=joules * noise)
        # When each chunk came is left out: of a server that runs it is not kept either.
        requests = tuple(replace(r, chunks=()) for r in ran.requests)
        taken.append(Taken(what, start_s, end_s, energy, requests))

    for prompt, output, load in settings.points:
        ran = serve(costs, same(prompt, output), load, settings.point_s)
        take(("point", prompt, output, load), ran, 0.0, ran.end_s)
    caused: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for repeat in range(settings.repeats):
        for percent in PERCENTS:
            start_s = settings.warm_s + draw.uniform(0.0, 1.0)
            end_s = start_s + settings.seconds
            ran = serve(costs, settings.mixed(percent), settings.concurrency, end_s)
            take(("mix", percent, repeat), ran, start_s, end_s)
            for r in ran.requests:
                if start_s <= r.start_s and r.end_s <= end_s:
                    caused[settings.kind(percent, number(r))].append(ran.caused_j[r.name])
    true_j = {kind: math.fsum(joules) / len(joules) for kind, joules in caused.items()}
    return taken, PowerAtRest(costs.idle_w), true_j


def table(figures: dict[str, Any]) -> str:
    """For people."""
    lines = [f"{figures['origin']}; joules of a request, and how far each model's are from the regression's"]
    for kind, row in figures["kinds"].items():
        low, high = row["interval_j"]
        lines.append(f"{kind}: {row['energy_j']:.4g} J ({low:.4g} to {high:.4g}) by regression")
        for name, model in row["models"].items():
            ends = " to ".join(f"{end:+.1%}" for end in model["interval"])
            lines.append(f"  {name:14}{model['mean_j']:10.4g} J  {model['miss']:+7.1%} ({ends})")
        lines.append(f"  one more request like it would add {row['one_more_j']:.4g} J (no share)")
    lines += [
        f"mix of {m['percent']} % long prompts: {m['requests']:.0f} requests in {m['windows']} windows, regression off "
        f"by {m['off']:+.1%}"
        for m in figures["mixes"]
    ]
    words = {True: "yes", False: "NO", None: "cannot be told: measure more, or longer, windows"}
    lines.append(f"cost model within {figures['aim']:.0%}, with its interval: {words[figures['met']]}")
    return "\n".join(lines)


def pair(text: str) -> tuple[int, int]:
    prompt, output = map(int, text.split(","))
    return prompt, output


def main() -> None:
    """Print the figures; write them with ``--json``."""
    plain = Settings()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--simulate", action="store_true", help="a server in simulated time")
    what.add_argument("--url", help="of a server that runs already, such as http://localhost:8000/v1")
    parser.add_argument("--model", help="its name there")
    parser.add_argument("--raw", type=Path, help="each window goes here; goes on with what it holds")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--curve", type=Path, help="the server's curve, instead of measuring one; idle power is shared")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="token ids of prompts are below (default 32000)")
    for name in ("long_prompt", "long_output"):
        default = getattr(plain, name)
        words = f"prompt and output tokens (default {default[0]},{default[1]})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=pair, default=default, help=words)
    for name in ("concurrency", "repeats", "seconds", "warm_s", "point_s", "idle_s"):
        default = getattr(plain, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"({default:g})")
    options = parser.parse_args()
    settings = Settings(**{name: getattr(options, name) for name in Settings.__dataclass_fields__})
    try:
        figures = simulated_figures(settings) if options.simulate else measured_figures(settings, options)
    except JoulewiseError as error:
        sys.exit(str(error))
    print(table(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def simulated_figures(settings: Settings, noise: float = 0.003) -> dict[str, Any]:
    """Of the simulated server; a window's joules are known to ``noise``."""
    taken, idle, true_j = simulated(settings, noise)
    curve = fitted(taken, idle.power_w)
    figures = judged(settings, taken, curve, idle)
    for kind, joules in true_j.items():
        figures["kinds"][kind]["true_j"] = joules
    about = {"origin": "simulated: no hardware was read", "settings": asdict(settings), "noise": noise}
    return {**about, "costs": asdict(Costs()), **figures}


def measured_figures(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Of a server that runs.

    Raises:
        UserError: an option that is missing or wrong.
        EnvironmentFault: a server or meter that does not do.
    """
    if not (options.model and options.raw):
        raise UserError("--url needs --model, the model's name there, and --raw, a file for the windows")
    endpoint = Endpoint(options.url, options.model)
    header = {"server": endpoint.server, "model": endpoint.model, "curve": options.curve and str(options.curve)}
    header |= asdict(settings)
    with discover() as meter:
        server = Server(endpoint, meter, options.vocabulary)
        server.require_model()
        taken, idle = measured(server, settings, options.raw, header, options.curve is None)
    # A curve of a file is of all joules, those at rest included, and so are the shares then. A model of power has no
    # reading at rest to take off.
    kinds = sorted({t.energy.provenance for t in taken})
    rest = idle if options.curve is None and kinds == ["measured"] else None
    curve = fitted(taken, rest.power_w if rest else 0.0) if options.curve is None else read_curve(options.curve)[0]
    figures = judged(settings, taken, curve, rest)
    origin = f"{options.model}, joules of {taken[0].energy.component}, {' and '.join(kinds)}"
    return {"origin": origin, "settings": header, "idle": idle._asdict(), "machine": machine(), **figures}


if __name__ == "__main__":
    main()

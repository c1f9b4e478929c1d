"""How well do operating curves tell what was not measured?

    python benchmarks/curves.py [--data FOLDER] [--json FILE]
    python benchmarks/curves.py --sweep smollm2|1b|8b|tiny --out RUN [--minutes 1.5] [--points 60] [--resume]
                                [--prompt 32,7168] [--output 1,1024] [--load 1,8] [--json FILE]
    python benchmarks/curves.py --fit RUN [--json FILE]

The first on 838 points of H100 and B200 that others measured. The second measures a sweep by the native engine: of
SmolLM2-135M-Instruct (real weights), or of the shapes of Llama-3.2-1B and 3.1-8B (random weights, so energy alone is
real). The third fits a sweep that was measured.

The first one's data is the ML.ENERGY leaderboard's table of LLM inference (J per output token by model, GPU, GPU count,
task and batch limit B). It has neither prompt lengths nor joules of single requests, so only the load's part of a curve
can be judged. Held out are, one at a time, the points of every curve of at least 5 points: interior ones, and ends
apart.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from joulewise.analysis.curve_points import run_points
from joulewise.analysis.curves import (
    ROOT,
    SHARED,
    TOKEN,
    Curve,
    Form,
    Points,
    Term,
    fit_curve,
    form_for,
    held_out_errors,
    spread,
)
from joulewise.analysis.design import Box
from joulewise.analysis.intervals import Floats
from joulewise.decoding import Decoding
from joulewise.engines.engine import EngineInfo
from joulewise.errors import JoulewiseError, UserError
from joulewise.ledger import load
from joulewise.report.curve import describe, predict

FILE = "leaderboard-v3-llm.csv"
PARALLEL = ("num_gpus", "tensor_parallel", "expert_parallel", "data_parallel")
CURVE = ("task", "model_id", "weight_precision", "gpu_model", *PARALLEL)
SIZES = ("total_params_billions", "activated_params_billions")
NUMBERS = ("max_num_seqs", "energy_per_token_joules", "num_gpus", *SIZES)
LEAST_POINTS = 5
AIM_MEDIAN, AIM_P90 = 0.025, 0.09
SWEPT_MEDIAN, SWEPT_P90 = 0.03, 0.08
TOLD = ((512, 128, 1), (512, 128, 8), (2048, 512, 1), (2048, 512, 8), (6144, 64, 4))
"""Requests (p, o, B) of which average and marginal joules are told."""

SPLITS = 100


def _power(exponent: float) -> Term:
    return Term(f"B^{exponent:g}", "J", f"B^{exponent:g}", lambda p, o, b: o * b**exponent)


def _saturating(half: float) -> Term:
    return Term(f"1/(1 + B/{half:g})", "J", f"B up to {half:g}", lambda p, o, b: o / (1 + b / half))


TERMS: Mapping[str, tuple[Term, ...]] = {
    "a + b/B": (TOKEN, SHARED),
    "a + b/B + c/√B": (TOKEN, SHARED, ROOT),
    "a + b/B + c/√B + dB": (TOKEN, SHARED, ROOT, _power(1)),
    "B to the 1, 0, -¼ ... -1¼": tuple(map(_power, (1, 0, -0.25, -0.5, -0.75, -1, -1.25))),
    "a + b/B + c/√B + dB + Σ e/(1 + B/h)": (TOKEN, SHARED, ROOT, _power(1), *map(_saturating, (16, 64, 256))),
}
CORRECTIONS = ((2.0, 0.0), *product((1.0, 1.5, 2.0, 3.0), (2.0, 3.0, 4.0, 6.0)))
SHIPPED = ("a + b/B + c/√B", Form(TERMS["a + b/B + c/√B"]).reach, Form(TERMS["a + b/B + c/√B"]).freedom)


@dataclass(frozen=True)
class Errors:
    """Held-out errors of one form, without sign, by curve: interior points and ends."""

    interior: list[Floats]
    ends: list[Floats]

    def told(self) -> dict[str, Any]:
        """Median and 90th percentile."""
        both = {"interior": self.interior, "ends": self.ends}
        return {name: asdict(spread(np.concatenate(errors))) for name, errors in both.items()}

    def on(self, curves: Sequence[int]) -> tuple[float, float]:
        """Median and 90th percentile of the interior points of some curves."""
        median, p90 = np.quantile(np.concatenate([self.interior[i] for i in curves]), (0.5, 0.9))
        return float(median), float(p90)


def read(folder: Path) -> list[dict[str, str]]:
    """The table's rows.

    Raises:
        UserError: no such file, or one without the columns or numbers that are needed.
    """
    path = folder / FILE
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; name the folder that holds it with --data") from None
    if not rows or (missing := sorted({*CURVE, *NUMBERS} - set(rows[0]))):
        raise UserError(f"{path}: {'no rows' if not rows else 'no column ' + ', '.join(missing)}; copy it again")
    for line, row in enumerate(rows, start=2):
        for name in NUMBERS:
            try:
                good = float(row[name]) > 0.0
            except (ValueError, TypeError):
                good = False
            if not good:
                raise UserError(f"{path}:{line}: {name}: {row[name]!r} is no number above 0; copy the file again")
    return rows


def curves(rows: Sequence[Mapping[str, str]]) -> tuple[list[Points], list[str]]:
    """The curves of at least 5 points, and the model of each."""
    found: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        point = (float(row["max_num_seqs"]), float(row["energy_per_token_joules"]))
        found[tuple(row[name] for name in CURVE)].append(point)
    points, models = [], []
    for key, measured in found.items():
        if len(measured) >= LEAST_POINTS:
            load, energy = np.array(sorted(measured)).T
            n = len(load)
            points.append(Points(np.zeros(n), np.ones(n), load, energy, np.arange(n)))
            models.append(_model(key[1]))
    if not points:
        raise UserError(f"no curve has {LEAST_POINTS} points: this is not the table that is meant")
    return points, models


def _model(model_id: str) -> str:
    """A model's name without its precision."""
    return model_id.removesuffix("-FP8")


def errors_of(points: Sequence[Points], form: Form) -> Errors:
    """The held-out errors of one form."""
    interior, ends = [], []
    for one in points:
        errors, inside = held_out_errors(one, form)
        interior.append(np.abs(errors[inside]))
        ends.append(np.abs(errors[~inside]))
    return Errors(interior, ends)


def halves(tried: Mapping[tuple[str, float, float], Errors], models: Sequence[str]) -> dict[str, Any]:
    """Choose a form on half of the models, judge it on the other half; many times."""
    rng = np.random.default_rng(0)
    names = sorted(set(models))
    chosen: Counter[tuple[str, float, float]] = Counter()
    found, shipped = [], []
    for _ in range(SPLITS):
        first = set(rng.permutation(names)[: len(names) // 2])
        mine = [i for i, model in enumerate(models) if model in first]
        others = [i for i, model in enumerate(models) if model not in first]
        pairs = {form: errors.on(mine) for form, errors in tried.items()}
        best = min(pairs, key=lambda form: max(pairs[form][0] / AIM_MEDIAN, pairs[form][1] / AIM_P90))
        chosen[best] += 1
        found.append(tried[best].on(others))
        shipped.append(tried[SHIPPED].on(others))
    most = [{"terms": t, "reach": r, "freedom": f, "times": n} for (t, r, f), n in chosen.most_common(5)]
    return {"splits": SPLITS, "chosen": _over(found), "shipped": _over(shipped), "chosen_most": most}


def _over(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Means over the splits, the central 90 % of the 90th percentiles, and how often both are within the aim."""
    medians, p90s = np.array(pairs).T
    return {
        "median": float(medians.mean()),
        "p90": float(p90s.mean()),
        "p90_range": [float(end) for end in np.quantile(p90s, (0.05, 0.95))],
        "within_aim": float(np.mean((medians <= AIM_MEDIAN) & (p90s <= AIM_P90))),
    }


def across_models(rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Predict a model that was never measured, from its size, precision, GPUs, task and load; log-linear."""

    def logs(name: str) -> Floats:
        return np.log([float(row[name]) for row in rows])

    load, target = logs("max_num_seqs"), logs("energy_per_token_joules")
    columns = [np.ones(len(rows)), load, load**2, logs("num_gpus")]
    columns += [logs("activated_params_billions"), logs("total_params_billions")]
    for name in ("gpu_model", "weight_precision", "task"):
        for value in sorted({row[name] for row in rows})[1:]:
            columns.append(np.array([float(row[name] == value) for row in rows]))
    x = np.stack(columns, axis=1)
    groups = {
        "model": [_model(row["model_id"]) for row in rows],
        "maker": [row["model_id"].split("/")[0] for row in rows],
    }
    told = {}
    for left_out, names in groups.items():
        off = np.empty(len(rows))
        group = np.array(names)
        for name in set(names):
            out = group == name
            gram = x[~out].T @ x[~out] + 1e-6 * np.eye(x.shape[1])  # a value that nobody else has counts for nothing
            off[out] = x[out] @ np.linalg.solve(gram, x[~out].T @ target[~out]) - target[out]
        errors = asdict(spread(np.abs(np.expm1(off))))
        told[left_out] = errors | {"groups": len(set(names)), "within_2": float(np.mean(np.abs(off) <= np.log(2)))}
    return told


def judge(folder: Path) -> dict[str, Any]:
    """Everything that is recorded."""
    rows = read(folder)
    points, models = curves(rows)
    tried = {
        (name, reach, freedom): errors_of(points, Form(terms, reach, freedom))
        for (name, terms), (reach, freedom) in product(TERMS.items(), CORRECTIONS)
    }
    forms = [{"terms": t, "reach": r, "freedom": f, **errors.told()} for (t, r, f), errors in tried.items()]
    shipped = tried[SHIPPED].told()
    got = shipped["interior"]
    return {
        "rows": len(rows),
        "curves": len(points),
        "aim": {"median": AIM_MEDIAN, "p90": AIM_P90},
        "aim_met": got["median"] <= AIM_MEDIAN and got["p90"] <= AIM_P90,
        "shipped": {"terms": SHIPPED[0], "reach": SHIPPED[1], "freedom": SHIPPED[2], **shipped},
        "forms": forms,
        "halves": halves(tried, models),
        "across_models": across_models(rows),
    }


def table(got: Mapping[str, Any]) -> str:
    """The record for people."""
    lines = [f"{got['curves']} curves of {got['rows']} rows; held-out error: median / 90th percentile", ""]
    for form in got["forms"]:
        shipped = all(form[name] == got["shipped"][name] for name in ("terms", "reach", "freedom"))
        how = f"correction {form['reach']:g}, {form['freedom']:g}" if form["freedom"] else "no correction"
        pairs = [f"{form[w]['median']:6.2%} / {form[w]['p90']:6.2%}" for w in ("interior", "ends")]
        mark = "  <- shipped" if shipped else ""
        lines.append(f"{form['terms']:36} {how:20} {pairs[0]}   ends {pairs[1]}{mark}")
    half, aim = got["halves"], got["aim"]
    lines.append("")
    for name, words in (
        ("chosen", "Chosen on half of the models, judged on the other"),
        ("shipped", "Shipped, likewise"),
    ):
        one = half[name]
        lines.append(
            f"{words} ({half['splits']} times): {one['median']:.2%} / {one['p90']:.2%}; 90 % of the latter in "
            f"{one['p90_range'][0]:.2%} to {one['p90_range'][1]:.2%}; within the aim {one['within_aim']:.0%} of times"
        )
    for left_out, errors in got["across_models"].items():
        lines.append(
            f"One {left_out} left out ({errors['groups']}): {errors['median']:.1%} / {errors['p90']:.1%}, "
            f"within a factor of 2: {errors['within_2']:.0%}"
        )
    verdict = "met" if got["aim_met"] else "MISSED"
    lines.append(f"Aim {aim['median']:.1%} / {aim['p90']:.1%} of interior points: {verdict}")
    return "\n".join(lines)


class ShapeEngine:
    """The native engine on a shape of `benchmarks/decode.py`, with random weights. See ``SweepEngine``."""

    def __init__(self, shape: str, spec: Any) -> None:
        self._shape, self._spec = shape, spec
        self._model: Any = None

    def load(self, _: Sequence[Decoding]) -> EngineInfo:
        """Build it on the GPU, where there is one."""
        import torch
        from decode import build

        from joulewise.engines.native.model import DecoderModel
        from joulewise.engines.transformers.info import engine_info

        loaded = build(self._shape, "cuda" if torch.cuda.is_available() else "cpu", 0)
        self._model = DecoderModel(loaded)
        return engine_info(self._spec, loaded, (), {}, ("random weights: the text is meaningless",))

    def given(self, capacity: int) -> Any:
        """Batches of it."""
        from joulewise.engines.native.given import Given

        assert self._model is not None
        return Given(self._model, capacity)

    def close(self) -> None:
        """Let go of it."""
        self._model = None


def _ends(text: str) -> tuple[int, int]:
    low, high = map(int, text.split(","))
    return low, high


def measure(args: argparse.Namespace) -> None:
    """Sweep a model into a run folder."""
    from joulewise.cli.progress import show_progress
    from joulewise.energy import discover
    from joulewise.engines import open_engine
    from joulewise.engines.spec import NativeSpec
    from joulewise.sweep import SweepEngine, sweep

    box = Box(*map(_ends, (args.prompt, args.output, args.load)))
    real = args.sweep == "smollm2"
    spec = NativeSpec(model="default" if real else f"random-{args.sweep}")
    engine: Any = open_engine(spec) if real else ShapeEngine(args.sweep, spec)
    kept: SweepEngine = engine
    with discover() as meter, show_progress() as on_progress:
        sweep(
            kept,
            spec,
            box,
            args.out,
            meter=meter,
            points=args.points,
            minutes=args.minutes,
            resume=args.resume,
            on_progress=on_progress,
        )


def judge_sweep(folder: Path) -> tuple[dict[str, Any], str]:
    """What is recorded of a sweep, and the same for people."""
    table = load(folder)
    found = run_points(table)
    curve, origin, points = fit_curve(found.points, by=found.by), found.origin, found.points
    errors, inside = held_out_errors(points, form_for(points))
    got = curve.held_out.inside
    met = got.median is not None and got.p90 is not None and got.median <= SWEPT_MEDIAN and got.p90 <= SWEPT_P90
    at = zip(points.prompt_tokens, points.output_tokens, points.running, points.energy_j, errors, inside, strict=True)
    names = ("prompt_tokens", "output_tokens", "running", "energy_j", "held_out_error", "inside")
    rows: list[dict[str, Any]] = [dict(zip(names, (v.item() for v in row), strict=True)) for row in at]
    record = {
        "aim": {"median": SWEPT_MEDIAN, "p90": SWEPT_P90},
        "aim_met": met,
        "origin": asdict(origin),
        "curve": asdict(curve),
        "told": [told(curve, *request) for request in TOLD],
        "measured_s": float(np.sum(table.arrow["duration_s"].to_numpy())),
        "points": rows,
    }
    lines = [describe(curve, origin, (*table.warnings, *found.notes)).rstrip(), ""]
    for request in TOLD:
        lines.append(predict(curve, *request).rstrip())
    worst = sorted(rows, key=lambda point: -abs(point["held_out_error"]))[:8]
    lines += [
        "",
        "Held out, the worst: "
        + ", ".join(
            f"{w['prompt_tokens']:.0f},{w['output_tokens']:.0f},{w['running']:.0f}: {w['held_out_error']:+.1%}"
            for w in worst
        ),
    ]
    aim = f"Aim {SWEPT_MEDIAN:.0%} / {SWEPT_P90:.0%} of points within the others' ranges: {'met' if met else 'MISSED'}"
    return record, "\n".join([*lines, aim])


def told(curve: Curve, p: float, o: float, b: float) -> dict[str, Any]:
    """A request's joules: in all, on average, at the margin, and of successive output tokens."""
    whole = curve.energy_j(p, o, b)
    return {
        "request": [p, o, b],
        "energy_j": whole,
        "per_output_token_j": whole / o,
        "per_token_j": whole / (p + o),
        "another_prompt_token_j": curve.prompt_token_j(p, o, b),
        "another_request_j": curve.another_request_j(p, o, b),
        "output_token_j": {str(i): curve.output_token_j(p, i, b) for i in (1, o // 2, o)},
    }


def main() -> int:
    """Print the table; 1 where the aim is missed, 2 where there is no data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", choices=("smollm2", "1b", "8b", "tiny"), help="measure this model")
    parser.add_argument("--fit", type=Path, metavar="RUN", help="fit this sweep")
    parser.add_argument("--out", type=Path, metavar="RUN", help="of --sweep: the run folder")
    parser.add_argument("--minutes", type=float, help="of --sweep: measure no longer, loading apart")
    parser.add_argument("--points", type=int, default=60, help="of --sweep: at most")
    parser.add_argument("--resume", action="store_true", help="of --sweep: go on in --out")
    parser.add_argument("--prompt", default="32,7168", help="of --sweep: the least and the most tokens")
    parser.add_argument("--output", default="1,1024", help="of --sweep: likewise")
    parser.add_argument("--load", default="1,8", help="of --sweep: requests side by side")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/ml-energy"), help=f"the folder of {FILE}")
    parser.add_argument("--json", type=Path, help="write the record here")
    args = parser.parse_args()
    start = time.perf_counter()
    try:
        if args.sweep is not None:
            if args.out is None:
                raise UserError("--sweep needs --out, the folder to measure into")
            measure(args)
        if args.sweep is not None or args.fit is not None:
            got, text = judge_sweep(args.fit or args.out)
        else:
            got = judge(args.data)
            text = table(got)
    except JoulewiseError as error:
        print(f"curves.py: {error}", file=sys.stderr)
        return 2
    print(text)
    print(f"({time.perf_counter() - start:.0f} s)")
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(got, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if got["aim_met"] else 1


if __name__ == "__main__":
    sys.exit(main())

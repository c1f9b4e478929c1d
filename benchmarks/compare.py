"""How often does the gate cry wolf, and how often does it catch a rise? Simulated pairs of runs with a known truth.

Each pair asks n questions twice: heavy-tailed token counts, a cost per token that differs between questions, a counter
whose steps blur both ends of every window, and a factor from run to run that all Trials of a run share. NEW costs a
known share more. Counted is how often the gate fails with a limit of 5 %: at +0 % to +5 % that is a false alarm.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from joulewise.analysis.compare import FALSE_ALARM, SAME_CARDS, Gate, compare_tables
from joulewise.analysis.intervals import Floats, percentile_interval, resample
from joulewise.analysis.log_ratio import add_up, log_ratio, spread_of_runs
from joulewise.plan import Plan
from joulewise.table import SCHEMA, RunTable

LIMIT = 0.05
RISES = (0.0, 0.03, 0.05, 0.10, 0.20)
SIZES = (10, 25, 50, 100, 200)
MEDIAN_TOKENS, JOULES_PER_TOKEN, PREFILL_J = 100.0, 3.0, 15.0


@dataclass(frozen=True)
class Scenario:
    """A population of questions and a change.

    Args:
        token_sigma: spread of ln(output tokens).
        effect_sigma: spread of the change's effect between questions, on the log scale.
        edge_j: half-width of the counter's uniform error at each end of a window, in joules.
        outputs_change: share of questions whose output differs in length between the sides.
    """

    name: str
    token_sigma: float
    effect_sigma: float
    edge_j: float
    outputs_change: float


SCENARIOS = (
    Scenario("same outputs", 0.6, 0.02, 15.0, 0.0),
    Scenario("a fifth of the outputs changed", 0.6, 0.05, 15.0, 0.2),
    Scenario("heavy tails, coarse meter", 1.2, 0.05, 60.0, 0.2),
)


def sides(
    scenario: Scenario, n: int, rise: float, runs: tuple[int, int], run_sigma: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Joules and tokens by run and question of either side, each of shape ``(runs, questions, 2)``."""
    tokens = np.ceil(MEDIAN_TOKENS * rng.lognormal(0.0, scenario.token_sigma, n))
    changed = rng.random(n) < scenario.outputs_change
    new_tokens = np.where(changed, np.ceil(tokens * rng.lognormal(-0.02, 0.2, n)), tokens)
    cost = JOULES_PER_TOKEN * rng.lognormal(0.0, 0.1, n)
    effect = (1 + rise) * rng.lognormal(-(scenario.effect_sigma**2) / 2, scenario.effect_sigma, n)
    found = []
    for count, asked, factor in ((runs[0], tokens, np.ones(n)), (runs[1], new_tokens, effect)):
        # The share per answer that does not grow with tokens is spread over them, so that the truth is `rise` exactly.
        joules = (cost + PREFILL_J / MEDIAN_TOKENS) * asked * factor
        per_run = rng.lognormal(-(run_sigma**2) / 2, run_sigma, count)[:, None]
        blur = rng.uniform(-1.0, 1.0, (count, n, 2)).sum(axis=2) * scenario.edge_j
        found.append(np.stack([np.maximum(1.0, joules * per_run + blur), np.tile(asked, (count, 1))], axis=2))
    return found[0], found[1]


def fails(base: Floats, new: Floats, assumed: float | None) -> bool:
    """The gate's decision on one cell, as ``joulewise compare`` makes it on one card."""
    ratio = log_ratio(base.mean(axis=0), new.mean(axis=0))
    one, df = assumed or 0.0, math.inf
    if assumed is None:
        logs = [np.log(s[..., 0].sum(axis=1) / s[..., 1].sum(axis=1)).tolist() for s in (base, new)]
        seen = spread_of_runs(logs[0], logs[1])
        assert seen is not None
        one, df = seen[0], float(seen[1])
    assert ratio.questions_se is not None
    runs = one * math.sqrt(1 / len(base) + 1 / len(new)), df
    uncertainty = add_up([(ratio.questions_se, ratio.questions_df), runs], 0.0, 0.0)
    return uncertainty.p_above(ratio.value, math.log1p(LIMIT)) <= FALSE_ALARM


def rate(
    scenario: Scenario, n: int, rise: float, pairs: int, runs: int, run_sigma: float, assumed: float | None, seed: int
) -> float:
    """Share of simulated pairs on which the gate fails."""
    rng = np.random.default_rng([seed, SCENARIOS.index(scenario), n, round(rise * 1000), runs])
    return float(
        np.mean([fails(*sides(scenario, n, rise, (runs, runs), run_sigma, rng), assumed) for _ in range(pairs)])
    )


def coverage(scenario: Scenario, n: int, pairs: int, seed: int) -> dict[str, float]:
    """How often the questions' 95 % interval holds the truth: jackknife with Student's t, and expanded bootstrap."""
    rng = np.random.default_rng([seed, SCENARIOS.index(scenario), n])
    hits = {"jackknife": 0, "bootstrap": 0}
    for _ in range(pairs):
        base, new = (s[0] for s in sides(scenario, n, 0.0, (1, 1), 0.0, rng))
        ratio = log_ratio(base, new)
        assert ratio.questions_se is not None
        half = add_up([(ratio.questions_se, ratio.questions_df)], 0.0, 0.0).half_width(0.025)
        hits["jackknife"] += abs(ratio.value) <= half
        again = resample(np.column_stack([base, new]))
        low, high = percentile_interval(np.log(again[:, 2] / again[:, 3] / (again[:, 0] / again[:, 1])), n)
        hits["bootstrap"] += low <= 0.0 <= high
    return {name: count / pairs for name, count in hits.items()}


def whole_grids(pairs: int, rise: float, cells: int, n: int, seed: int) -> dict[str, float]:
    """End to end, from tables: how often any of many cells fails, each by itself and as the gate judges them."""
    rng = np.random.default_rng([seed, cells, round(rise * 1000)])
    alone = gate = 0
    for _ in range(pairs):
        tables = _tables(rng, rise, cells, n)
        comparison = compare_tables(*tables, Gate(run_to_run=0.0))
        gate += comparison.verdict == "failed"
        alone += any(c.p_above is not None and c.p_above <= FALSE_ALARM for c in comparison.cells)
    return {"each_by_itself": alone / pairs, "gate": gate / pairs}


def _tables(rng: np.random.Generator, rise: float, cells: int, n: int) -> tuple[RunTable, RunTable]:
    names = [f"coga-{i + 1}" for i in range(cells)]
    plan = Plan.model_validate(
        {
            "name": "grid",
            "engines": [{"kind": "transformers", "name": "e"}],
            "decodings": [{"kind": "coga", "tokens": i + 1, "draft": "d"} for i in range(cells)],
            "tasks": ["gsm8k"],
        }
    ).model_dump(mode="json")
    environment = {"machine": {"cpu": "c", "gpus": [{"name": "g", "uuid": "u"}]}}
    rows: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for name in names:
        for side, values in zip(rows, sides(SCENARIOS[1], n, rise, (1, 1), 0.0, rng), strict=True):
            side += [
                {
                    "run": "r", "trial_id": f"{name}|{i}", "engine": "e", "model": "m", "decoding": name,
                    "reasoning": "direct", "task": "gsm8k", "question_id": str(i), "question_hash": "0", "repeat": 0,
                    "status": "ok", "duration_s": 1.0, "output_tokens": int(tokens), "prompt_tokens": 1,
                    "polluted": False, "gpu_energy_j": joules, "gpu_gain_j": 0.0, "gpu_offset_j": 0.0,
                    "gpu_provenance": "measured",
                }
                for i, (joules, tokens) in enumerate(values[0])
            ]  # fmt: skip
    base, new = (RunTable(pa.Table.from_pylist(r, schema=SCHEMA), {"r": plan}, {"r": environment}) for r in rows)
    return base, new


def main() -> None:
    """Print the tables; write the figures with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=2000, help="simulated pairs per line (default 2000)")
    arguments = parser.parse_args()
    pairs, seed, start = arguments.pairs, arguments.seed, time.monotonic()

    print(f"How often the gate fails, limit 5 %, {pairs} simulated pairs a line; runs differ by 1 %\n")
    head = "".join(f"{f'+{rise:.0%}':>8}" for rise in RISES)
    print(f"{'':32}{'runs':>10}{'n':>5}{head}")
    gates = []
    for scenario in SCENARIOS:
        for runs, assumed, words in ((1, SAME_CARDS, "1 a side"), (3, None, "3 a side")):
            for n in SIZES:
                rates = {f"{r:.2f}": rate(scenario, n, r, pairs, runs, 0.01, assumed, seed) for r in RISES}
                gates.append({"scenario": scenario.name, "runs_a_side": runs, "questions": n, "fails": rates})
                print(f"{scenario.name:32}{words:>10}{n:5}" + "".join(f"{r:8.1%}" for r in rates.values()))

    print("\nThe same (same outputs, n = 50), if what one run differs from the next is not the 1 % assumed\n")
    spreads = []
    for run_sigma in (0.003, 0.01, 0.02, 0.05):
        for runs, assumed in ((1, SAME_CARDS), (3, None)):
            rates = {f"{r:.2f}": rate(SCENARIOS[0], 50, r, pairs, runs, run_sigma, assumed, seed) for r in RISES}
            spreads.append({"run_sigma": run_sigma, "runs_a_side": runs, "fails": rates})
            print(f"runs differ by {run_sigma:5.1%}, {runs} a side" + "".join(f"{r:8.1%}" for r in rates.values()))

    print("\nCoverage of the questions' 95 % interval: jackknife with Student's t (the gate), expanded bootstrap\n")
    covered = []
    for scenario in SCENARIOS:
        for n in (5, *SIZES[:-1]):
            row = coverage(scenario, n, pairs // 2, seed)
            covered.append({"scenario": scenario.name, "questions": n, **row})
            print(f"{scenario.name:32}{n:5}{row['jackknife']:8.1%}{row['bootstrap']:8.1%}")

    print("\n12 cells of 25 questions, all truly at +5 % or +10 %: any fails (each by itself; as the gate judges)\n")
    grids = []
    for rise in (0.05, 0.10):
        grid = whole_grids(max(20, pairs // 10), rise, 12, 25, seed)
        grids.append({"rise": rise, "cells": 12, "questions": 25, **grid})
        print(f"+{rise:.0%}{grid['each_by_itself']:8.1%}{grid['gate']:8.1%}")
    print(f"\n{time.monotonic() - start:.0f} s")
    if arguments.json:
        figures = {
            "seed": seed, "pairs": pairs, "limit": LIMIT, "gate": gates, "run_spread": spreads, "coverage": covered,
            "grids": grids,
        }  # fmt: skip
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

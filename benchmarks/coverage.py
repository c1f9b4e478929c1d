"""How often do the intervals cover the truth? A simulation with known answers, at 5 to 100 questions.

Each simulated run answers n questions with vanilla and with a speculative decoding: heavy-tailed token counts, a
vanilla cost per token that differs from question to question and is shared by the decoding, an acceptance that differs
more, and a counter whose steps blur both ends of every window. The questions' distribution is known, so the truth is.
The meter's common errors are left out: they are the part that questions cannot show.

The break-even is simulated likewise, from a population of answers and rounds, and read by what `joulewise explain`
itself calls.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from joulewise.analysis.breakeven import BreakEven, BreakEvens, break_evens
from joulewise.analysis.cells import split
from joulewise.analysis.intervals import Floats, Quantity, percentile_interval, resample, wilson
from joulewise.table import SCHEMA, RunTable

Interval: TypeAlias = tuple[float, float]

SIZES = (5, 10, 25, 50, 100)
CHUNK = 250


@dataclass(frozen=True)
class Scenario:
    """A population of questions.

    Args:
        token_sigma: spread of ln(output tokens).
        cost_sigma: spread of ln(vanilla joules per token) between questions, which both cells share.
        gain_sigma: spread of ln(the decoding's saving) between questions.
        gamma: the decoding's saving on the median question.
        edge_j: half-width of the counter's uniform error at each end of a window, in joules.
        length_change: share of questions whose output differs in length between the cells.
    """

    name: str
    token_sigma: float
    cost_sigma: float
    gain_sigma: float
    gamma: float
    edge_j: float
    length_change: float


SCENARIOS = (
    Scenario("typical", 0.6, 0.05, 0.20, 1.3, 15.0, 0.05),
    Scenario("heavy-tailed", 1.2, 0.15, 0.40, 1.3, 15.0, 0.05),
    Scenario("short answers, coarse meter", 0.8, 0.10, 0.20, 1.3, 60.0, 0.05),
    Scenario("A/A: no difference", 0.6, 0.05, 0.02, 1.0, 15.0, 0.0),
)
MEDIAN_TOKENS, JOULES_PER_TOKEN, PREFILL_J = 100.0, 3.0, 15.0


def population(scenario: Scenario, n: int, rng: np.random.Generator, noise: bool = True) -> Floats:
    """``n`` questions: columns vanilla joules, method joules, vanilla tokens, method tokens."""
    tokens = np.ceil(MEDIAN_TOKENS * rng.lognormal(0.0, scenario.token_sigma, n))
    changed = rng.random(n) < scenario.length_change
    method_tokens = np.where(changed, np.ceil(tokens * rng.lognormal(0.0, 0.5, n)), tokens)
    cost = JOULES_PER_TOKEN * rng.lognormal(0.0, scenario.cost_sigma, n)
    saving = scenario.gamma * rng.lognormal(0.0, scenario.gain_sigma, n)
    vanilla = PREFILL_J + cost * tokens
    method = PREFILL_J + cost * method_tokens / saving
    if noise:
        vanilla = np.maximum(0.0, vanilla + edges(scenario.edge_j, n, rng))
        method = np.maximum(0.0, method + edges(scenario.edge_j, n, rng))
    return np.column_stack([vanilla, method, tokens, method_tokens])


def edges(edge_j: float, n: int, rng: np.random.Generator) -> Floats:
    """The counter's error over a window: two independent uniform ends, at most ``edge_j`` each."""
    return np.asarray(rng.uniform(-1.0, 1.0, (n, 2)).sum(axis=1) * edge_j)


def gamma_of(sums: Floats) -> Floats:
    """The saving from sums ``(..., 4)`` of ``population``'s columns."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((sums[..., 0] / sums[..., 2]) / (sums[..., 1] / sums[..., 3]))


def per_token_of(sums: Floats) -> Floats:
    """The method's joules per output token from the same sums."""
    return np.asarray(sums[..., 1] / sums[..., 3])


def plain_interval(replicates: Floats) -> Interval:
    """The textbook's percentile interval, for comparison."""
    low, high = np.quantile(replicates, [0.025, 0.975], method="nearest")
    return float(low), float(high)


def simulate(scenario: Scenario, n: int, runs: int, seed: int) -> dict[str, Any]:
    """Coverage over ``runs`` simulated runs of ``n`` questions."""
    number = SCENARIOS.index(scenario)
    true_sums = population(scenario, 4_000_000, np.random.default_rng([seed, number]), noise=False).sum(axis=0)
    true_gamma, true_cost = float(gamma_of(true_sums)), float(per_token_of(true_sums))
    rng = np.random.default_rng([seed, number, n])
    gammas: list[Interval] = []
    costs: list[Interval] = []
    plain_gammas: list[Interval] = []
    plain_costs: list[Interval] = []
    for start in range(0, runs, CHUNK):
        size = min(CHUNK, runs - start)
        samples = population(scenario, n * size, rng).reshape(size, n, 4)
        again = resample(samples.transpose(1, 0, 2).reshape(n, size * 4)).reshape(-1, size, 4)
        for gamma, cost in zip(gamma_of(again).T, per_token_of(again).T, strict=True):
            known = gamma[~np.isnan(gamma)]
            gammas.append(percentile_interval(known, n))
            costs.append(percentile_interval(cost, n))
            plain_gammas.append(plain_interval(known))
            plain_costs.append(plain_interval(cost))
    return {
        "scenario": scenario.name,
        "questions": n,
        "runs": runs,
        "true_gamma": true_gamma,
        "gamma_coverage": coverage(gammas, true_gamma),
        "gamma_coverage_plain": coverage(plain_gammas, true_gamma),
        "joules_per_token_coverage": coverage(costs, true_cost),
        "joules_per_token_coverage_plain": coverage(plain_costs, true_cost),
        "gamma_half_width_median": float(np.median([math.log(high / low) / 2 for low, high in gammas if low > 0.0])),
        "says_saves": float(np.mean([low > 1.0 for low, _ in gammas])),
        "says_costs": float(np.mean([high < 1.0 for _, high in gammas])),
    }


@dataclass(frozen=True)
class Drafting:
    """A population of questions for the break-even: answers of equal length in both cells.

    Args:
        token_sigma: spread of ln(output tokens).
        cost_sigma: spread of ln(seconds of a plain step) between questions, which both cells share.
        kept_sigma: spread of ln(tokens that a round keeps beyond its bonus token) between questions.
        round_sigma: spread of ln(seconds of a round over those of a plain step) between questions.
        ratio: that quotient at the median; None: such that speculation costs as much as plain decoding, in seconds and
            in joules.
        round_w: power of a round, in watts; that of a plain step is ``STEP_W``.
        edge_j: as in ``Scenario``.
    """

    name: str
    token_sigma: float
    cost_sigma: float
    kept_sigma: float
    round_sigma: float
    ratio: float | None
    round_w: float
    edge_j: float


DRAFTINGS = (
    Drafting("typical", 0.6, 0.05, 0.25, 0.05, 1.6, 350.0, 15.0),
    Drafting("heavy-tailed", 1.2, 0.15, 0.50, 0.15, 1.6, 350.0, 15.0),
    Drafting("at the break-even", 0.6, 0.05, 0.25, 0.05, None, 300.0, 15.0),
)
STEP_S, STEP_W, PREFILL_S, EXTRA_S, KEPT = 0.01, 300.0, 0.05, 0.01, 1.5
TRUTHS = ("length", "time", "energy")


def answers(drafting: Drafting, n: int, rng: np.random.Generator) -> Floats:
    """``n`` questions: columns tokens after the first, rounds, and the seconds of all plain steps and of all rounds."""
    tokens = np.ceil(MEDIAN_TOKENS * rng.lognormal(0.0, drafting.token_sigma, n))
    step_s = STEP_S * rng.lognormal(0.0, drafting.cost_sigma, n)
    rounds = np.ceil(tokens / (1.0 + KEPT * rng.lognormal(0.0, drafting.kept_sigma, n)))
    rounds_s = rounds * step_s * (drafting.ratio or 1.0) * rng.lognormal(0.0, drafting.round_sigma, n)
    return np.column_stack([tokens, rounds, tokens * step_s, rounds_s])


def needed(sums: Floats, n: int, round_w: float, step_w: float) -> float:
    """The tokens a round from which on it pays, from sums of ``answers``' columns over ``n`` questions."""
    tokens, rounds, plain_s, rounds_s = sums
    return float((round_w * rounds_s / rounds) / ((step_w * plain_s - round_w * EXTRA_S * n) / tokens))


def simulated_runs(drafting: Drafting, n: int, runs: int, scale: float, rng: np.random.Generator) -> list[BreakEvens]:
    """What is said of ``runs`` simulated runs whose rounds take ``scale`` times as long; a draft's prefill is known."""
    tokens, rounds, plain_s, rounds_s = answers(drafting, n * runs, rng).T
    rounds_s = rounds_s * scale
    names = {
        "run": np.repeat([f"r{i:04}" for i in range(runs)], n),
        "question_id": np.tile([f"q{i:03}" for i in range(n)], runs),
    }
    none = np.zeros(n * runs)
    parts = []
    for decoding, after_s, power_w, extra_s, its_rounds in (
        ("vanilla", plain_s, STEP_W, 0.0, none),
        ("speculation", rounds_s, drafting.round_w, EXTRA_S, rounds),
    ):
        joules = STEP_W * PREFILL_S + power_w * (after_s + extra_s) + edges(drafting.edge_j, n * runs, rng)
        known = names | {
            "decoding": np.full(n * runs, decoding),
            "duration_s": PREFILL_S + after_s + extra_s,
            "prefill_s": none + PREFILL_S,
            "phase_draft_prefill_s": none + extra_s,
            "output_tokens": tokens + 1.0,
            "generation_count": none + 1.0,
            "rounds": its_rounds,
            "repeat": none,
            "gpu_energy_j": np.maximum(0.0, joules),
            "gpu_gain_j": none,
            "gpu_offset_j": none,
            "gpu_prefill_j": none + STEP_W * PREFILL_S,
            "gpu_prefill_edges_j": none,
        }
        same = {"status": "ok", "gpu_provenance": "measured"}
        known |= {name: np.full(n * runs, word) for name, word in same.items()}
        parts.append(pa.table([_column(field, known.get(field.name), n * runs) for field in SCHEMA], schema=SCHEMA))
    cells = split(RunTable(pa.concat_tables(parts)))
    return [break_evens(cells[i], cells[i + 1], "gpu", {}) for i in range(0, len(cells), 2)]


def _column(field: pa.Field, values: Any, n: int) -> pa.Array:
    if values is not None:
        return pa.array(values).cast(field.type)
    return pa.array(["-"] * n, field.type) if pa.types.is_string(field.type) else pa.nulls(n, field.type)


def simulate_break_even(drafting: Drafting, n: int, runs: int, seed: int) -> dict[str, Any]:
    """Coverage over ``runs`` simulated runs of ``n`` questions."""
    number = len(SCENARIOS) + DRAFTINGS.index(drafting)
    many = 4_000_000
    sums = answers(drafting, many, np.random.default_rng([seed, number])).sum(axis=0)
    scale = 1.0 if drafting.ratio else float((sums[2] - EXTRA_S * many) / sums[3])
    sums[3] *= scale
    truths = {
        "length": float(sums[0] / sums[1]),
        "time": needed(sums, many, 1.0, 1.0),
        "energy": needed(sums, many, drafting.round_w, STEP_W),
    }
    rng = np.random.default_rng([seed, number, n])
    found: list[BreakEvens] = []
    for start in range(0, runs, CHUNK):
        found += simulated_runs(drafting, n, min(CHUNK, runs - start), scale, rng)
    told = {
        "length": [one.gross.length for one in found],
        "time": [one.time.needed for one in found],
        "energy": [one.gross.needed for one in found],
    }
    row: dict[str, Any] = {"scenario": drafting.name, "questions": n, "runs": runs}
    for name in TRUTHS:
        ends = [interval for q in told[name] if (interval := _ends(q)) is not None]
        row |= {
            f"true_{name}": truths[name],
            f"{name}_coverage": coverage(ends, truths[name]),
            f"{name}_without_interval": 1.0 - len(ends) / runs,
            f"{name}_half_width_median": float(np.median([math.log(high / low) / 2 for low, high in ends])),
        }
    verdicts: list[BreakEven] = [one.gross for one in found]
    return row | {
        f"says_{verdict}": float(np.mean([one.verdict == verdict for one in verdicts]))
        for verdict in ("saves", "costs")
    }


def _ends(found: Quantity) -> Interval | None:
    """A figure's interval; without an upper end where no number of tokens may be enough. None where there is none."""
    if found.lower is None:
        return None
    if found.upper is None:
        return (found.lower, math.inf) if found.unbounded else None
    return found.lower, found.upper


def coverage(intervals: list[Interval], truth: float) -> float:
    """Share of the intervals that hold the truth."""
    return float(np.mean([low <= truth <= high for low, high in intervals]))


def wilson_coverage(n: int, p: float) -> float:
    """Exact coverage of Wilson's interval for a proportion ``p`` of ``n``."""
    inside = (low <= p <= high for low, high in (wilson(k, n) for k in range(n + 1)))
    return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k, hit in enumerate(inside) if hit)


def show(
    rows: list[dict[str, Any]], break_even: list[dict[str, Any]], proportions: list[dict[str, Any]], runs: int
) -> None:
    """Print the tables for people."""
    chance = 196 * (0.0475 / runs) ** 0.5
    print(f"Coverage of 95 % intervals over {runs} simulated runs (+-{chance:.1f} points by chance)")
    print("expanded: as Joulewise shows them; plain: the textbook's percentile interval\n")
    print(f"{'':34}  {'gamma':>16}    {'J per token':>16}  {'half-width':>10}  {'verdict: energy':>15}")
    pair = f"{'plain expanded':>16}"
    print(f"{'questions':29} {'n':>4}  {pair}    {pair}  {'of gamma':>10}  {'saved  cost':>15}")
    for row in rows:
        print(
            f"{row['scenario']:29} {row['questions']:4}"
            f"  {row['gamma_coverage_plain']:7.1%} {row['gamma_coverage']:8.1%}"
            f"    {row['joules_per_token_coverage_plain']:7.1%} {row['joules_per_token_coverage']:8.1%}"
            f"  {row['gamma_half_width_median']:10.1%}  {row['says_saves']:8.1%} {row['says_costs']:6.1%}"
        )
    print("\nThe break-even: tokens a round that are kept, and that are needed to save time and energy\n")
    print(f"{'questions':29} {'n':>4}  {'kept':>8} {'time':>8} {'energy':>8}  {'verdict: energy saved  cost':>27}")
    for row in break_even:
        shares = " ".join(f"{row[f'{name}_coverage']:8.1%}" for name in TRUTHS)
        verdicts = f"{row['says_saves']:8.1%} {row['says_costs']:6.1%}"
        print(f"{row['scenario']:29} {row['questions']:4}  {shares}  {verdicts:>27}")
    print("\nWilson's interval for accuracy, exact coverage\n")
    for row in proportions:
        print(f"n = {row['questions']:3}, true accuracy {row['p']:4.0%}: {row['coverage']:.1%}")


def main() -> None:
    """Print the tables; write the figures with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs per scenario and size (default 2000)")
    arguments = parser.parse_args()
    rows = [simulate(s, n, arguments.runs, arguments.seed) for s in SCENARIOS for n in SIZES]
    proportions = [{"questions": n, "p": p, "coverage": wilson_coverage(n, p)} for n in SIZES for p in (0.05, 0.3, 0.5)]
    break_even = [simulate_break_even(d, n, arguments.runs, arguments.seed) for d in DRAFTINGS for n in SIZES]
    show(rows, break_even, proportions, arguments.runs)
    if arguments.json:
        figures = {"seed": arguments.seed, "intervals": rows, "break_even": break_even, "wilson": proportions}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

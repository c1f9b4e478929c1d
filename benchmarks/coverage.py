"""How often do the intervals cover the truth? A simulation with known answers, at 5 to 100 questions.

Each simulated run answers n questions with vanilla and with a speculative decoding: heavy-tailed token counts, a
vanilla cost per token that differs from question to question and is shared by the decoding, an acceptance that differs
more, and a counter whose steps blur both ends of every window. The questions' distribution is known, so the truth is.
The meter's common errors are left out: they are the part that questions cannot show.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from joulewise.analysis.intervals import Floats, percentile_interval, resample, wilson

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
        vanilla = np.maximum(0.0, vanilla + edges(scenario, n, rng))
        method = np.maximum(0.0, method + edges(scenario, n, rng))
    return np.column_stack([vanilla, method, tokens, method_tokens])


def edges(scenario: Scenario, n: int, rng: np.random.Generator) -> Floats:
    """The counter's error over a window: two independent uniform ends."""
    return np.asarray(rng.uniform(-1.0, 1.0, (n, 2)).sum(axis=1) * scenario.edge_j)


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


def coverage(intervals: list[Interval], truth: float) -> float:
    """Share of the intervals that hold the truth."""
    return float(np.mean([low <= truth <= high for low, high in intervals]))


def wilson_coverage(n: int, p: float) -> float:
    """Exact coverage of Wilson's interval for a proportion ``p`` of ``n``."""
    inside = (low <= p <= high for low, high in (wilson(k, n) for k in range(n + 1)))
    return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k, hit in enumerate(inside) if hit)


def show(rows: list[dict[str, Any]], proportions: list[dict[str, Any]], runs: int) -> None:
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
    show(rows, proportions, arguments.runs)
    if arguments.json:
        figures = {"seed": arguments.seed, "intervals": rows, "wilson": proportions}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

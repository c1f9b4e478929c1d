"""What would a router have saved on recorded ledgers? Learnt from some questions, judged on the others.

The questions of a run are split in five by the hash of their text, five times over (seeds 0 to 4). A router learns from
four parts, as `joulewise fit RUN` does but for operating curves (they would be fitted to the questions that are asked):
accuracies, lengths and joules of past answers. On the fifth it chooses for each question, subject given; what the
option that it took scored and drew in the run counts.

Judged beside it: every option for everything; always-strongest and always-cheapest, which the same four parts name; the
best fixed option in hindsight; options by lot; an oracle, the cheapest option that is right. A question's figures are
means over the five splits; intervals are the 95 % percentiles of 1,000 bootstrap samples of the questions (seed 0), the
choices held fixed. Where options differ in a lossless decoding alone, a question's score is the mean of theirs.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joulewise.routing.evaluate import aiq, folds_by_hash
from joulewise.routing.fitting import fit_router
from joulewise.routing.past_answers import Past, PastAnswer, from_runs
from joulewise.routing.performance import calibration_error
from joulewise.routing.policy import Goal, Load
from joulewise.routing.router import Router

ROOT = Path(__file__).parent.parent
RUNS = ("results/h200/test_time_compute", "results/h200/real_tasks")
FOLDS, SEEDS, REPLICATES = 5, (0, 1, 2, 3, 4), 1000
WITHINS = (0.0, 0.02, 0.05, 0.10, 0.20)
PRICES = 60
DOMAIN = 20
STRONGEST, CHEAPEST, BEST = "always-strongest", "always-cheapest", "best in hindsight"
LOT, ORACLE = "by lot", "oracle"

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Figure = dict[str, float]
Outcome = tuple[Floats, Floats]


class Ledger:
    """A run's questions that every option answered, with scores.

    Args:
        past: of the run.
    """

    def __init__(self, past: Past) -> None:
        answers: dict[tuple[str, str | None], dict[str, PastAnswer]] = {}
        for a in past.answers:
            if a.query is not None and a.score is not None and a.energy_j is not None:
                answers.setdefault((a.query, a.domain), {})[a.option] = a
        self.past = past
        self.options = tuple(sorted({name for of in answers.values() for name in of}))
        self.questions = [key for key, of in answers.items() if len(of) == len(self.options)]
        rows = [[answers[key][name] for name in self.options] for key in self.questions]
        scores = np.array([[a.score for a in row] for row in rows], dtype=np.float64)
        alike = [[past.answers_as(one) == past.answers_as(other) for other in self.options] for one in self.options]
        self.correct = np.stack([scores[:, columns].mean(axis=1) for columns in np.array(alike)], axis=1)
        self.joules = np.array([[a.energy_j for a in row] for row in rows], dtype=np.float64)
        if any(a.provenance != "measured" for row in rows for a in row):
            raise SystemExit("the joules of this run are not measured")

    def folds(self, seed: int) -> Rows:
        """A fold for each question."""
        return folds_by_hash([text for text, _ in self.questions], FOLDS, seed)

    def learnt(self, learn: npt.NDArray[np.bool_], seed: int) -> Router:
        """A router that knows these questions alone."""
        texts = {self.questions[i][0] for i in np.flatnonzero(learn)}
        kept = tuple(a for a in self.past.answers if a.query in texts)
        return fit_router(Past(kept, self.past.ways), seed=seed)


class Judged:
    """Choices on questions that were not learnt from, of one split in folds.

    Args:
        ledger: the questions.
        seed: of the split and the fits.
    """

    def __init__(self, ledger: Ledger, seed: int) -> None:
        shape = ledger.correct.shape
        self.predicted, self.expected = np.empty(shape), np.empty(shape)
        self.chosen: dict[str, Rows] = {}
        folds = ledger.folds(seed)
        for fold in range(FOLDS):
            learn, ask = folds != fold, np.flatnonzero(folds == fold)
            router = ledger.learnt(learn, seed)
            right, joules = ledger.correct[learn].mean(axis=0), ledger.joules[learn].mean(axis=0)
            self._take(STRONGEST, ask, shape, int(np.lexsort((joules, -right))[0]))
            self._take(CHEAPEST, ask, shape, int(joules.argmin()))
            for i in ask.tolist():
                self._ask(router, ledger, i)

    def _take(self, name: str, rows: Rows, shape: tuple[int, ...], option: int) -> None:
        self.chosen.setdefault(name, np.empty(shape[0], dtype=np.int64))[rows] = option

    def _ask(self, router: Router, ledger: Ledger, i: int) -> None:
        text, domain = ledger.questions[i]
        found = router.performance.predict(text, domain)
        place = {name: column for column, name in enumerate(router.performance.options)}
        query, estimate = router.query(text, domain), router.estimator(text, domain, found)
        for column, name in enumerate(ledger.options):
            self.predicted[i, column] = found.accuracy[place[router.learnt[name].answers_as]]
            self.expected[i, column] = estimate(query, router.learnt[name].option, Load()).energy_j.mean
        for within in WITHINS:
            taken = router.choose(text, Goal(within=within), domain=domain).option
            row = np.array([i])
            self._take(f"router, within {within:.0%}", row, ledger.correct.shape, ledger.options.index(taken))


def judge(ledger: Ledger, seeds: tuple[int, ...] = SEEDS) -> dict[str, Any]:
    """All figures of a ledger."""
    several = [Judged(ledger, seed) for seed in seeds]
    n = len(ledger.questions)
    names = [STRONGEST, CHEAPEST, *(name for name in several[0].chosen if name.startswith("router"))]
    outcomes = {name: taken(ledger, [one.chosen[name] for one in several]) for name in names}
    outcomes |= {option: (ledger.correct[:, i], ledger.joules[:, i]) for i, option in enumerate(ledger.options)}
    accuracy, joules = ledger.correct.mean(axis=0), ledger.joules.mean(axis=0)
    best_fixed = ledger.options[int(np.lexsort((joules, -accuracy))[0])]
    outcomes[BEST] = outcomes[best_fixed]
    outcomes[LOT] = ledger.correct.mean(axis=1), ledger.joules.mean(axis=1)
    best = (ledger.correct - 1e-9 * ledger.joules / ledger.joules.max()).argmax(axis=1)
    outcomes[ORACLE] = taken(ledger, [best])
    samples = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), REPLICATES).astype(np.float64)
    policies = {
        name: {
            "accuracy": mean(right, samples),
            "energy_j": mean(drawn, samples),
            "regret": mean(outcomes[ORACLE][0] - right, samples),
            "against": {
                base: against(outcomes[name], outcomes[base], samples)
                for base in (STRONGEST, CHEAPEST, BEST)
                if base != name
            },
        }
        for name, (right, drawn) in outcomes.items()
    }  # fmt: skip
    for name in names:
        counts = np.bincount(np.concatenate([one.chosen[name] for one in several]), minlength=len(ledger.options))
        policies[name]["shares"] = dict(zip(ledger.options, (counts / (n * len(several))).tolist(), strict=True))
    rights, drawns = by_price(ledger, several)
    return {
        "questions": n,
        "options": list(ledger.options),
        "right_by_some_option": float((ledger.correct.max(axis=1) > 0.5).mean()),
        "best": best_fixed,
        "policies": policies,
        "curve": points(rights.mean(axis=1), drawns.mean(axis=1)),
        "same_accuracy": {base: same_accuracy(rights, drawns, outcomes[base], samples) for base in (STRONGEST, BEST)},
        "aiq": areas(ledger, rights.mean(axis=1), drawns.mean(axis=1)),
        "by_domain": by_domain(ledger, outcomes),
        "calibration_error": calibrations(ledger, several),
        "drawn_over_expected": {
            option: float(np.median([ledger.joules[:, i] / one.expected[:, i] for one in several]))
            for i, option in enumerate(ledger.options)
        },
    }


def taken(ledger: Ledger, choices: list[Rows]) -> Outcome:
    """Score and joules by question, the mean over splits."""
    rows = np.arange(len(ledger.questions))
    right = np.mean([ledger.correct[rows, chosen] for chosen in choices], axis=0)
    return right, np.mean([ledger.joules[rows, chosen] for chosen in choices], axis=0)


def mean(values: Floats, samples: Floats) -> Figure:
    """The mean over questions, with its interval."""
    return figure(float(values.mean()), samples @ values / len(values))


def figure(value: float, again: Floats) -> Figure:
    """A figure, and the interval of what bootstrap samples made of it."""
    low, high = np.percentile(again, [2.5, 97.5])
    return {"value": value, "lower": float(low), "upper": float(high)}


def against(one: Outcome, base: Outcome, samples: Floats) -> dict[str, Figure]:
    """Accuracy gained, and the share of joules saved."""
    saved = 1 - (samples @ one[1]) / (samples @ base[1])
    return {
        "gained": mean(one[0] - base[0], samples),
        "saved": figure(float(1 - one[1].mean() / base[1].mean()), saved),
    }


def by_domain(ledger: Ledger, outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Any]]:
    """Accuracy and joules in each field of many questions, and in all others together."""
    names = [domain or "unknown" for _, domain in ledger.questions]
    large = sorted({name for name in names if names.count(name) >= DOMAIN})
    groups = {name: np.array([one == name for one in names]) for name in large}
    groups["all others"] = np.array([name not in large for name in names])
    return {
        group: {"questions": int(inside.sum())}
        | {
            name: {"accuracy": float(right[inside].mean()), "energy_j": float(drawn[inside].mean())}
            for name, (right, drawn) in outcomes.items()
        }
        for group, inside in groups.items()
        if inside.any()
    }


def by_price(ledger: Ledger, several: list[Judged]) -> Outcome:
    """Scores and joules by price of a joule and question: the best of predicted accuracy - price x expected joules."""
    rows = np.arange(len(ledger.questions))
    spread = float(np.ptp(np.mean([one.expected.mean(axis=0) for one in several], axis=0)))
    rights, drawns = [], []
    for price in (math.inf, *(np.geomspace(1e3, 1e-4, PRICES) / max(spread, 1e-12)), 0.0):
        chosen = []
        for one in several:
            worth = -one.expected if math.isinf(price) else one.predicted - max(price, 1e-12) * one.expected
            chosen.append(worth.argmax(axis=1))
        rights.append(np.mean([ledger.correct[rows, of] for of in chosen], axis=0))
        drawns.append(np.mean([ledger.joules[rows, of] for of in chosen], axis=0))
    return np.array(rights), np.array(drawns)


def points(right: Floats, drawn: Floats, shown: int = 6) -> list[dict[str, float]]:
    """Accuracy at joules, evenly spread."""
    wanted = np.linspace(drawn.min(), drawn.max(), shown)
    kept = dict.fromkeys(int(np.abs(drawn - joules).argmin()) for joules in wanted)
    return [{"accuracy": float(right[i]), "energy_j": float(drawn[i])} for i in kept]


def same_accuracy(rights: Floats, drawns: Floats, base: Outcome, samples: Floats) -> dict[str, float | None]:
    """At which share of another's joules the router is as accurate, the price of a joule chosen on these answers.

    With the interval goes the share of samples in which it ever is as accurate.
    """

    def share(weights: Floats) -> float:
        right, drawn = rights @ weights, drawns @ weights
        enough = right >= base[0] @ weights - 1e-9
        return float(drawn[enough].min() / (base[1] @ weights)) if enough.any() else math.nan

    found = np.array([share(one) for one in samples])
    value, known = share(np.ones(rights.shape[1])), found[~np.isnan(found)]
    low, high = np.percentile(known, [2.5, 97.5]) if len(known) else (math.nan, math.nan)
    told = {"value": value, "lower": float(low), "upper": float(high)}
    return {name: None if math.isnan(one) else one for name, one in told.items()} | {"reached": len(known) / len(found)}


def areas(ledger: Ledger, right: Floats, drawn: Floats) -> dict[str, float] | None:
    """Mean accuracy over joules between the cheapest and the dearest option (AIQ)."""
    joules, accuracy = ledger.joules.mean(axis=0), ledger.correct.mean(axis=0)
    ends = float(joules.min()), float(joules.max())
    return {"router": aiq(drawn, right, *ends), "mixing fixed options": aiq(joules, accuracy, *ends)}


def calibrations(ledger: Ledger, several: list[Judged]) -> dict[str, float]:
    """By option: mean distance of predicted chance and what was seen, over ten bins."""
    return {
        option: float(np.mean([calibration_error(one.predicted[:, i], ledger.correct[:, i]) for one in several]))
        for i, option in enumerate(ledger.options)
    }


def table(name: str, found: Mapping[str, Any]) -> str:
    """For people."""
    lines = [f"{name}: {found['questions']} questions; some option is right on {found['right_by_some_option']:.1%}"]
    heads = [f"{'':44} {'accuracy, %':>20} {'J/answer':>22} {'regret':>7}"]
    heads += [f"{f'saved against {base}, %':>36}" for base in (STRONGEST, BEST)]
    lines.append(" ".join(heads))
    for policy, row in found["policies"].items():
        told = [spread(row["accuracy"], 100, 1), spread(row["energy_j"], 1, 2), f"{100 * row['regret']['value']:.1f}"]
        bases = (row["against"].get(base) for base in (STRONGEST, BEST))
        told += ["-" if found is None else spread(found["saved"], 100, 1) for found in bases]
        lines.append(f"{policy:44} {told[0]:>20} {told[1]:>22} {told[2]:>7} {told[3]:>36} {told[4]:>36}")
    curve = "; ".join(f"{100 * one['accuracy']:.1f} % at {one['energy_j']:.2f} J" for one in found["curve"])
    lines += [f"best in hindsight: {found['best']}", f"accuracy at joules: {curve}"]
    lines += [f"as accurate as {base} at, of its joules: {one}" for base, one in found["same_accuracy"].items()]
    lines += [f"AIQ: {found['aiq']}", f"calibration: {found['calibration_error']}"]
    return "\n".join([*lines, f"drawn over expected: {found['drawn_over_expected']}"])


def spread(one: Figure, scale: float, digits: int) -> str:
    value, low, high = (f"{scale * one[key]:.{digits}f}" for key in ("value", "lower", "upper"))
    return f"{value} ({low} to {high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="where the tasks' questions lie")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    args = parser.parse_args()
    found: dict[str, Any] = {"folds": FOLDS, "seeds": list(SEEDS), "replicates": REPLICATES, "ledgers": {}}
    for run in RUNS:
        ledger = Ledger(from_runs([ROOT / run], args.data))
        found["ledgers"][run] = judge(ledger)
        print(table(run, found["ledgers"][run]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""How well does the router choose? RouteLLM's own outcomes, nine open models, and the time that a decision takes.

The split is honest: no text that is tested on is learnt from (splits by hash of the text), subjects are never given
unless a row says so, and every setting of the estimator is its default. Joules of the nine models are *modelled* from
active parameters. Data: RouteLLM (Apache-2.0) and LLMRouter (MIT), as folders ``routellm`` and ``llmrouter``.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joulewise.energy import discover
from joulewise.routing.evaluate import (
    aiq,
    apgr,
    cost_curve,
    draw_by_hash,
    folds_by_domain,
    folds_by_hash,
    pair_result,
)
from joulewise.routing.fast_choice import fast_chooser
from joulewise.routing.fitting import fit_router
from joulewise.routing.outcomes import Outcomes
from joulewise.routing.past_answers import Past, PastAnswer
from joulewise.routing.performance import calibration_error, fit, predict_all
from joulewise.routing.policy import Goal
from joulewise.routing.rivals import Rival, best_single, chance, k_means, nearest

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

WEAK, STRONG = "mistralai/Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview"
FOLDS, DRAWS = 5, 5
LABELS = (100, 300, 1500, 5000)
JOULES_PER_TOKEN_AND_BILLION = 0.0075
"""Between what ML.ENERGY shows on an H100 at its largest batches: 0.070 J for 8B, 0.423 J for 70B."""
BILLIONS = {
    "qwen2.5-7b-instruct": 7.6, "codegemma-7b": 8.5, "gemma-2-9b-it": 9.2, "llama-3.1-8b-instruct": 8.0,
    "llama3-chatqa-1.5-8b": 8.0, "mistral-7b-instruct-v0.3": 7.2, "llama-3.3-nemotron-super-49b-v1": 49.9,
    "llama-3.1-nemotron-51b-instruct": 51.5, "llama3-chatqa-1.5-70b": 70.6,
}  # fmt: skip
PRICES = np.concatenate([[0.0], np.geomspace(1e-3, 30.0, 60)])


def routellm(data: Path, task: str) -> Outcomes:
    """RouteLLM's per-question results on ``mmlu`` or ``gsm8k``, after its own filter; the domain is the subject."""
    folder = data / "routellm" / task
    lines = (folder / "contaminated_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    barred = {json.loads(line)["eval_prompt"] for line in lines}
    files = sorted((folder / "responses").glob("*.csv")) if task == "mmlu" else [folder / "gsm8k_responses.csv"]
    queries, domains, correct = [], [], []
    for file in files:
        with file.open(newline="", encoding="utf-8") as lines_of_file:
            for row in csv.DictReader(lines_of_file):
                if row["prompt"] not in barred:
                    queries.append(row["prompt"])
                    domains.append(file.stem.removeprefix("mmlu_"))
                    correct.append([row[WEAK] == "True", row[STRONG] == "True"])
    return Outcomes(tuple(queries), (WEAK, STRONG), np.array(correct, dtype=float), tuple(domains))


def nine_models(data: Path, part: str) -> Outcomes:
    """LLMRouter's ``train`` or ``test`` questions and the scores of nine open models."""
    rows = json.loads((data / "llmrouter" / f"dcrouter_{part}.json").read_text(encoding="utf-8"))
    correct = np.array([[row["scores"][name] for name in BILLIONS] for row in rows], dtype=float)
    return Outcomes(tuple(row["question"] for row in rows), tuple(BILLIONS), correct, (None,) * len(rows))


def unnamed(outcomes: Outcomes) -> Outcomes:
    return Outcomes(outcomes.queries, outcomes.options, outcomes.correct, (None,) * len(outcomes.queries))


def wanted(outcomes: Outcomes, learn: Rows, test: Rows) -> tuple[Floats, Floats]:
    """By test query how much the strong model is wanted, and the accuracies expected."""
    model = fit(outcomes.take(learn))
    found = predict_all(model, [outcomes.queries[i] for i in test], [outcomes.domains[i] for i in test])
    return found.gain[:, 1] - found.gain[:, 0], found.accuracy


def in_folds(outcomes: Outcomes, folds: Rows, domain_given: bool = False) -> dict[str, Any]:
    """Every query tested once by a model that learnt from the other folds."""
    used = outcomes if domain_given else unnamed(outcomes)
    scores, accuracy = np.zeros(len(folds)), np.zeros((len(folds), 2))
    apart = []
    weak, strong = outcomes.correct.T
    for fold in range(FOLDS):
        learn, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        scores[test], accuracy[test] = wanted(used, learn, test)
        apart.append(apgr(scores[test], weak[test], strong[test]))
    errors = [calibration_error(accuracy[:, i], outcomes.correct[:, i]) for i in range(2)]
    return asdict(pair_result(scores, weak, strong)) | {"apgr_by_fold": apart, "calibration_error": errors}


def in_draws(outcomes: Outcomes, labels: int, draws: int, domain_given: bool = False) -> dict[str, Any]:
    """So many labels, tested on all other queries, draw after draw."""
    used = outcomes if domain_given else unnamed(outcomes)
    weak, strong = outcomes.correct.T
    found = []
    for draw in range(draws):
        learn, test = draw_by_hash(outcomes.queries, labels, draw)
        result = pair_result(wanted(used, learn, test)[0], weak[test], strong[test], replicates=100)
        found.append([result.apgr.value, result.cpt50.value, result.cpt80.value])
    values = np.array(found, dtype=float)
    mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1)
    return {
        "labels": labels, "draws": draws, "apgr": mean[0], "apgr_sd": sd[0], "apgr_by_draw": values[:, 0].tolist(),
        "cpt50": mean[1], "cpt80": mean[2],
    }  # fmt: skip


def predictions(learn: Outcomes, queries: tuple[str, ...]) -> dict[str, Floats]:
    """By router what it expects of each option; only the differences within a query count."""
    rivals: dict[str, Callable[[Outcomes], Rival]] = {
        "nearest": nearest, "k-means": k_means, "best single": best_single, "chance": chance,
    }  # fmt: skip
    return {"joulewise": predict_all(fit(learn), queries).gain} | {n: r(learn)(queries) for n, r in rivals.items()}


def tradeoff(predicted: dict[str, Floats], correct: Floats) -> dict[str, Any]:
    """Accuracy where joules are free, and AIQ over modelled joules per output token."""
    costs = JOULES_PER_TOKEN_AND_BILLION * np.array(list(BILLIONS.values()))
    found: dict[str, Any] = {"questions": len(correct)}
    drawn = np.random.default_rng(0).integers(0, len(correct), (500, len(correct)))
    for name, accuracy in (predicted | {"oracle": correct}).items():
        spent, right = cost_curve(accuracy, costs, correct, PRICES)
        free = correct[np.arange(len(correct)), np.argmax(accuracy, axis=1)]
        lower, upper = np.percentile(free[drawn].mean(axis=1), [2.5, 97.5])
        found[name] = {
            "accuracy": float(free.mean()), "lower": float(lower), "upper": float(upper),
            "aiq": aiq(spent, right, costs.min(), costs.max()), "joules_per_token": float(spent[0]),
        }  # fmt: skip
    return found


def many_models(data: Path) -> dict[str, Any]:
    """Nine models: five folds of the questions to learn from, and the test questions that do not occur among them."""
    learn, test = nine_models(data, "train"), nine_models(data, "test")
    seen = set(learn.queries)
    test = test.take(np.array([i for i, query in enumerate(test.queries) if query not in seen]))
    folds = folds_by_hash(learn.queries, FOLDS)
    whole: dict[str, Floats] = {}
    for fold in range(FOLDS):
        inside = np.flatnonzero(folds == fold)
        part = learn.take(inside)
        for name, values in predictions(learn.take(np.flatnonzero(folds != fold)), part.queries).items():
            whole.setdefault(name, np.zeros(learn.correct.shape))[inside] = values
    return {
        "joules": "modelled from active parameters",
        "folds": tradeoff(whole, learn.correct),
        "test": tradeoff(predictions(learn, test.queries), test.correct),
    }


def speed(data: Path) -> dict[str, Any]:
    """Microseconds and joules of one decision over twelve options for queries of about 200 words.

    ``median_us`` is of the whole decision by accuracy and joules (`fast_choice`), ``accuracy`` of the estimator alone,
    ``with_reasons`` of `choose` with percentiles and every option's reason.
    """
    outcomes = routellm(data, "mmlu").take(np.arange(0, 14000, 14))
    answers = [
        PastAnswer(
            f"option {6 * half + copy}", f"server {6 * half + copy}", query, float(outcomes.correct[row, half]),
            prompt_tokens=50.0 + row % 100, output_tokens=5.0 + row % 50,
            energy_j=(1 + 5 * half + 0.1 * copy) * (6 + row % 50),
        )
        for row, query in enumerate(outcomes.queries)
        for half in range(2)
        for copy in range(6)
    ]  # fmt: skip
    router = fit_router(Past(tuple(answers)))
    decide, goal = fast_chooser(router), Goal(within=0.02)
    queries = [q for q in routellm(data, "mmlu").queries if 190 <= len(q.split()) <= 210]

    def timed(call: Callable[[str], object], rounds: int) -> Floats:
        times = []
        for _ in range(rounds):
            for query in queries:
                start = time.perf_counter_ns()
                call(query)
                times.append((time.perf_counter_ns() - start) / 1000)
        return np.array(times[len(queries) :])

    whole = timed(lambda query: decide(query, goal), 10)
    alone, reasoned = timed(router.performance.predict, 10), timed(lambda query: router.choose(query, goal), 3)
    with discover() as meter, meter.window() as window:
        for _ in range(40):
            for query in queries:
                decide(query, goal)
    energy = window.energy.total
    return {
        "queries": len(queries), "options": len(router.learnt),
        "median_us": float(np.median(whole)), "p99_us": float(np.percentile(whole, 99)),
        "fastest_us": float(whole.min()), "accuracy_median_us": float(np.median(alone)),
        "with_reasons_median_us": float(np.median(reasoned)),
        "decision_j": None if energy.energy_j is None else energy.energy_j / (40 * len(queries)),
        "provenance": energy.provenance,
    }  # fmt: skip


def large_fit(data: Path, rows: int = 100_000) -> dict[str, Any]:
    """Seconds and memory of a fit on so many different queries (MMLU's, each with a number put before it)."""
    base = routellm(data, "mmlu")
    index = np.arange(rows) % len(base.queries)
    queries = tuple(f"{i} {base.queries[j]}" for i, j in enumerate(index.tolist()))
    start = time.perf_counter()
    fit(Outcomes(queries, base.options, base.correct[index], (None,) * rows))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"rows": rows, "seconds": time.perf_counter() - start, "peak_gib": peak, "torch": "torch" in sys.modules}


def parts(data: Path) -> dict[str, Callable[[], Any]]:
    mmlu, gsm8k = routellm(data, "mmlu"), routellm(data, "gsm8k")
    by_text = folds_by_hash(mmlu.queries, FOLDS)
    by_subject = folds_by_domain([str(d) for d in mmlu.domains], FOLDS)
    return {
        "speed": lambda: speed(data),
        "gsm8k_5fold": lambda: in_folds(gsm8k, folds_by_hash(gsm8k.queries, FOLDS)),
        "mmlu_by_labels": lambda: [in_draws(mmlu, n, DRAWS if n == 1500 else 3) for n in LABELS],
        "mmlu_5fold": lambda: in_folds(mmlu, by_text),
        "mmlu_unseen_subjects": lambda: in_folds(mmlu, by_subject),
        "mmlu_1500_subject_given": lambda: in_draws(mmlu, 1500, DRAWS, domain_given=True),
        "nine_models": lambda: many_models(data),
        "large_fit": lambda: large_fit(data),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with routellm and llmrouter")
    parser.add_argument("--json", type=Path, help="write the figures here; parts that it already has are kept")
    parser.add_argument("--only", action="append", help="run this part alone (repeatable)")
    args = parser.parse_args()
    found: dict[str, Any] = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    for name, part in parts(args.data).items():
        if args.only and name not in args.only:
            continue
        start = time.perf_counter()
        found[name] = part()
        print(f"{name} ({time.perf_counter() - start:.0f} s): {json.dumps(found[name])}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

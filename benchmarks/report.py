"""How long does a report of 100,000 Trials take, and how much memory?

    python benchmarks/report.py [--trials 100000] [--folder DIR] [--json FILE]

A made-up run is written first (20 cells: 5 decodings on 4 tasks; a GPU, a CPU and a memory source with their readings,
rounds, checks, failures, polluted Trials and reruns; a fixed seed), and is not counted. Then ``joulewise report`` reads
the ledger, summarises it and writes the page, in a process of its own. Aims: at most 10 s and 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joulewise.records import Check, Trial

DECODINGS = {"vanilla": 0, "coga-5": 5, "coga-10": 10, "dyga-20": 20, "prompt-lookup-10": 10}
"""By label: the most draft tokens of a round."""

TASKS = {"gsm8k": 120, "cnn_dm": 80, "mmlu": 60, "mt_bench": 150}
"""By name: typical output tokens."""

LIMIT_S, LIMIT_GIB = 10.0, 1.0

PLAN = """\
name: large
engines:
  - kind: transformers
    model: default
decodings:
  - kind: vanilla
tasks:
  - name: starter-maths
"""

MEASURED = """
import json, resource, sys, time
start = time.perf_counter()
from pathlib import Path
from joulewise.cli.report import show_runs
show_runs([Path(sys.argv[1])], html=Path(sys.argv[2]), quiet=True)
seconds = time.perf_counter() - start
print(json.dumps({"report_s": seconds, "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def write_run(folder: Path, trials: int) -> None:
    """A run folder whose ledger holds so many Trials."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.yaml").write_text(PLAN, encoding="utf-8")
    machine = {"cpu": "made up", "cores": 2, "gpus": [{"name": "made up", "driver": "1", "power_limit_w": 700.0}]}
    sources = [{"component": "gpu", "device": "made up", "method": "counter", "provenance": "measured", "gain": 0.05}]
    environment = {"started_at": "2026-01-01T00:00:00+00:00", "machine": machine, "sources": sources}
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    with (folder / "ledger.jsonl").open("w", encoding="utf-8") as ledger:
        for number, line in enumerate(_lines(trials)):
            if number < 1000:  # the record's own fields, in full
                (Trial if line["kind"] == "trial" else Check).model_validate(line)
            ledger.write(json.dumps(line, separators=(",", ":")) + "\n")


def _lines(trials: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(0)
    sequence, now_s = 0, 100.0
    while True:
        for task, tokens in TASKS.items():
            question = f"{task}-{sequence // (len(TASKS) * len(DECODINGS))}"
            length = max(1, round(tokens * rng.lognormvariate(0.0, 0.5)))
            checks: list[dict[str, Any]] = []
            for decoding, depth in DECODINGS.items():
                if sequence == trials:
                    yield from checks
                    return
                trial = _trial(rng, task, question, decoding, depth, length, sequence, now_s)
                now_s = trial["end_s"] + 0.01
                sequence += 1
                yield trial
                if trial["polluted"] and rng.random() < 0.5:
                    yield {**_trial(rng, task, question, decoding, depth, length, sequence - 1, now_s), "attempt": 1}
                if depth and trial["status"] == "ok":
                    checks.append(_check(rng, trial["trial_id"], f"e/vanilla/direct/{task}|{question}|0"))
            yield from checks


def _trial(
    rng: random.Random, task: str, question: str, decoding: str, depth: int, length: int, sequence: int, now_s: float
) -> dict[str, Any]:
    rounds, left = [], length
    while depth and left > 0:
        accepted = min(left - 1, sum(rng.random() < 0.7 for _ in range(depth)))
        rounds.append([min(depth, left), accepted])
        left -= accepted + 1
    seconds = 0.02 * (len(rounds) * 1.4 if depth else length) + 0.05
    end_s, failed, cell = now_s + seconds, rng.random() < 0.001, f"e/{decoding}/direct/{task}"
    drawn = (("gpu", 250.0 * seconds, "counter:gpu"), ("cpu", 30.0 * seconds, "rapl:cpu"))
    energy = [
        {
            "component": component,
            "provenance": "measured",
            "energy_j": joules * rng.lognormvariate(0.0, 0.03),
            "start_edge_j": 3.5095183097718303,
            "end_edge_j": 3.539266464473127,
            "sampling_j": 0.0,
            "gain_j": 0.05 * joules,
            "offset_j": 0.5 * seconds,
            "bound_j": [0.8 * joules, 1.2 * joules],
            "source_ids": [source],
            "note": None,
        }
        for component, joules, source in (*drawn, ("dram", 8.0 * seconds, "rapl:dram"))
    ]
    readings = [
        [
            {
                "source_id": source,
                "time_s": at_s,
                "read_s": 0.0024551079999923786,
                "energy_j": 250.0 * at_s,
                "power_w": 251.294 if source == "counter:gpu" else None,
                "fault": None,
            }
            for source in ("counter:gpu", "rapl:cpu", "rapl:dram")
        ]
        for at_s in (now_s, end_s)
    ]
    right = rng.random() < 0.4
    scores: dict[str, dict[str, Any]] = {
        "mt_bench": {"score": None, "correct": None, "metric": "unscored"},
        "cnn_dm": {"score": rng.random(), "correct": None, "metric": "rouge_l"},
    }
    scored = scores.get(task, {"score": float(right), "correct": right, "extracted": "42", "metric": "math_match"})
    generation = {
        "prompt_tokens": 80 + length // 2,
        "output_tokens": length,
        "wasted_tokens": rng.randrange(3) if depth else 0,
        "finish_reason": "eos",
        "start_s": now_s,
        "end_s": end_s,
        "first_token_s": now_s + 0.05,
        "rounds": rounds,
        "output_hash": f"{rng.getrandbits(64):016x}",
        "text": None,
    }
    trial = {
        "kind": "trial",
        "schema_version": 2,
        "trial_id": f"{cell}|{question}|0",
        "cell_id": cell,
        "engine": "e",
        "model": "made-up-7b",
        "decoding": decoding,
        "reasoning": "direct",
        "task": task,
        "question_id": question,
        "question_hash": f"{sequence // len(DECODINGS):016x}",
        "category": None,
        "repeat": 0,
        "sequence": sequence,
        "attempt": 0,
        "status": "ok",
        "error": None,
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "start_s": now_s,
        "end_s": end_s,
        "generations": [generation],
        "energy": energy,
        "readings_start": readings[0],
        "readings_end": readings[1],
        **scored,
        "other_cpu_cores": 0.01,
        "polluted": rng.random() < 0.02,
    }
    if failed:
        trial |= {"status": "failed", "error": "CUDA out of memory", "generations": [], "energy": []}
        trial |= {"score": None, "correct": None, "extracted": None}
    return trial


def _check(rng: random.Random, trial_id: str, reference: str) -> dict[str, Any]:
    tie = rng.random() < 0.05
    found = {"status": "tie", "first_difference": 17, "gap": 0.01, "control": 0.02, "note": "near-tie at token 17"}
    return {
        "kind": "check",
        "schema_version": 2,
        "trial_id": trial_id,
        "reference_trial_id": reference,
        **(found if tie else {"status": "identical"}),
    }


def measure(folder: Path) -> dict[str, float]:
    """Seconds and peak memory of the report of one run folder, in a fresh process."""
    page = folder / "report.html"
    command = [sys.executable, "-c", MEASURED, str(folder), str(page)]
    start_s = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    wall_s = time.perf_counter() - start_s
    told = json.loads(done.stdout)
    return {
        "wall_s": wall_s,
        "cpu_s": resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime,
        "peak_gib": told["peak_kib"] / 2**20,
        "ledger_mb": (folder / "ledger.jsonl").stat().st_size / 1e6,
        "page_mb": page.stat().st_size / 1e6,
    }


def main() -> int:
    """Measure, print a table, and exit with 1 if an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep the run here and use it again")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch)
        if not (folder / "ledger.jsonl").exists():
            write_run(folder, arguments.trials)
        found = measure(folder)
    print(f"{arguments.trials:,} Trials, a ledger of {found['ledger_mb']:.0f} MB, a page of {found['page_mb']:.1f} MB")
    print(f"{'':<10}{'measured':>12}{'at most':>12}")
    print(f"{'time':<10}{found['wall_s']:>10.2f} s{LIMIT_S:>10.0f} s")
    print(f"{'peak':<10}{found['peak_gib']:>8.2f} GiB{LIMIT_GIB:>8.0f} GiB")
    met = found["wall_s"] <= LIMIT_S and found["peak_gib"] <= LIMIT_GIB
    if arguments.json:
        figures = {"trials": arguments.trials, "cores": os.cpu_count(), **found}
        limits = {"limit_s": LIMIT_S, "limit_gib": LIMIT_GIB, "met": met}
        arguments.json.write_text(json.dumps({**figures, **limits}, indent=2) + "\n")
    print("aims met" if met else "aims missed")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

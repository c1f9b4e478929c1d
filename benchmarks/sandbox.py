"""Does the sandbox pass right code, fail wrong code, and hold hostile code?

    python benchmarks/sandbox.py [--times 100] [--data DIR] [--json FILE]

HumanEval's own solutions must pass, solutions with a changed result must fail, every hostile program (`hostile.py`)
must be contained each time it is run, and afterwards nothing may be different: no process, mount, file or user.
Hostile programs run four at a time; an empty program, alone, tells what a run costs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from hostile import HOSTILE, OTHER_RESULT, names, state_of_the_machine

from joulewise import environment
from joulewise.tasks import open_task, sandbox
from joulewise.tasks.sandbox import run_python
from joulewise.tasks.task import Score

SHARED = Path(__file__).parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Contained:
    """What the runs of one hostile program did; ``changed``: what was different afterwards."""

    program: str
    runs: int
    contained: int
    ended: dict[str, int]
    duration_s_median: float
    duration_s_most: float
    changed: tuple[str, ...]


def humaneval(data: Path, workers: int) -> dict[str, object]:
    """Solutions right and wrong: how many of each pass."""
    task = open_task("humaneval", data)
    questions = task.questions()
    rows = [json.loads(line) for line in (data / "humaneval.jsonl").read_text(encoding="utf-8").splitlines()]
    right = [row["canonical_solution"] for row in rows]
    wrong = [row["prompt"] + row["canonical_solution"] + OTHER_RESULT.format(name=row["entry_point"]) for row in rows]

    def passed(answers: list[str]) -> list[Score]:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(task.score, questions, answers))

    right_scores, wrong_scores = passed(right), passed(wrong)
    return {
        "questions": len(questions),
        "right_passed": sum(bool(s.correct) for s in right_scores),
        "wrong_passed": sum(bool(s.correct) for s in wrong_scores),
        "wrong_notes": dict(Counter(str(s.note) for s in wrong_scores)),
    }


def hostile(times: int, workers: int, canary: Path) -> list[Contained]:
    """Run every hostile program ``times`` times."""
    each: list[Contained] = []
    name = f"joulewise-benchmark-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0" + name)
        unix.listen()
        definitions = names(canary, tcp.getsockname()[1], name)
        before = state_of_the_machine(canary)
        for program in HOSTILE:
            with ThreadPoolExecutor(workers) as pool:
                runs = [pool.submit(run_python, [definitions, program.program], program.limits) for _ in range(times)]
            outcomes = [run.result() for run in runs]
            after = state_of_the_machine(canary)
            row = Contained(
                program.name,
                times,
                sum(o.reason in program.reasons and "a secret" not in o.output for o in outcomes),
                dict(Counter(str(o.reason or "ran to its end") for o in outcomes)),
                round(statistics.median(o.duration_s for o in outcomes), 3),
                round(max(o.duration_s for o in outcomes), 3),
                tuple(what for what in before if before[what] != after[what]),
            )
            each.append(row)
            flag = "" if row.contained == times and not row.changed else "   ESCAPED"
            print(f"{row.program:<40}{row.contained:>6} of {times:<6}{', '.join(row.ended)}{flag}", flush=True)
    return each


def cost(runs: int) -> dict[str, float]:
    """Milliseconds for an empty program, one after another, beside the bare start of the same interpreter."""

    def milliseconds(what: Callable[[], object]) -> list[float]:
        taken = []
        for _ in range(runs):
            begin_s = time.perf_counter()
            what()
            taken.append((time.perf_counter() - begin_s) * 1000)
        return taken

    sandboxed = milliseconds(lambda: run_python(["pass"]))
    bare = milliseconds(lambda: subprocess.run([sys.executable, "-S", "-c", "pass"], check=True))
    return {
        "runs": runs,
        "sandbox_ms_median": round(statistics.median(sandboxed), 1),
        "sandbox_ms_least": round(min(sandboxed), 1),
        "bare_python_ms_median": round(statistics.median(bare), 1),
        "bare_python_ms_least": round(min(bare), 1),
    }


def main() -> int:
    """Run, count, tell; exit with 1 if anything was not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=int, default=100, help="runs of each hostile program (default 100)")
    parser.add_argument("--workers", type=int, default=4, help="programs at a time (default 4)")
    parser.add_argument("--data", type=Path, default=SHARED, metavar="DIR", help="the folder with humaneval.jsonl")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    reason = sandbox.unavailable()
    if reason:
        print(reason)
        return 1
    price = cost(50)
    print(
        f"{'an empty program':<40}{price['sandbox_ms_median']:>6} ms (bare Python {price['bare_python_ms_median']} ms)"
    )
    solutions: dict[str, object] | None = None
    if (arguments.data / "humaneval.jsonl").is_file():
        solutions = humaneval(arguments.data, arguments.workers)
        for kind in ("right", "wrong"):
            print(
                f"HumanEval, {kind} solutions that pass{solutions[f'{kind}_passed']!s:>11} of {solutions['questions']}"
            )
    else:
        print(f"HumanEval: left out, no humaneval.jsonl in {arguments.data} (--data DIR)")
    with tempfile.TemporaryDirectory() as home:
        canary = Path(home) / "canary-of-the-benchmark"
        canary.write_text("a secret")
        os.environ["HOME"], os.environ["JOULEWISE_BENCHMARK_SECRET"] = home, "a secret"
        each = hostile(arguments.times, arguments.workers, canary)
    changed = [f"{row.program}: {what}" for row in each for what in row.changed]
    good = not changed and all(row.contained == row.runs for row in each)
    if solutions is not None:
        good = good and solutions["right_passed"] == solutions["questions"] and not solutions["wrong_passed"]
    print(f"left behind or changed: {', '.join(changed) or 'nothing'}")
    print("as it must be" if good else "FAILED")
    if arguments.json:
        result = {
            "machine": environment.machine(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "as": "root" if os.geteuid() == 0 else "an ordinary user",
            "cost": price,
            "humaneval": solutions,
            "hostile": {
                "programs": len(each),
                "times": arguments.times,
                "at_a_time": arguments.workers,
                "runs": sum(row.runs for row in each),
                "contained": sum(row.contained for row in each),
                "left_behind": changed,
                "each": [asdict(row) for row in each],
            },
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

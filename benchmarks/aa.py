"""Two identical cells, measured: how often is a difference seen that is not there, and how often one that is?

    python benchmarks/aa.py --json results/simulated/aa.json    # simulated: a quarter of an hour on two cores

Each pair is three runs on one simulated H200, each with the real meter around every answer: BASE, the same AGAIN, and
one whose vanilla answers are 10 % DEARER (they last so much longer). A run has two cells that are alike, vanilla and
prompt lookup. The answers become Trials and tables of Trials, and those go through what ``joulewise compare`` and
``joulewise report`` do:

- ``compare`` of AGAIN's vanilla with BASE's: a failure is a false alarm, at the usual limit of 5 % and at 0 %;
- gamma of prompt lookup within BASE and within AGAIN: its 95 % interval should hold 1;
- ``compare`` of DEARER's vanilla with BASE's, and gamma within DEARER: is the 10 % found?

What is recorded (H200): how many tokens an answer has, how long it takes and what power it draws, with replacement from
``results/h200/real_tasks_transformers``; the power's course inside an answer, from the steady load in
``tests/data/nvml_h200.jsonl``
(its joules by step, over their mean).
What is simulated: counter, sensor and sampler (``simulated_card``'s *held* kind, as the H200's in that recording). What
is assumed: that all of a run's answers last by 1 % (standard deviation) more or less than another run's, as ``compare``
assumes. The seed is 0 and was never another.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pyarrow.compute as pc
from recorded_loads import step_powers
from simulated_card import IDLE_W, Behaviour, Clock, Load, SimulatedCard, run_to

from joulewise.analysis.cells import split
from joulewise.analysis.compare import Gate, compare_tables
from joulewise.analysis.savings import Gamma, savings
from joulewise.energy import Meter
from joulewise.ledger import load
from joulewise.plan import Plan
from joulewise.records import EnergyRecord, GenerationRecord, ReadingRecord, Trial
from joulewise.table import RunTable, rows_to_arrow

ROOT = Path(__file__).parent.parent
SENSOR = Behaviour(renewed_s=0.1)
LEARN_S, IDLE_S, PIECE_S = 6.0, 3.0, 0.1
RUN_SIGMA, RISE = 0.01, 0.10
LIMITS = (0.05, 0.0)
FALSE_ALARMS, COVERED, FOUND = 0.05, (0.93, 0.97), 0.80
"""The aims."""

PLAN = Plan.model_validate(
    {
        "name": "aa",
        "engines": [{"kind": "transformers", "name": "e", "model": "m"}],
        "decodings": ["vanilla", {"kind": "prompt_lookup", "tokens": 3}],
        "tasks": ["gsm8k"],
    }
)
CELLS = PLAN.cells()


@dataclass(frozen=True)
class Case:
    """What is asked, and what differs from one time to the next.

    Args:
        task: whose recorded answers.
        questions: so many of them in a run.
        pairs: how many pairs of runs, unless another number is asked for.
        power_scale: recorded power is multiplied by it (the recorded model hardly loads the card).
        blurred: each Trial takes the seconds per token and the power of another answer, chosen by chance: all that the
            recorded answers differ in is then taken for chance. Else a question lasts and draws the same every time,
            and all that differs is what the meter says.
    """

    name: str
    task: str
    questions: int
    pairs: int
    power_scale: float
    blurred: bool


CASES = (
    Case("the meter alone, answers of 1 to 6 s at 690 W", "gsm8k", 25, 400, 5.2, False),
    Case("the meter alone, answers of 0.1 to 0.7 s at 690 W", "mmlu", 25, 400, 5.2, False),
    Case("answers as unlike as recorded, 1 to 6 s at 131 W", "gsm8k", 100, 200, 1.0, True),
)


@dataclass(frozen=True)
class Recorded:
    """One answer: output tokens, seconds per token, mean power."""

    tokens: int
    token_s: float
    power_w: float


@dataclass(frozen=True)
class Row:
    """What was found in all pairs of a case; shares, and intervals of gamma in numbers."""

    case: str
    questions: int
    pairs: int
    false_alarms: dict[str, float]
    gammas: int
    gamma_holds_1: float
    gamma_half_width_median: float
    found_by_compare: dict[str, float]
    found_by_gamma: float

    @property
    def missed(self) -> list[str]:
        """The aims that are not met; that of `compare` is at its usual limit."""
        aims = {
            "false alarms": max(self.false_alarms.values()) <= FALSE_ALARMS,
            "interval of gamma": COVERED[0] <= self.gamma_holds_1 <= COVERED[1],
            "+10 % by compare": self.found_by_compare[f"{LIMITS[0]:.2f}"] >= FOUND,
            "+10 % by gamma": self.found_by_gamma >= FOUND,
        }
        return [aim for aim, met in aims.items() if not met]


class Work(Load):
    """A power that is switched as time goes by."""

    def __init__(self, time_s: float, power_w: float) -> None:
        super().__init__([(time_s, power_w)])

    def switch(self, time_s: float, power_w: float) -> None:
        """From ``time_s`` on it is ``power_w``."""
        joules, before_w = self.energy_j(time_s), self._powers[-1]
        self._times += [time_s, time_s]
        self._powers += [before_w, power_w]
        self._joules += [joules, joules]


@cache
def recorded(task: str) -> tuple[Recorded, ...]:
    """Vanilla's answers in the run on the H200."""
    rows = load(ROOT / "results" / "h200" / "real_tasks_transformers").arrow.to_pylist()
    return tuple(
        Recorded(r["output_tokens"], r["duration_s"] / r["output_tokens"], r["gpu_energy_j"] / r["duration_s"])
        for r in rows
        if (r["task"], r["decoding"], r["status"]) == (task, "vanilla", "ok")
    )


@cache
def course() -> tuple[float, ...]:
    """The power of a steady load, over its mean, in pieces of 0.1 s."""
    powers = step_powers(ROOT / "tests" / "data" / "nvml_h200.jsonl", "steady")
    return tuple(p * len(powers) / sum(powers) for p in powers)


class Run:
    """One run on a simulated card of its own phases, under the real meter."""

    def __init__(self, name: str, case: Case, draw: random.Random) -> None:
        self.name, self.case, self.draw, self.clock = name, case, draw, Clock()
        self.work = Work(self.clock.now_s, IDLE_W)
        card = SimulatedCard(self.clock, self.work, SENSOR, draw)
        card.spec = replace(card.spec, gain=0.05, offset_w=5.0)
        self.meter = Meter([card], clock=self.clock, sample_period_s=None, asleep=lambda: 0.0)
        self.slower = draw.lognormvariate(0.0, RUN_SIGMA)
        self.trials: list[Trial] = []
        self.idle: list[dict[str, Any]] = []

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        run_to(self.meter, self.clock, self.clock.now_s + seconds, self.draw, SENSOR.late_s)

    def table(self, questions: list[Recorded], dearer: float) -> RunTable:
        """All questions in both cells, interleaved as in a run; vanilla's answers last ``dearer`` times as long."""
        self.wait(LEARN_S)
        self.measure_idle("before")
        for number, question in enumerate(questions):
            for cell in self.draw.sample(CELLS, len(CELLS)):
                factor = dearer if cell.decoding.label == "vanilla" else 1.0
                self.trial(number, cell, self.now(question), factor)
        self.measure_idle("after")
        environment = {
            "machine": {"cpu": "simulated", "gpus": [{"name": "simulated H200", "uuid": "simulated"}]},
            "sources": [asdict(spec) for spec in self.meter.specs],
            "idle": self.idle,
        }
        arrow = rows_to_arrow(self.name, list(enumerate(self.trials, 1)))
        return RunTable(arrow, {self.name: PLAN.model_dump(mode="json")}, {self.name: environment})

    def now(self, question: Recorded) -> Recorded:
        """A question as it is answered this time."""
        if not self.case.blurred:
            return question
        return replace(self.draw.choice(recorded(self.case.task)), tokens=question.tokens)

    def trial(self, number: int, cell: Any, answer: Recorded, factor: float) -> None:
        """Answer one question under the meter."""
        duration_s = answer.tokens * answer.token_s * factor * self.slower
        place = self.draw.randrange(len(course()))
        with self.meter.window() as window:
            end_s = window.start_s + duration_s
            while self.clock.now_s < end_s:
                power_w = answer.power_w * self.case.power_scale * course()[place % len(course())]
                self.work.switch(self.clock.now_s, power_w)
                self.wait(min(PIECE_S, end_s - self.clock.now_s))
                place += 1
        self.work.switch(self.clock.now_s, IDLE_W)
        # The joules wait for the counter's next step; then the answer is scored.
        self.wait(self.draw.uniform(0.3, 0.4))
        generation = GenerationRecord(
            prompt_tokens=100, output_tokens=answer.tokens, wasted_tokens=0, finish_reason="eos",
            start_s=window.start_s, end_s=window.end_s, first_token_s=None, rounds=(), output_hash="0" * 16, text=None,
        )  # fmt: skip
        self.trials.append(
            Trial(
                trial_id=f"{cell.cell_id}|{number}|0",
                cell_id=cell.cell_id,
                engine=cell.engine.label,
                model=cell.engine.model,
                decoding=cell.decoding.label,
                reasoning=cell.reasoning.label,
                task=cell.task.label,
                question_id=str(number),
                question_hash="0" * 16,
                repeat=0,
                sequence=len(self.trials),
                status="ok",
                started_at=f"{self.name} {len(self.trials)}",
                start_s=window.start_s,
                end_s=window.end_s,
                generations=(generation,),
                energy=tuple(EnergyRecord.of(part) for part in window.energy.components),
                readings_start=tuple(ReadingRecord.of(i, r) for i, r in window.readings_start.items()),
                readings_end=tuple(ReadingRecord.of(i, r) for i, r in window.readings_end.items()),
            )
        )

    def measure_idle(self, when: str) -> None:
        """Idle power, as a run keeps it."""
        with self.meter.window() as window:
            self.wait(IDLE_S)
        self.wait(0.3)
        (gpu,) = window.energy.components
        assert gpu.energy_j is not None
        self.idle.append(
            {
                "engine": CELLS[0].engine.label,
                "when": when,
                "component": "gpu",
                "power_w": gpu.energy_j / window.duration_s,
                "independent_w": gpu.independent_j / window.duration_s,
                "provenance": "measured",
                "duration_s": window.duration_s,
            }
        )


def fails(base: RunTable, new: RunTable, limit: float) -> bool:
    """Whether ``joulewise compare --fail-above`` stops a build."""
    one, other = (replace(t, arrow=t.arrow.filter(pc.equal(t.arrow["decoding"], "vanilla"))) for t in (base, new))
    return compare_tables(one, other, Gate(fail_above=limit)).verdict == "failed"


def gamma(table: RunTable) -> Gamma:
    """Prompt lookup's saving of GPU joules."""
    (saving,) = savings(split(table))
    return saving.gpu


def row(case: Case, pairs: int, seed: int = 0) -> Row:
    """All pairs of a case."""
    alarms, found = ({f"{limit:.2f}": 0 for limit in LIMITS} for _ in range(2))
    holds: list[bool] = []
    half_widths: list[float] = []
    by_gamma = 0
    for pair in range(pairs):
        draw = random.Random(f"{seed} {case.name} {pair}")
        questions = draw.choices(recorded(case.task), k=case.questions)
        base, again, dearer = (
            Run(name, case, draw).table(questions, rise)
            for name, rise in (("base", 1.0), ("again", 1.0), ("dearer", 1.0 + RISE))
        )
        for limit in LIMITS:
            alarms[f"{limit:.2f}"] += fails(base, again, limit)
            found[f"{limit:.2f}"] += fails(base, dearer, limit)
        for table in (base, again):
            ratio = gamma(table).ratio
            assert ratio.lower is not None
            assert ratio.upper is not None
            holds.append(ratio.lower <= 1.0 <= ratio.upper)
            half_widths.append((ratio.upper - ratio.lower) / 2)
        by_gamma += gamma(dearer).verdict == "saves energy"  # prompt lookup, compared with the dearer vanilla
    return Row(
        case.name,
        case.questions,
        pairs,
        {limit: count / pairs for limit, count in alarms.items()},
        len(holds),
        sum(holds) / len(holds),
        sorted(half_widths)[len(half_widths) // 2],
        {limit: count / pairs for limit, count in found.items()},
        by_gamma / pairs,
    )


def show(rows: list[Row]) -> str:
    """The table for people."""
    lines = [f"{'':55}{'n':>4}{'pairs':>6} | {'false alarms':>14} | {'gamma':>14} | {'+10 % found':>22}"]
    lines.append(f"{'':65} | {'+5 %':>7}{'+0 %':>7} | {'holds 1':>7}{'+-':>7} | {'+5 %':>7}{'+0 %':>7}{'gamma':>8}")
    for r in rows:
        alarms, found = (" ".join(f"{s:6.1%}" for s in x.values()) for x in (r.false_alarms, r.found_by_compare))
        lines.append(
            f"{r.case:55}{r.questions:4}{r.pairs:6} |  {alarms} | {r.gamma_holds_1:7.1%}"
            f"{r.gamma_half_width_median:7.2%} |  {found} {r.found_by_gamma:7.1%}"
            + (f"   not met: {', '.join(r.missed)}" if r.missed else "")
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, help="pairs a case (default 400, and 200 of the longest)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    args = parser.parse_args()
    with ProcessPoolExecutor(len(CASES)) as pool:
        rows = list(pool.map(row, CASES, [args.pairs or case.pairs for case in CASES]))
    print("Simulated: no hardware was read. Columns +5 % and +0 % are the limits of `joulewise compare`.\n")
    print(show(rows))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {
            "origin": "simulated: no hardware was read",
            "seed": 0,
            "sensor": asdict(SENSOR),
            "run_sigma": RUN_SIGMA,
            "rise": RISE,
            "cases": [asdict(case) for case in CASES],
            "rows": [asdict(r) | {"missed": r.missed} for r in rows],
        }
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

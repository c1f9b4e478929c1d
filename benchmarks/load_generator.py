"""How many streams can the load generator keep, how late does it send, and how late does it stamp what it reads?

    python benchmarks/load_generator.py [--runs 3] [--seconds 40] [--rate 210] [--json FILE]

A scripted server (``tests/fake_server.py``) on one CPU answers each request with 100 pieces, one each 0.1 s; each piece
is the time at which it was sent. The generator, on another CPU, sends requests in an open loop (Poisson), so that some
2,100 streams are open at once and 21,000 pieces a second come. Counted after the first 15 s, when all streams are
there: how late requests were sent (the generator's scheduling error), how much later than sent pieces were read (which
includes the server's write and the kernel), streams, pieces, CPU time, memory. Aims: at least 2,000 streams and 20,000
pieces a second, scheduling error below 5 ms at the 99th percentile, memory that does not grow after the warm-up.

Other programs on the machine delay both sides, so the runs are repeated, each is told with the CPU time that others
used meanwhile, and the one with the least of it is judged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from joulewise.engines.openai_api.answer import Answer
from joulewise.engines.openai_api.client import Endpoint, ask, open_session
from joulewise.environment import machine
from joulewise.pollution import cpu_use, other_cores
from joulewise.traffic.arrivals import Arrival, Poisson
from joulewise.traffic.course import Course
from joulewise.traffic.generator import Driven, Outcome, drive
from joulewise.traffic.latency import Histogram
from joulewise.traffic.loop import run
from joulewise.traffic.served import served
from joulewise.traffic.steady import steady_part

SERVER = Path(__file__).resolve().parent.parent / "tests" / "fake_server.py"
PIECES, BETWEEN_S = 100, 0.1
WARM_UP_S = 15.0
LEAST_STREAMS, LEAST_PIECES, MOST_LATE_MS, MOST_GROWTH = 2000, 20_000, 5.0, 0.05


@dataclass(frozen=True)
class Figures:
    """Of one run, after its warm-up.

    Args:
        streams, pieces_per_s: mean over the time.
        late_ms: how late requests were sent, by percentile.
        stamp_ms: how much later than sent pieces were read, by percentile (of every fifth request).
        cpu: share of its CPU that the generator used.
        memory_mb: resident memory at the end of the warm-up, half-way from there to the end, and at the end.
        steady_from_s: where the rule of ``joulewise.traffic.steady`` sees the ramp-up end; None where it sees no steady
            part.
        requests, failed: of the whole run.
        other_cores: cores' worth of CPU time that other programs used meanwhile, on all CPUs.
    """

    streams: float
    pieces_per_s: float
    late_ms: dict[str, float]
    stamp_ms: dict[str, float]
    cpu: float
    memory_mb: list[float]
    steady_from_s: float | None
    requests: int
    failed: int
    other_cores: float | None = None

    @property
    def met(self) -> bool:
        """Whether all aims are."""
        flat = self.memory_mb[-1] <= (1 + MOST_GROWTH) * self.memory_mb[0]
        enough = self.streams >= LEAST_STREAMS and self.pieces_per_s >= LEAST_PIECES
        return enough and flat and self.failed == 0 and self.late_ms["99"] < MOST_LATE_MS


def percentiles_ms(values_s: list[float]) -> dict[str, float]:
    """By level."""
    return {f"{level:g}": round(float(np.percentile(values_s, level)) * 1e3, 3) for level in (50, 90, 99, 99.9)}


class Counted:
    """What the generator's answers tell, in bounded memory."""

    def __init__(self, seconds: float) -> None:
        self.start_s = time.monotonic()
        self.course = Course(self.start_s, seconds)
        self.late_s: list[float] = []
        self.stamps = Histogram()
        self.memory_mb: list[float] = []
        self.cpu_s: list[float] = []

    def take(self, outcome: Outcome[Answer]) -> None:
        answer = outcome.answer
        self.course.add(served(outcome), answer.chunks if answer else None)
        if outcome.due_s - self.start_s >= WARM_UP_S and outcome.late_s is not None:
            self.late_s.append(outcome.late_s)
        if answer and answer.end_s - self.start_s >= WARM_UP_S and outcome.number % 5 == 0:
            self.stamps.add(np.array(answer.chunks.times_s) - np.array(answer.text.split(), np.float64))

    async def watch(self, seconds: float) -> None:
        process = psutil.Process()
        for at_s in np.linspace(WARM_UP_S, seconds, 3):
            await asyncio.sleep(max(0.0, self.start_s + float(at_s) - time.monotonic()))
            self.memory_mb.append(round(process.memory_info().rss / 2**20, 1))
            self.cpu_s.append(time.process_time())

    def figures(self, driven: Driven, seconds: float) -> Figures:
        place = int(np.searchsorted(self.course.edges_s, self.start_s + WARM_UP_S))
        steady = steady_part(self.course, driven.offered_until_s, driven.end_s)
        return Figures(
            streams=round(float(self.course.in_flight[place:].mean()), 1),
            pieces_per_s=round(float(self.course.output[place:].mean()), 1),
            late_ms=percentiles_ms(self.late_s),
            stamp_ms={f"{level:g}": round(s * 1e3, 3) for level, s in self.stamps.spread().percentiles.items()},
            cpu=round((self.cpu_s[-1] - self.cpu_s[0]) / (seconds - WARM_UP_S), 3),
            memory_mb=self.memory_mb,
            steady_from_s=None if steady.from_s is None else round(steady.from_s - self.start_s, 2),
            requests=driven.sent,
            failed=driven.failed + driven.cut_off + driven.left_out,
        )


async def generate(url: str, rate: float, seconds: float) -> Figures:
    """The generator's side."""
    endpoint = Endpoint(url, "fake")
    body = {"messages": [{"role": "user", "content": "Say something long."}], "max_tokens": PIECES}
    counted = Counted(seconds)
    async with open_session() as session:

        async def send(_: Arrival, __: int) -> Answer:
            return await ask(session, endpoint, body)

        watching = asyncio.ensure_future(counted.watch(seconds))
        load = Poisson(rate=rate)
        driven = await drive(load, send, counted.take, duration_s=seconds, start_s=counted.start_s)
        await watching
    return counted.figures(driven, seconds)


def one_run(rate: float, seconds: float) -> Figures:
    """A server, a generator, each on a CPU of its own."""
    before = cpu_use()
    cpus = sorted(os.sched_getaffinity(0))
    command = [sys.executable, str(SERVER), "--first", str(BETWEEN_S), "--between", str(BETWEEN_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        os.sched_setaffinity(server.pid, {cpus[0]})
        url = server.stdout.readline().strip()
        told = subprocess.run(
            [sys.executable, __file__, "--worker", url, "--rate", str(rate), "--seconds", str(seconds)],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        server.communicate()
    others = other_cores(before, cpu_use())
    return Figures(**{**json.loads(told.stdout), "other_cores": None if others is None else round(others, 3)})


def main() -> int:
    """Measure, print a table, and exit with 1 if an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run (default 40)")
    parser.add_argument("--rate", type=float, default=210.0, help="requests per second (default 210)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
        print(json.dumps(asdict(run(generate(arguments.worker, arguments.rate, arguments.seconds)))))
        return 0
    print(f"{'run':>4}{'streams':>9}{'pieces/s':>10}{'late p50/p99/p99.9 ms':>24}{'stamp p50/p99 ms':>18}", end="")
    print(f"{'CPU':>7}{'memory MB':>22}{'others':>9}")
    found: list[Figures] = []
    for number in range(arguments.runs):
        f = one_run(arguments.rate, arguments.seconds)
        found.append(f)
        late = f"{f.late_ms['50']:.2f} / {f.late_ms['99']:.2f} / {f.late_ms['99.9']:.2f}"
        stamp = f"{f.stamp_ms['50']:.2f} / {f.stamp_ms['99']:.2f}"
        print(f"{number + 1:>4}{f.streams:>9.0f}{f.pieces_per_s:>10.0f}{late:>24}{stamp:>18}{f.cpu:>7.0%}", end="")
        print(f"{' / '.join(f'{mb:.0f}' for mb in f.memory_mb):>22}{f.other_cores or 0.0:>9.2f}", flush=True)
    judged = min(range(len(found)), key=lambda n: found[n].other_cores or 0.0)
    met = found[judged].met
    print(f"run {judged + 1} had least of others' work: aims {'met' if met else 'missed'}")
    if arguments.json:
        figures = {
            "machine": machine(),
            "python": platform.python_version(),
            "rate_per_s": arguments.rate,
            "pieces_each": PIECES,
            "between_s": BETWEEN_S,
            "seconds": arguments.seconds,
            "warm_up_s": WARM_UP_S,
            "runs": [{**asdict(f), "met": f.met} for f in found],
            "judged": judged,
            "limits": {
                "streams": LEAST_STREAMS,
                "pieces_per_s": LEAST_PIECES,
                "late_ms_99": MOST_LATE_MS,
                "memory_growth": MOST_GROWTH,
            },
            "met": met,
        }
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

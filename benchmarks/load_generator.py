"""How many streams can the load generator keep, how late does it send, and how late does it stamp what it reads?

    python benchmarks/load_generator.py [--runs 3] [--seconds 40] [--rate 210] [--in-step] [--json FILE]

A scripted server (``tests/fake_server.py``) on one CPU answers each request with 100 pieces, one each 0.1 s; each piece
is the time at which it was sent. The generator, on another CPU, sends requests in an open loop (Poisson), so that some
2,100 streams are open at once and 21,000 pieces a second come. Counted after the first 15 s, when all streams are
there: how late requests were sent (the generator's scheduling error), how much later than sent pieces were read (which
includes the server's write and the kernel), streams, pieces, CPU time, memory. Aims: at least 2,000 streams and 20,000
pieces a second, scheduling error below 5 ms at the 99th percentile, memory that does not grow after the warm-up.

Other programs on the machine delay both sides. So each half second is told with the CPU time that they used on any CPU
meanwhile, those with more than 0.1 of a CPU and the one after each are *disturbed*, and percentiles are given for all
of the time and for the undisturbed part. Of several runs, the one with the longest undisturbed part is judged, by that
part.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from joulewise.engines.openai_api.answer import Answer
from joulewise.engines.openai_api.client import Endpoint, ask, open_session
from joulewise.environment import machine
from joulewise.pollution import CpuUse, cpu_use, other_cores
from joulewise.traffic.arrivals import Arrival, Poisson
from joulewise.traffic.course import Course, Floats
from joulewise.traffic.generator import Driven, Outcome, drive
from joulewise.traffic.loop import run
from joulewise.traffic.served import served
from joulewise.traffic.steady import steady_part

SERVER = Path(__file__).resolve().parent.parent / "tests" / "fake_server.py"
PIECES, BETWEEN_S = 100, 0.1
WARM_UP_S = 15.0
LEAST_STREAMS, LEAST_PIECES, MOST_LATE_MS, MOST_GROWTH = 2000, 20_000, 5.0, 0.05
QUIET_CORES, LEAST_QUIET_S = 0.1, 3.0


@dataclass(frozen=True)
class Figures:
    """Of one run, after its warm-up.

    Args:
        streams, pieces_per_s: mean over the time.
        late_ms: how late requests were sent, by percentile.
        stamp_ms: how much later than sent pieces were read, by percentile (of every 20th request).
        undisturbed_s: seconds in which others used next to no CPU.
        undisturbed_late_ms, undisturbed_stamp_ms: of these seconds; None where there are fewer than ``LEAST_QUIET_S``.
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
    undisturbed_s: float
    undisturbed_late_ms: dict[str, float] | None
    undisturbed_stamp_ms: dict[str, float] | None
    cpu: float
    memory_mb: list[float]
    steady_from_s: float | None
    requests: int
    failed: int
    other_cores: float

    @property
    def met(self) -> bool:
        """Whether all aims are."""
        flat = self.memory_mb[-1] <= (1 + MOST_GROWTH) * self.memory_mb[0]
        enough = self.streams >= LEAST_STREAMS and self.pieces_per_s >= LEAST_PIECES
        late = (self.undisturbed_late_ms or self.late_ms)["99"]
        return enough and flat and self.failed == 0 and late < MOST_LATE_MS


def percentiles_ms(values_s: Floats) -> dict[str, float]:
    """By level."""
    return {f"{level:g}": round(float(np.percentile(values_s, level)) * 1e3, 3) for level in (50, 90, 99, 99.9)}


class Counted:
    """What the generator's answers tell."""

    def __init__(self, seconds: float) -> None:
        self.start_s = time.monotonic()
        self.course = Course(self.start_s, seconds)
        self.late, self.stamps = array("d"), array("d")  # pairs: when, and how much
        self.memory_mb: list[float] = []
        self.cpu_s: list[float] = []

    def take(self, outcome: Outcome[Answer]) -> None:
        answer = outcome.answer
        self.course.add(served(outcome), answer.chunks if answer else None)
        if outcome.late_s is not None:
            self.late.extend((outcome.due_s, outcome.late_s))
        if answer and outcome.number % 20 == 0:
            for read_s, sent in zip(answer.chunks.times_s, answer.text.split(), strict=True):
                self.stamps.extend((read_s, read_s - float(sent)))

    async def watch(self, seconds: float) -> None:
        process = psutil.Process()
        for at_s in np.linspace(WARM_UP_S, seconds, 3):
            await asyncio.sleep(max(0.0, self.start_s + float(at_s) - time.monotonic()))
            self.memory_mb.append(round(process.memory_info().rss / 2**20, 1))
            self.cpu_s.append(time.process_time())

    def figures(self, driven: Driven, seconds: float) -> dict[str, Any]:
        place = int(np.searchsorted(self.course.edges_s, self.start_s + WARM_UP_S))
        steady = steady_part(self.course, driven.offered_until_s, driven.end_s)
        return {
            "streams": round(float(self.course.in_flight[place:].mean()), 1),
            "pieces_per_s": round(float(self.course.output[place:].mean()), 1),
            "cpu": round((self.cpu_s[-1] - self.cpu_s[0]) / (seconds - WARM_UP_S), 3),
            "memory_mb": self.memory_mb,
            "steady_from_s": None if steady.from_s is None else round(steady.from_s - self.start_s, 2),
            "requests": driven.sent,
            "failed": driven.failed + driven.cut_off + driven.left_out,
        }


def within(pairs: Floats, spans: Sequence[tuple[float, float]]) -> Floats:
    """The amounts of those pairs whose time lies in one of the spans."""
    inside = np.zeros(len(pairs), bool)
    for from_s, until_s in spans:
        inside |= (pairs[:, 0] >= from_s) & (pairs[:, 0] < until_s)
    chosen: Floats = pairs[inside, 1]
    return chosen


def undisturbed(uses: Sequence[CpuUse]) -> list[tuple[float, float]]:
    """Spans between readings in which, and in the one before which, others used next to no CPU."""
    spans, before = [], True
    for one, two in pairwise(uses):
        quiet = (other_cores(one, two) or 0.0) <= QUIET_CORES
        if quiet and before:
            spans.append((one.time_s, two.time_s))
        before = quiet
    return spans


async def generate(url: str, rate: float, seconds: float) -> tuple[Counted, Driven]:
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
    return counted, driven


def work(url: str, rate: float, seconds: float, file: Path) -> None:
    """The generator's process: figures to standard output, and each request's and piece's delay to a file."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    counted, driven = run(generate(url, rate, seconds))
    late, stamps = (np.array(pairs).reshape(-1, 2) for pairs in (counted.late, counted.stamps))
    np.savez(file, late=late, stamps=stamps, span=np.array([counted.start_s + WARM_UP_S, counted.start_s + seconds]))
    print(json.dumps(counted.figures(driven, seconds)))


def one_run(rate: float, seconds: float, folder: Path, in_step: bool) -> Figures:
    """A server, a generator, each on a CPU of its own."""
    file = folder / "delays.npz"
    serve = [sys.executable, str(SERVER), "--first", str(BETWEEN_S), "--between", str(BETWEEN_S)]
    serve += ["--in-step"] if in_step else []
    with subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        os.sched_setaffinity(server.pid, {min(os.sched_getaffinity(0))})
        url = server.stdout.readline().strip()
        command = [sys.executable, __file__, "--worker", url, "--rate", str(rate), "--seconds", str(seconds)]
        with subprocess.Popen([*command, "--file", str(file)], stdout=subprocess.PIPE, text=True) as worker:
            processes = [psutil.Process(server.pid), psutil.Process(worker.pid)]
            uses = [cpu_use(processes)]
            while worker.poll() is None:
                time.sleep(0.5)
                uses.append(cpu_use(processes))
            assert worker.stdout is not None
            told = worker.stdout.read()
        server.communicate()
    if worker.returncode:
        raise SystemExit("the generator failed")
    kept = np.load(file)
    (from_s, until_s), late, stamps = kept["span"], kept["late"], kept["stamps"]
    uses = [use for use in uses if from_s <= use.time_s <= until_s]
    spans = undisturbed(uses)
    quiet_s = sum(two - one for one, two in spans)
    whole = [(from_s, until_s)]
    enough = quiet_s >= LEAST_QUIET_S
    return Figures(
        **json.loads(told),
        late_ms=percentiles_ms(within(late, whole)),
        stamp_ms=percentiles_ms(within(stamps, whole)),
        undisturbed_s=round(quiet_s, 2),
        undisturbed_late_ms=percentiles_ms(within(late, spans)) if enough else None,
        undisturbed_stamp_ms=percentiles_ms(within(stamps, spans)) if enough else None,
        other_cores=round(other_cores(uses[0], uses[-1]) or 0.0, 3),
    )


def main() -> int:
    """Measure, print a table, and exit with 1 if an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run (default 40)")
    parser.add_argument("--rate", type=float, default=210.0, help="requests per second (default 210)")
    parser.add_argument("--in-step", action="store_true", help="all streams send at the same moments, as in one batch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.rate, arguments.seconds, arguments.file)
        return 0
    print(
        f"{'run':>4}{'streams':>9}{'pieces/s':>10}{'CPU':>6}{'memory MB':>17}{'others':>8}   late / stamp, p50 p99 ms"
    )
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.runs):
            f = one_run(arguments.rate, arguments.seconds, Path(folder), arguments.in_step)
            found.append(f)
            memory = " ".join(f"{mb:.0f}" for mb in f.memory_mb)
            print(f"{number + 1:>4}{f.streams:>9.0f}{f.pieces_per_s:>10.0f}{f.cpu:>6.0%}{memory:>17}", end="")
            print(f"{f.other_cores:>8.2f}   all: {_told(f.late_ms)} / {_told(f.stamp_ms)}; ", end="")
            quiet = f"{_told(f.undisturbed_late_ms)} / {_told(f.undisturbed_stamp_ms)}"
            print(f"undisturbed {f.undisturbed_s:.1f} s: {quiet}", flush=True)
    judged = max(range(len(found)), key=lambda n: (found[n].undisturbed_s, -found[n].other_cores))
    met = found[judged].met
    print(f"run {judged + 1} was the least disturbed: aims {'met' if met else 'missed'}")
    if arguments.json:
        figures = {
            "machine": machine(),
            "python": platform.python_version(),
            "rate_per_s": arguments.rate,
            "pieces_each": PIECES,
            "between_s": BETWEEN_S,
            "in_step": arguments.in_step,
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


def _told(percentiles: dict[str, float] | None) -> str:
    return "-" if percentiles is None else f"{percentiles['50']:.2f} {percentiles['99']:.2f}"


if __name__ == "__main__":
    sys.exit(main())

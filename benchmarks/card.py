"""Is the meter right about this card, and what does it cost? Four parts, about four minutes on an NVIDIA GPU.

    python benchmarks/card.py --json card.json --raw card.jsonl     # on a machine with an NVIDIA GPU, all else at rest
    python benchmarks/card.py --json card.json --replay card.jsonl  # the figures again, without a card

1. `cost`: what reading the card takes, and the live sampler's share of a core.
2. `added_idle`, `added_steady`: watts with the sampler running against watts without, interleaved in random order.
3. `duty`: equal bursts locked to the counter's step, their phase swept: does the counter integrate all of the time, and
   which part of each step do the power readings show?
4. `windows`: the live meter's windows at random phase over steady load, against the long run's power; beside the plain
   difference of the counter and polled power x time. `rivals`: Zeus and CodeCarbon over the same load, if installed.

Needs torch with CUDA for the loads (`benchmarks/gpu_load.py`, a process of its own). Raw rows and figures are written
as they come: a run that is cut keeps what it has.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import card_figures as figures
import pynvml
from card_figures import Rows, shown
from gpu_load import Load, LoadProcess
from record_nvml import POWER_EVERY_S, Sensors, Series, call_cost, follow, sensors, timed
from recorded_loads import Bracket, brackets, evened

from joulewise.energy import Meter
from joulewise.energy.sampler import sampler
from joulewise.energy.source import TellsState
from joulewise.energy.sources import nvml as nvml_source

PARTS = ("cost", "added_idle", "duty", "added_steady", "windows", "rivals")
POLL_S = 0.1
RIVALS = Path(__file__).with_name("rivals.py")
LEAD_S = 0.2
"""A train of bursts is ordered so long before its first."""

BLURRED_S = 0.012
"""Two readings of a usual length take less on an H200."""

STEP_EVERY_S = 6.0
"""Under the live windows a step of the counter is sought so often: the truth rests on these."""

OPENED_S = ((5.047,), (5.047,), (2.053,), (0.053, 0.217, 0.537, 1.037), (0.053, 0.217, 0.537, 1.037))
"""The lengths of the windows that each thread opens."""


@dataclass(frozen=True)
class Sizes:
    """How much of each part is done; the defaults take about four minutes.

    Args:
        settle_s: a load is let run so long before it counts.
        learn_s: the meter learns the counter's steps in so long.
        quiet_s: the sampler's share of a core is taken over so long.
        calls: how often each call is timed.
        pairs, slot_s: slots with and without the sampler, for each load.
        still_s: idle time that the burst's joules are taken above.
        phases, visits, bursts, burst_s: each phase is visited so often, by so many bursts of so long.
        windows_s, rivals_s: how long windows are opened.
        rivals: processes of each rival; CodeCarbon's tasks cannot overlap within one.
    """

    settle_s: float = 2.5
    learn_s: float = 3.5
    quiet_s: float = 8.0
    calls: int = 100
    pairs: int = 10
    slot_s: float = 1.4
    still_s: float = 4.0
    phases: int = 16
    visits: int = 2
    bursts: int = 15
    burst_s: float = 0.0125
    windows_s: float = 48.0
    rivals_s: float = 22.0
    rivals: tuple[str, ...] = ("zeus", "codecarbon", "codecarbon", "codecarbon")


class Raw:
    """The raw rows: in memory by kind, and in a file as they come."""

    def __init__(self, path: Path | None, part: str) -> None:
        self.rows: Rows = defaultdict(list)
        self._part = part
        self._file = path.open("a", buffering=1) if path else None
        self._lock = threading.Lock()

    def add(self, kind: str, *values: Any) -> None:
        """One row."""
        with self._lock:
            self.rows[kind].append(list(values))
            if self._file:
                self._file.write(json.dumps([self._part, kind, *values], separators=(",", ":")) + "\n")

    def close(self) -> None:
        """No more rows."""
        if self._file:
            self._file.close()


def step(card: Sensors) -> Bracket:
    """Wait for the counter's next step; for one more, where a slow reading blurs it."""

    def one() -> Bracket:
        readings = [timed(card.counter)]
        while len(readings) < 2 or readings[-1][2] == readings[-2][2]:
            readings.append(timed(card.counter))
        early, late, energy_j = brackets(readings)[0]
        return round(early, 5), round(late, 5), round(energy_j, 3)

    found = [one()]
    if found[0][1] - found[0][0] > BLURRED_S:
        found.append(one())
    return min(found, key=lambda b: b[1] - b[0])


def sampling(meter: Meter, on: bool) -> None:
    """Let the process's sampler follow the meter, or leave it."""
    if not on:
        sampler().leave(meter)
    elif not sampler().follows(meter):
        sampler().follow(meter)


def cost(meter: Meter, sizes: Sizes, raw: Raw) -> None:
    """The sampler's share of a core while nothing is measured, and what each call takes."""
    sampling(meter, True)
    time.sleep(sizes.learn_s)
    start_s, cpu_s, process_s = time.monotonic(), meter.sampler_cpu_s or 0.0, time.process_time()
    time.sleep(sizes.quiet_s)
    used_s, all_s = (meter.sampler_cpu_s or 0.0) - cpu_s, time.process_time() - process_s
    raw.add("quiet", time.monotonic() - start_s, used_s, all_s)
    sampling(meter, False)
    (source,) = meter.sources
    handle = pynvml.nvmlDeviceGetHandleByUUID(source.spec.source_id.removeprefix("nvml:"))
    calls: dict[str, Callable[[], Any]] = {
        "utilisation": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        "SM clock": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memory clock": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "temperature": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "throttle reasons": lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        "source.sample: power": source.sample,
        "source.read: counter and power": source.read,
    }
    if isinstance(source, TellsState):
        calls["source.state: all of these"] = source.state
    for name, call in calls.items():
        try:
            took = call_cost(call, sizes.calls)
        except pynvml.NVMLError as error:
            raw.add("call", name, str(error))
            continue
        raw.add("call", name, took["median_s"], took["p95_s"], took["cpu_median_s"])


def added(card: Sensors, meter: Meter, sizes: Sizes, raw: Raw, draw: random.Random) -> None:
    """Slots with the sampler and slots without, in pairs of random order; the load runs already."""
    time.sleep(sizes.settle_s)
    end = step(card)
    for _ in range(sizes.pairs):
        for runs in draw.sample((True, False), 2):
            sampling(meter, runs)
            cpu_s = meter.sampler_cpu_s or 0.0
            time.sleep(sizes.slot_s)
            start, end = end, step(card)
            raw.add("slot", runs, start, end, (meter.sampler_cpu_s or 0.0) - cpu_s)
    sampling(meter, False)


def duty(card: Sensors, load: Load, sizes: Sizes, raw: Raw, draw: random.Random) -> None:
    """Trains of equal bursts, each locked to the counter's step at one phase; the counter is read without a pause."""
    load.idle()
    load.locked(time.monotonic(), POLL_S, 1, sizes.burst_s)  # the first time takes longer
    counter = Series(lambda s: raw.add("counter", round(s[0], 5), round(s[1], 5), round(s[2], 3)))
    instant = Series(lambda s: raw.add("instant", round(s[0], 5), round(s[2], 3)))
    stop = threading.Event()
    threads = [threading.Thread(target=follow, args=([(card.counter, counter)], 0.0, stop))]
    if card.instant:
        threads.append(threading.Thread(target=follow, args=([(card.instant, instant)], POWER_EVERY_S / 2, stop)))
    for thread in threads:
        thread.start()
    try:
        time.sleep(sizes.still_s)
        order = [number for number in range(sizes.phases) for _ in range(sizes.visits)]
        draw.shuffle(order)
        for place, number in enumerate(order):
            steps, _ = evened(brackets(counter.samples))
            period_s = min(b[0] - a[0] for a, b in itertools.pairwise(steps))
            ahead = math.ceil((time.monotonic() + LEAD_S - steps[-1][0]) / period_s)
            first_s = steps[-1][0] + (ahead + number / sizes.phases) * period_s
            starts, ends = zip(*load.locked(first_s, period_s, sizes.bursts, sizes.burst_s), strict=True)
            raw.add("locked", [round(t, 5) for t in starts], [round(t, 5) for t in ends])
            if place % 8 == 0:
                print(f"duty: {place} of {len(order)} trains", flush=True)
        time.sleep(0.3)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        counter.end()
        instant.end()


def windows(card: Sensors, meter: Meter, sizes: Sizes, raw: Raw) -> None:
    """Windows of the live meter from several threads; the load runs already."""
    sampling(meter, True)
    time.sleep(max(sizes.learn_s, sizes.settle_s))
    (source_id,) = (s.source_id for s in meter.specs)
    end_s = time.monotonic() + sizes.windows_s

    def steps() -> None:
        while True:
            raw.add("step", *step(card))
            if time.monotonic() > end_s:
                return
            time.sleep(min(STEP_EVERY_S, max(0.0, end_s - time.monotonic())))

    def polls() -> None:
        while time.monotonic() < end_s:
            raw.add("usage", round(time.monotonic(), 5), card.usage())
            time.sleep(POLL_S)

    def opens(lengths_s: Sequence[float], seed: int) -> None:
        draw = random.Random(seed)
        while True:
            for length_s in draw.sample(lengths_s, len(lengths_s)):
                time.sleep(draw.uniform(0.05, 0.35))
                if time.monotonic() + length_s > end_s:
                    return
                with meter.window() as window:
                    time.sleep(length_s)
                told = window.energy.gpu
                first, last = (r[source_id] for r in (window.readings_start, window.readings_end))
                if told is None or told.energy_j is None or told.bound_j is None:
                    raw.add("unknown", length_s, told.note if told else None)
                    continue
                plain_j = (last.energy_j or 0.0) - (first.energy_j or 0.0)
                raw.add(
                    "window",
                    length_s,
                    window.start_s,
                    window.end_s,
                    told.energy_j,
                    told.independent_j,
                    *told.bound_j,
                    plain_j,
                )

    cpu_s, start_s = meter.sampler_cpu_s or 0.0, time.monotonic()
    threads = [threading.Thread(target=steps), threading.Thread(target=polls)]
    threads += [threading.Thread(target=opens, args=(lengths, seed)) for seed, lengths in enumerate(OPENED_S)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raw.add("busy", time.monotonic() - start_s, (meter.sampler_cpu_s or 0.0) - cpu_s)
    (source,) = meter.sources
    if isinstance(source, TellsState):
        raw.add("state", source.state()._asdict())
    sampling(meter, False)


class Rival:
    """A process of `benchmarks/rivals.py`, its lines as they come."""

    def __init__(self, name: str, program: Path = RIVALS) -> None:
        self.name = name
        self.lines: list[Any] = []
        self._process = subprocess.Popen(
            [sys.executable, str(program), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._complaint = ""
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._listen, self._complain)]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(json.loads(line))

    def _complain(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._complaint = line.strip() or self._complaint

    @property
    def absent(self) -> str | None:
        """Why it tells nothing; None if it is ready."""
        if not self.lines:
            return f"did not start: {self._complaint}"
        return None if self.lines[0] == "ready" else str(self.lines[0])

    def go(self, seconds: float) -> None:
        """Open windows."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def end(self, patience_s: float) -> None:
        """Wait for its end, or end it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(1.0)


def rivals(card: Sensors, others: Sequence[Rival], sizes: Sizes, raw: Raw) -> None:
    """What the others say of windows over the same load, which runs already."""
    for name, why in {other.name: other.absent for other in others}.items():
        if why:
            raw.add("absent", name, why)
    ready = [other for other in others if other.absent is None]
    if not ready:
        return
    time.sleep(sizes.settle_s)
    raw.add("end", *step(card))
    for other in ready:
        other.go(sizes.rivals_s)
    time.sleep(sizes.rivals_s)
    raw.add("end", *step(card))
    for other in ready:
        other.end(5.0)
        for asked_s, lasted_s, energy_j in other.lines[1:]:
            raw.add("window", other.name, asked_s, lasted_s, energy_j)


def told(part: str, rows: Rows) -> Any:
    """A part's figures, or why there are none: what is wrong with one part must not cost the others."""
    try:
        return _told(part, rows)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return {"failed": f"the raw rows do not give the figures: {type(error).__name__}: {error}"}


def _told(part: str, rows: Rows) -> Any:
    if part.startswith("added"):
        return figures.added(rows["slot"], POLL_S)
    return {"cost": figures.cost, "duty": figures.duty, "windows": figures.windows, "rivals": figures.rivals}[part](
        rows
    )


def run(
    card: Sensors,
    load: Load,
    meter: Meter,
    others: Sequence[Rival],
    sizes: Sizes,
    parts: Sequence[str],
    raw_path: Path | None,
    keep: Callable[[str, Any], None],
) -> None:
    """All parts, one after another.

    Args:
        card, load, meter: the card, what works on it, and what measures it.
        others: the rivals, started.
        sizes: how much of each.
        parts: which.
        raw_path: where the raw rows go.
        keep: takes each part's figures.
    """
    draw = random.Random(0)
    for part in parts:
        print(f"{part} ...", flush=True)
        if part in ("cost", "added_idle"):
            load.idle()
        elif part != "duty":
            load.steady()
        raw = Raw(raw_path, part)
        try:
            if part == "cost":
                cost(meter, sizes, raw)
            elif part == "duty":
                duty(card, load, sizes, raw, draw)
            elif part == "windows":
                windows(card, meter, sizes, raw)
            elif part == "rivals":
                rivals(card, others, sizes, raw)
            else:
                added(card, meter, sizes, raw, draw)
        except pynvml.NVMLError as error:
            print(f"{part}: NVML: {error}", flush=True)
        finally:
            raw.close()
        keep(part, told(part, raw.rows))
    load.idle()


def replay(path: Path) -> dict[str, Rows]:
    """The raw rows of a file, which may end in .gz, by part; a torn last line is left out."""
    rows: dict[str, Rows] = defaultdict(lambda: defaultdict(list))
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    for line in text[: text.rfind("\n")].splitlines():
        part, kind, *values = json.loads(line)
        rows[part][kind].append(values)
    return rows


def main(arguments: Sequence[str] | None = None, load: Load | None = None, sizes: Sizes | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="the figures")
    parser.add_argument("--raw", type=Path, help="the raw rows (JSON Lines)")
    parser.add_argument("--replay", type=Path, metavar="RAW", help="no card: the figures of raw rows")
    parser.add_argument("--gpu", type=int, default=0, help="NVML index; leave only this card visible to CUDA")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, with commas between")
    args = parser.parse_args(arguments)
    result: dict[str, Any] = {}

    def keep(part: str, found: Any) -> None:
        result[part] = found
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=2) + "\n")
        print(shown(part, found) + "\n", flush=True)

    if args.replay:
        parts = replay(args.replay)
        result["environment"] = parts.pop("run")["environment"][0][0]
        for part, rows in parts.items():
            keep(part, told(part, rows))
        return
    sizes = sizes or Sizes()
    parts_asked = args.parts.split(",")
    others = [Rival(name) for name in sizes.rivals] if "rivals" in parts_asked else []
    card = sensors(args.gpu)
    sources = nvml_source.discover().sources
    mine = [s for s in sources if s.spec.source_id == f"nvml:{card.environment['uuid']}"]
    for source in sources:
        if source not in mine:
            source.close()
    process = None if load else LoadProcess()
    load = load or process
    assert load is not None
    result["environment"] = card.environment | {"sizes": asdict(sizes)} | ({"load": process.about} if process else {})
    if args.raw:
        args.raw.parent.mkdir(parents=True, exist_ok=True)
        args.raw.write_text(json.dumps(["run", "environment", result["environment"]]) + "\n")
    try:
        with Meter(mine) as meter:
            run(card, load, meter, others, sizes, parts_asked, args.raw, keep)
    finally:
        load.close()
        for other in others:
            other.end(0.0)


if __name__ == "__main__":
    main()

"""Record one NVIDIA GPU's energy counter and power, while it idles and works, for tests and for docs/measurement.md.

    python benchmarks/record_nvml.py --out tests/data/nvml_h200.jsonl --json results/h200/record_nvml.json

Needs pynvml (package nvidia-ml-py) and, for the load, torch with CUDA; nothing else, not even Joulewise.

The recording is JSON Lines: one header, then one array per row, with the columns that the header names, and objects
that tell when a phase of the load began (``phase``) and when it changed kind (``event``). Of a run of equal values only
the first and the last sight are kept, so each change lies between two neighbouring rows and the file stays small (about
3 kB a second). Every row is written at once: a recording that is cut is a shorter one.
``joulewise.energy.sources.replay`` plays it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pynvml

sys.path.insert(0, str(Path(__file__).parent))

from gpu_load import Load, LoadProcess

COLUMNS = ("time_s", "source", "energy_j", "power_w", "read_s", "average_power_w")
PHASES_S = (("idle", 6.0), ("steady", 8.0), ("bursts", 9.0), ("idle", 7.0))

COUNTER_EVERY_S = 0.010
POWER_EVERY_S = 0.005

Sample = tuple[float, float, float]
"""Monotonic seconds at the middle of the read, seconds it took, value (J or W)."""


def instant_power_w(handle: Any) -> float | None:
    """The instantaneous-power field in watts; None where the driver or card has none."""
    try:
        (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])
    except pynvml.NVMLError:
        return None
    return field.value.uiVal / 1000 if field.nvmlReturn == pynvml.NVML_SUCCESS else None


def timed(read: Callable[[], float]) -> Sample:
    start = time.monotonic()
    value = read()
    end = time.monotonic()
    return (start + end) / 2, end - start, value


class Series:
    """What one sensor said: of each run of equal values the first and the last sight.

    Args:
        keep: takes each of them as it comes.
    """

    def __init__(self, keep: Callable[[Sample], None] = lambda sample: None) -> None:
        self.samples: list[Sample] = []
        self._keep = keep
        self._last: Sample | None = None

    def add(self, sample: Sample) -> None:
        """The next sight."""
        last, self._last = self._last, sample
        if last is None or last[2] != sample[2]:
            if last is not None and last is not self.samples[-1]:
                self._take(last)
            self._take(sample)

    def end(self) -> None:
        """No more comes."""
        if self._last is not None and self._last is not self.samples[-1]:
            self._take(self._last)

    def _take(self, sample: Sample) -> None:
        self.samples.append(sample)
        self._keep(sample)


def follow(reads: Sequence[tuple[Callable[[], float], Series]], every_s: float, stop: threading.Event) -> None:
    """Read on about every ``every_s`` seconds until ``stop`` is set."""
    due = time.monotonic()
    while not stop.is_set():
        for read, series in reads:
            series.add(timed(read))
        due = max(due + every_s, time.monotonic())
        stop.wait(due - time.monotonic())


def call_cost(read: Callable[[], float], count: int) -> dict[str, float]:
    """Wall and CPU seconds of one call, each call on its own so that nothing is cached from the last."""
    wall, cpu = [], []
    for _ in range(count):
        cpu_start, start = time.thread_time(), time.perf_counter()
        read()
        wall.append(time.perf_counter() - start)
        cpu.append(time.thread_time() - cpu_start)
        time.sleep(0.002)
    return {
        "median_s": statistics.median(wall),
        "p95_s": sorted(wall)[int(0.95 * len(wall))],
        "cpu_median_s": statistics.median(cpu),
    }


def changes(samples: list[Sample]) -> list[Sample]:
    """The first sight of each new value."""
    return [now for before, now in itertools.pairwise(samples) if now[2] != before[2]]


def integrate(samples: list[Sample], start_s: float, end_s: float) -> float:
    """Trapezoid of power over time, in joules; at the ends interpolated, or the nearest reading's."""
    inside = [(t, p) for t, _, p in samples if start_s < t < end_s]

    def at(moment: float) -> float:
        before = max((s for s in samples if s[0] <= moment), key=lambda s: s[0], default=samples[0])
        after = min((s for s in samples if s[0] >= moment), key=lambda s: s[0], default=samples[-1])
        share = 0.0 if after[0] == before[0] else (moment - before[0]) / (after[0] - before[0])
        return before[2] + share * (after[2] - before[2])

    points = [(start_s, at(start_s)), *inside, (end_s, at(end_s))]
    return sum((t1 - t0) * (p0 + p1) / 2 for (t0, p0), (t1, p1) in itertools.pairwise(points))


def compare(counter: list[Sample], power: list[Sample], start_s: float, end_s: float) -> dict[str, float] | None:
    """The counter's joules between its first and last step inside the phase, and the integrated power over the same."""
    steps = [s for s in changes(counter) if start_s + 1.5 < s[0] < end_s]
    if len(steps) < 2:
        return None
    counter_j = steps[-1][2] - steps[0][2]
    integrated_j = integrate(power, steps[0][0], steps[-1][0])
    return {
        "seconds": steps[-1][0] - steps[0][0],
        "counter_j": counter_j,
        "integrated_power_j": integrated_j,
        "gap_percent": 100 * (integrated_j / counter_j - 1),
    }


def rise_s(power: list[Sample], start_s: float) -> float | None:
    """Seconds from the start of the steady load until the reading has gone 90 % of its way up."""
    before = [p for t, _, p in power if start_s - 1 < t < start_s]
    later = [p for t, _, p in power if start_s + 3 < t < start_s + 6]
    if not before or not later:
        return None
    low, high = statistics.median(before), statistics.median(later)
    return next((t - start_s for t, _, p in power if t > start_s and p >= low + 0.9 * (high - low)), None)


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def phases_of(text: str) -> list[tuple[str, float]]:
    """``steady:40,bursts:120`` as names and seconds."""
    return [(name, float(seconds)) for name, _, seconds in (part.partition(":") for part in text.split(","))]


@dataclass(frozen=True)
class Sensors:
    """What one card can be asked for, in joules and watts."""

    counter: Callable[[], float]
    usage: Callable[[], float]
    instant: Callable[[], float] | None
    environment: dict[str, Any]


def sensors(gpu: int) -> Sensors:
    """Those of one card.

    Args:
        gpu: NVML's index.
    """
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
    has_instant = instant_power_w(handle) is not None

    def usage() -> float:
        return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1000

    def instant() -> float:
        value = instant_power_w(handle)
        return usage() if value is None else value

    environment = {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": text(pynvml.nvmlDeviceGetName(handle)),
        "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
        "driver": text(pynvml.nvmlSystemGetDriverVersion()),
        "power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "power_w_is": "NVML_FI_DEV_POWER_INSTANT" if has_instant else "nvmlDeviceGetPowerUsage",
        "average_power_w_is": "nvmlDeviceGetPowerUsage" if has_instant else None,
    }
    return Sensors(
        lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000,
        usage,
        instant if has_instant else None,
        environment,
    )


def header(environment: dict[str, Any]) -> dict[str, Any]:
    """A recording's first line."""
    return {
        "format": "joulewise-recording",
        "version": 1,
        "synthetic": False,
        "columns": COLUMNS,
        "sources": [
            {
                "source_id": f"nvml:{environment['uuid']}",
                "component": "gpu",
                "device": environment["card"],
                "provenance": "measured",
                "method": "NVML energy counter",
                "scope": "device",
                "update_period_s": 0.1,
                "quantum_j": 0.001,
                # As the source for a card has it: what a card draws until its regulator acts.
                "max_power_w": 1.5 * environment["power_limit_w"],
                "gain": 0.05,
                "offset_w": 5.0,
            }
        ],
        "environment": environment,
    }


def record(
    card: Sensors, load: Load, phases: Sequence[tuple[str, float]], every_s: float, write: Callable[[Any], None]
) -> tuple[dict[str, Series], list[tuple[str, float, float]]]:
    """Read the card while the load goes through its phases.

    Args:
        card: its sensors.
        load: the load.
        phases: names and seconds.
        every_s: how often the counter is read.
        write: takes each line of the recording, times from the first reading on and joules since then.

    Returns:
        The series ``counter``, ``usage`` and ``instant`` (empty where there is none), and each phase's name, start and
        end, all on the monotonic clock.
    """
    origin_s, _, origin_j = timed(card.counter)

    def kept(column: int, start: float = 0.0) -> Series:
        def keep(sample: Sample) -> None:
            moment, took, value = sample
            cells: list[Any] = [round(moment - origin_s, 5), 0, None, None, round(took, 6), None]
            cells[column] = round(value - start, 3)
            write(cells)

        return Series(keep)

    series = {"counter": kept(2, origin_j), "usage": kept(5 if card.instant else 3), "instant": kept(3)}
    powers = [(card.usage, series["usage"])] + ([(card.instant, series["instant"])] if card.instant else [])
    stop = threading.Event()
    threads = [
        threading.Thread(target=follow, args=([(card.counter, series["counter"])], every_s, stop)),
        threading.Thread(target=follow, args=(powers, POWER_EVERY_S, stop)),
    ]
    for thread in threads:
        thread.start()
    begun: list[tuple[str | None, float]] = []
    try:
        for what, *told in load.phases(phases):
            if what == "phase":
                name, start_s = told
                begun.append((name, start_s))
                write({"phase": [name, round(start_s - origin_s, 4)]})
                if name is not None:
                    print(f"{name} ...", flush=True)
            else:
                moment_s, kind = told
                write({"event": [round(moment_s - origin_s, 4), kind]})
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for each in series.values():
            each.end()
    return series, [(n, s, end_s) for (n, s), (_, end_s) in itertools.pairwise(begun) if n is not None]


def summary(
    environment: dict[str, Any],
    costs: dict[str, dict[str, float] | None],
    series: dict[str, Series],
    phases: list[tuple[str, float, float]],
) -> dict[str, Any]:
    """What the recording says, for people and docs."""
    counter, usage, instant = (series[name].samples for name in ("counter", "usage", "instant"))
    power = instant or usage
    step_times = [s[0] for s in changes(counter)]
    periods = [b - a for a, b in itertools.pairwise(step_times)]
    steady = next((p for p in phases if p[0] == "steady"), None)
    return {
        "environment": environment,
        "counter_step_s": {
            "median": statistics.median(periods),
            "min": min(periods),
            "max": max(periods),
            "steps": len(step_times),
        },
        "read_cost": costs,
        "power_changes_per_s": {
            name: len(changes(s)) / (s[-1][0] - s[0][0])
            for name, s in (("usage", usage), ("instant", instant))
            if len(s) > 1
        },
        "steady": {
            "usage": compare(counter, usage, *steady[1:]) if steady else None,
            "instant": compare(counter, instant, *steady[1:]) if steady and instant else None,
        },
        "rise_to_90_percent_s": {
            "usage": rise_s(usage, steady[1]) if steady else None,
            "instant": rise_s(instant, steady[1]) if steady and instant else None,
        },
        "phases": [
            {"name": n, "seconds": e - s, "mean_power_w": integrate(power, s, e) / (e - s)} for n, s, e in phases
        ],
    }


def main(arguments: Sequence[str] | None = None, load: Load | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the recording (JSON Lines)")
    parser.add_argument("--json", type=Path, help="the summary for machines")
    parser.add_argument("--gpu", type=int, default=0, help="NVML index; leave only this card visible to CUDA")
    parser.add_argument("--phases", type=phases_of, default=PHASES_S, help="such as steady:40,bursts:120,ramps:240")
    parser.add_argument("--dense", action="store_true", help="read the counter without a pause (it takes a core)")
    args = parser.parse_args(arguments)

    card = sensors(args.gpu)
    process = None if load else LoadProcess()
    load = load or process
    assert load is not None
    environment = card.environment | ({"load": process.about} if process else {})
    costs = {
        "counter": call_cost(card.counter, 100),
        "power_usage": call_cost(card.usage, 300),
        "power_instant": call_cost(card.instant, 300) if card.instant else None,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lock = threading.Lock()
    with args.out.open("w", buffering=1) as file:

        def write(line: Any) -> None:
            with lock:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")

        write(header(environment))
        try:
            series, phases = record(card, load, args.phases, 0.0 if args.dense else COUNTER_EVERY_S, write)
        finally:
            load.close()
    found = summary(environment, costs, series, phases)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=2) + "\n")

    step = found["counter_step_s"]
    print(f"{environment['card']}, driver {environment['driver']}, limit {environment['power_limit_w']:.0f} W")
    print(f"counter steps every {1e3 * step['median']:.1f} ms ({1e3 * step['min']:.1f} to {1e3 * step['max']:.1f})")
    for name, cost in costs.items():
        if cost:
            print(f"{name}: {1e6 * cost['median_s']:.1f} us a read, of it {1e6 * cost['cpu_median_s']:.1f} us of CPU")
    for name, gap in found["steady"].items():
        if gap:
            print(
                f"steady: counter {gap['counter_j']:.1f} J, {name} power integrated {gap['integrated_power_j']:.1f} J, "
                f"gap {gap['gap_percent']:+.2f} %"
            )
    for name, seconds in found["rise_to_90_percent_s"].items():
        print(f"{name} power rises to 90 % in {'?' if seconds is None else f'{seconds:.3f}'} s")
    for phase in found["phases"]:
        print(f"{phase['name']}: {phase['seconds']:.1f} s at {phase['mean_power_w']:.1f} W")
    print(f"{args.out.stat().st_size / 1024:.0f} kB in {args.out}")


if __name__ == "__main__":
    main()

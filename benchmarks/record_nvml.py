"""Record one NVIDIA GPU's energy counter and power, while it idles and works, for tests and for docs/measurement.md.

    python benchmarks/record_nvml.py --out tests/data/nvml_h200.jsonl --json results/h200/record_nvml.json

Needs pynvml (package nvidia-ml-py) and, for the load, torch with CUDA; nothing else, not even Joulewise.

The recording is JSON Lines: one header, then one array per row, with the columns that the header names. Of a run of
equal values only the first and the last sight are kept, so each change lies between two neighbouring rows and the
file stays small. ``joulewise.energy.sources.replay`` plays it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pynvml

COLUMNS = ("time_s", "source", "energy_j", "power_w", "read_s", "average_power_w")
PHASES_S = (("idle", 6.0), ("steady", 8.0), ("bursts", 9.0), ("idle", 7.0))
RAMP_S, FRAME_S = 0.935, 0.012
"""A ramp goes up, or down, in so long, by working a growing share of each frame; no multiple of the counter's step."""

COUNTER_EVERY_S = 0.010
POWER_EVERY_S = 0.005
BURST_S = (0.03, 0.3)
SEED = 1

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


def follow(reads: list[tuple[Callable[[], float], list[Sample]]], every_s: float, stop: threading.Event) -> None:
    """Append to each list about every ``every_s`` seconds until ``stop`` is set."""
    due = time.monotonic()
    while not stop.is_set():
        for read, samples in reads:
            samples.append(timed(read))
        due = max(due + every_s, time.monotonic())
        stop.wait(due - time.monotonic())


def run_load(
    torch: Any, size: int, phases_s: Sequence[tuple[str, float]]
) -> tuple[list[tuple[str, float, float]], list[tuple[float, int]]]:
    """The phases one after another.

    Returns:
        ``(name, start_s, end_s)`` of each on the monotonic clock; and when the load changed kind (0 idle, 1 burst,
        2 ramp up and down again).
    """
    events: list[tuple[float, int]] = []
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)

    def multiply(until: float) -> None:
        while time.monotonic() < until:
            for _ in range(5):
                torch.matmul(a, b)
            torch.cuda.synchronize()

    multiply(time.monotonic() + 0.5)  # kernels are chosen and loaded before the recording counts
    time.sleep(2.0)
    draw = random.Random(SEED)
    phases = []
    for name, seconds in phases_s:
        start = time.monotonic()
        end = start + seconds
        if name == "steady":
            multiply(end)
        elif name == "bursts":
            while time.monotonic() < end:
                events.append((time.monotonic(), 1))
                multiply(min(end, time.monotonic() + draw.uniform(*BURST_S)))
                events.append((time.monotonic(), 0))
                time.sleep(draw.uniform(*BURST_S))
        elif name == "ramps":
            while time.monotonic() < end:
                ramp = time.monotonic()
                events.append((ramp, 2))
                while (since := time.monotonic() - ramp) < 2 * RAMP_S:
                    frame = time.monotonic()
                    multiply(frame + FRAME_S * (1 - abs(since / RAMP_S - 1)))
                    time.sleep(max(0.0, frame + FRAME_S - time.monotonic()))
        else:
            time.sleep(seconds)
        phases.append((name, start, time.monotonic()))
    return phases, events


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


def thin(samples: list[Sample]) -> list[Sample]:
    """First and last sight of each run of equal values."""
    return [
        s
        for i, s in enumerate(samples)
        if i in (0, len(samples) - 1) or samples[i - 1][2] != s[2] or samples[i + 1][2] != s[2]
    ]


def integrate(samples: list[Sample], start_s: float, end_s: float) -> float:
    """Trapezoid of power over time, in joules, with the ends interpolated."""
    inside = [(t, p) for t, _, p in samples if start_s < t < end_s]

    def at(moment: float) -> float:
        before = max((s for s in samples if s[0] <= moment), key=lambda s: s[0])
        after = min((s for s in samples if s[0] >= moment), key=lambda s: s[0])
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the recording (JSON Lines)")
    parser.add_argument("--json", type=Path, help="the summary for machines")
    parser.add_argument("--gpu", type=int, default=0, help="NVML index; leave only this card visible to CUDA")
    parser.add_argument("--size", type=int, default=8192, help="side of the matrices")
    parser.add_argument("--phases", type=phases_of, default=PHASES_S, help="such as steady:40,bursts:120,ramps:240")
    parser.add_argument("--dense", action="store_true", help="read the counter without a pause (it takes a core)")
    args = parser.parse_args(arguments)

    import torch

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(args.gpu)
    has_instant = instant_power_w(handle) is not None

    def read_counter() -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000

    def read_power() -> float:
        return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1000

    def read_instant() -> float:
        value = instant_power_w(handle)
        return read_power() if value is None else value

    torch.zeros(1, device="cuda")
    costs = {
        "counter": call_cost(read_counter, 100),
        "power_usage": call_cost(read_power, 300),
        "power_instant": call_cost(read_instant, 300) if has_instant else None,
    }

    counter: list[Sample] = []
    usage: list[Sample] = []
    instant: list[Sample] = []
    power_reads = [(read_power, usage)] + ([(read_instant, instant)] if has_instant else [])
    stop = threading.Event()
    threads = [
        threading.Thread(target=follow, args=([(read_counter, counter)], 0.0 if args.dense else COUNTER_EVERY_S, stop)),
        threading.Thread(target=follow, args=(power_reads, POWER_EVERY_S, stop)),
    ]
    for thread in threads:
        thread.start()
    try:
        phases, events = run_load(torch, args.size, args.phases)
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    origin_s, origin_j = phases[0][1], counter[0][2]
    power = instant or usage
    step_times = [s[0] for s in changes(counter)]
    periods = [b - a for a, b in itertools.pairwise(step_times)]
    steady = next(p for p in phases if p[0] == "steady")  # always asked for: the summary rests on it

    def phase_power(start: float, end: float) -> float:
        return statistics.mean(p for t, _, p in power if start <= t <= end)

    environment = {
        "card": text(pynvml.nvmlDeviceGetName(handle)),
        "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
        "driver": text(pynvml.nvmlSystemGetDriverVersion()),
        "power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "torch": torch.__version__,
        "power_w_is": "NVML_FI_DEV_POWER_INSTANT" if instant else "nvmlDeviceGetPowerUsage",
        "average_power_w_is": "nvmlDeviceGetPowerUsage" if instant else None,
    }
    summary: dict[str, Any] = {
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
            "usage": compare(counter, usage, *steady[1:]),
            "instant": compare(counter, instant, *steady[1:]) if instant else None,
        },
        "rise_to_90_percent_s": {
            "usage": rise_s(usage, steady[1]),
            "instant": rise_s(instant, steady[1]) if instant else None,
        },
        "phases": [{"name": n, "seconds": e - s, "mean_power_w": phase_power(s, e)} for n, s, e in phases],
    }

    header = {
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
                "max_power_w": environment["power_limit_w"],
                "gain": 0.05,
                "offset_w": 5.0,
            }
        ],
        "environment": environment,
        "phases": [[n, round(s - origin_s, 4), round(e - origin_s, 4)] for n, s, e in phases],
        "events": [[round(t - origin_s, 4), kind] for t, kind in events],
    }

    def row(sample: Sample, energy: bool = False, average: bool = False) -> list[Any]:
        moment, took, value = sample
        kind = 2 if energy else 5 if average else 3
        cells: list[Any] = [round(moment - origin_s, 5), 0, None, None, round(took, 6), None]
        cells[kind] = round(value - (origin_j if energy else 0.0), 3)
        return cells

    rows = [row(s, energy=True) for s in thin(counter)] + [row(s) for s in thin(power)]
    if instant:
        rows += [row(s, average=True) for s in thin(usage)]
    rows.sort(key=lambda r: float(r[0]))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w") as file:
        for line in [header, *rows]:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(summary, indent=2) + "\n")

    step = summary["counter_step_s"]
    print(f"{environment['card']}, driver {environment['driver']}, limit {environment['power_limit_w']:.0f} W")
    print(f"counter steps every {1e3 * step['median']:.1f} ms ({1e3 * step['min']:.1f} to {1e3 * step['max']:.1f})")
    for name, cost in costs.items():
        if cost:
            print(f"{name}: {1e6 * cost['median_s']:.1f} us a read, of it {1e6 * cost['cpu_median_s']:.1f} us of CPU")
    for name, gap in summary["steady"].items():
        if gap:
            print(
                f"steady: counter {gap['counter_j']:.1f} J, {name} power integrated {gap['integrated_power_j']:.1f} J, "
                f"gap {gap['gap_percent']:+.2f} %"
            )
    for name, seconds in summary["rise_to_90_percent_s"].items():
        print(f"{name} power rises to 90 % in {'?' if seconds is None else f'{seconds:.3f}'} s")
    for phase in summary["phases"]:
        print(f"{phase['name']}: {phase['seconds']:.1f} s at {phase['mean_power_w']:.1f} W")
    print(f"{len(rows)} rows, {args.out.stat().st_size / 1024:.0f} kB in {args.out}")


if __name__ == "__main__":
    main()

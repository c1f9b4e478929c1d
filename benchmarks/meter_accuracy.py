"""How near to the truth are a meter's joules? Windows of 0.05 to 5 s at random phase over three loads.

    python benchmarks/meter_accuracy.py --json results/simulated/meter_accuracy.json    # simulated, no hardware
    python benchmarks/meter_accuracy.py --record card.jsonl     # on a machine with an NVIDIA GPU
    python benchmarks/meter_accuracy.py --replay card.jsonl     # windows placed in a recording

Side by side: Joulewise; the difference of the counter's readings at the window's ends; and power polled every 0.1 s
times the window's length. No window's length is a multiple of the counter's 0.1 s, which would flatter the difference.

Simulated: the sensors of `benchmarks/simulated_card.py`, in three kinds. *Fresh* power readings are a mean of the last
25 ms whenever they are asked for; *held* ones are renewed every 0.1 s, as an H200's in `tests/data/nvml_h200.jsonl`.
*Starved* is as held, beside a thread that is busy in Python: the sampler wakes 5 ms late on average, and its readings
end up to 10 ms late. The aims are set for fresh readings. A held reading leaves three quarters of the time unseen, and
no method can tell what happened then; its figures are shown, and its intervals must hold the truth all the same.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import sys
import tempfile
import tracemalloc
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from simulated_card import LOADS, Behaviour, Clock, SimulatedCard, run_to

from joulewise.energy import Meter
from joulewise.energy.reading import Z95, ComponentEnergy

LENGTHS_S = (0.053, 0.217, 0.537, 1.037, 2.053, 5.047)
SMOOTH, ROUGH = (4.0, 1.8, 0.8, 0.4, 0.25, 0.15), (60.0, 20.0, 7.0, 4.0, 2.0, 1.0)
AIMS = {"steady": SMOOTH, "ramps": SMOOTH, "bursts": ROUGH}
"""95th percentile of the error, in percent, by load and length."""

RECORDED = "bursts:62,steady:25,ramps:390"
"""Eight minutes; 390 s are 201 ramps, up or down."""

SENSORS = {
    "fresh": Behaviour(),
    "held": Behaviour(renewed_s=0.1),
    "starved": Behaviour(renewed_s=0.1, late_s=0.005, held_up_s=0.01),
}
WINDOWS_PER_CARD = 10
POLL_S = 0.1


@dataclass(frozen=True)
class Outcome:
    """One window: errors are relative to the truth, in percent."""

    error: float
    half_width: float
    inside: bool
    bounded: bool
    difference_error: float
    polled_error: float


@dataclass(frozen=True)
class Row:
    """All windows of one length over one load: 95th percentiles of errors and medians of half-widths, in percent."""

    sensor: str
    load: str
    length_s: float
    windows: int
    joulewise_p95: float
    difference_p95: float
    polled_p95: float
    half_width_median: float
    half_width_p95: float
    interval_holds: float
    bound_holds: float
    aim: float

    @property
    def met(self) -> bool:
        """Whether error, interval and bound are as aimed at."""
        return (
            self.joulewise_p95 <= self.aim
            and self.half_width_median <= 1.5 * self.aim
            and self.interval_holds >= 95.0
            and self.bound_holds >= 99.0
        )


def outcome(gpu: ComponentEnergy, truth_j: float, difference_j: float, polled_j: float) -> Outcome:
    """One window held against its truth; the interval is that of the independent parts."""
    assert gpu.energy_j is not None
    assert gpu.bound_j is not None
    error_j, half_j = abs(gpu.energy_j - truth_j), Z95 * gpu.independent_j
    return Outcome(
        100 * error_j / truth_j,
        100 * half_j / truth_j,
        error_j <= half_j,
        gpu.bound_j[0] - 1e-6 <= truth_j <= gpu.bound_j[1] + 1e-6,
        100 * abs(difference_j - truth_j) / truth_j,
        100 * abs(polled_j - truth_j) / truth_j,
    )


def row(sensor: str, load: str, length_s: float, outcomes: list[Outcome]) -> Row:
    """The table's row of many windows."""

    def percentile(share: float, values: list[float]) -> float:
        return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]

    return Row(
        sensor,
        load,
        length_s,
        len(outcomes),
        percentile(0.95, [o.error for o in outcomes]),
        percentile(0.95, [o.difference_error for o in outcomes]),
        percentile(0.95, [o.polled_error for o in outcomes]),
        percentile(0.5, [o.half_width for o in outcomes]),
        percentile(0.95, [o.half_width for o in outcomes]),
        100 * sum(o.inside for o in outcomes) / len(outcomes),
        100 * sum(o.bounded for o in outcomes) / len(outcomes),
        AIMS[load][LENGTHS_S.index(length_s)],
    )


def simulate(
    sensor: str, load: str, windows: int, lengths_s: tuple[float, ...] = LENGTHS_S, seed: int = 0
) -> list[Row]:
    """Windows over one load, on simulated cards that each have their own phases."""
    behaviour = SENSORS[sensor]
    outcomes: dict[float, list[Outcome]] = {length_s: [] for length_s in lengths_s}
    for card in range(math.ceil(windows / WINDOWS_PER_CARD)):
        draw, clock = random.Random(f"{seed} {load} {card}"), Clock()
        seconds = 10.0 + WINDOWS_PER_CARD * (sum(lengths_s) + 1.0 * len(lengths_s))
        truth = LOADS[load](draw, clock.now_s - 10.0, seconds + 10.0)
        source = SimulatedCard(clock, truth, behaviour, draw)
        meter = Meter([source], clock=clock, sample_period_s=None, asleep=lambda: 0.0)
        run_to(meter, clock, clock.now_s + 6.0, draw, behaviour.late_s)
        for _ in range(WINDOWS_PER_CARD):
            for length_s in lengths_s:
                run_to(meter, clock, clock.now_s + draw.uniform(0.05, 0.35), draw, behaviour.late_s)
                with meter.window() as window:
                    run_to(meter, clock, clock.now_s + length_s, draw, behaviour.late_s)
                run_to(meter, clock, clock.now_s + 0.25, draw, behaviour.late_s)
                (start, end) = (r["simulated:0"].energy_j for r in (window.readings_start, window.readings_end))
                assert start is not None
                assert end is not None
                assert window.energy.gpu is not None
                first_s = window.start_s + draw.uniform(0.0, min(POLL_S, length_s))
                polls = [first_s + POLL_S * i for i in range(max(1, math.ceil((window.end_s - first_s) / POLL_S)))]
                # What nvmlDeviceGetPowerUsage shows on cards since Ampere is a mean of one second.
                polled_w = sum(truth.mean_w(t - 1.0, t) for t in polls) / len(polls)
                outcomes[length_s].append(
                    outcome(
                        window.energy.gpu,
                        truth.energy_j(window.end_s) - truth.energy_j(window.start_s),
                        end - start,
                        polled_w * window.duration_s,
                    )
                )
    return [row(sensor, load, length_s, found) for length_s, found in outcomes.items()]


def cost(seconds: float = 300.0) -> dict[str, float]:
    """What the sampler takes of a core while no window is open: readings times what each costs on an H200."""
    draw, clock, behaviour = random.Random(0), Clock(), SENSORS["held"]
    source = SimulatedCard(clock, LOADS["steady"](draw, 0.0, 0.0), behaviour, draw)
    meter = Meter([source], clock=clock, sample_period_s=None, asleep=lambda: 0.0)
    start_s = clock.now_s
    run_to(meter, clock, start_s + 10.0, draw, behaviour.late_s)
    learning_s, counter, power, busy_s = source.busy_s, source.counter_reads, source.power_reads, source.busy_s
    from_s = clock.now_s
    run_to(meter, clock, from_s + seconds, draw, behaviour.late_s)
    passed_s = clock.now_s - from_s
    return {
        "learning_busy_s": learning_s,
        "counter_reads_per_s": (source.counter_reads - counter) / passed_s,
        "power_reads_per_s": (source.power_reads - power) / passed_s,
        "quiet_share_of_a_core_percent": 100 * (source.busy_s - busy_s) / passed_s,
    }


def memory(hours: int = 3) -> list[float]:
    """MB that the meter holds after each hour of sampling at the full rate, its timeline drained every minute."""
    draw, clock, behaviour = random.Random(0), Clock(), replace(SENSORS["held"], late_s=1e-6)
    source = SimulatedCard(clock, LOADS["bursts"](draw, 990.0, 10.0), behaviour, draw)
    tracemalloc.start()
    held_mb = []
    meter = Meter([source], clock=clock, sample_period_s=None, asleep=lambda: 0.0)
    for minute in range(1, 60 * hours + 1):
        run_to(meter, clock, 1000.0 + 60.0 * minute, draw, behaviour.late_s)
        meter.drain_timeline()
        if minute % 60 == 0:
            held_mb.append(tracemalloc.get_traced_memory()[0] / 1e6)
    tracemalloc.stop()
    return held_mb


def table(rows: list[Row]) -> str:
    """The rows as text."""
    lines = [
        f"{'sensor':7}{'load':8}{'s':>6} | {'Joulewise':>9}{'aim':>7} | {'difference':>10}{'polled':>8} | "
        f"{'half-width':>10} | {'interval':>8}{'bound':>7}"
    ]
    for r in rows:
        lines.append(
            f"{r.sensor:7}{r.load:8}{r.length_s:6.3f} | {r.joulewise_p95:9.2f}{r.aim:7.2f} | {r.difference_p95:10.1f}"
            f"{r.polled_p95:8.1f} | {r.half_width_median:10.2f} | {r.interval_holds:8.1f}{r.bound_holds:7.1f}"
            + ("" if r.met else "   not met")
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=300, help="windows a length and load (simulated)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--record", type=Path, metavar="FILE", help="record this machine's NVIDIA GPU under the loads")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="place windows in a recording")
    args = parser.parse_args()
    if args.record:
        import record_nvml

        record_nvml.main(["--out", str(args.record), "--dense", "--phases", RECORDED])
        return
    if args.replay:
        from recorded_loads import replayed

        with tempfile.TemporaryDirectory() as folder:
            path = args.replay
            if path.suffix == ".gz":
                path = Path(folder, path.stem)
                path.write_bytes(gzip.decompress(args.replay.read_bytes()))
            rows, figures = replayed(path, args.windows)
        figures["origin"] = f"windows placed in the recording {args.replay.name}"
    else:
        rows = [r for sensor in SENSORS for load in LOADS for r in simulate(sensor, load, args.windows)]
        held_mb = memory()
        figures = {
            "origin": "simulated: no hardware was read",
            "sensors": {name: asdict(behaviour) for name, behaviour in SENSORS.items()},
            "cost": cost(),
            "memory_mb_by_hour": held_mb,
        }
    print(f"{figures['origin']}; errors (95th percentile) and half-widths (median) in percent of the truth\n")
    print(table(rows))
    for name, value in figures.items():
        if name in ("cost", "memory_mb_by_hour") or name.endswith(("_wandered_percent", "left_out")):
            print(f"{name}: {value}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        written: dict[str, Any] = figures | {"rows": [asdict(r) | {"met": r.met} for r in rows]}
        args.json.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""What does rest between windows do for their joules? Two kinds of work in turn, with and without waiting.

    python benchmarks/rest.py --json results/simulated/rest.json    # simulated, a minute; no hardware is read

Blocks of two windows, one of work at 690 W and one at 400 W, in random order, on the sensors of
`benchmarks/simulated_card.py` (*fresh* and *held* as in `benchmarks/meter_accuracy.py`; unlike there, the work begins
and ends with its window). Between windows the card idles: *settled* until the joules of the last window are settled,
as in `joulewise run`, and then for what stays to be done between Trials; *at once* for that alone.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from meter_accuracy import SENSORS
from simulated_card import IDLE_W, LOADED_W, Clock, Load, SimulatedCard, run_to

from joulewise.energy import Meter
from joulewise.energy.meter import LONGEST_WAIT_S, Window
from joulewise.energy.reading import Z95

LENGTHS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
POWERS_W = (LOADED_W, 400.0)
WAYS = ("settled", "at once")
BETWEEN_S = 0.01
"""What stays to be done between two Trials; the shortest recorded on an H200 (`results/h200/real_tasks`)."""

LEARN_S, RISE_S, CARDS = 6.0, 0.001, 20


@dataclass(frozen=True)
class Row:
    """Windows of one length: what both kinds of work come to, in percent of the truth, 690 W first.

    ``ratio_bias`` is that of their joules' ratio, in percent.
    """

    sensor: str
    length_s: float
    way: str
    windows: int
    rest_s: float
    bias: tuple[float, float]
    half_width_median: tuple[float, float]
    interval_holds: tuple[float, float]
    ratio_bias: float


class Work(Load):
    """Power that is set as time goes by."""

    def set(self, time_s: float, power_w: float) -> None:
        """From now on, so much, reached within a millisecond."""
        for at_s, at_w in ((time_s, self._powers[-1]), (time_s + RISE_S, power_w)):
            self._joules.append(self.energy_j(at_s))
            self._times.append(at_s)
            self._powers.append(at_w)


@dataclass(frozen=True)
class Found:
    """One window: measured and true joules, half of the interval's width (gain and offset apart), seconds after it."""

    measured_j: float
    true_j: float
    half_j: float
    rest_s: float


def measured(sensor: str, length_s: float, way: str, blocks: int, draw: random.Random) -> tuple[list[Found], ...]:
    """Both kinds of work on one simulated card, ``blocks`` windows of each."""
    behaviour, clock = SENSORS[sensor], Clock()
    work = Work([(clock.now_s - 1.0, IDLE_W)])
    meter = Meter([SimulatedCard(clock, work, behaviour, draw)], clock=clock, sample_period_s=None, asleep=lambda: 0.0)

    def pass_s(seconds: float) -> None:
        run_to(meter, clock, clock.now_s + seconds, draw, behaviour.late_s)

    pass_s(LEARN_S)
    done: list[tuple[int, Window, float]] = []
    for _ in range(blocks):
        for kind in draw.sample((0, 1), 2):
            with meter.window() as window:
                work.set(clock.now_s, POWERS_W[kind])
                pass_s(length_s * draw.uniform(0.85, 1.15))
                work.set(clock.now_s, IDLE_W)
                clock.now_s += 1.5 * RISE_S
            closed_s = clock.now_s
            if way == "settled":
                assert window._end is not None
                while not window._end.settled and clock.now_s < closed_s + LONGEST_WAIT_S:
                    pass_s(0.001)
                    meter.tend()
            pass_s(BETWEEN_S)
            done.append((kind, window, clock.now_s - closed_s))
    pass_s(1.0)
    found: tuple[list[Found], ...] = ([], [])
    for kind, window, rest_s in done:
        gpu = window.energy.gpu
        assert gpu is not None
        assert gpu.energy_j is not None
        true_j = work.energy_j(window.end_s) - work.energy_j(window.start_s)
        found[kind].append(Found(gpu.energy_j, true_j, Z95 * gpu.independent_j, rest_s))
    return found


def row(sensor: str, length_s: float, way: str, blocks: int) -> Row:
    """So many blocks, spread over simulated cards that each have their own phases."""
    cards = [
        measured(sensor, length_s, way, blocks // CARDS, random.Random(f"{sensor} {length_s} {card}"))
        for card in range(CARDS)
    ]
    kinds = [[f for card in cards for f in card[kind]] for kind in (0, 1)]
    gain = [sum(f.measured_j for f in one) / sum(f.true_j for f in one) for one in kinds]
    half = [100 * statistics.median(f.half_j / f.true_j for f in one) for one in kinds]
    holds = [100 * statistics.fmean(abs(f.measured_j - f.true_j) <= f.half_j for f in one) for one in kinds]
    return Row(
        sensor=sensor,
        length_s=length_s,
        way=way,
        windows=sum(map(len, kinds)),
        rest_s=statistics.median(f.rest_s for one in kinds for f in one),
        bias=(100 * (gain[0] - 1), 100 * (gain[1] - 1)),
        half_width_median=(half[0], half[1]),
        interval_holds=(holds[0], holds[1]),
        ratio_bias=100 * (gain[0] / gain[1] - 1),
    )


def text(one: Row) -> str:
    """One line for people."""
    pairs = [f"{a:6.1f} {b:6.1f}" for a, b in (one.bias, one.half_width_median, one.interval_holds)]
    return (
        f"{one.sensor:6}{one.length_s:6.2f} {one.way:8}{one.rest_s:6.3f} | {' | '.join(pairs)} | {one.ratio_bias:6.1f}"
    )


def main() -> None:
    """Print the rows; write them with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--blocks", type=int, default=400, help="blocks of two windows a row (default 400)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    print("simulated; in % of the truth, work at 690 W and at 400 W")
    print("sensor  s   way       rest |      bias     |  half-width   |     holds     | bias of the ratio")
    rows = []
    for sensor in SENSORS:
        for length_s in LENGTHS_S:
            for way in WAYS:
                rows.append(row(sensor, length_s, way, arguments.blocks))
                print(text(rows[-1]), flush=True)
    if arguments.json:
        figures = {"origin": "simulated: no hardware was read", "rows": [asdict(one) for one in rows]}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Derive the table of GPU sensors that Joulewise carries from the SC'24 study's flat table.

    python benchmarks/derive_gpu_sensors.py nvidia_power_sensor.csv > src/joulewise/energy/data/gpu_sensors.csv

Of every card that the study held against an external meter: the rows of its newest driver, the instantaneous power
where it was fitted, else the plain one. Over its specimens, the root mean square of what the fitted line (shown power =
gain x true power + offset) departs from the truth, in gain and in offset.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

NAMES = {
    "NVIDIA GeForce RTX 1080": "NVIDIA GeForce GTX 1080",
    "NVIDIA GeForce RTX 1080 Ti": "NVIDIA GeForce GTX 1080 Ti",
}
"""Slips of the study's table, as the driver calls these cards."""

STEADY = {"Quadro K620"}
"""Its fitted line contradicts its error at steady load (-41 %), so that error stands for its gain."""


def derive(rows: Iterable[dict[str, str]]) -> Iterator[tuple[str, int, float, float]]:
    """``(card, specimens, gain error, offset error in watts)`` of each card."""
    fitted: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if row["gain"]:
            name = row["gpu"].removeprefix("Alienware_").replace("_", " ")
            fitted.setdefault(NAMES.get(name, name), []).append(row)
    for card, of_card in sorted(fitted.items()):
        newest = [r for r in of_card if r["driver"] == max(r["driver"] for r in of_card)]
        chosen = [r for r in newest if r["option"] == "power.draw.instant"] or newest
        gains = [float(r["steady_state_error_pct"]) / 100 if card in STEADY else float(r["gain"]) - 1 for r in chosen]
        offsets_w = [float(r["offset_w"]) for r in chosen]
        yield card, len(chosen), _rms(gains), _rms(offsets_w)


def _rms(values: list[float]) -> float:
    return math.sqrt(sum(v * v for v in values) / len(values))


def main() -> None:
    with Path(sys.argv[1]).open(encoding="utf-8", newline="") as file:
        table = list(derive(csv.DictReader(file)))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["card", "specimens", "gain_error", "offset_error_w"])
    for card, specimens, gain, offset_w in table:
        writer.writerow([card, specimens, f"{gain:.4f}", f"{offset_w:.2f}"])


if __name__ == "__main__":
    main()

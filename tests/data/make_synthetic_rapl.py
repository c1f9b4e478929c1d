"""Make ``synthetic_rapl.jsonl``: computed, not measured, since no machine with RAPL was at hand.

One package (60 W idle, 200 W busy) and its memory (8 and 14 W), ten seconds, busy from 3 s to 7 s. The package's
counter wraps after 5 s, so that a replay tests that too.

    python tests/data/make_synthetic_rapl.py
"""

from __future__ import annotations

import json
from pathlib import Path

STEP_S = 0.02
LENGTH_S = 10.0
BUSY_S = (3.0, 7.0)
WATTS = {"package-0": (60.0, 200.0), "package-0/dram": (8.0, 14.0)}
WRAP_J = 262_143.328850
WRAPS_AT_J = 3 * 60.0 + 2 * 200.0
"""Joules of the package after 5 s."""


def joules(name: str, time_s: float) -> float:
    """The true joules since the start."""
    idle_w, busy_w = WATTS[name]
    busy_s = min(max(time_s - BUSY_S[0], 0.0), BUSY_S[1] - BUSY_S[0])
    return idle_w * (time_s - busy_s) + busy_w * busy_s


def main() -> None:
    start_j = {"package-0": WRAP_J - WRAPS_AT_J, "package-0/dram": 1000.0}
    header = {
        "format": "joulewise-recording",
        "version": 1,
        "synthetic": True,
        "columns": ["time_s", "source", "energy_j", "power_w", "read_s"],
        "sources": [
            {
                "source_id": f"rapl:synthetic/{name}",
                "component": "dram" if name.endswith("dram") else "cpu",
                "device": f"synthetic {name}",
                "provenance": "measured",
                "method": "RAPL energy counter",
                "scope": "package",
                "update_period_s": STEP_S,
                "quantum_j": 2.0**-14,
                "max_power_w": 500.0,
                "gain": 0.1 if name.endswith("dram") else 0.05,
                "wrap_j": WRAP_J,
                "note": "synthetic",
            }
            for name in WATTS
        ],
    }
    rows = [
        [round(i * STEP_S, 4), source, round((start_j[name] + joules(name, i * STEP_S)) % WRAP_J, 6), None, 2e-05]
        for i in range(round(LENGTH_S / STEP_S) + 1)
        for source, name in enumerate(WATTS)
    ]
    target = Path(__file__).with_name("synthetic_rapl.jsonl")
    target.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in [header, *rows]))


if __name__ == "__main__":
    main()

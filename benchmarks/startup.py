"""How long do `import joulewise` and `joulewise --help` take over `python -c pass`, in one run?

    python benchmarks/startup.py [--repeats 20] [--json FILE]

The three commands are run in turn, so that a busy moment falls on all of them; medians are compared. Aims: at most
0.1 s for the import and 0.4 s for the help text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import joulewise": [sys.executable, "-c", "import joulewise"],
    "joulewise --help": [str(Path(sysconfig.get_path("scripts")) / "joulewise"), "--help"],
}
LIMITS_S = {"import joulewise": 0.1, "joulewise --help": 0.4}


def measure(repeats: int) -> dict[str, float]:
    """Median seconds of each command."""
    times_s: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(repeats + 1):
        for name, command in COMMANDS.items():
            start_s = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if turn > 0:  # the first turn fills the file cache
                times_s[name].append(time.perf_counter() - start_s)
    return {name: statistics.median(values) for name, values in times_s.items()}


def main() -> int:
    """Measure, print a table, and exit with 1 if an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    medians_s = measure(arguments.repeats)
    base_s = medians_s["python -c pass"]
    over_s = {name: medians_s[name] - base_s for name in LIMITS_S}
    print(f"{'command':<20}{'median':>10}{'over pass':>12}{'at most':>10}")
    print(f"{'python -c pass':<20}{base_s:>8.3f} s")
    for name, extra_s in over_s.items():
        print(f"{name:<20}{medians_s[name]:>8.3f} s{extra_s:>10.3f} s{LIMITS_S[name]:>8.1f} s")
    met = all(over_s[name] <= limit for name, limit in LIMITS_S.items())
    if arguments.json:
        figures = {"repeats": arguments.repeats, "median_s": medians_s, "over_pass_s": over_s, "limits_s": LIMITS_S}
        arguments.json.write_text(json.dumps({**figures, "met": met}, indent=2) + "\n")
    print("aims met" if met else "aims missed")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

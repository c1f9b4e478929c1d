"""The program behind ``math_equality``: reads ``[reference, answer]`` lines, writes 1 (equal in value) or 0 for each.

It runs as a script of its own and imports nothing of Joulewise.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

MEMORY_BYTES = 4 * 2**30
"""An expression that needs more (a tower of powers) ends this process and not the run."""

ORPHAN_LIMIT_S = 60
"""The parent keeps the time; should it be gone, the alarm ends a comparison that never would."""


def main() -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable()
    print("ready", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    for line in sys.stdin:
        signal.alarm(ORPHAN_LIMIT_S)
        # math-verify's own time limits would take the alarm over; they are off.
        reference, answer = (
            parse(f"${text}$", (LatexExtractionConfig(), ExprExtractionConfig()), parsing_timeout=None)
            for text in json.loads(line)
        )
        print(int(verify(reference, answer, timeout_seconds=None)), flush=True)
        signal.alarm(0)


if __name__ == "__main__":
    main()

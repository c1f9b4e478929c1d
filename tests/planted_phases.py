"""Trials whose phases draw planted powers, for the tests of joules by phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from synthetic_table import part, row

POWERS = {"prefill": 400.0, "draft": 200.0, "verify": 300.0, "accept": 130.0, "memory": 250.0, "host": 120.0}
PLAIN = {"prefill": (0.2, 0.1), "verify": (2.0, 0.8), "accept": (0.2, 0.02), "host": (0.15, 0.05)}
SPECULATING = PLAIN | {"draft": (0.6, 0.3), "verify": (1.0, 0.5), "accept": (0.3, 0.05), "memory": (0.1, 0.05)}


def trials(
    decoding: str,
    spread: Mapping[str, tuple[float, float]],
    rng: np.random.Generator,
    *,
    n: int = 60,
    powers: Mapping[str, float] = POWERS,
    noise_j: float = 0.0,
    provenance: str = "measured",
    **other: Any,
) -> list[dict[str, Any]]:
    """Answers whose phases last, each by itself, about ``mean +- half-width`` seconds."""
    rows = []
    for i in range(n):
        seconds = {name: mean + half * rng.uniform(-1.0, 1.0) for name, (mean, half) in spread.items()}
        joules = sum(powers[name] * s for name, s in seconds.items()) + noise_j * rng.normal()
        told = {f"phase_{name}_s": seconds.get(name, 0.0) for name in (*POWERS, "draft_prefill")}
        duration_s = sum(seconds.values())
        energy = [part("gpu", joules, provenance)]
        rows.append(row(decoding, f"q{i}", energy=energy, duration_s=duration_s, **told | other))
    return rows

"""Points of a curve with known coefficients."""

from __future__ import annotations

import numpy as np

from joulewise.analysis.curves import TERMS, Points

PLANTED = {
    "request": 2.0,
    "request_shared": 5.0,
    "token": 0.1,
    "token_shared": 0.9,
    "token_root_shared": 0.3,
    "prompt_token": 0.01,
    "prompt_token_squared": 2e-6,
    "attention": 1e-5,
}


def grid(
    planted: dict[str, float] = PLANTED, loads: tuple[float, ...] = (1, 2, 4, 8), noise: float = 0.0, seed: int = 0
) -> Points:
    """A full grid of prompts, outputs and loads."""
    axes = np.meshgrid([32.0, 512.0, 2048.0, 7168.0], [1.0, 16.0, 128.0, 1024.0], np.array(loads, dtype=np.float64))
    p, o, b = (axis.ravel() for axis in axes)
    energy = sum(value * TERMS[name].column(p, o, b) for name, value in planted.items())
    energy = energy * np.random.default_rng(seed).lognormal(0.0, noise, len(p))
    return Points(p, o, b, energy, np.arange(len(p)))


def one_load(planted: dict[str, float], noise: float = 0.0, seed: int = 0) -> Points:
    return grid({name: value for name, value in planted.items() if "shared" not in name}, (1,), noise, seed)

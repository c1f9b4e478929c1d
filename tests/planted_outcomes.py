"""Outcomes with a known truth: of four fields the large option is better in the first two alone."""

from __future__ import annotations

import numpy as np

from joulewise.routing.outcomes import Outcomes

FIELDS = {
    "algebra": (0.2, 0.9, "polynomial matrix equation root integer prime factor"),
    "physics": (0.3, 0.9, "electron energy mass velocity field charge momentum"),
    "history": (0.8, 0.8, "treaty king empire war revolution century parliament"),
    "cooking": (0.9, 0.85, "butter oven flour simmer onion garlic whisk"),
}


def planted(n: int, seed: int = 0, named: bool = False) -> Outcomes:
    """``n`` queries; with ``named`` their fields are given as domains."""
    rng = np.random.default_rng(seed)
    names = list(FIELDS)
    fields = [names[i] for i in rng.integers(0, len(names), n)]
    words = {name: FIELDS[name][2].split() for name in names}
    queries = [f"Question {i} about " + " ".join(rng.choice(words[f], 4)) for i, f in enumerate(fields)]
    chances = np.array([FIELDS[f][:2] for f in fields])
    correct = (rng.random((n, 2)) < chances).astype(float)
    return Outcomes(tuple(queries), ("small", "large"), correct, tuple(f if named else None for f in fields))

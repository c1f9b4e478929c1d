"""Runs that answer in several ways: ten questions of known answers and joules, and many of two models."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, TypeAlias

from joulewise.table import RunTable
from joulewise.tasks.mmlu_subjects import CATEGORIES
from sample_run import ENVIRONMENT
from synthetic_table import part, row, table

Way: TypeAlias = tuple[set[int], float, int]

QUESTIONS = range(10)

SCRIPT: dict[str, Way] = {
    "direct": ({0, 1}, 2.0, 10),
    "cot-256": ({0, 2, 3, 4, 5, 6}, 20.0, 100),
    "vote-1": ({0}, 2.0, 10),
    "vote-3": ({0, 1, 2}, 5.0, 30),
    "vote-5": ({0, 1, 2}, 8.0, 50),
}
"""By reasoning: the questions that it has right, its joules an answer, and its output tokens an answer."""


def script(ways: Mapping[str, Way] = SCRIPT, provenance: str = "measured", **other: Any) -> list[dict[str, Any]]:
    """Ten questions, seven of category a and three of b; 20 prompt tokens each."""
    return [
        row(
            question=f"q{q}",
            reasoning=reasoning,
            category="a" if q < 7 else "b",
            energy=[part("gpu", joules, provenance)],
            output_tokens=tokens,
            correct=q in right,
            score=float(q in right),
            metric="exact_match",
            **other,
        )
        for reasoning, (right, joules, tokens) in ways.items()
        for q in QUESTIONS
    ]


WAYS = {
    "llama-1b": {
        "direct": (0.30, 1.2),
        "budget-64": (0.36, 40.0),
        "budget-256": (0.42, 110.0),
        "budget-1024": (0.425, 260.0),
        "cot-512": (0.40, 150.0),
        "vote-1": (0.29, 1.2),
        "vote-3": (0.31, 2.6),
        "vote-5": (0.32, 3.9),
    },
    "llama-8b": {"direct": (0.60, 1.9), "vote-3": (0.61, 4.6)},
}
"""By engine and reasoning: the share of right answers, and joules per answer."""


def sample_tradeoff(questions: int = 570, *, seed: int = 0, provenance: str = "measured") -> RunTable:
    """A table of ``questions`` of MMLU, its subjects in turn, and of 16 unjudged questions."""
    rng = random.Random(seed)
    subjects = sorted(CATEGORIES)
    rows = []
    for number in range(questions):
        subject = subjects[number % len(subjects)]
        hard, length = rng.random(), rng.lognormvariate(0.0, 0.3)
        for engine, ways in WAYS.items():
            for reasoning, (accuracy, joules) in ways.items():
                easier = 0.7 * hard + 0.3 * rng.random()
                rows.append(
                    row(
                        question=f"{subject}-test-{number}",
                        engine=engine,
                        model=f"meta/{engine}",
                        reasoning=reasoning,
                        task="mmlu",
                        category=subject,
                        energy=[part("gpu", joules * length * rng.uniform(0.9, 1.1), provenance, gain=0.05)],
                        correct=easier < accuracy,
                        score=float(easier < accuracy),
                        metric="letter_match",
                    )
                )
    for number in range(16):
        for engine in WAYS:
            joules = rng.uniform(30, 60) * (1 + 2 * (engine == "llama-8b"))
            rows.append(
                row(
                    question=str(81 + number),
                    engine=engine,
                    model=f"meta/{engine}",
                    task="mt_bench",
                    category=("writing", "math")[number % 2],
                    energy=[part("gpu", joules, provenance, gain=0.05)],
                    metric="unscored",
                )
            )
    return table(rows, environments={"r": ENVIRONMENT}, plans={"r": {"name": "paper-energy-per-token"}})

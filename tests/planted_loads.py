"""Stretches under load whose joules are planted: what saving against load must find."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from joulewise.table import RunTable
from synthetic_table import part, row, table

SPREAD = {"count": 200, "mean_s": 0.2, "p50_s": 0.1, "p90_s": 0.2, "p95_s": 0.3, "p99_s": 0.4, "largest_s": 0.5}
TOKENS, SECONDS = 1000.0, 10.0


def stretch(
    decoding: str, concurrency: int, repeat: int, energy_j: float, *, tokens: float = TOKENS, **other: Any
) -> dict[str, Any]:
    """One Trial of so many joules."""
    load = {
        "label": f"c{concurrency}",
        "kind": "closed",
        "level": float(concurrency),
        "start_s": 0.0,
        "offered_until_s": SECONDS,
        "end_s": SECONDS + 1.0,
        "from_s": 0.0,
        "until_s": SECONDS,
        "sent": 110,
        "answered": 110,
        "failed": 0,
        "cut_off": 0,
        "left_out": 0,
        "most_in_flight": concurrency,
        "requests": 100,
        "whole": 100,
        "ended": 100,
        "in_flight": float(concurrency),
        "prompt_tokens": 500,
        "output_tokens": tokens,
        "good": 80,
        "good_tokens": 0.8 * tokens,
        **dict.fromkeys(("to_first", "server_to_first", "per_token", "between_chunks", "total"), SPREAD),
        "late_p99_s": 0.001,
        "file": "requests/00000.jsonl.gz",
        **other.pop("load", {}),
    }
    told = {"energy": [part("gpu", energy_j, other.pop("provenance", "measured"))], "duration_s": SECONDS, **other}
    return row(
        decoding,
        load["label"],
        task=f"chat/{load['label']}",
        repeat=repeat,
        output_tokens=round(tokens),
        load=load,
        **told,
    )


def loads_table(savings: Mapping[int, Sequence[float]], **other: Any) -> RunTable:
    """Vanilla beside one decoding.

    Args:
        savings: by concurrency, the saving in each repeat.
    """
    rows = []
    for concurrency, repeats in savings.items():
        for repeat, saving in enumerate(repeats):
            plain_j = 500.0 / math.sqrt(concurrency)
            rows.append(stretch("vanilla", concurrency, repeat, plain_j, **other))
            rows.append(stretch("coga-5", concurrency, repeat, plain_j / saving, **other))
    return table(rows)

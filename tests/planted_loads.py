"""Stretches under load whose joules are planted: what saving against load must find."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joulewise.table import RunTable
from synthetic_table import part, row, table

SPREAD = {"count": 200, "mean_s": 0.2, "p50_s": 0.1, "p90_s": 0.2, "p95_s": 0.3, "p99_s": 0.4, "largest_s": 0.5}
TOKENS, SECONDS = 1000.0, 10.0
ENGINE = "e"


@dataclass(frozen=True)
class Sent:
    """A request as a load keeps it; seconds from the begin of the steady part."""

    start_s: float
    end_s: float
    prompt_tokens: int = 10
    output_tokens: int = 10
    whole: bool = True
    first_s: float | None = None


def keep_requests(folder: Path, file: str, requests: Iterable[Sent]) -> None:
    """Write the file of a stretch's requests into its run folder."""
    rows = [
        {
            "number": number,
            "question": f"q{number}",
            "due_s": one.start_s,
            "sent_s": one.start_s,
            "first_token_s": one.first_s,
            "last_token_s": one.end_s,
            "end_s": one.end_s,
            "chunks": 1,
            "prompt_tokens": one.prompt_tokens,
            "output_tokens": one.output_tokens,
            "whole": one.whole,
            "error": None if one.whole else "planted",
        }
        for number, one in enumerate(requests)
    ]
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def in_folder(found: RunTable, folder: Path, idle_w: float | None = None) -> RunTable:
    """The table as of a run in that folder, with the idle power of its GPU."""
    entry = {"engine": ENGINE, "component": "gpu", "when": "before", "power_w": idle_w, "independent_w": 0.0}
    environment = {} if idle_w is None else {"idle": [entry | {"provenance": "measured"}]}
    return replace(found, folders={"r": folder}, environments={"r": environment})


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
    told = {"start_s": 0.0, "end_s": SECONDS, **told}
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

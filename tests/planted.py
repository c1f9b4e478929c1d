"""Run folders and tables with planted differences, for the tests of the gate."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from joulewise.plan import Plan
from joulewise.table import RunTable
from synthetic_table import part, row, table

DECODINGS = ("vanilla", "prompt-lookup-3")


def plan(**other: Any) -> dict[str, Any]:
    """A plan whose labels are those of ``row``, as plain data."""
    fields = {
        "name": "planted",
        "engines": [{"kind": "transformers", "model": "m", "name": "e", "dtype": "bfloat16"}],
        "decodings": ["vanilla", {"kind": "prompt_lookup", "tokens": 3}],
        "tasks": [{"name": "gsm8k"}],
    }
    return Plan.model_validate(fields | other).model_dump(mode="json")


def environment(
    uuid: str = "GPU-1", driver: str = "580", power_limit_w: float = 700.0, gpu: str = "NVIDIA H200", **other: Any
) -> dict[str, Any]:
    """What a run was on."""
    card = {"name": gpu, "uuid": uuid, "driver": driver, "power_limit_w": power_limit_w}
    return {
        "python": "3.12.3",
        "packages": {"torch": "2.11.0"},
        "machine": {"cpu": "Xeon", "cores": 16, "gpus": [card]},
        "sources": [{"component": "gpu", "provenance": "measured", "gain": 0.05, "update_period_s": 0.1}],
    } | other


def side(
    rise: float = 0.0,
    questions: int = 50,
    *,
    seed: int = 0,
    noise: float = 0.02,
    slower: float = 0.0,
    provenance: str = "measured",
    offset_w: float = 0.0,
    decodings: tuple[str, ...] = DECODINGS,
    names: tuple[str, ...] = ("run",),
    run_factors: tuple[float, ...] = (1.0,),
    change: Callable[[dict[str, Any], int], dict[str, Any]] = lambda values, _: values,
    plan_: dict[str, Any] | None = None,
    environment_: dict[str, Any] | None = None,
) -> RunTable:
    """One side of a comparison: the same questions whatever the seed, joules that are ``rise`` dearer.

    Args:
        seed: of what blurs the joules.
        noise: its size, relative.
        names, run_factors: of the side's runs.
        change: what to do to the fields of the i-th Trial of a cell.
    """
    questions_of = np.random.default_rng(99)
    tokens = np.ceil(100 * questions_of.lognormal(0.0, 0.6, questions)).astype(int)
    cost = 3.0 * questions_of.lognormal(0.0, 0.1, questions)
    rng = np.random.default_rng(seed)
    rows = []
    for name, factor in zip(names, run_factors, strict=True):
        for decoding in decodings:
            for i in range(questions):
                joules = cost[i] * tokens[i] * (1 + rise) * factor * rng.lognormal(0.0, noise)
                seconds = 0.01 * tokens[i] * (1 + slower) * factor
                energy = [part("gpu", joules, provenance, gain=0.05, offset_j=offset_w * seconds)]
                values = {"run": name, "task": "gsm8k", "output_hash": f"h{i}", "correct": i % 2 == 0, "score": None}
                values |= {"energy": energy, "duration_s": seconds, "output_tokens": int(tokens[i])}
                values |= {"trial_id": f"{decoding}|{i}", "question": f"q{i}"}
                values = change(values, i)
                rows.append(row(decoding, values.pop("question"), **values))
    return table(
        rows,
        plans={name: plan_ or plan() for name in names},
        environments={name: environment_ or environment() for name in names},
    )


def replayed(folder: Path, copy: Path, factor: float, seconds: float = 1.0) -> Path:
    """A recorded run whose joules and seconds are multiplied."""
    shutil.copytree(folder, copy)
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "trial":
            line["end_s"] = line["start_s"] + seconds * (line["end_s"] - line["start_s"])
        for entry in line.get("energy", ()):
            if entry["energy_j"] is not None:
                entry["energy_j"] *= factor
                entry["gain_j"] *= factor
    (copy / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return copy

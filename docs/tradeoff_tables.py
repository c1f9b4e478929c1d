"""Tables of docs/tradeoffs.md from a recorded run: a function each, of the run's folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from recorded_tables import ROOT

from joulewise.ledger import load
from joulewise.report.markdown import words
from joulewise.report.summary import Summary, summarise
from joulewise.report.tradeoffs import findings, tradeoff_grids

SLOW_S = 0.04
"""A forward over a prompt that takes longer has chosen its kernels anew: of 3,880 four took from 30 to 47 ms."""

LEAST = 50
"""Of tasks with fewer questions too few answers are left."""


@cache
def summary_of(run: str) -> Summary:
    """A recorded run, summarised."""
    return summarise(load(ROOT / run))


def ways(run: str) -> str:
    """Every way of answering, alone and against direct answers."""
    worth, against = tradeoff_grids(summary_of(run).tradeoffs)[:2]
    rows = ["| task, questions | way | accuracy, % | GPU J per answer | J per correct answer | optimal, % of samples |"]
    rows[0] += " gain against direct, points | gain, % | energy change, % |"
    rows.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    changes = {row.names: row.figures for row in against.rows}
    for row in worth.rows:
        assert row.names is not None
        figures = dict(zip(worth.columns, map(words, row.figures), strict=True))
        change = dict(zip(against.columns, map(words, changes[row.names]), strict=True)) if row.names in changes else {}
        cells = [figures["accuracy or score, %"], figures["J per answer"], figures["J per correct answer"]]
        cells += [figures["optimal, % of samples"]]
        cells += [change.get(name, "–") for name in ("gain, points", "gain, %", "energy change, %")]
        rows.append(f"| {row.names[0]}, {row.n} | {row.names[1]} | {' | '.join(cells)} |")
    return "\n".join(rows)


def ways_in_words(run: str) -> str:
    """Where the frontier runs, and how much thinking is enough, as the report says it."""
    told = ("On the frontier", "Tokens to think")
    return "\n".join(
        f"- **{found.task}**: {' '.join(line for line in findings(found) if line.startswith(told))}"
        for found in summary_of(run).tradeoffs
    )


def prompt_lengths(run: str) -> str:
    """How long the first forward of a request took, by whether a prompt of its length had been read before."""
    lines = [
        "| the prompt's length | requests | prefill, ms: median (5 – 95 %) | over 40 ms | GPU J to the first token |"
    ]
    lines.append("| --- | ---: | --- | ---: | ---: |")
    asked = list(_requests(run))
    for name, new in (("not read before in this run", True), ("read before", False)):
        prefill_ms = np.array([1000 * took for _, took, _, was_new in asked if was_new == new])
        joules = np.median([drawn for *_, drawn, was_new in asked if was_new == new and drawn is not None])
        low, middle, high = np.percentile(prefill_ms, [5, 50, 95])
        slow = int((prefill_ms > 1000 * SLOW_S).sum())
        lines.append(
            f"| {name} | {len(prefill_ms):,} | {middle:.0f} ({low:.0f} – {high:.0f}) | {slow:,} | {joules:.1f} |"
        )
    return "\n".join(lines)


def answers_without_slow_prompts(run: str) -> str:
    """Joules per answer of all Trials of a task, and of those none of whose prompts took long to read."""
    lines = ["| task | way | Trials | J per answer | times direct's | without a slow prompt | J per answer |"]
    lines[0] += " times direct's |"
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    found: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for trial in _trials(run):
        slow = any(one["phases_s"]["prefill"] > SLOW_S for one in trial["generations"])
        found.setdefault((trial["task"], trial["reasoning"]), []).append((_gpu_j(trial["energy"]), slow))
    quick = {key: [joules for joules, slow in rows if not slow] for key, rows in found.items()}
    for (task, way), rows in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] != "direct", item[0][1])):
        if len(rows) < LEAST:
            continue
        cells = [task, way]
        for some, base in (
            ([joules for joules, _ in rows], [joules for joules, _ in found[task, "direct"]]),
            (quick[task, way], quick[task, "direct"]),
        ):
            cells += [f"{len(some)}", f"{np.mean(some):.2f}", f"{np.mean(some) / np.mean(base):.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _trials(run: str) -> list[dict[str, Any]]:
    """The Trials of a ledger in the order in which they ran."""
    with (ROOT / run / "ledger.jsonl").open(encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["kind"] == "trial"]
    return sorted(rows, key=lambda row: float(row["start_s"]))


def _requests(run: str) -> Iterator[tuple[int, float, float | None, bool]]:
    """Of every request: prompt tokens, the prefill's seconds, GPU joules to the first token, is its length new?"""
    seen: set[int] = set()
    for trial in _trials(run):
        for one in trial["generations"]:
            length = one["prompt_tokens"]
            drawn = _gpu_j(one["prefill_energy"]) if one["prefill_energy"] else None
            yield length, one["phases_s"]["prefill"], drawn, length not in seen
            seen.add(length)


def _gpu_j(parts: list[dict[str, Any]]) -> float:
    return float(next(part["energy_j"] for part in parts if part["component"] == "gpu"))


TRADEOFF_TABLES: tuple[Callable[[str], str], ...] = (ways, ways_in_words, prompt_lengths, answers_without_slow_prompts)
"""What the page can name."""

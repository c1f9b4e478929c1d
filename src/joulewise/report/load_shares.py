"""Joules of requests under load: a summary for people, rows for other programs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from joulewise.analysis.load_shares import RequestJoules, StretchJoules, median_and_middle
from joulewise.report.text import figure

COLUMNS = (
    "cell", "trial_id", "request", "question", "sent_s", "end_s", "prompt_tokens", "output_tokens", "token_share_j",
    "cost_share_j", "cost_share_lower_j", "cost_share_upper_j", "one_more_j",
)  # fmt: skip


def describe_stretch(found: StretchJoules) -> str:
    """Where the joules of a stretch went, in lines."""
    whole, requests = found.whole, found.requests
    if whole.energy_j is None:
        return f"{found.cell}: the joules are unknown\n"
    complete = [request for request in requests if request.complete]
    lines = [
        f"{found.cell}: {figure(whole.energy_j)} J in {figure(found.seconds)} s, {whole.provenance}, "
        f"{len(requests):,} requests, {len(complete):,} of them from start to end",
    ]
    for name, pick in (
        ("token share", lambda r: r.by_tokens.energy_j),
        ("cost model", lambda r: None if r.by_cost is None else r.by_cost.energy_j),
    ):
        lines += _spread(name, complete, pick)
    more = [r.one_more.added_j for r in requests if r.one_more is not None]
    if more:
        lines.append(f"  one more like them would add {figure(statistics.fmean(more))} J on average: no share")
    if found.idle is not None and found.idle.energy_j is not None:
        lines.append(f"  idle: {figure(found.idle.energy_j)} J ({found.idle.energy_j / whole.energy_j:.1%})")
    else:
        lines.append("  idle power was not measured, so it is in the shares")
    left = found.unattributed.energy_j
    if left:
        lines.append(f"  while no request ran: {figure(left)} J ({left / whole.energy_j:.1%})")
    return "\n".join(lines) + "\n"


def _spread(
    name: str, requests: Sequence[RequestJoules], pick: Callable[[RequestJoules], float | None]
) -> Iterator[str]:
    known = [joules for request in requests if (joules := pick(request)) is not None]
    median_j, lower_j, upper_j = median_and_middle(known)
    if median_j is not None:
        middle = "" if lower_j is None or upper_j is None else f", 80 % {figure(lower_j)} to {figure(upper_j)} J"
        yield f"  {name}: {figure(statistics.fmean(known))} J a request on average, median {figure(median_j)} J{middle}"


def request_rows(stretches: Iterable[StretchJoules]) -> Iterator[dict[str, Any]]:
    """One row a request, ``COLUMNS``; then ``idle`` and ``unattributed``, so that all sum to what was measured."""
    for found in stretches:
        common = {"cell": found.cell, "trial_id": found.trial_id}
        for r in found.requests:
            interval = None if r.by_cost is None else r.by_cost.interval_j
            yield common | {
                "request": r.request.name,
                "question": r.question,
                "sent_s": r.request.start_s,
                "end_s": r.request.end_s,
                "prompt_tokens": r.request.prompt_tokens,
                "output_tokens": r.request.output_tokens,
                "token_share_j": r.by_tokens.energy_j,
                "cost_share_j": None if r.by_cost is None else r.by_cost.energy_j,
                "cost_share_lower_j": None if interval is None else interval[0],
                "cost_share_upper_j": None if interval is None else interval[1],
                "one_more_j": None if r.one_more is None else r.one_more.added_j,
            }
        with_cost = any(r.by_cost is not None for r in found.requests)
        for row in (found.idle, found.unattributed):
            if row is not None:
                cost = {"cost_share_j": row.energy_j} if with_cost else {}
                yield dict.fromkeys(COLUMNS) | common | {"request": row.name, "token_share_j": row.energy_j} | cost

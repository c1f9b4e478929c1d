"""Whose joules were it, of a stretch under load? Its steady part's joules, request by request (``request_shares``)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulewise.analysis.curve_points import component_of
from joulewise.analysis.curves import Curve
from joulewise.analysis.net import idle_powers
from joulewise.analysis.request_shares import BatchRequest, OneMore, by_curve, by_tokens, one_more, request_shares
from joulewise.energy.attribution import IDLE, UNATTRIBUTED, PowerAtRest, Share
from joulewise.energy.reading import ComponentEnergy, sum_components
from joulewise.errors import UserError
from joulewise.ledger import LEDGER
from joulewise.ledger_lines import read_ledger
from joulewise.records import Trial
from joulewise.table import RunTable


@dataclass(frozen=True, slots=True)
class RequestJoules:
    """One request, in the steady part of its stretch.

    Args:
        request: as it went.
        question: its id.
        by_tokens: its share, all tokens alike.
        by_cost: its share by the operating curve; None without one.
        one_more: what one more like it would add, which is no share; None without a curve over several loads.
    """

    request: BatchRequest
    question: str
    by_tokens: Share
    by_cost: Share | None
    one_more: OneMore | None


@dataclass(frozen=True, slots=True)
class StretchJoules:
    """A stretch under load.

    Args:
        trial_id: of its Trial.
        cell: ``engine/decoding/reasoning/task/load``.
        whole: the steady part's joules.
        seconds: how long that was.
        requests: all that ran in it, if only in part.
        idle: drawn with nothing to do; None where that was not measured.
        unattributed: drawn above it while no request ran.
    """

    trial_id: str
    cell: str
    whole: ComponentEnergy
    seconds: float
    requests: tuple[RequestJoules, ...]
    idle: Share | None
    unattributed: Share


def load_shares(
    table: RunTable, curves: Mapping[tuple[str, str], Curve], load: str | None = None
) -> Iterator[StretchJoules]:
    """The stretches of one run, each shared over its requests.

    Args:
        table: one run.
        curves: by engine and decoding.
        load: one load's label; None for all.

    Raises:
        UserError: the run has no load, or none of that label, or a curve is of no engine of it.
    """
    (run, folder), *others = table.folders.items()
    assert not others, "one run at a time"
    trials = [t for t in read_ledger(folder / LEDGER).trials if t.load is not None and t.status == "ok"]
    trials = list({t.trial_id: t for t in trials}.values())
    if not trials:
        raise UserError(f"{folder}: no Trial under load that went well; this tells the joules of requests side by side")
    labels = sorted({t.load.label for t in trials if t.load is not None})
    if load is not None and load not in labels:
        raise UserError(f"--load {load}: the run has no such load; it has {', '.join(labels)}")
    there = {(t.engine, t.decoding) for t in trials}
    if strange := sorted(set(curves) - there):
        names = ", ".join("/".join(pair) for pair in sorted(there))
        raise UserError(f"the curve is of {'/'.join(strange[0])}, and the run's loads are of {names}")
    component = component_of(table.arrow)
    for trial in trials:
        if trial.load is not None and load in (None, trial.load.label):
            idle = _idle(table.environments.get(run, {}), trial.engine, component)
            yield _shared(trial, folder, component, idle, curves.get((trial.engine, trial.decoding)))


def _shared(trial: Trial, folder: Path, component: str, idle: PowerAtRest | None, curve: Curve | None) -> StretchJoules:
    parts = trial.window().components
    whole = (
        sum_components("total", parts) if component == "total" else next(p for p in parts if p.component == component)
    )
    rows = list(_requests(trial, folder))
    requests = [request for request, _ in rows]
    window = trial.start_s, trial.end_s
    shares = request_shares(whole, *window, requests, by_tokens, idle=idle)
    tokens = {share.name: share for share in shares}
    costs: dict[str, Share] = {}
    more: dict[str, OneMore] = {}
    if curve is not None:
        costs = {s.name: s for s in request_shares(whole, *window, requests, by_curve(curve), idle=idle)}
        if curve.region.running[0] < curve.region.running[1]:
            more = {one.name: one for one in one_more(curve, requests, *window)}
    return StretchJoules(
        trial.trial_id,
        trial.cell_id,
        whole,
        trial.duration_s,
        tuple(
            RequestJoules(request, question, tokens[request.name], costs.get(request.name), more.get(request.name))
            for request, question in rows
            if request.name in tokens
        ),
        tokens.get(IDLE),
        tokens[UNATTRIBUTED],
    )


def _requests(trial: Trial, folder: Path) -> Iterator[tuple[BatchRequest, str]]:
    """Those that the steady part saw, whole or not; of one that failed, what had come."""
    assert trial.load is not None
    file = folder / trial.load.file
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    except (OSError, EOFError, json.JSONDecodeError) as error:
        raise UserError(f"{file} cannot be read ({error}); copy the whole run folder") from error
    for row in rows:
        start_s, end_s, first_s = row["sent_s"], row["end_s"], row["first_token_s"]
        if start_s is None or end_s <= trial.start_s or start_s >= trial.end_s or not end_s > start_s:
            continue
        if first_s is not None and not start_s < first_s <= end_s:
            first_s = None
        prompt, output = row["prompt_tokens"] or 0, row["output_tokens"] or 0
        yield BatchRequest(str(row["number"]), start_s, end_s, prompt, output, first_s), row["question"]


def _idle(environment: Mapping[str, Any], engine: str, component: str) -> PowerAtRest | None:
    known = idle_powers(environment, engine)
    wanted = [known[name] for name in known if component in ("total", name)]
    if not wanted:
        return None
    return PowerAtRest(sum(one.power_w for one in wanted), sum(one.standard_w for one in wanted))

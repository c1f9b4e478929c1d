"""Whose joules were it, of a stretch under load? Its steady part's joules, request by request (``request_shares``)."""

from __future__ import annotations

import gzip
import json
import math
import statistics
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from joulewise.analysis.curve_points import component_of
from joulewise.analysis.curves import Curve
from joulewise.analysis.intervals import joint_provenance
from joulewise.analysis.load_saving import LoadCost, RequestSpread, UnderLoad
from joulewise.analysis.net import idle_powers
from joulewise.analysis.request_shares import BatchRequest, OneMore, by_curve, by_tokens, one_more, request_shares
from joulewise.energy.attribution import IDLE, UNATTRIBUTED, PowerAtRest, Share
from joulewise.energy.reading import ComponentEnergy, ComponentName
from joulewise.errors import UserError
from joulewise.table import RunTable

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RequestJoules:
    """One request, in the steady part of its stretch.

    Args:
        request: as it went.
        question: its id.
        complete: whether it was sent and ended in the steady part, and its answer came whole. Of others the share is
            of what was done in it alone.
        by_tokens: its share, all tokens alike.
        by_cost: its share by the operating curve; None without one.
        one_more: what one more like it would add, which is no share; None without a curve over several loads.
    """

    request: BatchRequest
    question: str
    complete: bool
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
        UserError: the run has no load, or none of that label, a curve is of no engine of it, or a file of requests
            cannot be read.
    """
    (run, folder), *others = table.folders.items()
    assert not others, "one run at a time"
    rows = _stretches(table)
    if not rows:
        raise UserError(f"{folder}: no Trial under load that went well; this tells the joules of requests side by side")
    labels = sorted({row["load"]["label"] for row in rows})
    if load is not None and load not in labels:
        raise UserError(f"--load {load}: the run has no such load; it has {', '.join(labels)}")
    there = {(row["engine"], row["decoding"]) for row in rows}
    if strange := sorted(set(curves) - there):
        names = ", ".join("/".join(pair) for pair in sorted(there))
        raise UserError(f"the curve is of {'/'.join(strange[0])}, and the run's loads are of {names}")
    component = component_of(table.arrow)
    for row in rows:
        if load in (None, row["load"]["label"]):
            idle = _idle(table.environments.get(run, {}), row["engine"], component)
            try:
                yield _shared(row, folder, component, idle, curves.get((row["engine"], row["decoding"])))
            except _NotThere as error:
                raise UserError(f"{error}; copy the whole run folder") from error


def with_request_spreads(
    found: Sequence[UnderLoad], table: RunTable, *, without_polluted: bool = False
) -> tuple[UnderLoad, ...]:
    """What is told of servers under load, and beside it the joules of their single requests, by token share.

    Reads the files of the requests, each once; nothing where nothing was loaded. What is not there is told, and left
    out.

    Args:
        found: of ``under_load``, of the same table.
        table: the Trials; of runs whose folder it does not know nothing is read.
        without_polluted: as for ``under_load``.
    """
    if not found:
        return ()
    stretches: dict[tuple[str, ...], list[Row]] = {}
    for row in _stretches(table, without_polluted=without_polluted):
        key = (
            *(row[name] for name in ("run", "engine", "model", "reasoning", "task", "decoding")),
            row["load"]["label"],
        )
        stretches.setdefault(key, []).append(row)

    def spreads(one: UnderLoad) -> Iterator[RequestSpread]:
        folder, environment = table.folders[one.run], table.environments.get(one.run, {})
        for cost in one.costs:
            key = (one.run, one.engine, one.model, one.reasoning, f"{one.task}/{cost.load}", cost.decoding, cost.load)
            if rows := stretches.get(key):
                idle = _idle(environment, one.engine, cost.component)
                yield _spread(cost, rows, folder, idle)

    return tuple(replace(one, requests=tuple(spreads(one))) if one.run in table.folders else one for one in found)


def _spread(cost: LoadCost, rows: Sequence[Row], folder: Path, idle: PowerAtRest | None) -> RequestSpread:
    shared, missing = [], []
    for row in rows:
        try:
            shared.append(_shared(row, folder, cost.component, idle, None))
        except _NotThere:
            missing.append(row["load"]["file"])
    requests = [request for one in shared for request in one.requests]
    joules = [r.by_tokens.energy_j for r in requests if r.complete]
    median_j, lower_j, upper_j = median_and_middle(joules)
    return RequestSpread(
        decoding=cost.decoding,
        load=cost.load,
        provenance=joint_provenance({one.whole.provenance for one in shared}),
        stretches=len(shared),
        missing=tuple(missing),
        complete=len(joules),
        others=len(requests) - len(joules),
        median_j=median_j,
        lower_j=lower_j,
        upper_j=upper_j,
        whole_j=_sum([one.whole.energy_j for one in shared]),
        requests_j=_sum([r.by_tokens.energy_j for r in requests] if requests else [0.0] * len(shared)),
        idle_j=_sum([None if one.idle is None else one.idle.energy_j for one in shared]),
        unattributed_j=_sum([one.unattributed.energy_j for one in shared]),
    )


def median_and_middle(joules: Iterable[float | None]) -> tuple[float | None, float | None, float | None]:
    """The median, and between what the middle 80 % lie; None where joules are unknown, or too few to tell.

    Args:
        joules: of requests, in any order.
    """
    known = sorted(j for j in joules if j is not None)
    beyond = len(known) // 10
    ends = (known[beyond], known[-1 - beyond]) if beyond else (None, None)
    return statistics.median(known) if known else None, *ends


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known and len(known) == len(values) else None


def _stretches(table: RunTable, *, without_polluted: bool = False) -> list[Row]:
    """Those that went well, in the order of the ledger."""
    wanted = pc.and_(table.arrow["load"].is_valid(), pc.equal(table.arrow["status"], "ok"))
    if without_polluted:
        wanted = pc.and_(wanted, pc.invert(table.arrow["polluted"]))
    rows: pa.Table = table.arrow.filter(wanted)
    return list(rows.to_pylist())


def _shared(
    row: Row, folder: Path, component: ComponentName, idle: PowerAtRest | None, curve: Curve | None
) -> StretchJoules:
    whole = ComponentEnergy(
        component,
        row[f"{component}_provenance"] or "unknown",
        row[f"{component}_energy_j"],
        sampling_j=row[f"{component}_independent_j"] or 0.0,
        gain_j=row[f"{component}_gain_j"] or 0.0,
        offset_j=row[f"{component}_offset_j"] or 0.0,
    )
    window = row["start_s"], row["end_s"]
    told = list(_requests(row, folder))
    requests = [request for request, _, _ in told]
    shares = request_shares(whole, *window, requests, by_tokens, idle=idle)
    tokens = {share.name: share for share in shares}
    costs: dict[str, Share] = {}
    more: dict[str, OneMore] = {}
    if curve is not None:
        costs = {s.name: s for s in request_shares(whole, *window, requests, by_curve(curve), idle=idle)}
        if curve.region.running[0] < curve.region.running[1]:
            more = {one.name: one for one in one_more(curve, requests, *window)}
    return StretchJoules(
        row["trial_id"],
        row["cell_id"],
        whole,
        row["duration_s"],
        tuple(
            RequestJoules(one, question, complete, tokens[one.name], costs.get(one.name), more.get(one.name))
            for one, question, complete in told
        ),
        tokens.get(IDLE),
        tokens[UNATTRIBUTED],
    )


class _NotThere(Exception):
    """A file of requests cannot be read; says which, and why."""


def _requests(row: Row, folder: Path) -> Iterator[tuple[BatchRequest, str, bool]]:
    """Those that the steady part saw, with their question and whether it saw all of them; of one that failed, what had
    come.

    Raises:
        _NotThere: their file is not there, or not whole.
    """
    file, from_s, until_s = folder / row["load"]["file"], row["start_s"], row["end_s"]
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for told in map(json.loads, lines):
                start_s, end_s, first_s = told["sent_s"], told["end_s"], told["first_token_s"]
                if start_s is None or end_s <= from_s or start_s >= until_s or not end_s > start_s:
                    continue
                if first_s is not None and not start_s < first_s <= end_s:
                    first_s = None
                prompt, output = told["prompt_tokens"] or 0, told["output_tokens"] or 0
                one = BatchRequest(str(told["number"]), start_s, end_s, prompt, output, first_s)
                yield one, told["question"], told["whole"] and from_s <= start_s and end_s <= until_s
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError) as error:
        raise _NotThere(f"{file} cannot be read ({error})") from error


def _idle(environment: Mapping[str, Any], engine: str, component: str) -> PowerAtRest | None:
    known = idle_powers(environment, engine)
    wanted = [known[name] for name in known if component in ("total", name)]
    if not wanted:
        return None
    return PowerAtRest(sum(one.power_w for one in wanted), sum(one.standard_w for one in wanted))

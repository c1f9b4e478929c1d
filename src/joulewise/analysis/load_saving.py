"""Servers under load: what each cell cost at each load, what a decoding saves there, and where saving turns into loss.

Pure. Repeats of a stretch are the sample: intervals are Student's t over them, on the logarithm. A saving pairs the
stretches of the same repeat, which ran next to one another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow.compute as pc

from joulewise.analysis.cells import VANILLA, natural_order, parts_of
from joulewise.analysis.intervals import Quantity, joint_provenance, unknown_quantity
from joulewise.analysis.load_crossing import Crossing, Level, crossing
from joulewise.analysis.student import quantile
from joulewise.energy.reading import Z95, ComponentName, Provenance
from joulewise.table import RunTable

Rows = Sequence[Mapping[str, Any]]
_Key = tuple[str, str, str, str, str]
SPREADS = ("to_first", "per_token", "between_chunks", "total")
ONE_REPEAT = "one repeat does not tell how unlike the next would be"
UNKNOWN_JOULES = "not every stretch has joules that are known"


@dataclass(frozen=True, slots=True)
class LoadCost:
    """One cell under one load.

    Args:
        run, engine, model, reasoning, task, decoding: which cell.
        load, kind, level: as in ``LoadRecord``.
        repeats, failed: stretches that count, and those that failed.
        component: whose joules.
        energy_per_token_j, power_w, tokens_per_s: of the steady part.
        in_flight, requests_per_s: means over the repeats.
        percentiles_s: of each duration in ``SPREADS`` the 50th, 95th and 99th percentile, each the mean over the
            repeats; None where one of them has too few requests to tell it (means over other repeats would not rise).
        good: share of the requests that met the plan's objective; None where it cannot be told.
        good_per_j: requests that did, per joule of all; None likewise, or where joules are unknown.
        acceptance: accepted over drafted tokens; None where nothing was drafted, or nobody tells.
        late_s: how late the generator itself sent at the 99th percentile, the worst of the repeats.
    """

    run: str
    engine: str
    model: str
    reasoning: str
    task: str
    decoding: str
    load: str
    kind: str
    level: float | None
    repeats: int
    failed: int
    component: ComponentName
    energy_per_token_j: Quantity
    power_w: Quantity
    tokens_per_s: Quantity
    in_flight: float | None
    requests_per_s: float | None
    percentiles_s: Mapping[str, tuple[float | None, float | None, float | None]]
    good: float | None
    good_per_j: float | None
    acceptance: float | None
    late_s: float | None


@dataclass(frozen=True, slots=True)
class LoadSaving:
    """A decoding against vanilla under the same load.

    Args:
        decoding, load, level: which.
        energy: vanilla's joules per output token over the decoding's; above 1 is a saving.
        speed: the decoding's output tokens per second over vanilla's.
        verdict: what the interval of ``energy`` says; None where joules are not measured.
    """

    decoding: str
    load: str
    level: float | None
    energy: Quantity
    speed: Quantity
    verdict: Literal["saves energy", "costs energy", "cannot tell"] | None


@dataclass(frozen=True, slots=True)
class RequestSpread:
    """The joules of single requests of one decoding under one load, by token share, and where all joules went.

    Args:
        decoding, load: which.
        provenance: of the joules.
        stretches: repeats whose requests are told.
        missing: files of the others' requests, as the ledger names them.
        complete: requests that lay in a steady part from start to end and came whole.
        others: requests that ran in a steady part, and of which that is not so.
        median_j, lower_j, upper_j: of the complete ones: the median, and what 10 % lie below and above of; None where
            there are too few to tell, or joules are unknown.
        whole_j: of the steady parts. It is the sum of the following, but for rounding.
        requests_j: of all requests, for what they did in the steady parts.
        idle_j: what is drawn with nothing to do; None where that was not measured: it is in the others.
        unattributed_j: what was drawn above it while no request ran.
    """

    decoding: str
    load: str
    provenance: Provenance
    stretches: int
    missing: tuple[str, ...]
    complete: int
    others: int
    median_j: float | None
    lower_j: float | None
    upper_j: float | None
    whole_j: float | None
    requests_j: float | None
    idle_j: float | None
    unattributed_j: float | None


@dataclass(frozen=True, slots=True)
class UnderLoad:
    """The loads of one task in one engine and reasoning of a run.

    Args:
        costs: by load, vanilla first.
        savings: by decoding and load.
        crossings: by decoding; of those with two loads or more of one kind.
        requests: by load and decoding, in the order of ``costs``; empty where nobody looked (see ``load_shares``).
    """

    run: str
    engine: str
    model: str
    reasoning: str
    task: str
    costs: tuple[LoadCost, ...]
    savings: tuple[LoadSaving, ...]
    crossings: Mapping[str, tuple[Crossing, ...]]
    requests: tuple[RequestSpread, ...] = ()


def under_load(table: RunTable, *, without_polluted: bool = False) -> tuple[UnderLoad, ...]:
    """All that a table says of servers under load; nothing of runs without."""
    rows = table.arrow.filter(table.arrow["load"].is_valid())
    if without_polluted:
        rows = rows.filter(pc.invert(rows["polluted"]))
    groups: dict[_Key, list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        task = row["task"].removesuffix(f"/{row['load']['label']}")
        groups.setdefault((row["run"], row["engine"], row["model"], row["reasoning"], task), []).append(row)
    return tuple(_under_load(key, groups[key]) for key in sorted(groups, key=lambda k: [natural_order(p) for p in k]))


def _under_load(key: _Key, rows: Rows) -> UnderLoad:
    component = component_of(rows)
    cells: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda r: (_order(r), r["repeat"])):
        cells.setdefault((row["load"]["label"], row["decoding"]), []).append(row)
    costs = tuple(_cost(key, decoding, found, component) for (_, decoding), found in cells.items())
    savings: list[LoadSaving] = []
    levels: dict[str, dict[str, list[tuple[float, LoadSaving, Level | None]]]] = {}
    for (load, decoding), found in cells.items():
        if decoding == VANILLA:
            continue
        about = found[0]["load"]
        saving, level = _saving(cells.get((load, VANILLA), []), found, component)
        savings.append(saving)
        if about["level"] is not None:
            levels.setdefault(decoding, {}).setdefault(about["kind"], []).append((about["level"], saving, level))
    crossings = {
        decoding: tuple(_crossing(kind, several) for kind, several in kinds.items() if len(several) > 1)
        for decoding, kinds in levels.items()
    }
    return UnderLoad(*key, costs, tuple(savings), crossings)


def _order(row: Mapping[str, Any]) -> list[Any]:
    load, decoding = row["load"], row["decoding"]
    level = math.inf if load["level"] is None else load["level"]
    return [load["kind"], level, natural_order(load["label"]), decoding != VANILLA, natural_order(decoding)]


def component_of(rows: Rows) -> ComponentName:
    """The GPU where it alone is measured, else the total."""

    def measured(name: str) -> bool:
        return any(row[f"{name}_provenance"] == "measured" for row in rows)

    return "gpu" if measured("gpu") and not measured("total") else "total"


def _ok(rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["status"] == "ok"]


def _per_token_j(row: Mapping[str, Any], component: ComponentName) -> float | None:
    energy_j, tokens = row[f"{component}_energy_j"], row["load"]["output_tokens"]
    return energy_j / tokens if energy_j and tokens else None


def _rate(row: Mapping[str, Any]) -> float | None:
    return row["load"]["output_tokens"] / row["duration_s"] if row["duration_s"] > 0.0 else None


def _cost(key: _Key, decoding: str, rows: Rows, component: ComponentName) -> LoadCost:
    ok, about = _ok(rows), rows[0]["load"]
    provenance = joint_provenance({row[f"{component}_provenance"] for row in ok})
    common = _mean([_common(row, component) for row in ok]) or 0.0
    powers = [row[f"{component}_energy_j"] and row[f"{component}_energy_j"] / row["duration_s"] for row in ok]
    good = [(row["load"]["good"], row["load"]["requests"], row[f"{component}_energy_j"]) for row in ok]
    met = None if not good or None in [g for g, _, _ in good] else sum(g for g, _, _ in good)
    asked, joules = sum(n for _, n, _ in good), [j for _, _, j in good]
    drafted = [(row["drafted_tokens"], row["accepted_tokens"]) for row in ok]
    told = None if not drafted or None in [d for d, _ in drafted] else sum(d for d, _ in drafted)
    return LoadCost(
        *key,
        decoding,
        about["label"],
        about["kind"],
        about["level"],
        len(ok),
        len(rows) - len(ok),
        component,
        over_repeats([_per_token_j(row, component) for row in ok], provenance, common),
        over_repeats(powers, provenance, common),
        over_repeats([_rate(row) for row in ok], "measured"),
        _mean([row["load"]["in_flight"] for row in ok]),
        _mean([row["load"]["ended"] / row["duration_s"] for row in ok]),
        {name: _percentiles(ok, name) for name in SPREADS},
        None if met is None or not asked else met / asked,
        None if met is None or None in joules or not sum(joules) else met / sum(joules),
        sum(a for _, a in drafted) / told if told else None,
        max((row["load"]["late_p99_s"] for row in ok if row["load"]["late_p99_s"] is not None), default=None),
    )


def _percentiles(rows: Rows, name: str) -> tuple[float | None, float | None, float | None]:
    told = [[row["load"][name][f"p{level}_s"] for row in rows] for level in (50, 95, 99)]
    p50, p95, p99 = (None if None in values else _mean(values) for values in told)
    return p50, p95, p99


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _common(row: Mapping[str, Any], component: ComponentName) -> float | None:
    energy_j = row[f"{component}_energy_j"]
    return (row[f"{component}_gain_j"] + row[f"{component}_offset_j"]) / energy_j if energy_j else None


def over_repeats(values: Sequence[float | None], provenance: Any, common: float = 0.0) -> Quantity:
    """The geometric mean over repeats, with Student's interval on the logarithm.

    Args:
        values: one a repeat, above 0; None where it is not known.
        provenance: of what is in it.
        common: relative standard uncertainty that repeats do not shrink; added linearly.
    """
    known = [value for value in values if value is not None and value > 0.0]
    if not known or len(known) < len(values):
        return unknown_quantity(UNKNOWN_JOULES if values else "no stretch succeeded", 0, len(known))
    mean, se, df = _logs(known)
    if not df:
        return Quantity(math.exp(mean), None, None, 0, 1, provenance, ONE_REPEAT, common=common)
    half = quantile(0.025, df) * se + Z95 * common
    return Quantity(
        math.exp(mean), math.exp(mean - half), math.exp(mean + half), 0, len(known), provenance, common=common
    )


def _logs(values: Sequence[float]) -> tuple[float, float, int]:
    """Mean, its standard error and degrees of freedom of the logarithms."""
    logs, n = [math.log(value) for value in values], len(values)
    mean = math.fsum(logs) / n
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (n - 1)) if n > 1 else math.nan
    return mean, spread / math.sqrt(n), n - 1


def _saving(vanilla: Rows, method: Rows, component: ComponentName) -> tuple[LoadSaving, Level | None]:
    about, decoding = method[0]["load"], method[0]["decoding"]
    plain, ours = ({row["repeat"]: row for row in _ok(rows)} for rows in (vanilla, method))
    pairs = [(plain[repeat], ours[repeat]) for repeat in sorted(plain.keys() & ours.keys())]
    if not pairs:
        nothing = unknown_quantity("vanilla and this decoding have no stretch of the same load and repeat in common")
        return LoadSaving(decoding, about["label"], about["level"], nothing, nothing, None), None
    both = [row for pair in pairs for row in pair]
    provenance = joint_provenance({row[f"{component}_provenance"] for row in both})
    common = _common_of_ratio(pairs, component)
    ratios = [_ratio(_per_token_j(v, component), _per_token_j(m, component)) for v, m in pairs]
    energy = over_repeats(ratios, provenance, common)
    speed = over_repeats([_ratio(_rate(m), _rate(v)) for v, m in pairs], "measured")
    verdict: Literal["saves energy", "costs energy", "cannot tell"] | None = None
    level = None
    if energy.provenance == "measured" and energy.value is not None:
        verdict = "cannot tell"
        if energy.lower is not None and energy.upper is not None:
            verdict = "saves energy" if energy.lower > 1.0 else "costs energy" if energy.upper < 1.0 else verdict
            mean, se, df = _logs([ratio for ratio in ratios if ratio is not None])
            level = None if about["level"] is None else Level(about["level"], mean, se, df, common)
    return LoadSaving(decoding, about["label"], about["level"], energy, speed, verdict), level


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def _common_of_ratio(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], component: ComponentName) -> float:
    """As in ``savings``: what the same gain and offset on both sides leave of ln of the ratio."""
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    totals = [math.fsum(row[f"{component}_energy_j"] or 0.0 for row in rows) for rows in sides]
    if min(totals) <= 0.0:
        return 0.0
    names = parts_of(component, lambda part: {row[f"{part}_provenance"] for rows in sides for row in rows})
    terms = []
    for part in names:
        for error in ("gain", "offset"):
            shares = [
                math.fsum(row[f"{part}_{error}_j"] or 0.0 for row in rows) / total
                for rows, total in zip(sides, totals, strict=True)
            ]
            terms.append(abs(shares[0] - shares[1]))
    return math.fsum(terms)


def _crossing(kind: str, several: Sequence[tuple[float, LoadSaving, Level | None]]) -> Crossing:
    loads = sorted(level for level, _, _ in several)
    known = [level for _, _, level in several if level is not None]
    if len(known) < len(several):
        why = next((saving.energy for _, saving, level in several if level is None), None)
        reason = "modelled joules prove neither a saving nor a cost"
        if why is not None and why.provenance != "modelled":
            reason = why.reason or "not every load has a saving with an interval"
        return Crossing("cannot tell", kind, loads[0], loads[-1], reason=reason)
    return crossing(known, kind)

"""The operating curve of each engine in a run, with what is needed to see how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from joulewise.analysis.cells import VANILLA, Cell, Components
from joulewise.analysis.curve_points import Origin, run_points
from joulewise.analysis.curves import (
    ATTENTION,
    ROOT,
    SHARED,
    TOKEN,
    Curve,
    Points,
    fit_curve,
    form_for,
    held_out_errors,
)
from joulewise.analysis.intervals import Quantity
from joulewise.analysis.tradeoffs import component_of
from joulewise.errors import UserError
from joulewise.table import RunTable

MOST = 2000
"""About so many Trials, evenly taken, carry a curve here: more would take a report minutes."""

MOST_SHOWN = 300
"""About so many points, evenly taken, are kept to be drawn."""

QUANTILES = (0.1, 0.5, 0.9)
"""By their joules, the points that stand for small, middling and large requests."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One measured point beside what the curve says of it.

    Args:
        prompt_tokens, output_tokens, running: of one request.
        energy_j: as measured.
        told_j: as predicted from the other points.
        inside: whether these enclose it; else the curve was continued beyond them.
    """

    prompt_tokens: float
    output_tokens: float
    running: float
    energy_j: float
    told_j: float
    inside: bool


@dataclass(frozen=True, slots=True)
class Margins:
    """What the curve says of a request, on average and at the margin, in joules.

    Args:
        prompt_tokens, output_tokens, running: of the request.
        energy_j: of it all.
        per_output_token_j: that over its output tokens.
        last_output_token_j: what its last output token adds.
        next_prompt_token_j: what one more prompt token would add.
        another_request_j: what one more such request would add to the joules of all; None where the load did not vary.
    """

    prompt_tokens: float
    output_tokens: float
    running: float
    energy_j: float
    per_output_token_j: float
    last_output_token_j: float
    next_prompt_token_j: float
    another_request_j: float | None


@dataclass(frozen=True, slots=True)
class OperatingCurve:
    """Joules over tokens and load, of one engine and decoding in a run.

    Args:
        run: which.
        origin: what it is of.
        curve: the fit.
        points: how many carry it.
        rise: by how much more the last output token costs than the first, from the shortest output to the longest that
            was measured, behind the middle prompt; relative.
        ends: of the shortest and of the longest output that was measured, behind the middle prompt at the least load.
        middle: of the middle prompt and the middle output, at the least and at the most load.
        shown: the points to draw, at most about ``MOST_SHOWN``.
        typical: the points that stand for small, middling and large requests, with what the curve says of such.
        notes: what was left out and how well a point is known, one sentence each.
    """

    run: str
    origin: Origin
    curve: Curve
    points: int
    rise: Quantity
    ends: tuple[Margins, Margins]
    middle: tuple[Margins, Margins]
    shown: tuple[Seen, ...]
    typical: tuple[tuple[Seen, Margins], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoCurve:
    """Why a sweep gives no curve: run, engine and the reason."""

    run: str
    engine: str
    why: str


def operating_curves(
    cells: Sequence[Cell], components: Components, environments: Mapping[str, Mapping[str, Any]]
) -> tuple[OperatingCurve | NoCurve, ...]:
    """A curve of every engine whose measured joules carry one: of its vanilla decoding, or of the only one it has.

    Of a sweep that carries none the reason is told; other runs are not made for it, and are passed over.

    Args:
        cells: from one ``split``.
        components: whose joules to tell.
        environments: by run.
    """
    found: list[OperatingCurve | NoCurve] = []
    for run, engine in dict.fromkeys((cell.key.run, cell.key.engine) for cell in cells):
        mine = [c for c in cells if (c.key.run, c.key.engine) == (run, engine) and c.rows.num_rows]
        decodings = {cell.key.decoding for cell in mine}
        decoding = VANILLA if VANILLA in decodings else next(iter(decodings)) if len(decodings) == 1 else None
        plain = [cell for cell in mine if cell.key.decoding == decoding]
        if not plain:
            continue
        rows = pa.concat_tables([cell.rows for cell in plain])
        step = max(1, rows.num_rows // MOST)
        kept = rows.take(np.arange(0, rows.num_rows, step))
        table = RunTable(kept, environments={run: environments.get(run, {})})
        try:
            points = run_points(table, engine=engine, decoding=decoding, component=component_of(plain, components))
            curve = fit_curve(points.points, by=points.by)
        except UserError as error:
            if rows["running"].null_count < rows.num_rows:
                found.append(NoCurve(run, engine, str(error)))
            continue
        thinned = f"{kept.num_rows:,} of {rows.num_rows:,} Trials, evenly taken, carry it; `joulewise curve` takes all"
        notes = (*([thinned] if step > 1 else []), *points.notes)
        found.append(_found(run, points.origin, curve, points.points, notes))
    return tuple(found)


def _found(run: str, origin: Origin, curve: Curve, points: Points, notes: tuple[str, ...]) -> OperatingCurve:
    errors, inside = held_out_errors(points, form_for(points))
    at = zip(points.prompt_tokens, points.output_tokens, points.running, points.energy_j, errors, inside, strict=True)
    seen = [
        Seen(float(p), float(o), float(b), float(joules), float(joules * (1.0 + error)), bool(within))
        for p, o, b, joules, error, within in at
    ]
    order = np.argsort(points.energy_j, kind="stable")
    typical = dict.fromkeys(int(order[round(share * (len(seen) - 1))]) for share in QUANTILES)
    p, o = float(np.median(points.prompt_tokens)), float(np.median(points.output_tokens))
    least, most = curve.region.running
    shortest, longest = curve.region.output_tokens
    return OperatingCurve(
        run,
        origin,
        curve,
        len(seen),
        _rise(curve, p, len(np.unique(points.unit)), len(seen)),
        (_margins(curve, p, shortest, least), _margins(curve, p, longest, least)),
        (_margins(curve, p, o, least), _margins(curve, p, o, most)),
        tuple(seen[:: -(-len(seen) // MOST_SHOWN)]),
        tuple((s, _margins(curve, s.prompt_tokens, s.output_tokens, s.running)) for s in (seen[i] for i in typical)),
        notes,
    )


def _margins(curve: Curve, p: float, o: float, b: float) -> Margins:
    whole_j, loads = curve.energy_j(p, o, b), curve.region.running
    return Margins(
        p,
        o,
        b,
        whole_j,
        whole_j / o,
        curve.output_token_j(p, o, b),
        curve.prompt_token_j(p, o, b),
        curve.another_request_j(p, o, b) if loads[0] < loads[1] else None,
    )


def _rise(curve: Curve, prompt_tokens: float, questions: int, trials: int) -> Quantity:
    """The relative rise of an output token's joules from the shortest output to the longest that was measured.

    At the least load that was measured, where a token costs ``a + b/B + c/sqrt(B) + f (p + i)``.
    """
    slope, (first, last) = curve.coefficients[ATTENTION.name], curve.region.output_tokens
    running = np.array([curve.region.running[0]])
    one = np.ones(1)
    own = [
        (curve.coefficients[term.name], float(term.column(one, one, running)[0]))
        for term in (TOKEN, SHARED, ROOT)
        if term.name in curve.coefficients
    ]
    # What a token costs by itself and what it costs by context pull against each other: much of one, little of the
    # other.
    least, flat, most = (sum(getattr(c, end) * share for c, share in own) for end in ("lower", "value", "upper"))

    def risen(per_context: float, per_token: float) -> float:
        at_first = per_token + per_context * (prompt_tokens + first)
        return per_context * (last - first) / at_first if per_context else 0.0

    ends = (risen(slope.value, flat), risen(slope.lower, most), risen(slope.upper, least))
    return Quantity(*ends, questions, trials, "measured")

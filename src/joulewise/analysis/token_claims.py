"""Evidence on the claims of arXiv 2603.20224 about utilisation and successive tokens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from joulewise.analysis.cells import VANILLA, Cell, CellKey, dense
from joulewise.analysis.evidence import MODELLED, Evidence, Figure, above, as_ratio, below, greater, larger_share
from joulewise.analysis.intervals import MIN_QUESTIONS, TOO_FEW, Floats, Quantity
from joulewise.analysis.measured_run import MeasuredRun
from joulewise.analysis.operating import OperatingCurve
from joulewise.analysis.student import quantile
from joulewise.counted import counted

LINEAR = 0.05
"""Where the last output token costs at most so much more than the first, energy counts as linear."""


def utilisation(run: MeasuredRun) -> list[Evidence]:
    """(j) Of every two cells of an engine: does the one that used the card more draw more joules a token?"""
    folder = run.table.folders.get(run.name)
    if folder is None:
        return []
    sources = run.environment.get("sources") or ()
    cards = [s.get("source_id") for s in sources if isinstance(s, Mapping) and s.get("component") == "gpu"]
    try:
        times, shares = _samples(folder, cards)
    except (pa.ArrowException, OSError) as error:
        reason = f"a part of the timeline cannot be read ({error}); copy it again from where it was run"
        return [Evidence("all cells", (), None, None, reason)]
    joules = {cost.key: cost.component(run.components[cost.key.head]).energy_per_token_j for cost in run.costs}
    known = []
    for cell in run.cells:
        used = _used(cell, times, shares)
        if used is not None and joules[cell.key].value is not None:
            known.append((cell.key, used, joules[cell.key]))
    names = _names([key for key, *_ in known])
    found = []
    for one, other in itertools.combinations(known, 2):
        if one[0].engine == other[0].engine:
            (key, more, its_joules), (its_key, less, joules_there) = sorted(
                (one, other), key=lambda each: each[1].value or 0.0, reverse=True
            )
            figures = (
                Figure("utilisation {}", more, "share"),
                Figure("against {}", less, "share"),
                Figure("{} J per token", its_joules),
                Figure("against {}", joules_there),
            )
            where, apart = f"{names[key]} beside {names[its_key]}", larger_share(more, less)
            p_for, p_against = greater(its_joules, joules_there), greater(joules_there, its_joules)
            if apart is not None and p_for is not None and p_against is not None:
                found.append(Evidence(where, figures, max(apart, p_for), max(apart, p_against)))
            else:
                modelled = "modelled" in (its_joules.provenance, joules_there.provenance)
                reasons = (q.reason for q in (more, less, its_joules, joules_there))
                why = MODELLED if modelled else next((r for r in reasons if r), None)
                found.append(Evidence(where, figures, None, None, why))
    return found


def successive_tokens(run: MeasuredRun) -> list[Evidence]:
    """(k) Of every engine's vanilla: by how much more does the last output token cost than the first?

    From the fitted curve: token number i costs ``a + f (p + i)``, at the middle prompt that was measured.
    """
    found = []
    for one in run.curves:
        if isinstance(one, OperatingCurve) and one.origin.decoding == VANILLA:
            first, last = one.curve.region.output_tokens
            where = (
                f"output token {last:,.0f} against {first:,.0f}, behind "
                f"{counted(one.ends[0].prompt_tokens, 'prompt token')} "
                f"({one.origin.engine})"
            )
            ratio = as_ratio(one.rise)
            error = one.curve.held_out.inside
            told = Quantity(error.median, None, None, error.points, error.points, "measured")
            figures = (
                Figure("energy {}", one.rise, "change"),
                Figure("the curve's held-out error (median) {}", told, "share"),
            )
            found.append(Evidence(where, figures, above(ratio, 1.0), below(ratio, 1.0 + LINEAR), one.rise.reason))
    return found


def _samples(folder: Path, cards: Sequence[Any]) -> tuple[Floats, Floats]:
    """When a run's cards told their utilisation, in order, and what it was."""
    parts = []
    for path in sorted((folder / "timeline").glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            if "utilisation" in file.schema_arrow.names:  # timelines of before it was kept have none
                part = file.read(["time_s", "source_id", "utilisation"]).drop_null()
                of_cards = pc.is_in(part["source_id"].cast(pa.string()), pa.array(cards, pa.string()))
                parts.append(part.select(["time_s", "utilisation"]).filter(of_cards))
    if not parts:
        return np.empty(0), np.empty(0)
    whole = pa.concat_tables(parts).sort_by("time_s")
    return whole["time_s"].to_numpy(), whole["utilisation"].to_numpy()


def _used(cell: Cell, times: Floats, shares: Floats) -> Quantity | None:
    """How much of the time the card was at work in a cell: the mean over its questions, with Student's interval."""
    starts, ends = (np.searchsorted(times, cell.numbers(name)) for name in ("start_s", "end_s"))
    seen = ends > starts
    if not seen.any():
        return None
    cumulated = np.concatenate([[0.0], np.cumsum(shares)])
    means = (cumulated[ends[seen]] - cumulated[starts[seen]]) / (ends[seen] - starts[seen])
    codes, n = dense(cell.questions[seen])
    of_question = np.bincount(codes, means, n) / np.bincount(codes, minlength=n)
    value, trials = float(of_question.mean()), int(seen.sum())
    if n < MIN_QUESTIONS:
        return Quantity(value, None, None, n, trials, "measured", f"{TOO_FEW} last long enough to see it")
    half = quantile(0.025, n - 1) * float(of_question.std(ddof=1)) / math.sqrt(n)
    return Quantity(value, max(0.0, value - half), min(1.0, value + half), n, trials, "measured")


def _names(keys: Sequence[CellKey]) -> dict[CellKey, str]:
    """Cells by what differs among them."""
    parts = [p for p in ("decoding", "reasoning", "task", "engine") if len({getattr(k, p) for k in keys}) > 1]
    return {key: ", ".join(getattr(key, part) for part in parts) for key in keys}

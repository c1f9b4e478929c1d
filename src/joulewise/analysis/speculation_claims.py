"""Evidence on the claims of arXiv 2602.09113: speculation, its cost and what that depends on."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulewise.analysis.cells import VANILLA, Cell, CellKey
from joulewise.analysis.evidence import MODELLED, Evidence, Figure, above, below, greater, within
from joulewise.analysis.explain import family
from joulewise.analysis.intervals import Floats, Quantity
from joulewise.analysis.measured_run import MeasuredRun
from joulewise.analysis.phases import OVERHEAD_OF_THE_PAPER
from joulewise.analysis.platforms import two_way_tables
from joulewise.analysis.published import RATIO
from joulewise.analysis.savings import Gamma

HEADS, DRAFTS = ("eagle2", "eagle3"), ("coga", "dyga")

KINDS = {
    "humaneval": "code",
    "starter-code": "code",
    "gsm8k": "maths",
    "starter-maths": "maths",
    "cnn_dm": "summaries",
    "starter-summarisation": "summaries",
}
"""Of the tasks that the claim about tasks ranks."""

RANKED = ("code", "maths", "summaries")
"""From the most that is saved to the least."""


@dataclass(frozen=True, slots=True)
class _Set:
    """What generated: an engine as it told of itself."""

    kind: str | None
    model: str | None
    quantisation: str
    parameters: int | None
    drafts: Mapping[str, str]


def faster_yet_costlier(run: MeasuredRun) -> list[Evidence]:
    """(a) Of every decoding that is faster: does it draw more energy?"""
    found = []
    for key, saving, energy in run.saved():
        time = saving.time.ratio
        faster = above(time, 1.0)
        if time.value is None or energy.ratio.value is None or faster is None:
            continue
        more, less = below(energy.ratio, 1.0), above(energy.ratio, 1.0)
        known = more is not None and less is not None
        if time.value <= 1.0:
            continue
        found.append(
            Evidence(
                _name(key, run),
                (Figure("time factor {}", time), _saved(energy)),
                max(faster, more) if more is not None else None,
                max(faster, less) if less is not None else None,
                None if known else _why(energy.ratio),
            )
        )
    return found


def size_ratio(run: MeasuredRun) -> list[Evidence]:
    """(b) Of the same decoding on two targets: does the one that is larger beside its draft save more?"""
    known = []
    for key, _, energy in run.saved():
        engine = _engine(run, key)
        size = re.search(r"([\d,]+) parameters", engine.drafts.get(key.decoding, ""))
        if energy.ratio.value is not None and engine.parameters and size and family(key.decoding) in DRAFTS:
            known.append((engine.parameters / int(size[1].replace(",", "")), engine, key, energy))
    found = []
    for one, other in itertools.combinations(known, 2):
        (low, engine, key, less), (high, its_engine, its_key, more) = sorted((one, other), key=lambda each: each[0])
        alike = (key.task, key.reasoning, key.decoding) == (its_key.task, its_key.reasoning, its_key.decoding)
        same = (engine.kind, engine.quantisation) == (its_engine.kind, its_engine.quantisation)
        if alike and same and high >= RATIO * low:
            names = f"{its_key.engine} ({high:.3g} times its draft) and {key.engine} ({low:.3g})"
            where = f"{key.decoding} on {key.task}: {names}"
            found.append(_ordered(where, _saved(more, its_key.engine), _saved(less, key.engine)))
    return found


def heads_against_drafts(run: MeasuredRun) -> list[Evidence]:
    """(c) Does every head save more than every draft model on the same target and task?"""
    found = []
    for (_, head), (_, draft) in _side_by_side(run, lambda key: key.group):
        if family(head[0].decoding) in HEADS and family(draft[0].decoding) in DRAFTS:
            where = f"{_name(head[0], run)} against {draft[0].decoding}"
            found.append(_ordered(where, _saved(head[1], head[0].decoding), _saved(draft[1], draft[0].decoding)))
    return found


def tasks(run: MeasuredRun) -> list[Evidence]:
    """(d) Does a decoding save more on code than on maths, and there more than on summaries?"""
    kinds = _task_kinds(run)

    def but_for_the_task(key: CellKey) -> tuple[str, ...]:
        return (*key.head, key.decoding)

    found = []
    for (_, one), (_, other) in _side_by_side(run, but_for_the_task):
        kind, its_kind = kinds.get(one[0].task), kinds.get(other[0].task)
        if kind in RANKED and its_kind in RANKED and RANKED.index(kind) < RANKED.index(its_kind):
            where = f"{one[0].decoding}{_engine_name(one[0], run)}: {one[0].task} against {other[0].task}"
            found.append(_ordered(where, _saved(one[1], one[0].task), _saved(other[1], other[0].task)))
    return found


def goes_with(run: MeasuredRun) -> tuple[tuple[str, float, int], ...]:
    """What the energy saved goes with from task to task, over every decoding with at least three.

    Returns:
        what, the correlation of the ranks that tasks have within their decoding, and of how many cells.
    """
    factors = {key: energy.ratio for key, _, energy in run.saved()}
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in run.cells:
        factor = factors.get(cell.key)
        if factor is not None and factor.value and factor.provenance == "measured":
            groups.setdefault((*cell.key.head, cell.key.decoding), []).append(cell)
    several = [group for group in groups.values() if len(group) >= 3]
    if not several:
        return ()

    def ranked(tell: Callable[[Cell], float]) -> Floats:
        return np.concatenate([_ranks([tell(cell) for cell in group]) for group in several])

    columns = {
        "tokens accepted a round": ranked(lambda c: _per(c, "accepted_tokens", "rounds")),
        "prompt tokens": ranked(lambda c: float(c.numbers("prompt_tokens").mean())),
        "output tokens": ranked(lambda c: float(c.numbers("output_tokens").mean())),
    }
    saved = ranked(lambda c: factors[c.key].value or 0.0)
    return tuple(
        (name, float(np.corrcoef(saved, column)[0, 1]), len(saved))
        for name, column in columns.items()
        if saved.any() and column.any()
    )


def platform_or_quantisation(run: MeasuredRun) -> list[Evidence]:
    """(e) Of one model's vanilla: is the step from quantisation to quantisation larger than that between platforms?"""
    tables = two_way_tables(run.table, run.cells, run.components, run.costs)
    found = []
    for one in tables:
        names = [one.task, *([one.model] if len({t.model for t in tables}) > 1 else []), *filter(None, [one.setting])]
        for step in one.steps:
            (q, other_q), (p, other_p) = step.quantisations, step.platforms
            figures = (
                Figure(f"{{}} times from {q} to {other_q}", step.quantisation),
                Figure(f"{{}} times from {p} to {other_p}", step.platform),
            )
            known = step.p_quantisation is not None and step.p_platform is not None
            why = None if known else _why(step.quantisation) or _why(step.platform)
            found.append(Evidence(", ".join(names), figures, step.p_quantisation, step.p_platform, why))
    return found


def overhead(run: MeasuredRun) -> list[Evidence]:
    """(f) Of every decoding that speculates: is the overhead's share of its seconds what the paper says?"""
    found = []
    for shares in run.shares:
        if shares.key.decoding != VANILLA and shares.overhead.value is not None:
            p_for, p_against = within(shares.overhead, *OVERHEAD_OF_THE_PAPER) or (None, None)
            figure = Figure("{} of the seconds", shares.overhead, "share")
            why = None if p_for is not None else shares.overhead.reason
            found.append(Evidence(_name(shares.key, run), (figure,), p_for, p_against, why))
    return found


def _side_by_side(
    run: MeasuredRun, alike: Callable[[CellKey], Any]
) -> Iterator[tuple[tuple[int, tuple[CellKey, Gamma]], ...]]:
    """All ordered pairs of savings of which ``alike`` says the same."""
    known = [(key, energy) for key, _, energy in run.saved() if energy.ratio.value is not None]
    for pair in itertools.permutations(enumerate(known), 2):
        if alike(pair[0][1][0]) == alike(pair[1][1][0]):
            yield pair


def _ordered(where: str, first: Figure, second: Figure) -> Evidence:
    """Evidence on the claim that the first figure is the greater."""
    p_for, p_against = greater(first.quantity, second.quantity), greater(second.quantity, first.quantity)
    known = p_for is not None and p_against is not None
    why = None if known else _why(first.quantity) or _why(second.quantity)
    return Evidence(where, (first, second), p_for, p_against, why)


def _saved(energy: Gamma, of: str = "") -> Figure:
    return Figure(f"energy factor{f' ({of})' if of else ''} {{}}", energy.ratio)


def _why(quantity: Quantity) -> str | None:
    return MODELLED if quantity.provenance == "modelled" else quantity.reason


def _per(cell: Cell, above: str, below: str) -> float:
    return float(cell.numbers(above).sum() / max(1.0, cell.numbers(below).sum()))


def _ranks(values: Sequence[float]) -> Floats:
    """Ranks less their mean; equal values share theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return np.asarray(ranks - ranks.mean(), dtype=np.float64)


def _engine(run: MeasuredRun, key: CellKey) -> _Set:
    told = run.engine(key)
    drafts = told.get("drafts")
    parameters = told.get("parameters")
    return _Set(
        told.get("engine"),
        key.model,
        str(told.get("quantisation") or "none"),
        parameters if isinstance(parameters, int) else None,
        drafts if isinstance(drafts, Mapping) else {},
    )


def _task_kinds(run: MeasuredRun) -> dict[str, str]:
    """Code, maths or summaries, by the label of a task."""
    kinds = dict(KINDS)
    for spec in run.table.plans.get(run.name, {}).get("tasks") or ():
        if isinstance(spec, Mapping) and spec.get("name") in KINDS and spec.get("label"):
            kinds[str(spec["label"])] = KINDS[spec["name"]]
    return kinds


def _name(key: CellKey, run: MeasuredRun) -> str:
    return f"{key.decoding} on {key.task}{_engine_name(key, run)}"


def _engine_name(key: CellKey, run: MeasuredRun) -> str:
    """The engine and the reasoning of a cell, as far as the run has several."""
    parts = [getattr(key, part) for part in ("engine", "reasoning") if run.several(part)]
    return f" ({', '.join(parts)})" if parts else ""

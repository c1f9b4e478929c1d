"""Evidence on the claims of arXiv 2603.20224 about votes, chain of thought and a larger model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from joulewise.analysis.cells import VANILLA, Cell, CellKey, Components
from joulewise.analysis.contrast import contrast
from joulewise.analysis.evidence import MODELLED, Evidence, Figure, as_ratio, both, within
from joulewise.analysis.measured_run import MeasuredRun
from joulewise.analysis.published import (
    LARGER,
    LARGER_ENERGY,
    LARGER_GAIN,
    STEPS_ENERGY,
    STEPS_GAIN,
    VOTES_ENERGY,
    VOTES_GAIN,
)
from joulewise.analysis.side_by_side import Sample, side_by_side
from joulewise.analysis.tradeoffs import DIRECT, component_of

_Range = tuple[float | None, float]


def votes(run: MeasuredRun) -> list[Evidence]:
    """(g) Every vote over direct answers against one direct answer."""
    return _reasonings(run, "vote-", (None, VOTES_GAIN), VOTES_ENERGY)


def steps(run: MeasuredRun) -> list[Evidence]:
    """(h) Every chain of thought against the direct answer."""
    return _reasonings(run, "cot-", (None, STEPS_GAIN), STEPS_ENERGY)


def larger(run: MeasuredRun) -> list[Evidence]:
    """(i) Direct answers of every model against those of one that is about an eighth of its size."""

    def size(key: CellKey) -> int:
        parameters = run.engine(key).get("parameters")
        return parameters if isinstance(parameters, int) else 0

    def about_eight_times(small: CellKey, large: CellKey) -> bool:
        engines = [run.engine(key) for key in (small, large)]
        alike = all(engines[0].get(name) == engines[1].get(name) for name in ("engine", "quantisation", "dtype"))
        low, high = size(small), size(large)
        return alike and low > 0 and LARGER[0] * low <= high <= LARGER[1] * low

    plain = [c for c in run.cells if c.key.reasoning == DIRECT and c.key.decoding == VANILLA]
    found = []
    for sample, base, new in _pairs(plain, run.components, about_eight_times):
        keys = sample.board.keys
        where = f"{keys[new].task}: {keys[new].engine} against {keys[base].engine}"
        found.append(_held(where, sample, base, new, LARGER_GAIN, LARGER_ENERGY))
    return found


def _reasonings(run: MeasuredRun, begins: str, gain: _Range, energy: tuple[float, float]) -> list[Evidence]:
    """Every reasoning whose label begins so, against direct answers of the same engine and decoding."""

    def same_but_direct(base: CellKey, new: CellKey) -> bool:
        alike = (base.engine, base.model, base.decoding) == (new.engine, new.model, new.decoding)
        return alike and base.reasoning == DIRECT and new.reasoning.startswith(begins)

    relevant = [c for c in run.cells if c.key.reasoning == DIRECT or c.key.reasoning.startswith(begins)]
    found = []
    for sample, base, new in _pairs(relevant, run.components, same_but_direct):
        key = sample.board.keys[new]
        several = [len({getattr(c.key, part) for c in relevant}) > 1 for part in ("decoding", "engine")]
        parts = ", ".join(n for n, s in zip((key.decoding, key.engine), several, strict=True) if s)
        where = f"{key.reasoning} on {key.task}{f' ({parts})' if parts else ''}"
        found.append(_held(where, sample, base, new, gain, energy))
    return found


def _pairs(
    cells: Sequence[Cell], components: Components, fits: Callable[[CellKey, CellKey], bool]
) -> Iterator[tuple[Sample, int, int]]:
    """Two cells of a task on the questions that both answered: the baseline's column, and the other's."""
    for base, new in itertools.permutations(cells, 2):
        if base.key.task == new.key.task and fits(base.key, new.key):
            board = side_by_side((base, new), component_of((base, new), components))
            if len(board.keys) == 2 and len(board.categories):
                yield Sample(board, np.arange(len(board.categories))), 0, 1


def _held(where: str, sample: Sample, base: int, new: int, gain: _Range, energy: tuple[float, float]) -> Evidence:
    """The change of accuracy and of joules against what is published; a change of accuracy alone decides nothing."""
    found = contrast(sample, base, new)
    figures = (
        Figure("accuracy {}", found.quality_relative, "change"),
        Figure("energy {}", found.energy_relative, "change"),
    )
    costs = within(as_ratio(found.energy_relative), *energy)
    if costs is None:
        modelled = found.energy_relative.provenance == "modelled"
        return Evidence(where, figures, None, None, MODELLED if modelled else found.energy_relative.reason)
    p_for, p_against = both(within(as_ratio(found.quality_relative), *gain), costs)
    return Evidence(where, figures, p_for, p_against)

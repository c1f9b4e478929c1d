"""Two cells, Trial by Trial: the same question and repeat, answered in both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from joulewise.analysis.cells import Cell, dense, sum_by_unit
from joulewise.analysis.intervals import Floats, resample

_RESAMPLED = ("duration_s", "output_tokens", "gpu_energy_j", "total_energy_j")


@dataclass(frozen=True, eq=False)
class Pairs:
    """Trials of the same question and repeat, ok in both cells.

    Args:
        vanilla, method: the two cells.
        ours, theirs: row numbers of the pairs in the method's and in vanilla's ok Trials.
        codes: each pair's question, numbered from 0 to ``n``.
        n: number of questions.
        tried: number of questions that either cell tried.
    """

    vanilla: Cell
    method: Cell
    theirs: npt.NDArray[np.intp]
    ours: npt.NDArray[np.intp]
    codes: npt.NDArray[np.intp]
    n: int
    tried: int

    @classmethod
    def of(cls, vanilla: Cell, method: Cell) -> Pairs:
        """The pairs of two cells that both have ok Trials."""
        repeats = [cell.numbers("repeat").astype(np.int64) for cell in (vanilla, method)]
        most = max(int(r.max()) for r in repeats) + 1
        keys = [cell.questions * most + r for cell, r in zip((vanilla, method), repeats, strict=True)]
        both, theirs, ours = np.intersect1d(keys[0], keys[1], return_indices=True)
        tried = [numbers for cell in (vanilla, method) for numbers in (cell.questions, cell.failed_questions)]
        return cls(vanilla, method, theirs, ours, *dense(both // most), len(np.unique(np.concatenate(tried))))

    def column(self, name: str) -> tuple[Floats, Floats]:
        """A numeric column of both cells, pair by pair: vanilla's, the method's."""
        return self.vanilla.numbers(name)[self.theirs], self.method.numbers(name)[self.ours]

    @cached_property
    def again(self) -> dict[str, tuple[Floats, Floats]]:
        """Sums over bootstrap samples of the questions of the columns in ``_RESAMPLED`` that are known throughout."""
        columns = {name: self.column(name) for name in _RESAMPLED}
        known = {name: both for name, both in columns.items() if not np.isnan(both).any()}
        sums = resample(sum_by_unit(self.codes, self.n, *(column for both in known.values() for column in both)))
        return {name: (sums[:, 2 * i], sums[:, 2 * i + 1]) for i, name in enumerate(known)}

    def with_known(self, *columns: str) -> Pairs:
        """The pairs of which these numeric columns are known on both sides."""
        keep = np.ones(len(self.codes), dtype=np.bool_)
        for theirs, ours in map(self.column, columns):
            keep &= ~np.isnan(theirs) & ~np.isnan(ours)
        if keep.all():
            return self
        return Pairs(
            self.vanilla, self.method, self.theirs[keep], self.ours[keep], *dense(self.codes[keep]), self.tried
        )

    @property
    def dropped(self) -> int:
        """Questions that were tried and are in no pair."""
        return self.tried - self.n

    def provenances(self, component: str) -> set[str | None]:
        """The provenances of a component's joules, over both Trials of every pair."""
        name = f"{component}_provenance"
        theirs, ours = self.vanilla.rows[name].take(self.theirs), self.method.rows[name].take(self.ours)
        return {*theirs.unique().to_pylist(), *ours.unique().to_pylist()}

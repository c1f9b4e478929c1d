"""Of k programs for a problem, does one pass? pass@k without bias (Chen et al., 2021, arXiv 2107.03374, eq. 1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

from joulewise.analysis.cells import Cell, CellKey
from joulewise.analysis.intervals import Quantity, unknown_quantity, wilson
from joulewise.counted import counted

METRIC = "tests_passed"
"""As ``tasks/code_answer.py`` calls it; importing that would bring all tasks with it."""

KS = (1, 5, 10, 100)


@dataclass(frozen=True, slots=True)
class PassAtK:
    """One cell's pass@k.

    Args:
        key: which cell.
        samples: the fewest samples of a question.
        at: by k; unknown where a question has fewer samples than that.
    """

    key: CellKey
    samples: int
    at: tuple[tuple[int, Quantity], ...]


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that of ``k`` of a problem's samples one passes: ``1 - C(n - c, k) / C(n, k)``.

    Args:
        n: samples of the problem.
        c: how many of them pass.
        k: how many are taken, from 1 to ``n``.

    Raises:
        ValueError: numbers that do not go together.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {c} right among {n} samples: needs 0 <= c <= n and 1 <= k <= n")
    return 1.0 - comb(n - c, k) / comb(n, k)


def passes(cells: Iterable[Cell], ks: Sequence[int] = KS) -> tuple[PassAtK, ...]:
    """pass@k of every cell whose answers are programs and were sampled several times: its repeats are the samples.

    Repeats that all gave the same output are no samples (greedy decoding), and such a cell has no pass@k. The interval
    is Wilson's over questions, with the mean for the share of successes; it is wider than need be.

    Args:
        cells: of any tasks.
        ks: which k to tell.
    """
    found = (_passes(cell, sorted(set(ks))) for cell in cells if METRIC in cell.texts("metric"))
    return tuple(one for one in found if one is not None)


def _passes(cell: Cell, ks: Sequence[int]) -> PassAtK | None:
    right: dict[int, list[bool]] = defaultdict(list)
    outputs: dict[int, set[str | None]] = defaultdict(set)
    columns = (cell.questions.tolist(), cell.texts("correct"), cell.texts("output_hash"))
    for question, correct, output in zip(*columns, strict=True):
        right[question].append(bool(correct))
        outputs[question].add(output)
    if all(len(written) == 1 for written in outputs.values()):
        return None
    fewest = min(map(len, right.values()))
    return PassAtK(cell.key, fewest, tuple((k, _at(k, list(right.values()), fewest)) for k in ks))


def _at(k: int, right: Sequence[Sequence[bool]], fewest: int) -> Quantity:
    n_trials = sum(map(len, right))
    if k > fewest:
        return unknown_quantity(f"a question has {counted(fewest, 'sample')}", len(right), n_trials)
    value = fmean(pass_at_k(len(samples), sum(samples), k) for samples in right)
    lower, upper = wilson(value * len(right), len(right))
    return Quantity(value, lower, upper, len(right), n_trials, "measured")

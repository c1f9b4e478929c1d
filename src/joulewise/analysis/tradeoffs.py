"""Is it cheaper to think longer, to vote, or to ask a larger model? Accuracy against joules on each task of a run.

Everything here rests on the questions that all cells of the task answered, so that whatever is compared is paired.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulewise.analysis.budget_advice import BudgetCurve, budget_curves
from joulewise.analysis.cells import VANILLA, Cell, CellKey, Components, natural_order
from joulewise.analysis.contrast import judged
from joulewise.analysis.frontier import Dominance, Place, Reach, cheapest_reaching, dominances, frontier
from joulewise.analysis.side_by_side import Board, Sample, side_by_side
from joulewise.analysis.worth import WHOLE, Group, group, grouped, levels
from joulewise.energy.reading import ComponentName
from joulewise.errors import UserError
from joulewise.yaml_file import suggest

DIRECT = "direct"
"""Label of the reasoning that others are held against where no baseline is named."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a reader asks for.

    Args:
        baseline: the cell that others are held against, ``engine/decoding/reasoning``; None takes direct answers of
            the same engine and model, decoded by vanilla.
        reach: an accuracy as a share: the cheapest cell that reaches it is told.
        points_per_kj: percentage points of accuracy that a kilojoule must buy to be worth it.
    """

    baseline: str | None = None
    reach: float | None = None
    points_per_kj: float = 0.0


NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """Accuracy against joules over the cells of one task, in one run.

    Args:
        run, task: which.
        component: whose joules.
        measured: whether all these joules are measured: else there is no frontier and no verdict on energy.
        measure: ``accuracy``, a score's name, or None where nothing judges the answers.
        points_per_kj: as in ``Wishes``.
        questions: how many all cells answered; ``tried`` is how many any cell tried.
        unjudged: how many of them have an answer without a verdict where others have one.
        left_out: cells that are not here, and why.
        groups: the whole task first, then its subjects, subcategories and categories.
        places, dominances, reach, curves: the frontier; what is beaten; the cheapest that reaches ``to_reach``, as in
            ``Wishes``; budgets and votes.
    """

    run: str
    task: str
    component: ComponentName
    measured: bool
    measure: str | None
    points_per_kj: float
    questions: int
    tried: int
    unjudged: int
    left_out: tuple[tuple[CellKey, str], ...]
    groups: tuple[Group, ...]
    places: tuple[Place, ...]
    dominances: tuple[Dominance, ...]
    to_reach: float | None
    reach: Reach | None
    curves: tuple[BudgetCurve, ...]

    @property
    def whole(self) -> Group:
        """All questions."""
        return self.groups[0]

    def level(self, name: str) -> tuple[Group, ...]:
        """The groups of a level; none where the task does not have it."""
        return tuple(g for g in self.groups if g.level == name)


def tradeoffs(cells: Iterable[Cell], components: Components, wishes: Wishes = NO_WISHES) -> tuple[Tradeoff, ...]:
    """Every task that a run answered with several models or reasonings.

    Args:
        cells: from one ``split``.
        components: whose joules to tell.
        wishes: what the reader asks for.

    Raises:
        UserError: the baseline is no cell, or a wish is out of range or without any task to be about.
    """
    _check(wishes)
    tasks: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        tasks.setdefault((cell.key.run, cell.key.task), []).append(cell)
    several = {name: found for name, found in tasks.items() if len({(c.key.model, c.key.reasoning) for c in found}) > 1}
    if wishes != NO_WISHES and not several:
        raise UserError(
            "--baseline, --reach and --worth are about tasks that several models or reasonings answered; here "
            "every task has one of either"
        )
    if wishes.baseline is not None:
        names = sorted({_name(cell.key) for found in several.values() for cell in found})
        if wishes.baseline not in names:
            raise UserError(f"--baseline {wishes.baseline}: no such cell{suggest(wishes.baseline, names)}")
    return tuple(
        _tradeoff(run, task, found, component_of(found, components), wishes) for (run, task), found in several.items()
    )


def _check(wishes: Wishes) -> None:
    if wishes.reach is not None and not 0.0 < wishes.reach <= 1.0:
        raise UserError(f"--reach {wishes.reach:.4g}: an accuracy lies above 0 and is at most 1 (100%)")
    if not 0.0 <= wishes.points_per_kj < float("inf"):
        raise UserError(f"--worth {wishes.points_per_kj:g}: points per kilojoule are 0 or more")


def _name(key: CellKey) -> str:
    return f"{key.engine}/{key.decoding}/{key.reasoning}"


def component_of(cells: Sequence[Cell], components: Components) -> ComponentName:
    """The one component that all are compared in."""
    found = {components[cell.key.head] for cell in cells}
    return found.pop() if len(found) == 1 else "total"


def _tradeoff(run: str, task: str, cells: Sequence[Cell], component: ComponentName, wishes: Wishes) -> Tradeoff:
    # What others are held against stands first.
    cells = sorted(cells, key=lambda cell: (natural_order(cell.key.engine), cell.key.reasoning != DIRECT))
    board = side_by_side(cells, component)
    whole = Sample(board, np.arange(len(board.categories)))
    baselines = _baselines(board, wishes.baseline)
    of_level = {level: grouped(board, names) for level, names in levels(board.categories).items()}
    groups: list[Group] = []
    if whole.n:
        for level, samples in ({WHOLE: {task: whole}} | of_level).items():
            groups += _judged([group(level, name, sample, baselines) for name, sample in samples.items()])
    coarsest = list(of_level)[-1:]
    advised = {(WHOLE, task): whole} | {(level, n): s for level in coarsest for n, s in of_level[level].items()}
    fine = next((level for level in ("subcategory", *coarsest) if level in of_level), None)
    ranked = whole.n > 0 and board.measured and board.measure is not None
    known = whole.n > 0 and board.measure is not None and not np.isnan(board.energy_j).any()
    return Tradeoff(
        run,
        task,
        component,
        board.measured,
        board.measure,
        wishes.points_per_kj,
        whole.n,
        board.tried,
        board.unjudged,
        board.left_out,
        tuple(groups),
        frontier(whole) if ranked else (),
        dominances(whole, [g for g in groups if g.level == fine]) if ranked else (),
        wishes.reach,
        cheapest_reaching(whole, wishes.reach) if ranked and wishes.reach is not None else None,
        budget_curves(whole, advised, wishes.points_per_kj) if known else (),
    )


def _baselines(board: Board, named: str | None) -> list[int | None]:
    """The column of each cell's baseline."""
    columns = {_name(key): i for i, key in enumerate(board.keys)}
    if named is not None:
        return [columns.get(named)] * len(board.keys)
    return [columns.get(f"{key.engine}/{VANILLA}/{DIRECT}") for key in board.keys]


def _judged(groups: Sequence[Group]) -> list[Group]:
    """The groups of one level with verdicts; those with too few questions keep none."""
    flat = [(g, i) for g, one in enumerate(groups) if not one.too_few for i in range(len(one.cells))]
    verdicts = dict(zip(flat, judged([groups[g].cells[i].against for g, i in flat]), strict=True))
    return [
        one
        if one.too_few
        else replace(one, cells=tuple(replace(cell, against=verdicts[g, i]) for i, cell in enumerate(one.cells)))
        for g, one in enumerate(groups)
    ]

"""The Python API: what ``import joulewise`` offers, loaded on first use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from joulewise.energy import discover
from joulewise.energy.reading import ComponentName
from joulewise.errors import UserError
from joulewise.ledger import load, new_run_folder
from joulewise.plan import Plan, load_plan
from joulewise.run_result import RunResult
from joulewise.runner import run as run_plan

if TYPE_CHECKING:
    from joulewise.analysis.compare import Comparison, OnUnclear
    from joulewise.table import RunTable

Side: TypeAlias = "os.PathLike[str] | str | Sequence[os.PathLike[str] | str] | RunTable"
"""One run folder, several of the same plan, or what ``load`` made of them."""


def compare(
    base: Side,
    new: Side,
    *,
    metric: str = "energy_per_output_token_j",
    component: ComponentName | None = None,
    fail_above: float = 0.05,
    on_unclear: OnUnclear = "pass",
    allow_different: bool = False,
    run_to_run: float | None = None,
    without_polluted: bool = False,
) -> Comparison:
    """Compare runs of a change with runs of what it changes, as ``joulewise compare`` does.

    Args:
        base, new: the two sides; several runs a side, made in turns, show what one run differs from the next.
        metric: ``energy_per_output_token_j``, ``energy_per_token_j``, ``energy_per_answer_j``,
            ``energy_per_correct_answer_j``, ``duration_per_output_token_s`` or ``duration_per_answer_s``.
        component: whose joules; None takes the GPU where it alone is measured, else the total.
        fail_above: the rise that is allowed, relative.
        on_unclear: whether "cannot tell" passes or fails.
        allow_different: compare also what was not asked or run alike.
        run_to_run: standard deviation of one run to the next, relative; None takes what several runs a side show,
            else an assumption.
        without_polluted: leave out Trials during which other processes used the CPU; those of which that is not known
            stay, and are counted in a note.

    Returns:
        The verdict, every cell's change with its interval, and what else differs.

    Raises:
        UserError: not run folders, or runs that cannot be compared.
    """
    from joulewise.analysis.compare import Gate, compare_tables

    gate = Gate(metric, component, fail_above, on_unclear, allow_different, run_to_run, without_polluted)
    return compare_tables(_table(base), _table(new), gate)


def _table(side: Side) -> RunTable:
    from joulewise.table import RunTable

    if isinstance(side, RunTable):
        return side
    folders = [side] if isinstance(side, (str, os.PathLike)) else list(side)
    twice = [f for i, f in enumerate(folders) if Path(f).resolve() in {Path(g).resolve() for g in folders[:i]}]
    if twice:
        raise UserError(f"{twice[0]}: named twice on one side; a run shows nothing new by being counted again")
    return load(folders)


def run(
    plan: Plan | Path | str,
    out: Path | str | None = None,
    *,
    data: Path | str | None = None,
    resume: bool = False,
    limit: int | None = None,
    skip_bad: bool = False,
) -> RunResult:
    """Run a plan, as ``joulewise run`` does.

    Args:
        plan: a Plan, or the path of its YAML file.
        out: the run folder; ``runs/NAME-DATE-TIME`` if left out.
        data: where third-party data sets lie; ``JOULEWISE_DATA`` if left out.
        resume: go on with the run that ``out`` holds.
        limit: at most so many questions a task.
        skip_bad: leave broken lines of the tasks' data out, instead of refusing the first one.

    Returns:
        How it ended; ``joulewise.load`` takes it.

    Raises:
        UserError: the plan asks for what cannot be done.
        EnvironmentFault: an extra is missing, the folder cannot be written, and the like.
    """
    loaded = plan if isinstance(plan, Plan) else load_plan(Path(plan))
    with discover() as meter:
        return run_plan(
            loaded,
            new_run_folder(loaded) if out is None else Path(out),
            meter=meter,
            data_dir=None if data is None else Path(data),
            resume=resume,
            limit=limit,
            skip_bad=skip_bad,
        )

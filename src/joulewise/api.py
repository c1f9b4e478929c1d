"""The Python API: what ``import joulewise`` offers, loaded on first use."""

from __future__ import annotations

from pathlib import Path

from joulewise.energy import discover
from joulewise.ledger import new_run_folder
from joulewise.plan import Plan, load_plan
from joulewise.runner import RunResult
from joulewise.runner import run as run_plan


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

"""In which order Trials run where each decoding needs a server of its own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.plan import Plan
from joulewise.schedule import Job, open_tasks, schedule
from scripted_runs import questions_task


def jobs_of(folder: Path, *, side_by_side: bool, repeats: int, questions: int, **more: Any) -> list[Job]:
    plan = Plan.model_validate(
        {
            "name": "test",
            "engines": [{"kind": "endpoint", "server": {"kind": "llamacpp", "side_by_side": side_by_side}}],
            "decodings": ["vanilla", "prompt_lookup", {"kind": "prompt_lookup", "tokens": 3}],
            "tasks": [
                questions_task(folder, [f"a{i}" for i in range(questions)], "a"),
                questions_task(folder, ["b"], "b"),
            ],
            "repeats": repeats,
            **more,
        }
    )
    return schedule(plan, open_tasks(plan, None, None))


def blocks(jobs: list[Job]) -> list[tuple[int, str]]:
    return [key for key, _ in itertools.groupby(jobs, key=lambda job: (job.repeat, job.cell.decoding.label))]


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 5))
@settings(max_examples=20)
def test_each_server_is_started_once_a_repeat(tmp_path_factory: Any, repeats: int, questions: int, seed: int) -> None:
    folder: Path = tmp_path_factory.mktemp("plan")
    apart = jobs_of(folder, side_by_side=False, repeats=repeats, questions=questions, seed=seed)
    mixed = jobs_of(folder, side_by_side=True, repeats=repeats, questions=questions, seed=seed)
    assert {job.trial_id for job in apart} == {job.trial_id for job in mixed}
    assert len(apart) == len(mixed)
    found = blocks(apart)
    assert len(found) == len(set(found)) == 3 * repeats
    assert [repeat for repeat, _ in found] == sorted(repeat for repeat, _ in found)


def test_the_order_of_servers_changes_from_repeat_to_repeat(tmp_path: Path) -> None:
    found = blocks(jobs_of(tmp_path, side_by_side=False, repeats=8, questions=1))
    orders = {tuple(label for repeat, label in found if repeat == r) for r in range(8)}
    assert len(orders) > 1


def test_in_sequence_each_server_is_started_once(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, side_by_side=False, repeats=3, questions=2, order="sequential")
    labels = [label for label, _ in itertools.groupby(job.cell.decoding.label for job in jobs)]
    assert labels == ["vanilla", "prompt-lookup-10", "prompt-lookup-3"]

"""The how-to pages' example runs as the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_source import SteadySource
from joulewise.energy.meter import Meter
from joulewise.engines import ENGINES
from joulewise.ledger import load
from joulewise.plan import load_plan
from joulewise.runner import run

OWN_TASK = Path("examples/own-task")


def test_the_own_task_runs(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "transformers", "scripted_engine:ScriptedEngine")
    with Meter([SteadySource("gpu", 100.0)]) as meter:
        result = run(load_plan(repository / OWN_TASK / "plan.yaml"), tmp_path / "run", meter=meter)
    table = load(result).arrow
    assert set(table["task"].to_pylist()) == {"capitals"}
    assert sorted(set(table["question_id"].to_pylist())) == ["fr", "jp", "ke", "pe"]


def test_the_page_shows_the_example_s_files(repository: Path) -> None:
    page = (repository / "docs" / "how-to" / "your-own-task.md").read_text()
    first_question = (repository / OWN_TASK / "capitals.jsonl").read_text().splitlines()[0]
    assert first_question in page
    for line in (repository / OWN_TASK / "capitals.yaml").read_text().splitlines():
        said = line.partition(" #")[0].strip()
        assert said in page or line.startswith("source:"), line

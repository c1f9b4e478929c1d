"""What tests of routing's commands begin with: a plan, its run and a router learnt from it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from joulewise.cli import routing_options
from joulewise.engines import ENGINES
from joulewise.plan import load_plan
from joulewise.runner import run
from routing_runs import PLAN, said, steady


@pytest.fixture(scope="session")
def learnt_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan, its run and a router."""
    folder = tmp_path_factory.mktemp("done")
    (folder / "plan.yaml").write_text(PLAN)
    with pytest.MonkeyPatch.context() as patch, steady() as meter:
        patch.setitem(ENGINES, "transformers", "scripted_engine:ScriptedEngine")
        run(load_plan(folder / "plan.yaml"), folder / "run", meter=meter)
    said("fit", str(folder / "run"), "-o", str(folder / "router.npz"))
    return folder


@pytest.fixture
def learnt(learnt_once: Path, tmp_path: Path, scripted: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that one works in."""
    shutil.copytree(learnt_once, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv(routing_options.ROUTER_VARIABLE, raising=False)
    monkeypatch.setattr("joulewise.energy.discover", steady)
    return tmp_path / "here"

"""What tests share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it, before torch is loaded
if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU; read when Triton is first imported

import hypothesis
import pytest

import scripted_engine
from fake_source import SteadySource
from joulewise.energy.meter import Meter
from joulewise.engines import ENGINES

# pytest-xdist tells its workers the terminal's size, and some shells export it: tests read what is written to a pipe.
for size in ("COLUMNS", "LINES"):
    os.environ.pop(size, None)

# Cores are shared where tests run: no example's time says anything, and pytest's timeout ends what hangs.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).parent.parent


@pytest.fixture(scope="session")
def shared_data(repository: Path) -> Path:
    """The real data sets beside the checkout; skips where they are not laid out."""
    folder = repository.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the data sets of ../shared/data are not here")
    return folder


@pytest.fixture
def meter() -> Iterator[Meter]:
    """Three steady components."""
    with Meter([SteadySource("gpu", 100.0), SteadySource("cpu", 30.0), SteadySource("dram", 5.0)]) as meter:
        yield meter


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripted engine stand in for `transformers`."""
    monkeypatch.setitem(ENGINES, "transformers", "scripted_engine:ScriptedEngine")
    scripted_engine.CALLS.clear()

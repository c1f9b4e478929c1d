"""A router over a server that runs: its load is read, and it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")
pytest.importorskip("scipy", reason="learning needs the extra routing")

from fake_server import DONE, MODEL, Asked, FakeServer, Pause, Reply, finish, piece, role, usage
from fake_source import SteadySource
from joulewise.cli.main import app
from joulewise.cli.routing_options import ROUTER_VARIABLE
from joulewise.energy.meter import Meter
from joulewise.engines.servers.process import free_port
from joulewise.ledger import load
from joulewise.plan import Plan
from joulewise.routing.router_file import load_router, save
from joulewise.runner import run


def meter() -> Meter:
    return Meter([SteadySource("gpu", 100.0), SteadySource("cpu", 30.0)])


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    answer = [role(), Pause(0.01), piece("The answer is"), Pause(0.01), piece(" 7."), finish("stop"), usage(9, 5), DONE]

    def reply(_: Asked) -> Reply:
        server.count(9, 5)
        return Reply(answer)

    with FakeServer(reply) as server:
        server.counters["vllm:num_requests_waiting"] = 0.0
        yield server


@pytest.fixture(scope="module")
def done(server: FakeServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A router that was learnt from it."""
    folder = tmp_path_factory.mktemp("done")
    plan = Plan.model_validate(
        {
            "name": "served",
            "engines": [{"kind": "endpoint", "url": server.url, "model": MODEL, "name": "served", "meter": "here"}],
            "decodings": ["vanilla"],
            "reasonings": ["direct", {"kind": "vote", "samples": 3}],
            "tasks": [{"name": "starter-maths", "questions": 10}],
            "idle_baseline_s": 0,
        }
    )
    with meter() as opened:
        run(plan, folder / "run", meter=opened)
    words = ["fit", str(folder / "run"), "-o", str(folder / "router.npz")]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    return folder / "router.npz"


@pytest.fixture
def served(server: FakeServer, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """The server, and its router in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ROUTER_VARIABLE, str(done))
    monkeypatch.setattr("joulewise.energy.discover", meter)
    monkeypatch.setattr("joulewise.routing.live.TIMEOUT_S", 30.0)  # the machine may be busy
    return server


def choice(*words: str) -> dict[str, object]:
    done = CliRunner().invoke(app, ["route", "How many?", "--json", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_what_runs_there_is_read(served: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("running" in note for note in choice()["notes"])  # type: ignore[attr-defined]
    monkeypatch.setattr(served, "running", 5)
    assert any("6 running" in note for note in choice()["notes"])  # type: ignore[attr-defined]
    assert not any("running" in note for note in choice("--no-live")["notes"])  # type: ignore[attr-defined]
    assert any("3 running" in note for note in choice("--load", "2")["notes"])  # type: ignore[attr-defined]


def test_it_answers_there(served: FakeServer) -> None:
    done = CliRunner().invoke(
        app, ["ask", "How many?", "--reference", "7", "--json", "-o", "asked"], catch_exceptions=False
    )
    answered = json.loads(done.stdout)
    assert (answered["answer"], answered["correct"]) == ("The answer is 7.", True)
    (row,) = load("asked").arrow.to_pylist()
    assert row["engine"] == "served"


def test_a_server_that_has_gone_is_told_and_routed_all_the_same(
    served: FakeServer, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = load_router(done)
    port = free_port()
    moved = {
        name: replace(known, way=replace(known.way, engine={**known.way.engine, "url": f"http://127.0.0.1:{port}/v1"}))
        for name, known in router.learnt.items()
        if known.way is not None
    }
    save(replace(router, learnt=moved), "gone.npz")
    found = choice("--router", "gone.npz")
    assert found["option"]
    assert any("cannot be reached" in note for note in found["notes"])  # type: ignore[attr-defined]

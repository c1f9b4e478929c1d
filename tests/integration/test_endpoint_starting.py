"""Servers that a run starts: a program that stands in for llama.cpp's, and does not always come up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")

from endpoint_runs import Server, plan, trials
from fake_server import MODEL
from joulewise.energy.meter import Meter
from joulewise.errors import EnvironmentFault, ServerError
from joulewise.runner import run

STAND_IN = """
import pathlib, sys
if "--spec-type" in sys.argv:
    print("CUDA out of memory", flush=True)
    sys.exit(1)
once = pathlib.Path(sys.argv[sys.argv.index("--model") + 1] + ".once")
if once.exists():
    once.unlink()
    print("couldn't bind HTTP server socket", flush=True)
    sys.exit(1)
sys.path[:0] = {path!r}
from fake_server import *
port = int(sys.argv[sys.argv.index("--port") + 1])
answer = [role(), piece("1"), finish("stop"), usage(3, 2), DONE]
FakeServer(lambda asked: Reply(answer), port=port).serve()
"""


@pytest.fixture
def stand_in(tmp_path: Path, repository: Path) -> dict[str, Any]:
    """A server in a plan: for llama-server, a program that has no memory left where it is to speculate.

    Where a file is there that is named like its model and `.once`, its port is taken, once.
    """
    (tmp_path / "stand_in.py").write_text(STAND_IN.format(path=[str(repository / "tests")]))
    options = "--model --port --spec-type --spec-ngram-simple-size-n --spec-ngram-simple-size-m"
    program = tmp_path / "llama-server"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = --help ]; then echo "{options}"; else exec {sys.executable} '
        f'{tmp_path}/stand_in.py "$@"; fi\n'
    )
    program.chmod(0o755)
    (tmp_path / "m.gguf").write_text("")
    return {"kind": "llamacpp", "model": str(tmp_path / "m.gguf"), "program": str(program)}


@pytest.mark.parametrize("side_by_side", [True, False])
def test_one_server_that_does_not_come_up_leaves_the_others_their_trials(
    tmp_path: Path, meter: Meter, stand_in: dict[str, Any], side_by_side: bool
) -> None:
    engine = {"url": None, "server": {**stand_in, "side_by_side": side_by_side}, "model": MODEL}
    planned = plan(tmp_path, "", engine=engine, questions=3, decodings=["vanilla", "prompt_lookup"])
    found = trials(tmp_path, planned, meter)
    assert {(t.decoding, t.status) for t in found} == {("vanilla", "ok"), ("prompt-lookup-10", "failed")}
    assert len(found) == 6
    failed = [t for t in found if t.status == "failed"]
    assert all("it lacks memory" in str(t.error) and "CUDA out of memory" in str(t.error) for t in failed)
    assert "was not started again, as it has ended 2 times" in str(failed[-1].error)


def test_where_no_server_comes_up_the_run_ends(tmp_path: Path, meter: Meter, stand_in: dict[str, Any]) -> None:
    engine = {"url": None, "server": stand_in, "model": MODEL}
    planned = plan(tmp_path, "", engine=engine, decodings=["prompt_lookup"])
    with pytest.raises(ServerError, match="it lacks memory"):
        run(planned, tmp_path / "run", meter=meter)


def test_a_port_that_another_program_was_quicker_to_take(
    tmp_path: Path, meter: Meter, stand_in: dict[str, Any]
) -> None:
    (tmp_path / "m.gguf.once").write_text("")
    found = trials(tmp_path, plan(tmp_path, "", engine={"url": None, "server": stand_in, "model": MODEL}), meter)
    assert [t.status for t in found] == ["ok", "ok"]
    assert not (tmp_path / "m.gguf.once").exists()


def test_a_port_that_is_named_and_taken(tmp_path: Path, meter: Meter, stand_in: dict[str, Any]) -> None:
    with Server() as other:
        port = int(other.origin.rpartition(":")[2])
        engine = {"url": None, "server": {**stand_in, "port": port}, "model": MODEL}
        with pytest.raises(EnvironmentFault, match=f"port {port} cannot be used"):
            run(plan(tmp_path, "", engine=engine), tmp_path / "run", meter=meter)

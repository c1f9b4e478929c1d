"""The script that measures all on a GPU machine: its stages, its words, and what it does where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


def on_gpu(repository: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = repository / "benchmarks" / "on_gpu.sh"
    variables = os.environ | {"PYTHON": sys.executable} | environment
    return subprocess.run(["bash", str(script), *arguments], capture_output=True, text=True, env=variables, check=False)


def test_its_stages_are_listed(repository: Path) -> None:
    listed = on_gpu(repository, "--list")
    assert listed.returncode == 0
    assert "record 490 s" in listed.stdout.splitlines()


@pytest.mark.parametrize(("arguments", "words"), [(("out",), "give a folder"), (("out", "nothing"), "nothing")])
def test_what_it_cannot_do_is_told(repository: Path, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    told = on_gpu(repository, str(tmp_path / arguments[0]), *arguments[1:])
    assert told.returncode == 2
    assert words in told.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an NVIDIA GPU, and the stage would run")
def test_a_stage_that_fails_is_not_done(repository: Path, tmp_path: Path) -> None:
    told = on_gpu(repository, str(tmp_path), "record")
    assert told.returncode == 1
    assert "record: exit code" in told.stdout
    assert (tmp_path / "record.log").stat().st_size > 0
    assert not (tmp_path / "record.done").exists()


def test_a_stage_that_is_done_is_passed_over_and_none_begins_without_time(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "record.done").write_text("exit code 0 after 490 s")
    told = on_gpu(repository, str(tmp_path), "record", "demo", UNTIL="1")
    assert told.returncode == 3
    assert told.stdout.splitlines() == ["record: done before (exit code 0 after 490 s)", "demo: no time is left"]

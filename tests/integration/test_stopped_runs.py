"""What is said of runs that were stopped before any Trial of vanilla, or of what speculates."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fake_source import SteadySource
from joulewise.analysis.begun import named, not_begun
from joulewise.cli.main import app
from joulewise.energy.meter import Meter
from joulewise.engines import ENGINES
from joulewise.ledger import load
from joulewise.runner import run
from scripted_runs import make_plan, questions_task


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of vanilla, CoGA and prompt lookup."""
    root = tmp_path_factory.mktemp("stopped")
    task = questions_task(root, [f"one two {i}" for i in range(6)])
    sources = [SteadySource("gpu", 100.0), SteadySource("cpu", 30.0), SteadySource("dram", 5.0)]
    with pytest.MonkeyPatch.context() as patched, Meter(sources) as meter:
        patched.setitem(ENGINES, "transformers", "scripted_engine:ScriptedEngine")
        run(make_plan(task), root / "whole", meter=meter)
    return root / "whole"


def cut(whole: Path, folder: Path, keep: Callable[[dict[str, Any]], bool]) -> Path:
    """The same run as if it had been stopped when it had these Trials."""
    shutil.copytree(whole, folder)
    lines = (whole / "ledger.jsonl").read_text().splitlines()
    kept = [line for line in lines if (one := json.loads(line))["kind"] == "trial" and keep(one)]
    (folder / "ledger.jsonl").write_text("".join(f"{line}\n" for line in kept))
    return folder


@pytest.fixture
def drafted(whole: Path, tmp_path: Path) -> Path:
    return cut(whole, tmp_path / "drafted", lambda trial: trial["decoding"] != "vanilla")


@pytest.fixture
def plain(whole: Path, tmp_path: Path) -> Path:
    return cut(whole, tmp_path / "plain", lambda trial: trial["decoding"] == "vanilla")


def joulewise(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def words(result: Result) -> str:
    return " ".join(f"{result.exception or ''} {result.output}".split())


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--markdown", "-")])
def test_explain_refuses_what_it_has_nothing_to_hold_against(drafted: Path, arguments: tuple[str, ...]) -> None:
    told = joulewise("explain", drafted, *arguments)
    assert told.exit_code != 0
    assert words(told) == (
        "drafted: Nothing to explain: the run was stopped before any Trial of vanilla, which every decoding is held "
        "against; go on with the command of that run and --resume"
    )


def test_explain_refuses_vanilla_alone_where_more_was_planned(plain: Path, whole: Path) -> None:
    told = joulewise("explain", plain)
    assert told.exit_code != 0
    assert "stopped before any Trial of coga-5 and prompt-lookup-10, and vanilla alone does not speculate" in words(
        told
    )
    assert joulewise("explain", whole).exit_code == 0
    assert joulewise("explain", plain, whole).exit_code == 0, "one of the runs can be explained"


def test_a_curve_takes_nothing_else_for_vanilla(drafted: Path) -> None:
    told = joulewise("curve", drafted)
    assert "stopped before any Trial of vanilla on toy" in words(told)
    assert "--decoding: coga-5, prompt-lookup-10" in words(told)
    assert "stopped" not in words(joulewise("curve", drafted, "--decoding", "coga-5"))


def test_a_report_tells_what_was_not_begun(drafted: Path, plain: Path, whole: Path) -> None:
    told = joulewise("report", drafted, "--markdown", "-")
    assert told.exit_code == 0
    assert (
        "The run is not finished: 12 of 18 planned Trials are there. No Trial yet of toy/vanilla/direct/words: go on "
        "with the command of that run and --resume. Without vanilla there is no saving to tell."
    ) in words(joulewise("report", drafted))
    of_plain = words(joulewise("report", plain))
    assert "No Trial yet of toy/coga-5/direct/words, toy/prompt-lookup-10/direct/words: go on" in of_plain
    assert "Without vanilla" not in of_plain
    assert "No Trial yet" not in words(joulewise("report", whole))
    (summary,) = json.loads(joulewise("report", drafted, "--json").stdout)["runs"]
    assert [cell["decoding"] for cell in summary["not_begun"]] == ["vanilla"]


def test_compare_tells_what_neither_side_has(drafted: Path, plain: Path, whole: Path, tmp_path: Path) -> None:
    again = shutil.copytree(drafted, tmp_path / "again")
    assert "No Trial yet of toy/vanilla/direct/words, on either side: go on" in words(
        joulewise("compare", drafted, again)
    )
    assert "on either side" not in words(joulewise("compare", whole, drafted))
    told = joulewise("compare", drafted, plain)
    assert told.exit_code != 0
    assert (
        "BASE has no Trial yet of toy/vanilla/direct/words; NEW has no Trial yet of toy/coga-5/direct/words, "
        "toy/prompt-lookup-10/direct/words; go on"
    ) in words(told)


def test_failed_trials_have_begun_and_many_cells_are_counted(whole: Path, tmp_path: Path) -> None:
    folder = cut(whole, tmp_path / "one", lambda trial: trial["decoding"] == "coga-5")
    text = (folder / "ledger.jsonl").read_text().splitlines()
    failed = json.loads(text[0]) | {"status": "failed", "error": "too long", "generations": [], "energy": []}
    (folder / "ledger.jsonl").write_text(json.dumps(failed) + "\n")
    waiting = not_begun(load(folder), "one")
    assert [key.decoding for key in waiting] == ["vanilla", "prompt-lookup-10"]
    assert named(waiting * 3).endswith("toy/prompt-lookup-10/direct/words and 2 more")

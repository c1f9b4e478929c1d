"""``joulewise compare`` as a person or a CI meets it, on a recorded run of an H200 with planted differences."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import joulewise
from joulewise.cli.main import app
from joulewise.errors import UserError
from planted import replayed

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def demo(repository: Path) -> Path:
    return repository / "results" / "h200" / "demo"


def compare(*arguments: object):
    return RUNNER.invoke(app, ["compare", *map(str, arguments)])


@pytest.mark.parametrize(
    ("factor", "code", "verdict"),
    [(1.0, 0, "PASSED"), (1.03, 0, "CANNOT TELL"), (1.10, 1, "FAILED"), (0.9, 0, "PASSED")],
)
def test_a_replayed_ledger_with_a_planted_difference(demo, tmp_path, factor, code, verdict):
    result = compare(demo, replayed(demo, tmp_path / "new", factor))
    assert result.exit_code == code
    assert verdict in result.stdout.rpartition("\n\n")[2]
    assert "GPU joules per output token" in result.stdout


def test_cannot_tell_fails_where_that_is_asked(demo, tmp_path):
    new = replayed(demo, tmp_path / "new", 1.03)
    assert compare(demo, new, "--on-unclear", "fail").exit_code == 1
    assert compare(demo, new, "--on-unclear", "fail", "--run-to-run", "0.1%").exit_code == 0


def test_time_can_be_gated_and_modelled_joules_cannot(demo, tmp_path):
    new = replayed(demo, tmp_path / "new", 1.5, seconds=1.5)
    assert compare(demo, new, "--metric", "duration_per_output_token_s").exit_code == 1
    modelled = compare(demo, new, "--component", "cpu", "--json")
    assert modelled.exit_code == 0
    data = json.loads(modelled.stdout)
    assert data["verdict"] == "cannot tell"
    assert "modelled" in data["cells"][0]["why"]


def test_markdown_and_json(demo, tmp_path):
    new = replayed(demo, tmp_path / "new", 1.10)
    page = tmp_path / "comment.md"
    result = compare(demo, new, "--json", "--markdown", page)
    assert json.loads(result.stdout)["exit_code"] == result.exit_code == 1
    assert page.read_text().startswith("### Energy gate")
    shown = compare(demo, new, "--markdown", "-")
    assert shown.stdout == page.read_text()
    assert "FAILED" in shown.stderr
    assert isinstance(compare(demo, new, "--json", "--markdown", "-").exception, UserError)


def test_several_runs_a_side(demo, tmp_path):
    more = [replayed(demo, tmp_path / name, f) for name, f in (("b2", 1.004), ("n1", 1.12), ("n2", 1.116))]
    result = compare(demo, more[1], "--also-base", more[0], "--also-new", more[2], "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["cells"][0]["run_spread"] == pytest.approx(0.003, rel=0.2)
    twice = compare(demo, more[1], "--also-base", demo)
    assert isinstance(twice.exception, UserError)
    assert "twice" in str(twice.exception)


def test_a_copied_run_is_told_or_refused(demo, tmp_path):
    copy = shutil.copytree(demo, tmp_path / "copy")
    for new in (demo, copy):
        result = compare(demo, new, "--json")
        assert result.exit_code == 0
        assert json.loads(result.stdout)["same_recording"] is True
        assert "same recording" in result.stderr
    more = replayed(demo, tmp_path / "more", 1.01)
    refused = compare(more, demo, "--also-new", copy)
    assert isinstance(refused.exception, UserError)
    assert "a copy of it" in str(refused.exception)


def test_an_interrupted_run_is_compared_as_far_as_it_goes(demo, tmp_path):
    new = replayed(demo, tmp_path / "new", 1.0)
    lines = (new / "ledger.jsonl").read_text().splitlines(keepends=True)
    (new / "ledger.jsonl").write_text("".join(lines[:-20]))
    result = compare(demo, new)
    assert result.exit_code == 0
    assert "questions left out" in " ".join(result.stdout.split())


def test_another_driver_is_refused_unless_allowed(demo, tmp_path):
    new = replayed(demo, tmp_path / "new", 1.0)
    file = new / "environment.json"
    file.write_text(file.read_text().replace("580.159.04", "570.1"))
    refused = compare(demo, new)
    assert isinstance(refused.exception, UserError)
    assert "GPU driver: 580.159.04 (BASE), 570.1 (NEW)" in str(refused.exception)
    assert compare(demo, new, "--allow-different").exit_code == 0


@pytest.mark.parametrize(("told", "code"), [(None, 0), ("nf4", 2)])
def test_a_record_from_before_quantisation_was_told_compares_with_an_unquantised_one(demo, tmp_path, told, code):
    new = replayed(demo, tmp_path / "new", 1.0)
    file = new / "environment.json"
    environment = json.loads(file.read_text())
    for engine in environment["engines"]:
        engine["quantisation"] = told
    file.write_text(json.dumps(environment))
    result = compare(demo, new)
    assert (2 if isinstance(result.exception, UserError) else result.exit_code) == code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fail-above", "5"), "write a percentage"),
        (("--fail-above", "five%"), "not a number"),
        (("--fail-above", "-5%"), "write a percentage"),
        (("--run-to-run", "nan%"), "write a percentage"),
        (("--fail-above", "5"), "5%, or a share below 1, such as 0.05"),
        (("--fail-above", " "), "--fail-above is empty"),
        (("--run-to-run", ""), "--run-to-run is empty"),
        (("--markdown", ""), "--markdown is empty"),
        (("--metric", "watts"), "energy_per_answer_j"),
        (("--component", "GPU"), "GPU: no such component; choose from gpu, cpu, dram, total"),
        (("--on-unclear", "maybe"), "choose from pass, fail"),
    ],
)
def test_wrong_options_say_how_to_write_them(demo, arguments, words):
    result = compare(demo, demo, *arguments)
    assert isinstance(result.exception, UserError)
    assert words in str(result.exception)


def test_what_is_no_run_is_refused(demo, tmp_path):
    assert isinstance(compare(demo, tmp_path).exception, UserError)
    half = tmp_path / "half"
    shutil.copytree(demo, half)
    (half / "environment.json").unlink()
    refused = compare(demo, half)
    assert isinstance(refused.exception, UserError)


def test_a_page_that_cannot_be_written(demo, tmp_path):
    result = compare(demo, demo, "--markdown", tmp_path / "no" / "such" / "folder.md")
    assert "cannot be written" in str(result.exception)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"fail_above": "5%"}, "fail_above='5%': not a share"),
        ({"fail_above": math.nan}, "give 0.05 for 5 %"),
        ({"fail_above": -0.1}, "give 0.05 for 5 %"),
        ({"run_to_run": "1%"}, "run_to_run='1%'"),
        ({"on_unclear": "x"}, "choose from pass, fail"),
        ({"component": "GPU"}, "choose from gpu, cpu, dram, total"),
    ],
)
def test_wrong_arguments_from_python_say_what_is_right(demo, wrong, words):
    with pytest.raises(UserError, match=re.escape(words)):
        joulewise.compare(demo, demo, **wrong)


def test_from_python(demo, tmp_path):
    found = joulewise.compare(demo, replayed(demo, tmp_path / "new", 1.10), fail_above=0.05)
    assert found.exit_code == 1
    assert found.overall[0].ratio.value == pytest.approx(1.10)

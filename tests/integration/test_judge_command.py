"""`joulewise judge` as a command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from joulewise.cli.main import app
from joulewise.energy.meter import Meter
from joulewise.errors import UserError
from joulewise.runner import run
from local_judge import Answer, fails, local_judge, says
from scripted_runs import make_plan

pytestmark = pytest.mark.usefixtures("scripted")
KEY = "sk-secret-12345"


@pytest.fixture
def finished(tmp_path: Path, meter: Meter) -> Path:
    questions = [
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
        {"question_id": 101, "category": "reasoning", "turns": ["Think.", "Once more."]},
    ]
    (tmp_path / "mt_bench_questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
    plan = make_plan("mt_bench", decodings=["vanilla", "prompt_lookup"])
    return run(plan, tmp_path / "run", meter=meter, data_dir=tmp_path).folder


def test_grades_on_the_terminal_and_in_the_report(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOULEWISE_JUDGE_KEY", KEY)
    with local_judge(lambda _: says("[[7]]")) as server:
        common = ["--url", server.url, "--model", "big", "--data", str(finished.parent)]
        result = CliRunner().invoke(app, ["judge", str(finished), *common])
        assert result.exit_code == 0, result.output
        assert server.keys == [f"Bearer {KEY}"] * 8
        assert "all        7.00 of 10 (4 turns)" in result.output
        assert "The judge big, apart from the run: 8 calls, 800 prompt and 80 output tokens, " in result.output
        assert "unknown joules." in result.output
        assert "reasoning are judged without" in result.output
        again = CliRunner().invoke(app, ["judge", str(finished), *common, "--json"])
        told = json.loads(again.stdout)
    assert (told["asked_this_time"], told["unjudged"], told["judge"]["energy_j"]) == (0, 0, None)
    assert told["cells"]["toy/vanilla/direct/mt_bench"]["all"] == {"rating": 7.0, "judged": 4, "unjudged": 0}
    assert KEY not in result.output + again.output
    assert not any(KEY.encode() in file.read_bytes() for file in finished.rglob("*") if file.is_file())
    shown = CliRunner().invoke(app, ["report", str(finished)])
    assert "rating by big" in " ".join(shown.output.split())


def test_a_judge_that_is_down_ends_with_2_and_the_way_to_go_on(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOULEWISE_JUDGE_KEY", raising=False)
    with local_judge(lambda _: fails(503)) as server:
        common = ["--url", server.url, "--model", "big", "--data", str(finished.parent), "--tries", "1"]
        result = CliRunner().invoke(app, ["judge", str(finished), *common])
        assert server.keys == [None] * 3
    assert result.exit_code == 2
    assert "Left for another time: the judge answers HTTP 503" in result.output
    assert re.search(r"no grade \(0 turns, \d unjudged\)", result.output)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((200, {}, b"<html>Welcome</html>"), "answers, but not as a chat does (a web page); check --url"),
        (says("I like it."), "No answer was graded: no grade is in its reply"),
    ],
)
def test_a_judge_that_grades_nothing_ends_with_2_and_why(finished: Path, answer: Answer, told: str) -> None:
    with local_judge(lambda _: answer) as server:
        common = ["--url", server.url, "--model", "big", "--data", str(finished.parent), "--tries", "1"]
        result = CliRunner().invoke(app, ["judge", str(finished), *common])
    assert result.exit_code == 2
    assert told in result.output


def test_a_comparison_in_both_orders(finished: Path) -> None:
    with local_judge(lambda _: says("[[A]]")) as server:
        common = ["--url", server.url, "--model", "big", "--data", str(finished.parent)]
        against = ["--against", "toy/vanilla/direct/mt_bench"]
        result = CliRunner().invoke(app, ["judge", str(finished), *common, *against])
    assert result.exit_code == 0
    assert len(server.requests) == 8
    assert "0 win, 4 tie, 0 loss" in result.output


def test_a_wrong_address_is_told_before_anything_is_asked(finished: Path) -> None:
    result = CliRunner().invoke(app, ["judge", str(finished), "--url", "localhost", "--model", "big"])
    assert isinstance(result.exception, UserError)
    assert "give one like http://localhost:8000/v1" in str(result.exception)

"""Joules by the hour and by the day on the command line: kept between calls, stops and kills."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import scripted_engine
from command_runs import SCRIPTED, environment
from fake_source import SteadySource
from joulewise.energy.meter import Meter
from joulewise.ledger import load
from joulewise.ledger_lines import read_ledger
from routing_runs import refused, said

pytest.importorskip("scipy", reason="learning needs the extra routing")


HOUR = ("--joules-per-hour",)
NOON = 1_800_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The present of joule budgets: one number, to be set."""
    now = [NOON]
    monkeypatch.setattr("joulewise.routing.within_budget.clock_s", lambda: now[0])
    return now


def expected_j(*words: str) -> dict[str, float]:
    found = json.loads(said("route", "Name colour 1.", "--json", "--no-live", *words).output)
    return {one["option"]: one["expected"]["energy_j"]["mean"] for one in found["options"]}


def booked(period: str = "hour") -> float:
    return float(json.loads(Path("joule-budget.json").read_text())["windows"][period]["drawn_j"])


def drawn(*folders: str) -> float:
    return sum(row["total_energy_j"] for name in folders for row in load(name).arrow.to_pylist())


def test_what_is_asked_is_booked_and_a_budget_that_is_used_up_refuses(learnt: Path, clock: list[float]) -> None:
    least = min(expected_j().values())
    assert not Path("joule-budget.json").exists()
    done = said("ask", "Name a colour.", "--joules-per-day", "1000", "-o", "first", "--json")
    answered = json.loads(done.stdout)
    assert booked("day") == pytest.approx(answered["energy_j"] + answered["routing_j"])
    assert "of 1,000 J left until" in done.stderr
    assert json.loads(Path("joule-budget.json").read_text())["begun"] == {}
    before = booked("day")
    tight = (*HOUR, f"{before + least / 2:.6g}")
    for words in (("ask", "Name a colour.", "-o", "second"), ("route", "Name a colour.")):
        told = refused(*words, *tight)
        assert "J an hour is used up" in told
        assert "wait until 20" in told
    assert not Path("second").exists()
    assert booked("day") >= before  # choosing drew something, too
    clock[0] += 3601
    assert said("route", "Name a colour.", *HOUR, f"{least * 1.01:.6g}").output
    said("ask", "Name a colour.", "--joules-per-day", "1000", "--budget-file", "other.json", "-o", "third")
    assert Path("other.json").exists()


def test_a_batch_is_asked_as_far_as_its_budget_goes_and_the_rest_is_kept(
    learnt: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Hardly anything is drawn, so that it is what is expected that counts.
    monkeypatch.setattr("joulewise.energy.discover", lambda: Meter([SteadySource("gpu", 1e-9)]))
    rows = [{"query": f"Name colour {i}.", "id": f"q{i}", "domain": "art", "reference": "red"} for i in range(8)]
    Path("batch.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pin = "large@*vanilla/direct"
    each = expected_j("--pin", pin)["large@transformers/vanilla/direct"]
    limit = f"{3.5 * each:.6g}"
    done = said("ask", "--batch", "batch.jsonl", "--pin", pin, *HOUR, limit, "-o", "asked", "--json", code=1)
    asked = [json.loads(line)["id"] for line in done.stdout.splitlines()]
    assert asked == ["q0", "q1", "q2"]
    assert "leaves 5 questions unasked: asked/not-asked.jsonl" in done.stderr
    rest = [json.loads(line) for line in Path("asked/not-asked.jsonl").read_text().splitlines()]
    assert rest == rows[3:]
    clock[0] += 3601
    again = said("ask", "--batch", "asked/not-asked.jsonl", "--pin", pin, *HOUR, "1000", "-o", "rest", "--json")
    assert [json.loads(line)["id"] for line in again.stdout.splitlines()] == [f"q{i}" for i in range(3, 8)]


def test_a_budget_that_runs_short_takes_a_cheaper_option_and_says_so(learnt: Path, clock: list[float]) -> None:
    large, small = "large@transformers/vanilla/direct", "small@transformers/vanilla/direct"
    rows = [f"q{i},{large},1,5,20,5,0.5\nq{i},{small},0,1,20,5,0.2" for i in range(30)]
    Path("outcomes.csv").write_text(
        "query,option,correct,energy_j,prompt_tokens,output_tokens,total_s\n" + "\n".join(rows) + "\n"
    )
    said("fit", "outcomes.csv", "--plan", "plan.yaml", "-o", "router.npz")
    assert said("route", "q3", *HOUR, "1000").output.startswith(large)
    told = said("route", "q3", *HOUR, "3").output
    assert told.startswith(small)
    assert f"the joule budget leaves 3 J for this request, so not {large} with" in told
    found = json.loads(said("ask", "q3", *HOUR, "3", "-o", "asked", "--json").stdout)
    assert (found["option"], found["choice"]["best_effort"]) == (small, True)
    clock[0] += 3601
    assert "the joule budget leaves" in said("ask", "q3", *HOUR, "3", "-o", "again").stdout


def test_answers_that_draw_more_than_expected_end_a_batch_and_the_rest_is_kept(
    learnt: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"query": f"Name colour {i}.", "id": f"q{i}"} for i in range(6)]
    Path("batch.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pin = "large@*vanilla/direct"
    each = expected_j("--pin", pin)["large@transformers/vanilla/direct"]
    generate = scripted_engine.ScriptedEngine.generate

    def slow(*arguments: object) -> object:
        end_s = time.monotonic() + 20 * each / 130.0  # of 130 W
        while time.monotonic() < end_s:
            pass
        return generate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(scripted_engine.ScriptedEngine, "generate", slow)
    words = ("ask", "--batch", "batch.jsonl", "--pin", pin, *HOUR, f"{30 * each:.6g}", "-o", "asked", "--json")
    done = said(*words, code=1)
    answered = [json.loads(line)["id"] for line in done.stdout.splitlines()]
    assert 1 <= len(answered) <= 2
    rest = [json.loads(line)["id"] for line in Path("asked/not-asked.jsonl").read_text().splitlines()]
    assert sorted([*answered, *rest]) == [row["id"] for row in rows]
    assert "--resume" not in done.stderr
    assert json.loads(Path("joule-budget.json").read_text())["begun"] == {}


def test_a_cascade_asks_no_second_option_that_its_budget_does_not_leave_joules_for(
    learnt: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    vote, then = "small@transformers/vanilla/vote-3", "large@transformers/vanilla/direct"
    said("fit", "run", "--cascade", f"{vote}>{then}", "-o", "router.npz")
    monkeypatch.setattr("joulewise.routing.asking.agreed", lambda _: False)
    words = ("ask", "How many?", "--reference", "7", "--pin", "*>*", "--json")
    assert json.loads(said(*words, *HOUR, "1000", "-o", "rich").stdout)["option"] == f"{vote} > {then}"
    monkeypatch.setattr("joulewise.routing.within_budget.Purse.fits", lambda *_: False)
    done = said(*words, "--budget-file", "b.json", *HOUR, "1000", "-o", "poor", code=1)
    assert done.stdout == ""
    assert json.loads(Path("poor/not-asked.jsonl").read_text())["query"] == "How many?"
    assert not Path("poor-then").exists()


def test_a_stop_keeps_what_was_booked(learnt: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("batch.jsonl").write_text("".join(f'{{"query": "Name colour {i}."}}\n' for i in range(6)))
    generate, count = scripted_engine.ScriptedEngine.generate, itertools.count()

    def stopping(*arguments: object) -> object:
        if next(count) == 3:  # the warm-up is the first
            os.kill(os.getpid(), signal.SIGINT)
        return generate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(scripted_engine.ScriptedEngine, "generate", stopping)
    words = ("ask", "--batch", "batch.jsonl", "-o", "asked", "--pin", "large*vanilla/direct", *HOUR, "1000")
    said(*words, code=130)
    assert 0 < len(load("asked").arrow) < 6
    assert booked() >= drawn("asked") > 0
    assert json.loads(Path("joule-budget.json").read_text())["begun"] == {}


def test_a_kill_leaves_what_was_booked_and_what_was_under_way(learnt: Path) -> None:
    rows = [{"query": f"Name colour {i}."} for i in range(5)] + [{"query": "BLOCK"}]
    Path("batch.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("ask", "--batch", "batch.jsonl", "-o", "asked", "--pin", "large*vanilla/direct", *HOUR, "1e6")
    asking = subprocess.Popen(
        [sys.executable, "-c", SCRIPTED, *words],
        env=environment(JOULEWISE_TEST_BLOCK="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert asking.stdout is not None
    assert asking.stdout.readline() == "blocked\n"
    asking.kill()
    asking.wait()
    asking.stdout.close()
    found = json.loads(Path("joule-budget.json").read_text())
    assert len(found["begun"]) == 1
    assert next(iter(found["begun"].values()))["expected_j"] > 0
    told = read_ledger(Path("asked/ledger.jsonl")).trials
    assert found["windows"]["hour"]["drawn_j"] >= sum(trial.window().total.energy_j or 0.0 for trial in told)
    assert "of 1,000,000 J left" in said("ask", "Name a colour.", *HOUR, "1e6", "-o", "next").stderr


def test_a_budget_that_no_option_fits_is_to_be_raised_and_not_waited_for(learnt: Path, clock: list[float]) -> None:
    least = min(expected_j().values())
    told = refused("route", "Name colour 1.", "--no-live", "--joules-per-hour", f"{least / 2}")
    assert "too small for any option" in told
    assert "wait" not in told
    enough = told.rpartition(" above ")[2].replace(",", "")
    assert least <= float(enough) < 1.001 * least
    assert "@transformers" in said("route", "Name colour 1.", "--no-live", "--joules-per-hour", enough).output


def test_joules_left_have_no_exponent(learnt: Path, clock: list[float]) -> None:
    assert " of 20,000 J left" in said("ask", "Name a colour.", "--joules-per-day", "20000", "-o", "asked").stderr


def test_budgets_that_cannot_be_are_told(learnt: Path) -> None:
    Path("loop").symlink_to("loop")
    for words, told in (
        (("--joules-per-hour", "0"), "--joules-per-hour 0: give a number from"),
        (("--joules-per-day", "-5"), "--joules-per-day -5"),
        (("--joules-per-day", "nan"), "--joules-per-day nan"),
        (("--joules-per-day", "1e300"), "--joules-per-day 1e+300"),
        (("--budget-file", "b.json"), "--budget-file keeps a budget: give --joules-per-hour or --joules-per-day too"),
        (("--joules-per-day", "5", "--budget-file", " "), "--budget-file is empty"),
        (("--joules-per-day", "5", "--budget-file", "router.npz"), "router.npz is truncated, damaged or no joule"),
        (("--joules-per-day", "5000", "--budget-file", "nowhere/b.json"), "nowhere/b.json: cannot be written"),
        (("--joules-per-day", "5000", "--budget-file", "run"), "name another file with --budget-file"),
        (("--joules-per-day", "5000", "--budget-file", "loop"), "name another file with --budget-file"),
    ):
        assert told in refused("ask", "Name a colour.", "-o", "asked", *words), words
        assert not Path("asked").exists()
    assert "rules of its own" in refused("route", "q", "--policy", "paper", "--joules-per-day", "5")

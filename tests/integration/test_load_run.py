"""Runs under load before scripted servers: no model, figures that are known."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")

from fake_server import DONE, MODEL, Asked, FakeServer, Pause, Reply, Step, fails, finish, piece, role, usage
from joulewise.cli.main import app
from joulewise.energy.meter import Meter
from joulewise.errors import UserError
from joulewise.export.tables import write_trials
from joulewise.ledger import load
from joulewise.ledger_lines import read_ledger
from joulewise.plan import Plan
from joulewise.records import LoadRecord, Trial
from joulewise.run_result import Progress
from joulewise.runner import run
from scripted_runs import Stop, questions_task

TOKENS, STEP_S = 5, 0.01
"""Of each answer, and from one to the next."""


def answered(_: Asked) -> Reply:
    tokens: Iterable[Step] = itertools.chain.from_iterable((Pause(STEP_S), piece(f"{i} ")) for i in range(TOKENS))
    return Reply([role(), *tokens, finish("stop"), usage(7, TOKENS), DONE])


def plan(folder: Path, url: str, loads: list[dict[str, Any]], **more: Any) -> Plan:
    return Plan.model_validate(
        {
            "name": "test",
            "engines": [{"kind": "endpoint", "url": url, "model": MODEL, "name": "served", "meter": "here"}],
            "decodings": ["vanilla"],
            "tasks": [questions_task(folder, ["one", "two", "three"])],
            "idle_baseline_s": 0,
            "loads": loads,
            **more,
        }
    )


def trials(folder: Path, planned: Plan, meter: Meter, **more: Any) -> list[Trial]:
    return list(read_ledger(run(planned, folder / "run", meter=meter, **more).folder / "ledger.jsonl").trials)


def rows_of(folder: Path, found: LoadRecord) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress((folder / "run" / found.file).read_bytes()).splitlines()]


def test_a_stretch_is_a_trial_and_its_requests_lie_beside_the_ledger(tmp_path: Path, meter: Meter) -> None:
    with FakeServer(answered) as server:
        planned = plan(
            tmp_path,
            server.url,
            [{"kind": "closed", "concurrency": [1, 4], "duration_s": 2.5}],
            slo={"to_first_s": 60.0, "per_token_s": 1e-6},
            repeats=2,
        )
        found = trials(tmp_path, planned, meter)
        prompts = {asked.json["messages"][-1]["content"] for asked in server.asked if asked.body}
    assert {"one", "two", "three"} <= prompts  # and the warm-up's
    assert sorted((t.task, t.repeat) for t in found) == [
        ("words/c1", 0),
        ("words/c1", 1),
        ("words/c4", 0),
        ("words/c4", 1),
    ]
    for trial in found:
        told = trial.load
        assert told is not None
        assert trial.status == "ok", trial.error
        level = int(told.level or 0)
        assert (told.kind, told.label, told.most_in_flight) == ("closed", f"c{level}", level)
        assert told.from_s is not None
        assert told.until_s is not None
        assert (trial.start_s, trial.end_s) == (told.from_s, told.until_s)
        assert told.start_s <= told.from_s < told.until_s <= told.offered_until_s <= told.end_s
        assert told.in_flight == pytest.approx(level, rel=0.05)
        # Sources of a steady power, for as long as the steady part is.
        power_w = sum(source.power_w for source in meter.sources)  # type: ignore[attr-defined]
        assert trial.window().total.energy_j == pytest.approx(power_w * trial.duration_s, rel=0.01)
        rows = rows_of(tmp_path, told)
        assert len(rows) == told.sent == told.answered == len({row["number"] for row in rows})
        inside = [row for row in rows if told.from_s <= row["due_s"] < told.until_s]
        assert (told.requests, told.whole, told.prompt_tokens) == (len(inside), len(inside), 7 * len(inside))
        # What came in the steady part differs from what its requests asked for by the answers at its ends.
        assert abs(told.output_tokens - TOKENS * len(inside)) <= TOKENS * level
        assert told.to_first.p50_s is not None
        assert told.to_first.p50_s >= STEP_S
        assert told.between_chunks.count == sum(row["chunks"] - 1 for row in inside)
        assert (told.good, told.good_tokens) == (0, 0.0)  # no token comes in a microsecond
        assert all(row["error"] is None and row["output_tokens"] == TOKENS for row in rows)
    rows_there = load(tmp_path / "run").arrow.to_pylist()
    assert {row["load"]["label"] for row in rows_there} == {"c1", "c4"}
    assert all(row["output_tokens"] == round(row["load"]["output_tokens"]) for row in rows_there)


def test_a_ramp_has_no_steady_part_and_is_measured_whole(tmp_path: Path, meter: Meter) -> None:
    with FakeServer(answered) as server:
        loads = [{"kind": "closed", "concurrency": 1, "to_concurrency": 8, "duration_s": 1.0}]
        (trial,) = trials(tmp_path, plan(tmp_path, server.url, loads), meter)
    assert trial.status == "ok", trial.error
    assert trial.load is not None
    assert trial.load.level is None
    assert trial.duration_s == pytest.approx(1.0)
    assert trial.load.most_in_flight == 8


def test_an_open_loop_sends_what_is_due_and_a_trace_sets_the_lengths(tmp_path: Path, meter: Meter) -> None:
    lines = [f"2024-05-10 00:00:{i / 50:09.6f},{10 * (i % 3 + 1)},{i % 4 + 1}" for i in range(60)]
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")

    def as_asked(asked: Asked) -> Reply:
        tokens = asked.json["max_tokens"]
        return Reply([role(), *(piece("x") for _ in range(tokens)), finish("length"), usage(9, tokens), DONE])

    with FakeServer(as_asked) as server:
        loads = [
            {"kind": "poisson", "rate": 80.0, "duration_s": 1.0},
            {"kind": "replay", "trace": str(tmp_path / "trace.csv"), "duration_s": 1.0},
        ]
        found = trials(tmp_path, plan(tmp_path, server.url, loads), meter)
        lengths = [len(a.json["messages"][-1]["content"]) for a in server.asked if a.body and a.json["max_tokens"] < 5]
    by_kind = {t.load.kind: t.load for t in found if t.load is not None}
    assert 40 < by_kind["poisson"].sent < 130
    assert by_kind["replay"].sent == 50
    rows = rows_of(tmp_path, by_kind["replay"])
    assert [row["output_tokens"] for row in sorted(rows, key=lambda row: row["number"])[:5]] == [1, 2, 3, 4, 1]
    assert set(lengths) == {40, 80, 120}


@pytest.mark.parametrize(
    ("share", "status", "words"),
    [
        (1.0, "failed", "none of "),
        (0.5, "failed", "requests failed, more than 5%"),
        (0.01, "ok", "requests failed, such as"),
    ],
)
def test_requests_that_fail_are_counted_and_too_many_fail_the_trial(
    tmp_path: Path, meter: Meter, share: float, status: str, words: str
) -> None:
    numbers = itertools.count()

    def now_and_then(asked: Asked) -> Reply:
        number = next(numbers)
        if number == 0:  # the warm-up
            return answered(asked)
        return fails(500, "boom") if number % round(1.0 / share) == 0 else answered(asked)

    with FakeServer(now_and_then) as server:
        loads = [{"kind": "poisson", "rate": 150.0, "duration_s": 1.0}]
        (trial,) = trials(tmp_path, plan(tmp_path, server.url, loads), meter)
    told = trial.load
    assert trial.status == status, trial.error
    assert words in str(trial.error if status == "failed" else trial.note)
    assert told is not None
    assert told.failed > 0
    assert "HTTP 500 (boom)" in str(trial.error or trial.note)
    assert sum(row["error"] is not None for row in rows_of(tmp_path, told)) == told.failed


@pytest.mark.parametrize("to", [{}, {"to_concurrency": 4}])
def test_a_load_without_any_answer_has_no_steady_part(tmp_path: Path, meter: Meter, to: dict[str, int]) -> None:
    with FakeServer(lambda asked: answered(asked) if asked.json["max_tokens"] == 16 else fails(500)) as server:
        loads = [{"kind": "closed", "concurrency": 2, **to, "duration_s": 1.0}]
        (trial,) = trials(tmp_path, plan(tmp_path, server.url, loads), meter)
    assert trial.status == "failed"
    assert "requests was answered" in str(trial.error)
    assert trial.load is not None
    assert (trial.load.answered, trial.load.from_s, trial.load.until_s) == (0, None, None)


def test_without_usage_no_figure_is_made_up(tmp_path: Path, meter: Meter) -> None:
    first = itertools.count()

    def untold(asked: Asked) -> Reply:
        if next(first) == 0:
            return answered(asked)
        return Reply([role(), piece("a"), finish("stop"), DONE])

    with FakeServer(untold) as server:
        loads = [{"kind": "closed", "concurrency": 2, "duration_s": 0.5}]
        (trial,) = trials(tmp_path, plan(tmp_path, server.url, loads), meter)
    assert trial.status == "failed"
    assert "The server sent no usage" in str(trial.error)


def test_an_overloaded_open_loop_has_no_steady_state(tmp_path: Path, meter: Meter) -> None:
    """Each answer takes longer than the one before it: the queue grows until the end."""
    numbers = itertools.count()

    def slower(asked: Asked) -> Reply:
        number = next(numbers)
        return Reply([Pause(0.01 * number), role(), piece("a"), finish("stop"), usage(1, 1), DONE])

    with FakeServer(slower) as server:
        loads = [{"kind": "poisson", "rate": 100.0, "duration_s": 1.0}]
        (trial,) = trials(tmp_path, plan(tmp_path, server.url, loads), meter)
    assert trial.status == "failed"
    assert "there is no steady state: " in str(trial.error)
    assert trial.load is not None
    assert trial.load.from_s is None


def test_a_run_that_is_killed_goes_on_with_the_stretches_that_are_missing(tmp_path: Path, meter: Meter) -> None:
    def killed(progress: Progress) -> None:
        if progress.stage == "trial" and progress.done == 2:
            raise Stop

    with FakeServer(answered) as server:
        planned = plan(tmp_path, server.url, [{"kind": "closed", "concurrency": [1, 2], "duration_s": 0.5}], repeats=2)
        with pytest.raises(Stop):
            run(planned, tmp_path / "run", meter=meter, on_progress=killed)
        # A file that was begun for the third Trial, and never named by the ledger.
        (tmp_path / "run" / "requests" / "00002.jsonl.gz.part").write_bytes(b"torn")
        found = trials(tmp_path, planned, meter, resume=True)
    assert len(found) == len({t.trial_id for t in found}) == 4
    assert len({t.load.file for t in found if t.load is not None}) == 4
    assert sorted(f.name for f in (tmp_path / "run" / "requests").iterdir()) == [f"{i:05d}.jsonl.gz" for i in range(4)]


def test_going_on_with_other_questions_says_to_give_the_limit_again(tmp_path: Path, meter: Meter) -> None:
    with FakeServer(answered) as server:
        planned = plan(tmp_path, server.url, [{"kind": "closed", "concurrency": 1, "duration_s": 0.3}])
        trials(tmp_path, planned, meter, limit=2)
        before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
        with pytest.raises(UserError, match="give the `--limit` that it was begun with"):
            trials(tmp_path, planned, meter, resume=True)
        assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before
        assert len(trials(tmp_path, planned, meter, resume=True, limit=2)) == 1


def test_it_tells_how_it_goes_while_it_goes(tmp_path: Path, meter: Meter) -> None:
    heard: list[Progress] = []
    with FakeServer(answered) as server:
        loads = [{"kind": "closed", "concurrency": 2, "duration_s": 2.5}]
        run(plan(tmp_path, server.url, loads), tmp_path / "run", meter=meter, on_progress=heard.append)
    lives = [progress.live for progress in heard if progress.stage == "live"]
    assert len(lives) >= 2
    for live in lives:
        assert live is not None
        assert 0 <= live.in_flight <= 2
        assert live.done > 0
        assert live.tokens_per_s > 0.0
    assert lives[-1] is not None
    assert lives[-1].failed == 0


def test_a_dry_run_tells_stretches_and_their_time(repository: Path) -> None:
    done = CliRunner().invoke(app, ["run", str(repository / "plans" / "servers-load.yaml"), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "vanilla/direct/starter-maths/c4" in done.output
    assert "3 x 20 s" in done.output
    assert "6 cells, 18 Trials under load" in done.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "trace.csv cannot be read: No such file"),
        ("", "trace.csv is empty: its first line names the columns TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "trace.csv holds no request, only the names of its columns"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01,x,1\n",
            "line 2, ContextTokens: found 'x'; write",
        ),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_told_before_anything_runs(
    tmp_path: Path, meter: Meter, text: str | None, words: str
) -> None:
    trace = tmp_path / "trace.csv"
    if text is not None:
        trace.write_text(text)
    with FakeServer(answered) as server:
        loads = [{"kind": "replay", "trace": str(trace), "duration_s": 1.0}, {"kind": "closed", "concurrency": 1}]
        planned = plan(tmp_path, server.url, loads)
        with pytest.raises(UserError, match=words):
            run(planned, tmp_path / "run", meter=meter)
        assert not server.asked
    if text is None:
        return  # reading the plan's file refuses it
    assert not (tmp_path / "run").exists()
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(planned.model_dump(mode="json")))
    done = CliRunner().invoke(app, ["run", str(tmp_path / "plan.yaml"), "--dry-run"])
    assert "1 of 2 cells cannot run" in str(done.exception)
    assert words in str(done.exception)


def test_loads_are_exported_and_a_large_ledger_is_read_alike(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeServer(answered) as server:
        loads = [{"kind": "closed", "concurrency": 2, "duration_s": 0.5}]
        trials(tmp_path, plan(tmp_path, server.url, loads), meter)
    table = load(tmp_path / "run")
    assert write_trials(table, tmp_path / "trials.csv") == 1
    (line,) = csv.DictReader((tmp_path / "trials.csv").open())
    assert json.loads(line["load"])["label"] == "c2"
    assert write_trials(table, tmp_path / "trials.parquet") == 1
    monkeypatch.setattr("joulewise.ledger_columns.LARGE_BYTES", 0)
    assert load(tmp_path / "run").arrow.equals(table.arrow)

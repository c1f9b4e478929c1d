"""The sweep's loop, on an engine whose joules are known."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fake_source import SteadySource
from joulewise import energy, sweep
from joulewise.analysis.curve_points import run_points
from joulewise.analysis.curves import fit_curve
from joulewise.analysis.design import Box
from joulewise.cli.main import app
from joulewise.energy.meter import Meter
from joulewise.engines import ENGINES
from joulewise.engines.engine import EngineInfo
from joulewise.engines.spec import NativeSpec
from joulewise.errors import EnvironmentFault, JoulewiseError, UserError
from joulewise.ledger import LEDGER, RunFolder, load
from joulewise.ledger_lines import read_ledger
from joulewise.plan import Plan
from joulewise.run_result import Progress, RunResult
from joulewise.yaml_file import parse_yaml
from planted_curve import PLANTED
from scripted_sweep import Counter, ScriptedSweep, planted_j

SPEC = NativeSpec()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch a window: the counter knows no noise."""
    monkeypatch.setattr(sweep, "LEAST_S", 0.0)


@pytest.fixture
def counter() -> Iterator[Meter]:
    with Meter([Counter()]) as meter:
        yield meter


def measure(engine: ScriptedSweep, folder: Path, meter: Meter, box: Box | None = None, **how: Any) -> RunResult:
    return sweep.sweep(engine, SPEC, box or Box(), folder, meter=meter, **how)


def test_a_sweep_and_its_curve_give_back_the_coefficients(tmp_path: Path, counter: Meter) -> None:
    engine = ScriptedSweep()
    result = measure(engine, tmp_path / "run", counter, points=32)
    assert (result.done, result.total, result.interrupted) == (32, 32, False)
    assert engine.closed
    found = run_points(load(tmp_path / "run"))
    points = found.points
    assert found.origin.model == "default"
    asked = zip(points.prompt_tokens, points.output_tokens, points.running, strict=True)
    assert [tuple(map(int, one)) for one in asked] == engine.asked
    for p, o, b, joules in zip(
        points.prompt_tokens, points.output_tokens, points.running, points.energy_j, strict=True
    ):
        assert joules == pytest.approx(planted_j(p, o, b))
    curve = fit_curve(points, replicates=20)
    assert curve.held_out.inside.p90 is not None
    assert curve.held_out.inside.p90 < 0.01
    for name, value in PLANTED.items():
        assert curve.coefficients[name].value == pytest.approx(value, rel=0.05), name
    assert curve.region.running == (1.0, 8.0)


def test_a_window_holds_many_batches_where_one_is_short(
    tmp_path: Path, counter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "LEAST_S", 0.005)
    engine = ScriptedSweep(before=lambda _: time.sleep(0.001))
    measure(engine, tmp_path / "run", counter, points=12)
    table = load(tmp_path / "run").arrow
    assert engine.batches > 24
    requests = [
        n for n, b in zip(table["generation_count"].to_pylist(), table["running"].to_pylist(), strict=True) if b
    ]
    assert sum(requests) > 24
    points = run_points(load(tmp_path / "run")).points
    at = (points.prompt_tokens, points.output_tokens, points.running)
    assert points.energy_j == pytest.approx([planted_j(*one) for one in zip(*at, strict=True)])


def test_a_window_ends_when_its_joules_are_known_whatever_was_foretold(
    tmp_path: Path, counter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "LEAST_S", 0.01)
    monkeypatch.setattr(sweep, "SEEN_S", 0.002)
    monkeypatch.setattr(sweep, "MOST_S", 20.0)
    monkeypatch.setattr(counter, "resolvable", lambda _: {"gpu": 100.0})
    engine = ScriptedSweep(before=lambda _: time.sleep(0.001))
    measure(engine, tmp_path / "known", counter, points=12)
    assert max(load(tmp_path / "known").arrow["duration_s"].to_pylist()) < 10.0

    def unknown(start_s: float, end_s: float, *, wait: bool = True) -> Any:
        assert not wait, "the device would idle inside the window"
        raise JoulewiseError("the timeline does not reach back")

    monkeypatch.setattr(counter, "between", unknown)
    monkeypatch.setattr(sweep, "MOST_S", 0.05)
    measure(ScriptedSweep(before=lambda _: time.sleep(0.001)), tmp_path / "unknown", counter, points=12)
    assert min(load(tmp_path / "unknown").arrow["duration_s"].to_pylist()) >= 0.05


def test_what_could_not_be_captured_is_told_recorded_and_in_the_curve(tmp_path: Path, counter: Meter) -> None:
    note = "no memory was left to capture a forward: from then on it runs uncaptured, which is slower"
    told: list[Progress] = []
    engine = ScriptedSweep(notes={8: note})
    result = measure(engine, tmp_path / "run", counter, points=20, on_progress=told.append)
    hit = sum(running == 8 for *_, running in engine.asked)
    assert result.notes == (note,) * hit
    assert [p.text.partition(": ")[2] for p in told if p.stage == "notice"] == [note]
    table = load(tmp_path / "run")
    noted = [row["running"] for row in table.arrow.to_pylist() if row["note"] == note]
    assert noted == [8] * hit
    assert f"in {hit} of 20 Trials: {note}" in run_points(table).notes
    again = measure(ScriptedSweep(), tmp_path / "run", counter, points=21, resume=True)
    assert again.notes == (note,) * hit


def test_joules_that_are_modelled_are_swept_and_then_refused(tmp_path: Path) -> None:
    source = SteadySource("cpu")
    source.spec = replace(source.spec, provenance="modelled")
    with Meter([source]) as meter:
        assert measure(ScriptedSweep(), tmp_path / "run", meter, points=26).done == 26
    with pytest.raises(UserError, match="modelled"):
        run_points(load(tmp_path / "run"))


def test_it_stops_after_the_point_in_flight_and_goes_on(tmp_path: Path, counter: Meter) -> None:
    told: list[Progress] = []
    stopping = ScriptedSweep(before=lambda n: signal.raise_signal(signal.SIGINT) if n == 5 else None)
    result = measure(stopping, tmp_path / "run", counter, points=26, on_progress=told.append)
    assert (result.done, result.interrupted) == (6, True)
    assert [p.done for p in told if p.stage == "trial"] == [1, 2, 3, 4, 5, 6]
    more = ScriptedSweep()
    assert measure(more, tmp_path / "run", counter, points=26, resume=True).done == 26
    whole = ScriptedSweep()
    measure(whole, tmp_path / "other", counter, points=26)
    assert stopping.asked + more.asked == whole.asked
    sequence = load(tmp_path / "run").arrow["sequence"].to_pylist()
    assert sequence == list(range(26))


def test_a_finished_sweep_goes_on_with_more_points_and_else_loads_nothing(tmp_path: Path, counter: Meter) -> None:
    measure(ScriptedSweep(), tmp_path / "run", counter, points=14)
    again = ScriptedSweep()
    assert measure(again, tmp_path / "run", counter, points=14, resume=True).done == 14
    assert again.asked == []
    assert measure(again, tmp_path / "run", counter, points=16, resume=True).done == 16
    assert len(again.asked) == 2


KILLED = """
import os, signal, sys
from pathlib import Path
from joulewise import sweep
from joulewise.analysis.design import Box
from joulewise.energy.meter import Meter
from joulewise.engines.spec import NativeSpec
from scripted_sweep import Counter, ScriptedSweep

sweep.LEAST_S = 0.0
engine = ScriptedSweep(before=lambda n: os.kill(os.getpid(), signal.SIGKILL) if n == 4 else None)
with Meter([Counter()]) as meter:
    sweep.sweep(engine, NativeSpec(), Box(), Path(sys.argv[1]), meter=meter, points=14)
"""


def test_a_killed_sweep_goes_on(tmp_path: Path, counter: Meter, repository: Path) -> None:
    path = os.pathsep.join([str(repository / "tests"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "run")], env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    ledger = tmp_path / "run" / LEDGER
    assert len(read_ledger(ledger).trials) == 4
    with ledger.open("ab") as file:
        file.write(b'{"kind":"trial","trial_id":"cut o')  # as if the kill had come in the middle of a line
    notices: list[str] = []
    result = measure(
        ScriptedSweep(),
        tmp_path / "run",
        counter,
        points=14,
        resume=True,
        on_progress=lambda p: notices.append(p.text) if p.stage == "notice" else None,
    )
    assert result.done == 14
    assert any("cut off" in notice for notice in notices)
    assert len(set(load(tmp_path / "run").arrow["question_id"].to_pylist())) == 14


@pytest.mark.alone
def test_no_point_begins_that_would_end_too_late(tmp_path: Path, counter: Meter) -> None:
    told: list[Progress] = []
    engine = ScriptedSweep(before=lambda _: time.sleep(0.02))
    start_s = time.monotonic()
    result = measure(engine, tmp_path / "run", counter, points=500, minutes=0.5 / 60, on_progress=told.append)
    assert 4 <= result.done < 40
    assert not result.interrupted
    assert time.monotonic() - start_s < 5.0
    assert any("no further point fits" in p.text for p in told if p.stage == "notice")


@pytest.mark.alone
def test_where_time_is_short_no_large_point_begins_before_it_is_known_what_it_takes(
    tmp_path: Path, counter: Meter
) -> None:
    engine = ScriptedSweep()

    def take_time(_: int) -> None:
        p, o, b = engine.asked[-1]
        time.sleep(1e-4 * b * p + 1e-4 * o)  # 5.8 s at the far corner

    engine.before = take_time
    start_s = time.monotonic()
    measure(engine, tmp_path / "run", counter, points=40, minutes=1.0 / 60)
    assert time.monotonic() - start_s < 3.0
    work = [b * (p + o) for p, o, b in engine.asked]
    assert work[0] == min(work)
    assert len(work) > 4


@pytest.mark.parametrize(
    ("box", "how", "words"),
    [
        (Box(), {"points": 11}, "too few for a curve"),
        (Box(), {"points": 0}, "too few for a curve"),
        (Box(), {"minutes": 0.0}, "no time to measure in"),
        (Box(), {"minutes": float("nan")}, "no time to measure in"),
        (Box(prompt_tokens=(100, 120)), {}, "prompt tokens from 100 to 120 do not vary enough"),
        (Box(output_tokens=(1, 2)), {}, "output tokens from 1 to 2 do not vary enough"),
    ],
)
def test_what_gives_no_curve_is_refused_before_anything_is_written(
    box: Box, how: dict[str, Any], words: str, tmp_path: Path, counter: Meter
) -> None:
    engine = ScriptedSweep()
    with pytest.raises(UserError, match=words):
        measure(engine, tmp_path / "run", counter, box, **how)
    assert not (tmp_path / "run").exists()


def test_what_the_context_does_not_hold_is_refused(tmp_path: Path, counter: Meter) -> None:
    engine = ScriptedSweep()
    with pytest.raises(UserError, match="need 8193 positions, and default has 8192"):
        measure(engine, tmp_path / "run", counter, Box(prompt_tokens=(32, 7169)))
    assert engine.asked == []
    assert engine.closed


def test_full_memory_ends_the_sweep_and_keeps_what_is_measured(tmp_path: Path, counter: Meter) -> None:
    def fail(number: int) -> None:
        if number == 3:
            raise EnvironmentFault("No memory is left")

    with pytest.raises(EnvironmentFault, match="No memory"):
        measure(ScriptedSweep(before=fail), tmp_path / "run", counter)
    assert load(tmp_path / "run").arrow.num_rows == 3


def test_another_range_does_not_go_on(tmp_path: Path, counter: Meter) -> None:
    measure(ScriptedSweep(), tmp_path / "run", counter, points=12)
    with pytest.raises(UserError, match="another plan"):
        measure(ScriptedSweep(), tmp_path / "run", counter, Box(running=(1, 4)), points=14, resume=True)
    with pytest.raises(UserError, match="holds a run"):
        measure(ScriptedSweep(), tmp_path / "run", counter, points=14)


def test_another_set_up_does_not_go_on(tmp_path: Path, counter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(ScriptedSweep(), tmp_path / "run", counter, points=12)
    other = EngineInfo("native", "default", "Scripted", 1, "bfloat16", ("cpu",), 8192)
    monkeypatch.setattr(ScriptedSweep, "load", lambda *_: other)
    with pytest.raises(UserError, match="another set-up"):
        measure(ScriptedSweep(), tmp_path / "run", counter, points=14, resume=True)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(ENGINES, "native", "scripted_sweep:ScriptedSweep")
    monkeypatch.setattr(energy, "discover", lambda: Meter([Counter()]))

    def call(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["sweep", "default", *arguments])

    return call


def test_the_command_measures_and_curve_fits(command: Any, tmp_path: Path) -> None:
    done = command("--out", "run", "--points", "26")
    assert done.exit_code == 0, done.output
    assert "26 points in run. Next: joulewise curve run; charts: joulewise report run" in done.output
    assert "Nothing here measures joules" not in done.output
    fitted = CliRunner().invoke(app, ["curve", "run", "--json", "curve.json", "--predict", "512,128,8"])
    assert fitted.exit_code == 0, fitted.output
    assert "each request, shared over B" in fitted.output
    assert "each point predicted from the others" in fitted.output
    assert json.loads((tmp_path / "curve.json").read_text())["region"]["running"] == [1.0, 8.0]


def test_where_nothing_measures_it_is_said_before_the_sweep(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modelled = Counter()
    modelled.spec = replace(modelled.spec, provenance="modelled")
    monkeypatch.setattr(energy, "discover", lambda: Meter([modelled]))
    done = command("--out", "run", "--points", "12")
    assert done.exit_code == 0, done.output
    assert "Nothing here measures joules" in done.stderr.splitlines()[0]


def test_too_few_points_in_the_time_are_told_with_the_way_on(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as slow:
        slow.setattr(ScriptedSweep, "__init__", partialmethod(ScriptedSweep.__init__, before=lambda _: time.sleep(0.2)))
        done = command("--out", "a run", "--minutes", "0.01", "--prompt", "32,900", "--seed", "7")
    assert done.exit_code == 0, done.output
    told = "a curve needs 12 or more: give it more --minutes with joulewise sweep --out 'a run' --resume"
    assert told in done.output
    copied = done.output.partition("--minutes with ")[2].partition(", or begin another")[0]
    again = CliRunner().invoke(app, shlex.split(copied)[1:])
    assert again.exit_code == 0, again.output
    assert "40 points in a run" in again.output


def test_a_sweep_goes_on_as_it_was_begun(command: Any, tmp_path: Path) -> None:
    def resume(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["sweep", "--out", "run", "--resume", *arguments])

    begun = command("--out", "run", "--points", "12", "--prompt", "32,900", "--load", "1,2", "--seed", "7")
    assert begun.exit_code == 0, begun.output
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    (tmp_path / "run" / "environment.json").write_text(json.dumps(environment | {"planned_trials": 13}))
    done = resume()
    assert done.exit_code == 0, done.output
    assert "13 points in run" in done.output
    more = resume("--points", "14", "--prompt", "32, 900", "--seed", "7")
    assert "14 points in run" in more.output
    plan = yaml.safe_load((tmp_path / "run" / "plan.yaml").read_text())
    assert plan["tasks"][0]["options"]["prompt_tokens"] == [32, 900]
    for options, words in (
        (("--prompt", "32,800"), "--prompt 32,800: the sweep in run was begun with 32,900; leave it out"),
        (("--dtype", "float16"), "--dtype float16: the sweep in run was begun with auto"),
        (("other/model",), "MODEL other/model: the sweep in run was begun with default"),
    ):
        assert words in str(resume(*options).exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "run"], "MODEL is missing: name default"),
        (["default"], "--out is missing"),
        (["--out", "none", "--resume"], "none: there is no run to resume here"),
        (["--out", "other", "--resume"], "other: holds a run of the plan 'a', and no sweep"),
    ],
)
def test_what_a_sweep_needs_is_told(command: Any, tmp_path: Path, arguments: list[str], words: str) -> None:
    plan = "name: a\nengines: [{kind: native}]\ndecodings: [vanilla]\ntasks: [{name: starter-maths}]\n"
    with RunFolder(tmp_path / "other", parse_yaml(plan, Plan, "a"), False) as folder:
        folder.write_json("environment.json", {})
    (tmp_path / "other" / "ledger.jsonl").touch()
    done = CliRunner().invoke(app, ["sweep", *arguments])
    assert isinstance(done.exception, UserError)
    assert words in str(done.exception)


def test_a_dry_run_lists_points_and_seconds_and_writes_nothing(command: Any, tmp_path: Path) -> None:
    done = command("--out", "run", "--dry-run")
    assert done.exit_code == 0, done.output
    assert done.output.count(" running ") == sweep.FIRST_POINTS
    assert "Nothing was measured" in done.output
    assert not (tmp_path / "run").exists()
    assert "further points" in done.output
    assert "further points" not in command("--out", "run", "--dry-run", "--points", "12").output


def test_a_seed_below_0_is_refused(command: Any) -> None:
    done = command("--out", "run", "--dry-run", "--seed", "-1")
    assert done.exit_code == 2
    assert "Invalid value for '--seed'" in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--load", "0,8"), "--load 0,8: the least must be 1"),
        (("--load", "8,1"), "--load 8,1: the least must be 1"),
        (("--prompt", "many"), "--prompt many: write the least and the most"),
        (("--points", "3"), "3 points are too few"),
        (("--dtype", "int3"), "--dtype int3"),
        (("--device", "tpu"), "--device tpu: must be auto, cpu, cuda or cuda:N"),
    ],
)
def test_wrong_options_are_told_by_name(command: Any, arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = command("--out", "run", *arguments)
    assert isinstance(done.exception, UserError)
    assert words in str(done.exception)
    assert not (tmp_path / "run").exists()

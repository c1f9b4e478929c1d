"""What a run measures around its Trials: repeats until a target is reached, and idle power before and after."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import scripted_engine
from joulewise.analysis.cells import CellKey
from joulewise.analysis.precision import Precision
from joulewise.energy.meter import Meter
from joulewise.ledger import load
from joulewise.ledger_lines import read_ledger
from joulewise.records import Trial
from joulewise.run_result import Progress
from joulewise.runner import run
from scripted_runs import Stop, make_plan, questions_task

pytestmark = pytest.mark.usefixtures("scripted")


def precision_by_repeats(monkeypatch: pytest.MonkeyPatch, half: Callable[[str, int], float | None]) -> None:
    """Let a cell's half-width follow from its decoding and its number of repeats."""

    def precision_of(trials: Sequence[Trial]) -> Precision:
        repeats = 1 + max(t.repeat for t in trials)
        key = CellKey("r", "toy", "toy", "direct", "words", trials[0].decoding)
        return Precision(key, "total", half(trials[0].decoding, repeats), repeats, 1.0)

    monkeypatch.setattr("joulewise.analysis.precision.precision_of", precision_of)


def repeats_by_cell(folder: Path) -> dict[str, int]:
    rows = load(folder).arrow.to_pylist()
    counts = Counter((r["decoding"], r["question_id"]) for r in rows)
    assert len(rows) == len({r["trial_id"] for r in rows})
    assert len({d: 0 for d, _ in counts}) * len({q: 0 for _, q in counts}) == len(counts)
    return {d: n for (d, _), n in counts.items()}


def test_cells_repeat_until_they_are_narrow_and_those_of_a_task_together(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision_by_repeats(monkeypatch, lambda decoding, n: (0.3 if decoding == "coga-5" else 0.1) / n)
    target = {"relative_half_width": 0.1, "max_repeats": 9}
    plan = make_plan(questions_task(tmp_path, ["a", "b"]), target=target)
    result = run(plan, tmp_path / "run", meter=meter)
    assert repeats_by_cell(tmp_path / "run") == {"vanilla": 3, "coga-5": 3, "prompt-lookup-10": 3}
    assert (result.done, result.total, result.interrupted) == (18, 18, False)
    trials = read_ledger(tmp_path / "run" / "ledger.jsonl").trials
    for i in range(0, 18, 3):  # still one question in all its cells at a time
        assert len({(t.question_id, t.repeat) for t in trials[i : i + 3]}) == 1
    scripted_engine.CALLS.clear()
    assert run(plan, tmp_path / "run", meter=meter, resume=True).done == 18
    assert scripted_engine.CALLS == []


@pytest.mark.parametrize(
    ("half", "budget", "repeats"),
    [
        (0.9, {"max_repeats": 4}, 4),
        (0.9, {"max_repeats": 9, "max_s": 1e-9}, 1),
        (0.01, {"max_repeats": 9}, 2),  # one repeat does not tell how repeats scatter
        (None, {"max_repeats": 9}, 1),  # joules that are unknown do not become known
    ],
)
@pytest.mark.parametrize("order", ["interleaved", "sequential"])
def test_repeats_end_with_the_budget(
    tmp_path: Path,
    meter: Meter,
    monkeypatch: pytest.MonkeyPatch,
    half: float | None,
    budget: dict[str, float],
    repeats: int,
    order: str,
) -> None:
    precision_by_repeats(monkeypatch, lambda _decoding, _n: half)
    plan = make_plan(questions_task(tmp_path, ["a", "b"]), target={"relative_half_width": 0.05, **budget}, order=order)
    run(plan, tmp_path / "run", meter=meter)
    assert set(repeats_by_cell(tmp_path / "run").values()) == {repeats}
    checks = read_ledger(tmp_path / "run" / "ledger.jsonl").checks
    assert len(checks) == 2 * 2 * repeats  # the repeats are compared with vanilla too


@pytest.mark.parametrize("after", [5, 6, 7, 8, 11, 12, 13])
def test_a_run_with_a_target_survives_a_kill_in_any_repeat(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    precision_by_repeats(monkeypatch, lambda _decoding, n: 0.3 / n)
    plan = make_plan(questions_task(tmp_path, ["a", "b"]), target={"relative_half_width": 0.1, "max_repeats": 9})
    seen = 0

    def kill(progress: Progress) -> None:
        nonlocal seen
        seen += progress.stage == "trial"
        if seen == after:
            raise Stop

    with pytest.raises(Stop):
        run(plan, tmp_path / "run", meter=meter, on_progress=kill)
    result = run(plan, tmp_path / "run", meter=meter, resume=True)
    assert (result.done, result.total, result.interrupted) == (18, 18, False)
    assert set(repeats_by_cell(tmp_path / "run").values()) == {3}


def test_a_stop_before_the_target_is_reached_is_an_interruption(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision_by_repeats(monkeypatch, lambda _decoding, n: 0.3 / n)
    plan = make_plan(questions_task(tmp_path, ["a"]), target={"relative_half_width": 0.2, "max_repeats": 9})

    def interrupt(progress: Progress) -> None:
        if progress.stage == "trial" and progress.done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    result = run(plan, tmp_path / "run", meter=meter, on_progress=interrupt)
    assert (result.done, result.total, result.interrupted) == (3, 6, True)
    assert not run(plan, tmp_path / "run", meter=meter, resume=True).interrupted


def test_a_target_with_real_joules_ends(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "b"]), target={"relative_half_width": 1e-6, "max_repeats": 3})
    run(plan, tmp_path / "run", meter=meter)
    assert set(repeats_by_cell(tmp_path / "run").values()) == {3}


def test_a_target_without_a_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a budget: 'max_repeats', 'max_s' or both"):
        make_plan(questions_task(tmp_path, ["a"]), target={"relative_half_width": 0.05})
    with pytest.raises(ValueError, match="is less than 'repeats'"):
        make_plan(questions_task(tmp_path, ["a"]), target={"relative_half_width": 0.05, "max_repeats": 2}, repeats=3)


def idle_readings(folder: Path) -> list[tuple[str, float]]:
    return [
        (i["when"], i["power_w"]) for i in load(folder).environments["run"].get("idle", []) if i["component"] == "gpu"
    ]


def test_idle_power_is_measured_with_the_engine_loaded_before_and_after(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a"]), idle_baseline_s=0.05)
    stages: list[str] = []
    result = run(plan, tmp_path / "run", meter=meter, on_progress=lambda p: stages.append(p.stage))
    assert [s for s in stages if s in ("idle", "trial")] == ["idle", "trial", "trial", "trial", "idle"]
    readings = load(result).environments["run"]["idle"]
    assert load(result).environments["run"]["net_policy"].startswith("net joules = gross joules - idle power")
    for when in ("before", "after"):
        powers = {i["component"]: i["power_w"] for i in readings if i["when"] == when}
        assert powers == pytest.approx({"gpu": 100.0, "cpu": 30.0, "dram": 5.0}, rel=0.01)
    assert readings[0]["devices_w"] == pytest.approx({"fake:gpu": 100.0}, rel=0.01)
    assert readings[0]["independent_w"] >= 0.0


def test_idle_power_is_measured_in_every_session_also_when_it_is_interrupted(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "b"]), idle_baseline_s=0.02)

    def interrupt(progress: Progress) -> None:
        if progress.stage == "trial" and progress.done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    assert run(plan, tmp_path / "run", meter=meter, on_progress=interrupt).interrupted
    assert [when for when, _ in idle_readings(tmp_path / "run")] == ["before", "after"]
    run(plan, tmp_path / "run", meter=meter, resume=True)
    assert [when for when, _ in idle_readings(tmp_path / "run")] == ["before", "after"] * 2


@pytest.mark.parametrize("stage", ["warm-up", "idle"])
def test_a_stop_before_the_first_trial_leaves_no_idle_reading(tmp_path: Path, meter: Meter, stage: str) -> None:
    plan = make_plan(questions_task(tmp_path, ["a"]), idle_baseline_s=30.0)

    def interrupt(progress: Progress) -> None:
        if progress.stage == stage:
            os.kill(os.getpid(), signal.SIGINT)

    result = run(plan, tmp_path / "run", meter=meter, on_progress=interrupt)
    assert (result.done, idle_readings(tmp_path / "run")) == (0, [])


def test_a_second_ctrl_c_ends_the_idle_reading_after_the_trials(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a"]), idle_baseline_s=0.02)

    def interrupt(progress: Progress) -> None:
        if progress.stage == "trial" or (progress.stage, progress.done) == ("idle", 1):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path / "run", meter=meter, on_progress=interrupt)
    assert [when for when, _ in idle_readings(tmp_path / "run")] == ["before"]


def test_who_has_enough_ends_a_run_after_the_trial_in_flight_and_it_goes_on(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "b", "c"]))
    told: list[Progress] = []
    done = run(
        plan,
        tmp_path / "run",
        meter=meter,
        on_progress=told.append,
        enough=lambda: sum(p.stage == "trial" for p in told) >= 2,
    )
    assert (done.done, done.interrupted) == (2, True)
    assert run(plan, tmp_path / "run", meter=meter, resume=True).done == done.total
    whole = run(plan, tmp_path / "whole", meter=meter, enough=lambda: False)
    assert (whole.done, whole.interrupted) == (whole.total, False)

"""The loop around the engine: order, fairness, failures, verdicts, resuming, stopping."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scripted_engine
from fake_source import SteadySource
from joulewise import runner
from joulewise.energy.meter import Meter, Window
from joulewise.engines import ENGINES
from joulewise.errors import EnvironmentFault, JoulewiseError, UserError
from joulewise.ledger import load
from joulewise.ledger_lines import read_ledger
from joulewise.records import GenerationRecord
from joulewise.run_result import Progress, RunResult
from joulewise.runner import run
from joulewise.schedule import open_tasks, schedule
from joulewise.tasks.prompt_task import PromptTask
from scripted_runs import Stop, make_plan, questions_task

pytestmark = pytest.mark.usefixtures("scripted")


def test_every_question_is_asked_once_in_every_cell(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "b", "c"]), repeats=2)
    result = run(plan, tmp_path / "run", meter=meter)
    assert (result.done, result.total, result.failed, result.interrupted) == (18, 18, 0, False)
    rows = load(result).arrow.to_pylist()
    assert Counter((r["decoding"], r["question_id"], r["repeat"]) for r in rows) == Counter(
        (d, f"q{q}", n) for d in ("vanilla", "coga-5", "prompt-lookup-10") for q in range(3) for n in range(2)
    )
    assert sorted(r["sequence"] for r in rows) == list(range(18))


def test_what_an_engine_notes_of_a_generation_is_noted_of_the_trial(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = scripted_engine.ScriptedEngine.generate
    noted = iter(["no memory was left", None])
    monkeypatch.setattr(
        scripted_engine.ScriptedEngine, "generate", lambda *given: replace(generate(*given), note=next(noted, None))
    )
    plan = make_plan(questions_task(tmp_path, ["a", "b"]), decodings=["vanilla"], warm_up=0)
    rows = load(run(plan, tmp_path / "run", meter=meter)).arrow.to_pylist()
    assert [row["note"] for row in sorted(rows, key=lambda row: row["sequence"])] == ["no memory was left", None]


def test_joules_are_the_source_s(tmp_path: Path, meter: Meter) -> None:
    result = run(make_plan(questions_task(tmp_path, ["a"])), tmp_path / "run", meter=meter)
    for row in load(result).arrow.to_pylist():
        assert row["gpu_energy_j"] == pytest.approx(100.0 * row["duration_s"], rel=0.5, abs=1e-3)
        assert row["total_energy_j"] == pytest.approx(row["gpu_energy_j"] + row["cpu_energy_j"] + row["dram_energy_j"])
        assert row["gpu_provenance"] == row["total_provenance"] == "measured"


def test_answers_are_scored_while_the_counter_s_next_steps_come(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of the window, and before its joules are asked for: those wait."""
    seen: list[str] = []
    score, energy, close = PromptTask.score, vars(Window)["energy"].fget, Window._close

    def told(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def tell(*arguments: Any) -> Any:
            seen.append(name)
            return function(*arguments)

        return tell

    monkeypatch.setattr(PromptTask, "score", told("score", score))
    monkeypatch.setattr(Window, "_close", told("closed", close))
    monkeypatch.setattr(Window, "energy", property(told("joules", energy)))
    run(make_plan(questions_task(tmp_path, ["a"])), tmp_path / "run", meter=meter)
    assert seen == ["closed", "score", "joules"] * 3


def _records(result: RunResult) -> list[GenerationRecord]:
    trials = read_ledger(result.folder / "ledger.jsonl").trials
    return [generation for trial in trials for generation in trial.generations]


def test_what_the_prefill_drew_is_recorded(tmp_path: Path, meter: Meter) -> None:
    result = run(make_plan(questions_task(tmp_path, ["a", "b"])), tmp_path / "run", meter=meter)
    for generation in _records(result):
        assert generation.first_token_s is not None
        assert generation.prefill_energy is not None
        prefill_s = generation.first_token_s - generation.start_s
        assert {e.component: e.energy_j for e in generation.prefill_energy} == pytest.approx(
            {"gpu": 100.0 * prefill_s, "cpu": 30.0 * prefill_s, "dram": 5.0 * prefill_s}, rel=1e-3, abs=1e-6
        )
        assert generation.phases_s is None


def test_a_prefill_that_the_timeline_does_not_tell_is_not_recorded(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def between(*_: float) -> None:
        raise JoulewiseError("the timeline does not reach back")

    monkeypatch.setattr(meter, "between", between)
    result = run(make_plan(questions_task(tmp_path, ["a"])), tmp_path / "run", meter=meter)
    assert (result.done, result.failed) == (3, 0)
    assert [generation.prefill_energy for generation in _records(result)] == [None] * 3


def test_phases_are_recorded_and_strange_ones_refused(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = scripted_engine.ScriptedEngine.generate
    phases_s = {"prefill": 0.25, "verify": 0.5}
    monkeypatch.setattr(
        scripted_engine.ScriptedEngine,
        "generate",
        lambda *arguments: replace(generate(*arguments), first_token_s=None, phases_s=phases_s),
    )
    result = run(make_plan(questions_task(tmp_path, ["a"])), tmp_path / "run", meter=meter)
    for generation in _records(result):
        assert (generation.phases_s, generation.prefill_energy) == (phases_s, None)
    with pytest.raises(ValueError, match="no phase is called 'thinking'"):
        GenerationRecord.model_validate(generation.model_dump() | {"phases_s": {"thinking": 1.0}})


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 6), repeats=st.integers(1, 3))
def test_interleaved_blocks_hold_one_question_in_all_its_cells(
    seed: int, count: int, repeats: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    task = questions_task(tmp_path_factory.mktemp("t"), [str(i) for i in range(count)])
    plan = make_plan(task, seed=seed, repeats=repeats)
    jobs = schedule(plan, open_tasks(plan, None, None))
    assert len({j.trial_id for j in jobs}) == len(jobs) == 3 * count * repeats
    for i in range(0, len(jobs), 3):
        block = jobs[i : i + 3]
        assert len({(j.question.question_id, j.repeat) for j in block}) == 1
        assert len({j.cell.decoding.label for j in block}) == 3
    assert schedule(plan, open_tasks(plan, None, None)) == jobs


def test_interleaved_order_differs_from_block_to_block(tmp_path: Path) -> None:
    plan = make_plan(questions_task(tmp_path, [str(i) for i in range(12)]))
    jobs = schedule(plan, open_tasks(plan, None, None))
    assert len({tuple(j.cell.decoding.label for j in jobs[i : i + 3]) for i in range(0, 36, 3)}) > 1


def test_a_smaller_sample_is_contained_in_a_larger_one(tmp_path: Path) -> None:
    plan = make_plan(questions_task(tmp_path, [str(i) for i in range(20)]))
    for small, large in ((3, 7), (7, 20)):
        few = [q.question_id for q in open_tasks(plan, None, small)["words"][1]]
        many = [q.question_id for q in open_tasks(plan, None, large)["words"][1]]
        assert many[: len(few)] == few


def test_more_questions_than_there_are_is_refused(tmp_path: Path, meter: Meter) -> None:
    task = questions_task(tmp_path, ["a"])
    with pytest.raises(UserError, match="asks for 5 questions but there are 1"):
        run(make_plan([{"name": task, "questions": 5}]), tmp_path / "run", meter=meter)
    assert not (tmp_path / "run").exists()


def test_a_decoding_that_the_engine_cannot_do_is_refused_before_anything_runs(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a"]), engines=[{"kind": "transformers", "name": "toy"}])
    with pytest.raises(UserError, match=r"engine toy cannot do coga-5: no draft model is named; .*exclude"):
        run(plan, tmp_path / "run", meter=meter)
    assert scripted_engine.CALLS == []


def test_a_question_over_the_context_fails_alone(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "OVERLONG b"]))
    result = run(plan, tmp_path / "run", meter=meter)
    assert (result.done, result.failed) == (6, 3)
    failed = [r for r in load(result).arrow.to_pylist() if r["status"] == "failed"]
    assert {r["question_id"] for r in failed} == {"q1"}
    assert "do not fit the context of 512 tokens" in failed[0]["error"]
    assert failed[0]["score"] is None


def test_verdicts_of_lossless_decodings(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "DIFFER b"]))
    result = run(plan, tmp_path / "run", meter=meter)
    assert result.different == 1
    verdicts = {(r["decoding"], r["question_id"]): r["check_status"] for r in load(result).arrow.to_pylist()}
    assert verdicts == {
        ("vanilla", "q0"): None,
        ("vanilla", "q1"): None,
        ("coga-5", "q0"): "identical",
        ("coga-5", "q1"): "identical",
        ("prompt-lookup-10", "q0"): "identical",
        ("prompt-lookup-10", "q1"): "different",
    }


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({"sampling": {"temperature": 0.7}}, "sampled output"),
        ({"decodings": ["prompt_lookup"]}, "no vanilla in the grid to compare with"),
    ],
)
def test_what_cannot_be_checked_says_why(tmp_path: Path, meter: Meter, more: dict[str, Any], note: str) -> None:
    result = run(make_plan(questions_task(tmp_path, ["a"]), **more), tmp_path / "run", meter=meter)
    rows = [r for r in load(result).arrow.to_pylist() if r["decoding"] == "prompt-lookup-10"]
    assert [(r["check_status"], r["check_note"]) for r in rows] == [("not_checked", note)]


def test_verdicts_come_in_sequential_order_too(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(
        questions_task(tmp_path, ["a", "DIFFER b"]), order="sequential", decodings=["prompt_lookup", "vanilla"]
    )
    result = run(plan, tmp_path / "run", meter=meter)
    statuses = {r["question_id"]: r["check_status"] for r in load(result).arrow.to_pylist() if r["check_status"]}
    assert statuses == {"q0": "identical", "q1": "different"}


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
def test_resuming_does_what_is_missing_and_nothing_twice(tmp_path: Path, meter: Meter, after: int) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "DIFFER b"]), warm_up=0)
    seen = 0

    def kill(progress: Progress) -> None:
        nonlocal seen
        seen += progress.stage == "trial"
        if seen == after:
            raise Stop

    with pytest.raises(Stop):
        run(plan, tmp_path / "run", meter=meter, on_progress=kill)
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").trials) == after
    result = run(plan, tmp_path / "run", meter=meter, resume=True)
    content = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert (result.done, result.interrupted) == (6, False)
    assert len(content.trials) == len({t.trial_id for t in content.trials}) == 6
    assert sorted(t.sequence for t in content.trials) == list(range(6))
    # the verdicts are all there, also where one half of a pair ran before the kill and the other after it
    assert Counter(c.status for c in content.checks.values()) == {"identical": 3, "different": 1}


def test_a_finished_run_resumes_to_nothing(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a"]))
    run(plan, tmp_path / "run", meter=meter)
    scripted_engine.CALLS.clear()
    assert run(plan, tmp_path / "run", meter=meter, resume=True).done == 3
    assert scripted_engine.CALLS == []


def test_resuming_on_another_set_up_is_refused(tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "b"]))
    run(plan, tmp_path / "run", meter=meter, limit=1)
    monkeypatch.setattr("joulewise.environment.cpu_name", lambda: "another CPU")
    with pytest.raises(UserError, match=r"another set-up \(machine differ"):
        run(plan, tmp_path / "run", meter=meter, resume=True)


def test_resuming_on_another_gpu_of_the_same_machine_is_refused(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "b"]))
    run(plan, tmp_path / "run", meter=meter, limit=1)
    other = SteadySource("gpu", 100.0)
    other.spec = replace(other.spec, source_id="nvml:GPU-2")
    with Meter([other]) as elsewhere, pytest.raises(UserError, match=r"another set-up \(metered GPUs differ"):
        run(plan, tmp_path / "run", meter=elsewhere, resume=True)


def test_resuming_after_a_question_was_changed_is_refused(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "b"]))
    run(plan, tmp_path / "run", meter=meter, limit=1)
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    questions_task(tmp_path, ["a!", "b!"])
    with pytest.raises(UserError, match="no longer reads as it did"):
        run(plan, tmp_path / "run", meter=meter, resume=True)
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before


def test_resuming_compares_what_was_cut_off_from_its_vanilla(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a"]))
    run(plan, tmp_path / "run", meter=meter)
    ledger = tmp_path / "run" / "ledger.jsonl"
    whole = ledger.read_text().splitlines(keepends=True)
    others = [line for line in whole if '"kind":"trial"' in line and '"decoding":"vanilla"' not in line]
    ledger.write_text("".join(others))
    run(plan, tmp_path / "run", meter=meter, resume=True)
    assert sum('"kind":"check"' in line for line in ledger.read_text().splitlines()) == len(others) == 2


def test_a_limited_run_can_be_widened(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "b", "c"]))
    record = tmp_path / "run" / "environment.json"
    assert run(plan, tmp_path / "run", meter=meter, limit=1).total == 3
    assert json.loads(record.read_text())["planned_trials"] == 3
    result = run(plan, tmp_path / "run", meter=meter, resume=True)
    assert (result.done, result.total) == (9, 9)
    assert json.loads(record.read_text())["planned_trials"] == 9


def test_one_ctrl_c_ends_after_the_trial_in_flight_and_resumes(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "b"]))
    before = signal.getsignal(signal.SIGINT)

    def interrupt(progress: Progress) -> None:
        if progress.stage == "trial" and progress.done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    result = run(plan, tmp_path / "run", meter=meter, on_progress=interrupt)
    assert (result.done, result.interrupted) == (2, True)
    assert signal.getsignal(signal.SIGINT) is before
    assert run(plan, tmp_path / "run", meter=meter, resume=True).done == 6


def test_ctrl_c_twice_stops_at_once_and_keeps_what_is_done(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "b"]))

    def interrupt(progress: Progress) -> None:
        if progress.stage == "trial" and progress.done == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path / "run", meter=meter, on_progress=interrupt)
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").trials) == 2


def test_polluted_trials_are_flagged_and_run_again_if_asked(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = iter([0.5, 0.0, 0.05, 0.5, 0.5])
    monkeypatch.setattr(runner, "other_cores", lambda _a, _b: next(others))
    plan = make_plan(
        questions_task(tmp_path, ["a", "b", "c"]), decodings=["vanilla"], pollution={"limit_cores": 0.1, "reruns": 1}
    )
    result = run(plan, tmp_path / "run", meter=meter)
    trials = read_ledger(tmp_path / "run" / "ledger.jsonl").trials
    assert [(t.attempt, t.polluted) for t in trials] == [(0, True), (1, False), (0, False), (0, True), (1, True)]
    rows = load(result).arrow.to_pylist()
    assert [(r["polluted"], r["other_cpu_cores"]) for r in rows] == [(False, 0.0), (False, 0.05), (True, 0.5)]


def test_a_run_compares_its_counters_with_the_power_readings(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joulewise.energy.crosscheck.LEAST_S", 0.0)
    plan = make_plan(questions_task(tmp_path, ["a", "b"]))
    run(plan, tmp_path / "run", meter=meter)
    found = {c["source_id"]: c["gap"] for c in load(tmp_path / "run").environments["run"]["cross_check"]}
    assert found == pytest.approx({"fake:gpu": 0.0, "fake:cpu": 0.0, "fake:dram": 0.0}, abs=1e-6)
    (tmp_path / "run" / "timeline" / "00000.parquet").write_bytes(b"PAR1")
    told: list[str] = []
    run(plan, tmp_path / "run", meter=meter, resume=True, on_progress=lambda p: told.append(p.text))
    assert any("00000.parquet: cannot be read" in text for text in told)


def test_the_run_folder_tells_the_whole_story(tmp_path: Path, meter: Meter) -> None:
    result = run(make_plan(questions_task(tmp_path, ["a"])), tmp_path / "run", meter=meter)
    environment = load(result).environments["run"]
    assert environment["engines"][0]["label"] == "toy"
    assert environment["machine"]["cores"] >= 1
    assert environment["packages"]["joulewise"]
    assert {s["source_id"] for s in environment["sources"]} == {"fake:gpu", "fake:cpu", "fake:dram"}
    timeline = pq.read_table(tmp_path / "run" / "timeline")
    assert set(timeline.column_names) >= {"time_s", "source_id", "energy_j", "power_w", "utilisation"}
    trial = read_ledger(tmp_path / "run" / "ledger.jsonl").trials[0]
    assert {r.source_id for r in trial.readings_start} == {r.source_id for r in trial.readings_end}
    used_j = trial.readings_end[0].energy_j - trial.readings_start[0].energy_j
    assert 0 < trial.energy[0].energy_j <= used_j  # the readings lie just outside the window


def test_a_disk_that_fills_up_stops_the_run_cleanly(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(questions_task(tmp_path, ["a", "b"]))
    real_fsync, calls = os.fsync, Counter[str]()

    def fsync(fd: int) -> None:
        calls["fsync"] += 1
        if calls["fsync"] == 5:
            raise OSError(28, "No space left on device")
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        run(plan, tmp_path / "run", meter=meter)
    monkeypatch.undo()
    monkeypatch.setitem(ENGINES, "transformers", "scripted_engine:ScriptedEngine")
    kept = len(read_ledger(tmp_path / "run" / "ledger.jsonl").trials)
    assert 0 < kept < 6
    assert run(plan, tmp_path / "run", meter=meter, resume=True).done == 6


def test_third_party_questions_leave_ids_and_hashes_only(tmp_path: Path, meter: Meter, shared_data: Path) -> None:
    result = run(make_plan(["gsm8k"]), tmp_path / "run", meter=meter, data_dir=shared_data, limit=2)
    text = (tmp_path / "run" / "ledger.jsonl").read_text()
    prompts = {prompt for _, prompt in scripted_engine.CALLS if "Count from one" not in prompt}
    assert result.done == 6
    assert len(prompts) == 2
    for prompt in prompts:
        assert prompt[:40] not in text
    assert all(r["question_hash"] for r in load(result).arrow.to_pylist())

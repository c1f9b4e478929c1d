"""The run folder: what it takes, what it refuses, and what survives."""

import errno
import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.energy import TimelineRow
from joulewise.energy.reading import DeviceState, Provenance
from joulewise.errors import EnvironmentFault, UserError
from joulewise.ledger import LEDGER, SKIPPED, RunFolder, latest_run_folder, load
from joulewise.ledger_lines import read_ledger
from joulewise.plan import Plan
from joulewise.records import Check, EnergyRecord, Trial
from sample_trial import sample_trial

PLAN = Plan.model_validate(
    {
        "name": "test",
        "engines": [{"kind": "transformers"}],
        "decodings": ["vanilla", "prompt_lookup"],
        "tasks": ["starter-maths"],
    }
)


def trial(number: int, energy_j: float | None = 10.0) -> Trial:
    kind: Provenance = "unknown" if energy_j is None else "modelled"
    part = EnergyRecord(component="cpu", provenance=kind, energy_j=energy_j, gain_j=5.0)
    return sample_trial(number, part, text="ünïcode\nand lines")


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    check = Check(trial_id=trial(0).trial_id, reference_trial_id=None, status="not_checked", note="alone")
    with RunFolder(tmp_path / "run", PLAN, resume=False) as run:
        run.append(trial(0))
        run.append(check)
    content = read_ledger(tmp_path / "run" / LEDGER)
    assert content.trials == (trial(0),)
    assert content.checks == {trial(0).trial_id: check}
    assert content.torn == b""


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(min_value=1, max_value=4000))
def test_wherever_a_line_is_torn_only_that_trial_is_lost(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("torn") / "run"
    with RunFolder(folder, PLAN, resume=False) as run:
        run.append(trial(0))
        whole = (folder / LEDGER).stat().st_size
        run.append(trial(1))
    size = (folder / LEDGER).stat().st_size
    kept = max(whole, size - cut)
    os.truncate(folder / LEDGER, kept)
    with RunFolder(folder, PLAN, resume=True) as run:
        assert [t.sequence for t in run.content.trials] == ([0, 1] if kept == size else [0])
        assert bool(run.notices) == (whole < kept < size)
        run.append(trial(2))
    assert read_ledger(folder / LEDGER).torn == b""
    assert [t.sequence for t in read_ledger(folder / LEDGER).trials] == ([0, 2] if kept < size else [0, 1, 2])


def test_reading_alone_repairs_nothing_and_warns(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", PLAN, resume=False) as run:
        run.append(trial(0))
    with open(tmp_path / "run" / LEDGER, "ab") as file:
        file.write(b'{"kind": "tri')
    before = (tmp_path / "run" / LEDGER).read_bytes()
    table = load(tmp_path / "run")
    assert table.arrow.num_rows == 1
    assert "cut off" in table.warnings[0]
    assert (tmp_path / "run" / LEDGER).read_bytes() == before


def test_a_broken_line_in_the_middle_is_named_and_nothing_is_touched(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", PLAN, resume=False) as run:
        run.append(trial(0))
    file = tmp_path / "run" / LEDGER
    file.write_bytes(b"nonsense\n" + file.read_bytes())
    before = file.read_bytes()
    with pytest.raises(UserError, match=r"ledger\.jsonl:1: not a line of a Joulewise ledger"):
        RunFolder(tmp_path / "run", PLAN, resume=True)
    assert file.read_bytes() == before


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", PLAN, resume=False) as run:
        run.append(trial(0).model_copy(update={"schema_version": 99}))
    with pytest.raises(UserError, match="written by a newer Joulewise"):
        load(tmp_path / "run")


def test_two_runs_in_one_folder_refuse_each_other(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path / "run", PLAN, resume=False),
        pytest.raises(EnvironmentFault, match="another run is writing"),
    ):
        RunFolder(tmp_path / "run", PLAN, resume=True)
    with RunFolder(tmp_path / "run", PLAN, resume=True):
        pass  # the lock goes with its holder


def test_a_folder_with_a_run_is_not_written_over(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", PLAN, resume=False) as run:
        run.append(trial(0))
    with pytest.raises(UserError, match="--resume"):
        RunFolder(tmp_path / "run", PLAN, resume=False)


def test_a_run_that_failed_before_its_first_trial_is_started_anew(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", PLAN, resume=False) as run:
        run.write_json("environment.json", {"python": "0.0"})
    other = PLAN.model_copy(update={"seed": 7})
    RunFolder(tmp_path / "run", other, resume=False).close()
    assert not (tmp_path / "run" / "environment.json").exists()
    RunFolder(tmp_path / "run", other, resume=True).close()


def test_resuming_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run to resume"):
        RunFolder(tmp_path / "run", PLAN, resume=True)
    assert not (tmp_path / "run").exists()


def test_the_latest_run_is_the_latest_that_got_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RunFolder(Path("runs/test-20260101-000000"), PLAN, resume=False) as run:
        run.append(trial(0))
    RunFolder(Path("runs/test-20260102-000000"), PLAN, resume=False).close()
    assert latest_run_folder(PLAN) == Path("runs/test-20260101-000000")


def test_resuming_with_another_plan_names_what_differs(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", PLAN, resume=False).close()
    with pytest.raises(UserError, match=r"they differ in: seed\)"):
        RunFolder(tmp_path / "run", PLAN.model_copy(update={"seed": 7}), resume=True)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        RunFolder(tmp_path / "file" / "run", PLAN, resume=False)


@pytest.mark.parametrize("room", [0, 1, 100, 500])
def test_no_space_left_takes_the_torn_line_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    with RunFolder(tmp_path / "run", PLAN, resume=False) as run:
        run.append(trial(0))
        real_write, left = os.write, room

        def full_disk(fd: int, data: bytes) -> int:
            nonlocal left
            if left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            part = data[:left]
            left -= len(part)
            return real_write(fd, part)

        monkeypatch.setattr(os, "write", full_disk)
        with pytest.raises(EnvironmentFault, match="No space left on device"):
            run.append(trial(1))
        monkeypatch.undo()
    content = read_ledger(tmp_path / "run" / LEDGER)
    assert content.trials == (trial(0),)
    assert content.torn == b""


def test_a_really_full_disk_keeps_every_whole_trial(tmp_path: Path) -> None:
    """The kernel's own limit on file size stands in for a full disk: write() fails half-way through a line."""
    import resource
    import signal

    with RunFolder(tmp_path / "run", PLAN, resume=False) as run:
        run.append(trial(0))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "run" / LEDGER).stat().st_size + 50, hard))
        try:
            with pytest.raises(EnvironmentFault, match="everything up to the last whole Trial is intact"):
                run.append(trial(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
        run.append(trial(2))
    assert [t.sequence for t in read_ledger(tmp_path / "run" / LEDGER).trials] == [0, 2]


def test_the_table_has_sums_and_never_turns_unknown_into_zero(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", PLAN, resume=False) as run:
        run.append(trial(0))
        run.append(trial(1, energy_j=None))
    rows = load(tmp_path / "run").arrow.to_pylist()
    assert rows[0]["accepted_tokens"] == 2
    assert rows[0]["drafted_per_round"] == [5, 5]
    assert rows[0]["duration_s"] == 2.0
    assert (rows[0]["cpu_energy_j"], rows[0]["total_energy_j"]) == (10.0, 10.0)
    assert rows[0]["gpu_provenance"] is None
    assert rows[1]["cpu_energy_j"] is None
    assert rows[1]["total_energy_j"] is None
    assert rows[1]["cpu_provenance"] == "unknown"


def test_of_a_trial_that_was_run_again_the_last_attempt_counts(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", PLAN, resume=False) as run:
        run.append(trial(0))
        run.append(trial(0, energy_j=20.0).model_copy(update={"attempt": 1}))
    assert load(tmp_path / "run").arrow.column("cpu_energy_j").to_pylist() == [20.0]


def test_views_in_pandas_and_polars(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", PLAN, resume=False) as run:
        run.append(trial(0))
    table = load(tmp_path / "run")
    assert table.to_pandas()["output_tokens"].tolist() == [4]
    assert table.to_polars()["output_tokens"].to_list() == [4]


def test_runs_side_by_side_keep_their_names_apart(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        with RunFolder(tmp_path / parent / "run", PLAN, resume=False) as run:
            run.append(trial(0))
    table = load([tmp_path / "a" / "run", tmp_path / "b" / "run"])
    assert table.arrow.column("run").to_pylist() == ["run", "run-2"]
    assert set(table.plans) == {"run", "run-2"}


def test_what_is_no_run_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        load(tmp_path)


def test_the_plan_in_the_folder_is_the_plan(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", PLAN, resume=False).close()
    assert Plan.model_validate(yaml.safe_load((tmp_path / "run" / "plan.yaml").read_text())) == PLAN


def whole_run(folder: Path) -> Path:
    with RunFolder(folder / "run", PLAN, resume=False) as run:
        run.append(trial(0))
        run.write_json("environment.json", {"python": "3.11"})
        run.write_json("idle.json", {"idle": []})
        run.write_json(SKIPPED, {"skipped": {"starter-maths": ["q.jsonl:3: not valid JSON", "q.jsonl:5: not UTF-8"]}})
    return folder / "run"


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (("ledger.jsonl",), "a run folder without ledger.jsonl, so a part of one; copy the whole folder"),
        (("plan.yaml",), "a run folder without plan.yaml, so a part of one; copy the whole folder"),
        (("plan.yaml", "environment.json"), "a run folder without plan.yaml, so a part of one"),
        (("plan.yaml", "ledger.jsonl"), "a run folder without ledger.jsonl and plan.yaml, so a part of one"),
        (("plan.yaml", "ledger.jsonl", "environment.json"), "not a run folder; name one that `joulewise run` made"),
    ],
)
def test_a_folder_copied_in_part_says_what_is_missing(tmp_path: Path, gone: tuple[str, ...], words: str) -> None:
    run = whole_run(tmp_path)
    for name in gone:
        (run / name).unlink()
    with pytest.raises(UserError, match=re.escape(f"{run}: {words}")):
        load(run)
    with pytest.raises(UserError, match=r"a part of one|no run to resume"):
        RunFolder(run, PLAN, resume=True)


def test_a_file_in_a_folders_place_is_told_and_its_folder_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UserError, match=r"notes\.txt: a file, and no run folder; name a folder"):
        load(tmp_path / "notes.txt")
    (tmp_path / LEDGER).write_text("")
    with pytest.raises(UserError, match=rf"a file, and no run folder; name the folder {re.escape(str(tmp_path))}"):
        load(tmp_path / LEDGER)


def test_no_such_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gone: no such folder; name one that `joulewise run` made"):
        load(tmp_path / "gone")


def test_a_missing_environment_is_warned_of(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    (run / "environment.json").unlink()
    (run / "idle.json").unlink()
    table = load(run)
    assert table.arrow.num_rows == 1
    assert any("environment.json is missing, so what it ran on is not known" in w for w in table.warnings)


def test_skipped_lines_are_warned_of(tmp_path: Path) -> None:
    table = load(whole_run(tmp_path))
    (warning,) = table.warnings
    assert warning == "run: broken lines of the task starter-maths were left out: 2 (skipped.json lists them)"
    assert table.environments["run"]["skipped"]["starter-maths"][0] == "q.jsonl:3: not valid JSON"


@pytest.mark.parametrize("name", ["environment.json", "idle.json", "cross_check.json", "skipped.json"])
@pytest.mark.parametrize("content", [b"", b'{"machine": {"cpu": "X', b"[]", b"null", b"\xff\xfe"])
def test_a_damaged_small_file_is_named_with_the_way_out(tmp_path: Path, name: str, content: bytes) -> None:
    run = whole_run(tmp_path)
    (run / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}: cut off or damaged; copy it again .*, or delete it"):
        load(run)


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_a_cut_off_plan_is_named_with_the_way_out(tmp_path: Path, cut: int) -> None:
    run = whole_run(tmp_path)
    os.truncate(run / "plan.yaml", cut)
    for read in (lambda: load(run), lambda: RunFolder(run, PLAN, resume=True)):
        with pytest.raises(UserError, match=r"plan\.yaml: the plan of a run does not change; copy it again"):
            read()


def test_a_run_of_a_newer_version_is_told_before_its_plan_is_read(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    (run / LEDGER).write_text('{"kind": "dream", "schema_version": 3, "joy": 1}\n')
    (run / "plan.yaml").write_text("name: x\nsomething_new: 1\n")
    for read in (lambda: load(run), lambda: RunFolder(run, PLAN, resume=True)):
        with pytest.raises(UserError, match=r"ledger\.jsonl:1: written by a newer Joulewise \(schema 3; .*upgrade"):
            read()


@pytest.mark.parametrize(
    "line",
    ["[]", "7", '"x"', "{}", '{"kind": "trial"}', '{"kind": [], "schema_version": "9"}', '{"schema_version": {}}'],
)
def test_a_line_of_something_else_is_no_line_of_a_ledger(tmp_path: Path, line: str) -> None:
    run = whole_run(tmp_path)
    (run / LEDGER).write_text(line + "\n")
    with pytest.raises(UserError, match=r"ledger\.jsonl:1: .*restore the file from a copy"):
        load(run)


def test_a_run_that_was_killed_before_its_ledger_was_made_can_be_gone_on_with(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", PLAN, resume=False).close()
    (tmp_path / "run" / LEDGER).unlink()
    assert load(tmp_path / "run").arrow.num_rows == 0
    RunFolder(tmp_path / "run", PLAN, resume=True).close()


@pytest.mark.parametrize("name", [LEDGER, "environment.json"])
def test_what_the_system_does_not_let_us_read_is_told(tmp_path: Path, name: str) -> None:
    run = whole_run(tmp_path)
    (run / name).unlink()
    (run / name).mkdir()
    with pytest.raises(EnvironmentFault, match=rf"{name}: cannot be read \(Is a directory\); check that it is a file"):
        load(run)


def test_the_timeline_keeps_readings_and_device_states(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    rows = [
        TimelineRow(1.0, "gpu", None, 300.0),
        TimelineRow(1.1, "gpu", None, None, DeviceState(utilisation=0.5, throttled_by="")),
    ]
    with RunFolder(tmp_path / "run", PLAN, resume=False) as folder:
        folder.append_timeline(rows)
        folder.append_timeline([])
    (file,) = (tmp_path / "run" / "timeline").iterdir()
    first, second = pq.read_table(file).to_pylist()
    assert first["power_w"] == 300.0
    assert first["utilisation"] is None
    assert (second["power_w"], second["utilisation"], second["throttled_by"]) == (None, 0.5, "")

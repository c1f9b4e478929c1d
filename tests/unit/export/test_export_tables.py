"""Runs as Parquet and CSV: everything is in them, whole or not at all."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from joulewise.cli.export import export
from joulewise.energy import TimelineRow
from joulewise.errors import EnvironmentFault, UserError
from joulewise.export.tables import write_timeline, write_trials
from joulewise.ledger import RunFolder, load
from joulewise.plan import Plan
from joulewise.records import EnergyRecord, Trial
from sample_trial import sample_trial

PLAN = Plan.model_validate(
    {
        "name": "test",
        "engines": [{"kind": "transformers"}],
        "decodings": ["vanilla"],
        "reasonings": ["direct"],
        "tasks": ["starter-maths"],
    }
)


def trial(number: int) -> Trial:
    part = EnergyRecord(component="gpu", provenance="measured", energy_j=12.5, gain_j=0.6)
    return sample_trial(number, part, question_id=f"question, {number}", start_s=10.0 + number, end_s=10.5 + number)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two Trials and a timeline in two parts, with different sources."""
    with RunFolder(tmp_path / "run", PLAN, resume=False) as folder:
        folder.append(trial(0))
        folder.append_timeline([TimelineRow(10.0 + i / 10, "nvml:a", None, 300.0 + i) for i in range(5)])
        folder.append(trial(1))
        folder.append_timeline([TimelineRow(11.0, "nvml:b", 7.5, None)])
    return tmp_path / "run"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_without_a_trial_is_told_and_writes_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunFolder(tmp_path / "empty", PLAN, resume=False):
        pass
    target = tmp_path / "t.csv"
    with pytest.raises(UserError, match="empty: no Trial yet, so there is nothing to write"):
        export([tmp_path / "empty"], trials=str(target))
    assert not target.exists()
    export([run, tmp_path / "empty"], trials=str(target))
    assert f"{tmp_path / 'empty'}: no Trial yet, so none of it is in {target}" in capsys.readouterr().err
    assert len(rows(target)) == 2


def test_trials_as_csv_and_parquet_hold_the_same(run: Path, tmp_path: Path) -> None:
    table = load(run)
    assert write_trials(table, tmp_path / "t.csv") == 2
    assert write_trials(table, tmp_path / "t.parquet") == 2
    found = rows(tmp_path / "t.csv")
    assert list(found[0]) == table.arrow.column_names
    assert [row["question_id"] for row in found] == ["question, 0", "question, 1"]
    assert found[0]["accepted_per_round"] == "2 0"
    assert float(found[0]["gpu_energy_j"]) == 12.5
    assert found[0]["cpu_energy_j"] == ""
    assert pq.ParquetFile(tmp_path / "t.parquet").read().equals(table.arrow)


def test_the_timeline_as_csv_and_parquet_hold_the_same(run: Path, tmp_path: Path) -> None:
    table = load(run)
    assert write_timeline(table, tmp_path / "l.csv") == 6
    assert write_timeline(table, tmp_path / "l.parquet") == 6
    found = rows(tmp_path / "l.csv")
    assert (
        found[1] | {"run": "run", "time_s": "10.1", "source_id": "nvml:a", "energy_j": "", "power_w": "301"} == found[1]
    )
    assert found[5]["source_id"] == "nvml:b"
    assert float(found[5]["energy_j"]) == 7.5
    parquet = pq.ParquetFile(tmp_path / "l.parquet").read().to_pylist()
    assert [row["power_w"] for row in parquet] == [300.0, 301.0, 302.0, 303.0, 304.0, None]
    start_s, end_s = (load(run).arrow[name][0].as_py() for name in ("start_s", "end_s"))
    assert [row["time_s"] for row in parquet if start_s <= row["time_s"] < end_s] == [10.0, 10.1, 10.2, 10.3, 10.4]


def test_several_runs_go_into_one_file_under_their_names(run: Path, tmp_path: Path) -> None:
    with RunFolder(tmp_path / "other", PLAN, resume=False) as folder:
        folder.append(trial(0))
        folder.append_timeline([TimelineRow(1.0, "nvml:a", None, 1.0)])
    write_timeline(load([run, tmp_path / "other"]), tmp_path / "l.csv")
    assert [row["run"] for row in rows(tmp_path / "l.csv")] == ["run"] * 6 + ["other"]


def test_a_timeline_with_further_columns_is_written_with_them(run: Path, tmp_path: Path) -> None:
    part = sorted((run / "timeline").glob("*.parquet"))[1]
    table = pq.ParquetFile(part).read()
    pq.write_table(table.append_column("humidity", [[55.0]]), part)
    write_timeline(load(run), tmp_path / "l.csv")
    assert [row["humidity"] for row in rows(tmp_path / "l.csv")] == [""] * 5 + ["55"]


def test_a_run_without_a_timeline_is_told(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", PLAN, resume=False) as folder:
        folder.append(trial(0))
    with pytest.raises(UserError, match="no timeline"):
        write_timeline(load(tmp_path / "run"), tmp_path / "l.csv")
    assert not (tmp_path / "l.csv").exists()


def test_a_damaged_part_is_named_and_nothing_is_left(run: Path, tmp_path: Path) -> None:
    part = sorted((run / "timeline").glob("*.parquet"))[1]
    part.write_bytes(part.read_bytes()[:20])
    with pytest.raises(UserError, match=rf"{part}: cut off or damaged"):
        write_timeline(load(run), tmp_path / "l.csv")
    assert {file.name for file in tmp_path.iterdir()} == {"run"}


def test_where_nothing_can_be_written_it_is_told(run: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"t\.csv: cannot be written"):
        write_trials(load(run), tmp_path / "nowhere" / "t.csv")
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(EnvironmentFault, match=r"t\.csv: cannot be written"):
        write_trials(load(run), tmp_path / "t.csv")


def test_the_command_writes_both(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export([run, run], trials=str(tmp_path / "t.csv"), timeline=str(tmp_path / "l.parquet"))
    assert capsys.readouterr().err.splitlines() == [
        "run: environment.json is missing, so what it ran on is not known; copy the whole folder",
        f"Trials: {tmp_path / 't.csv'} (2 rows)",
        f"Timeline: {tmp_path / 'l.parquet'} (6 rows)",
    ]


@pytest.mark.parametrize(
    ("trials", "timeline", "told"),
    [
        (None, None, "nothing to write"),
        ("a.csv", "a.csv", "same file"),
        ("a.xlsx", None, r"must end in \.parquet or \.csv"),
        ("a.csv", "b", r"must end in \.parquet or \.csv"),
    ],
)
def test_what_cannot_be_asked_for(run: Path, trials: str | None, timeline: str | None, told: str) -> None:
    targets = [None if name is None else str(run.parent / name) for name in (trials, timeline)]
    with pytest.raises(UserError, match=told):
        export([run], trials=targets[0], timeline=targets[1])
    assert {file.name for file in run.parent.iterdir()} == {"run"}


def test_the_command_line_knows_it(tmp_path: Path) -> None:
    call = [sys.executable, "-c", "from joulewise.cli.main import main; main()", "export"]
    arguments = [str(tmp_path), "--trials", str(tmp_path / "t.csv")]
    done = subprocess.run([*call, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"joulewise: {tmp_path}: not a run folder")

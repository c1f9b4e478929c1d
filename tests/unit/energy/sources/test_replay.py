"""Recordings and their replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joulewise.energy.sources.replay import load_recording, replay
from joulewise.errors import UserError

HEADER = {
    "format": "joulewise-recording",
    "version": 1,
    "synthetic": True,
    "columns": ["time_s", "source", "energy_j", "power_w", "read_s"],
    "sources": [
        {"source_id": "x:0", "component": "gpu", "device": "x", "provenance": "measured", "method": "m"},
    ],
}
ROWS: list[list[float | None]] = [
    [-0.5, 0, None, 50.0, 0.0],
    [0.0, 0, 10.0, None, 0.003],
    [1.0, 0, 60.0, None, 0.003],
    [1.2, 0, None, 70.0, 0.0],
    [2.0, 0, 130.0, None, 0.004],
]


def write(path: Path, header: object = HEADER, rows: object = ROWS) -> Path:
    assert isinstance(rows, list)
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *rows]))
    return path


def test_values_are_held_until_the_next_and_end_with_a_fault(tmp_path: Path) -> None:
    now = [100.0]
    (source,) = replay(load_recording(write(tmp_path / "r.jsonl")), lambda: now[0])
    told = []
    for now[0] in (100.0, 100.99, 101.0, 101.3, 101.99):
        reading = source.read()
        told.append((reading.energy_j, reading.power_w))
    assert told == [(10.0, 50.0), (10.0, 50.0), (60.0, 50.0), (60.0, 70.0), (60.0, 70.0)]
    assert source.read().read_s == 0.003
    assert source.sample().energy_j is None
    assert source.sample().power_w == 70.0
    assert source.spec.note == "played from a synthetic recording"
    now[0] = 102.5
    assert source.read().energy_j is None
    assert source.read().fault == "the recording does not cover this moment"


def test_a_repeated_recording_counts_on(tmp_path: Path) -> None:
    now = [100.0]
    (source,) = replay(load_recording(write(tmp_path / "r.jsonl")), lambda: now[0], repeat=True)
    now[0] = 103.0
    assert source.read().energy_j == pytest.approx(60.0 + 120.0)


def test_both_recordings_of_the_tests_load(repository: Path) -> None:
    real = load_recording(repository / "tests" / "data" / "nvml_h200.jsonl")
    assert not real.synthetic
    assert real.specs[0].device == "NVIDIA H200"
    assert real.end_s - real.start_s > 30
    assert load_recording(repository / "tests" / "data" / "synthetic_rapl.jsonl").synthetic


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ({"format": "other", "version": 1}, [], "is no recording"),
        (HEADER | {"version": 99}, ROWS, "is no recording"),
        (HEADER, [[0.0, 0, 1.0]], "line 2"),
        (HEADER, [*ROWS, [0.0, 7, 1.0, None, 0.0]], "line 7"),
        (HEADER, [[0.0, 0, None, 5.0, 0.0]], "no counter reading of x:0"),
        (HEADER | {"sources": [{"nonsense": 1}]}, ROWS, "line 1"),
        ([], [], "line 1"),
    ],
)
def test_what_is_no_recording_is_refused_with_the_place(
    tmp_path: Path, header: object, rows: object, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load_recording(write(tmp_path / "r.jsonl", header, rows))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load_recording(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UserError, match="line 1"):
        load_recording(tmp_path / "empty.jsonl")

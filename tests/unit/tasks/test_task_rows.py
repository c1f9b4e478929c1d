"""JSON Lines files and where data is looked for."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from joulewise.errors import UserError
from joulewise.tasks.rows import Row, TaskContext, questions, read_jsonl, validated
from joulewise.tasks.task import Question


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


class _Fields(BaseModel):
    a: int


def make(row: Row, where: str, number: int) -> Question:
    return Question(str(validated(_Fields, row, where).a), f"row {number}", "")


def test_rows_come_with_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", b'{"a": 1}\n\n{"a": "x\\u2028\xe2\x80\xa8y"}\r\n')
    assert read_jsonl(path) == [(f"{path}:1", {"a": 1}), (f"{path}:3", {"a": "x\u2028\u2028y"})]


def test_gzip_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl.gz", gzip.compress(b'\xef\xbb\xbf{"a": 1}\n'))
    assert [row for _, row in read_jsonl(path)] == [{"a": 1}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": ', r"q\.jsonl:2: not valid JSON: .*column"),
        (b"[1]", r"q\.jsonl:2: expected a JSON object, found list"),
        (b'{"a": "\xff"}', r"q\.jsonl:2: not UTF-8"),
        (b'{"a": ' + b"[" * 200_000, r"q\.jsonl:2: not valid JSON: nested too deeply"),
        (b'{"a": ' + b"1" * 5_000 + b"}", r"q\.jsonl:2: not valid JSON: a number with too many digits"),
        (b'{"b": 1}', r"q\.jsonl:2: the field 'a' is missing"),
        (b'{"a": 7}', r"q\.jsonl:2: the id '7' stands already at .*q\.jsonl:1; ids must differ"),
    ],
)
def test_a_broken_line_is_named_or_skipped(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path / "q.jsonl", b'{"a": 7}\n' + content + b'\n{"a": 8}\n')
    with pytest.raises(UserError, match=message + ".*--skip-bad"):
        questions(TaskContext(), read_jsonl(path), make)
    told: list[str] = []
    kept = questions(TaskContext(skip_bad=told.append), read_jsonl(path), make)
    assert [(q.question_id, q.text) for q in kept] == [("7", "row 0"), ("8", "row 2")], "numbers do not shift"
    assert len(told) == 1
    assert re.search(message, told[0])
    assert "--skip-bad" not in told[0]


def test_a_file_without_one_good_line_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", b"{\n[]\n")
    with pytest.raises(UserError, match=r"none of 2 lines can be used; the first: .*q\.jsonl:1: not valid JSON"):
        questions(TaskContext(skip_bad=lambda fault: None), read_jsonl(path), make)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.jsonl", b"", r"q\.jsonl: holds no questions"),
        ("q.jsonl", b"\n \n", r"q\.jsonl: holds no questions"),
        ("q.jsonl.gz", b"not gzip", r"q\.jsonl\.gz: cannot be read: not a whole gzip file"),
        (
            "q.jsonl.gz",
            gzip.compress(b'{"a": 1}\n', mtime=0)[:-9],
            r"q\.jsonl\.gz: cannot be read: not a whole gzip file",
        ),
    ],
)
def test_broken_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_jsonl(write(tmp_path / name, content))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_jsonl(tmp_path / "q.jsonl")
    with pytest.raises(UserError, match="cannot be read: it is a folder"):
        read_jsonl(tmp_path)


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOULEWISE_DATA", raising=False)
    assert TaskContext().folder() is None
    monkeypatch.setenv("JOULEWISE_DATA", str(tmp_path))
    assert TaskContext().folder() == (tmp_path, "named by JOULEWISE_DATA")
    assert TaskContext(tmp_path / "x").folder() == (tmp_path / "x", "given as the data folder")

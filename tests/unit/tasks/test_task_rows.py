"""JSON Lines files and where data is looked for."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from joulewise.errors import UserError
from joulewise.tasks.rows import TaskContext, read_jsonl


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_rows_come_with_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", b'{"a": 1}\n\n{"a": "x\\u2028\xe2\x80\xa8y"}\r\n')
    assert read_jsonl(path) == [(f"{path}:1", {"a": 1}), (f"{path}:3", {"a": "x\u2028\u2028y"})]


def test_gzip_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl.gz", gzip.compress(b'\xef\xbb\xbf{"a": 1}\n'))
    assert [row for _, row in read_jsonl(path)] == [{"a": 1}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.jsonl", b'{"a": 1}\n{"a": \n', r"q\.jsonl:2: not valid JSON: .*column"),
        ("q.jsonl", b'{"a": 1}\n[1]\n', r"q\.jsonl:2: expected a JSON object, found list"),
        ("q.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', r"q\.jsonl:2: not UTF-8"),
        ("q.jsonl", b"", r"q\.jsonl: holds no questions"),
        ("q.jsonl", b"\n \n", r"q\.jsonl: holds no questions"),
        ("q.jsonl", b'{"a": ' + b"[" * 200_000, r"q\.jsonl:1: not valid JSON"),
        ("q.jsonl.gz", b"not gzip", r"q\.jsonl\.gz: cannot be read"),
        ("q.jsonl.gz", gzip.compress(b'{"a": 1}\n')[:-9], r"q\.jsonl\.gz: cannot be read"),
    ],
)
def test_broken_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_jsonl(write(tmp_path / name, content))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_jsonl(tmp_path / "q.jsonl")
    with pytest.raises(UserError, match="cannot be read"):
        read_jsonl(tmp_path)


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOULEWISE_DATA", raising=False)
    assert TaskContext().folder() is None
    monkeypatch.setenv("JOULEWISE_DATA", str(tmp_path))
    assert TaskContext().folder() == (tmp_path, "named by JOULEWISE_DATA")
    assert TaskContext(tmp_path / "x").folder() == (tmp_path / "x", "given as the data folder")

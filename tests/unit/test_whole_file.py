"""Whole or not there, whatever happens while it is written."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from joulewise.whole_file import whole_file


def test_it_takes_the_place_of_what_was_there_and_its_rights(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    for text in ("old", "new"):
        with whole_file(file) as part:
            part.write_text(text)
            assert not file.exists() or file.read_text() == "old"
        file.chmod(0o600)
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_ends_in_the_middle_leaves_the_old(tmp_path: Path, error: BaseException) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")

    def half() -> None:
        with whole_file(file) as part:
            part.write_text("ne")
            raise error

    with pytest.raises(type(error)):
        half()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_block_may_give_up(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    with whole_file(file) as part:
        part.touch()
        part.unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_and_a_link_are_written_as_they_stand(tmp_path: Path) -> None:
    pipe, link, behind = tmp_path / "pipe", tmp_path / "link", tmp_path / "behind"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    with whole_file(pipe) as part:
        part.write_text("through")
    reader.join()
    assert found == ["through"]
    link.symlink_to(behind)
    with whole_file(link) as part:
        part.write_text("there")
    assert link.is_symlink()
    assert behind.read_text() == "there"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_device_stays_one() -> None:
    with pytest.raises(OSError, match="No space left"), whole_file(Path("/dev/full")) as part:
        part.write_text("x")
    assert Path("/dev/full").is_char_device()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "none" / "page.html") as part:
        part.write_text("x")

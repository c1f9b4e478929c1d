"""What tests on a GPU share."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tiny_models


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A random model large enough for kernels to differ between widths, and a draft that often agrees with it."""
    torch.manual_seed(0)
    shape = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 12}
    config = LlamaConfig(**tiny_models.TOKENS, **shape, initializer_range=0.08, tie_word_embeddings=False)
    model = LlamaForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("llama")
    return (
        tiny_models.save(folder / "target", model),
        tiny_models.save(folder / "draft", tiny_models.noisy(model, 0.02)),
    )

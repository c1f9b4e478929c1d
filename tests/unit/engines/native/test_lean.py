"""Lean layers give what the families' own give, with fewer kernels, and leave others alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

import tiny_models
from joulewise.engines.native.lean import Lean, make_lean
from joulewise.engines.native.merged import merge_projections
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.transformers.loading import make_neutral

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def built(family: str) -> Any:
    torch.manual_seed(0)
    if family == "mistral":
        config = MistralConfig(**tiny_models.TOKENS, **SHAPE, num_key_value_heads=2, sliding_window=None)
        return MistralForCausalLM(config).eval()
    if family == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**tiny_models.TOKENS, **SHAPE, num_key_value_heads=2)).eval()
        for layer in model.model.layers:
            nn.init.normal_(layer.self_attn.q_proj.bias)
        return model
    return tiny_models.build(family)


class Counted(TorchDispatchMode):
    """Counts what would be kernels: everything but views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.count += not func.is_view
        return made


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_the_model_is_the_same(family: str) -> None:
    plain = built(family)
    model = copy.deepcopy(plain)
    lean = DecoderModel(make_neutral("tiny", model, tiny_models.tokenizer()))
    for layer in model.model.layers:
        assert "transformers" not in type(layer.self_attn).__module__
        assert "transformers" not in type(layer.input_layernorm).__module__
    tokens = torch.arange(3, 20)
    with torch.inference_mode():
        expected = plain(tokens[None]).logits[0]
        cache = lean.new_cache(64)
        parts = [lean.forward(cache, tokens[:9], 0, None), lean.forward(cache, tokens[9:16], 9, None)]
        parts.append(lean.forward(cache, tokens[16:], 16, None))
        found = torch.cat([lean.logits(part) for part in parts])
        side_by_side = lean.head(lean.read(torch.stack((tokens, tokens))).last)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(side_by_side, expected.expand(2, -1, -1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_step_starts_fewer_kernels(family: str) -> None:
    def kernels(lean: bool, monkeypatch: pytest.MonkeyPatch) -> int:
        if not lean:
            monkeypatch.setattr("joulewise.engines.native.model.make_lean", lambda _: Lean(None, None))
        model = DecoderModel(make_neutral("tiny", built(family), tiny_models.tokenizer()))
        cache = model.new_cache(64)
        counted = Counted()
        with torch.inference_mode():
            model.forward(cache, torch.arange(8), 0, None)
            with counted:
                model.forward(cache, torch.tensor([3]), 8, None)
        return counted.count

    with pytest.MonkeyPatch.context() as patch:
        assert kernels(True, patch) < 0.7 * kernels(False, patch)  # on a GPU a norm is one kernel, too


def test_what_only_has_the_name_stays() -> None:
    class LlamaRMSNorm(nn.Module):
        """As a checkpoint's own code may call something else."""

        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    model = nn.Sequential(LlamaRMSNorm())
    assert make_lean(model) == Lean(None, None)
    assert type(model[0]) is LlamaRMSNorm


def test_unmerged_attention_stays() -> None:
    model = tiny_models.build("llama")
    model.model.layers[0].self_attn.q_proj = nn.Sequential(model.model.layers[0].self_attn.q_proj)  # as if quantised
    merge_projections(model)
    assert make_lean(model.model) == Lean(None, None)  # not all of them
    kinds = [type(layer.self_attn).__module__.startswith("transformers.") for layer in model.model.layers]
    assert kinds == [True] + [False] * (tiny_models.LAYERS - 1)

"""Random heads of a target's shape: what tests and measurements with synthetic acceptance run on, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from joulewise.engines.native.checkpoints import Checkpoint, Family, in_memory
from joulewise.engines.native.heads import build, published_taps
from joulewise.engines.native.heads.eagle import Eagle2Head, Eagle3Head
from joulewise.engines.native.heads.medusa import MedusaHead
from joulewise.engines.native.heads.parts import embedding
from joulewise.engines.native.merged import merge_projections
from joulewise.engines.native.model import DecoderModel

_SPREAD = 0.02


class Dice:
    """Draws tensors on a target's device and in its dtype."""

    def __init__(self, target: DecoderModel, seed: int) -> None:
        self._generator = torch.Generator(target.device).manual_seed(seed)
        self._how: dict[str, Any] = {"device": target.device, "dtype": target.model.dtype}

    def normal(self, *shape: int) -> Tensor:
        """Normal values of the usual small spread."""
        return torch.randn(*shape, generator=self._generator, **self._how) * _SPREAD

    def ones(self, size: int) -> Tensor:
        """A norm that does nothing."""
        return torch.ones(size, **self._how)

    def some(self, count: int, of: int) -> Tensor:
        """So many different numbers below ``of``, in order."""
        device = self._how["device"]
        return torch.randperm(of, generator=self._generator, device=device)[:count].sort().values


def random_medusa(
    target: DecoderModel, heads: int = 4, layers: int = 1, own_output: bool = True, seed: int = 0
) -> MedusaHead:
    """Medusa heads with random weights.

    Args:
        target: gives width, vocabulary, device and dtype.
        heads: tokens predicted after the next one.
        layers: residual blocks of each head.
        own_output: each head has an output matrix of its own, as published; else the target's serves all.
        seed: of the weights.
    """
    dice, size = Dice(target, seed), target.config.hidden_size
    tensors: dict[str, Tensor] = {}
    for head in range(heads):
        for layer in range(layers):
            tensors[f"heads.{head}.blocks.{layer}.weight"] = dice.normal(size, size)
            tensors[f"heads.{head}.blocks.{layer}.bias"] = dice.normal(size)
        if own_output:
            tensors[f"heads.{head}.output.weight"] = dice.normal(embedding(target).num_embeddings, size)
    head = _made("medusa", {}, tensors, target)
    assert isinstance(head, MedusaHead)
    return head


def random_eagle2(target: DecoderModel, seed: int = 0) -> Eagle2Head:
    """An EAGLE-1/2 head with random weights: one layer of the target's shape.

    Args:
        target: gives width, vocabulary, device and dtype.
        seed: of the weights.
    """
    dice, size = Dice(target, seed), target.config.hidden_size
    tensors = layer_tensors(dice, target, size)
    tensors["fc.weight"] = dice.normal(size, 2 * size)
    head = _made("eagle2", _config(target), tensors, target)
    assert isinstance(head, Eagle2Head)
    return head


def random_eagle3(target: DecoderModel, draft_rows: int | None = None, seed: int = 0) -> Eagle3Head:
    """An EAGLE-3 head with random weights: one layer of the target's shape.

    Args:
        target: gives width, vocabulary, device and dtype. The head reads its published taps, or else all that it has.
        draft_rows: size of the draft's own vocabulary, such as the 32,000 of the published heads; None: the target's.
        seed: of the weights.
    """
    dice, size = Dice(target, seed), target.config.hidden_size
    published = published_taps(target.config.num_hidden_layers)
    taps: tuple[int, ...] = published if set(published) <= set(target.taps) else target.taps
    tensors = layer_tensors(dice, target, 2 * size)
    tensors |= {f"layers.0.{name}.weight": dice.ones(size) for name in ("input_layernorm", "hidden_norm")}
    tensors |= {"fc.weight": dice.normal(size, len(taps) * size), "norm.weight": dice.ones(size)}
    rows = embedding(target).num_embeddings
    tensors["lm_head.weight"] = dice.normal(draft_rows or rows, size)
    if draft_rows is not None:
        chosen = dice.some(draft_rows, rows)
        tensors["d2t"] = chosen - torch.arange(draft_rows, device=chosen.device)
    config = _config(target) | {"eagle_aux_hidden_state_layer_ids": list(taps)}
    head = _made("eagle3", config, tensors, target)
    assert isinstance(head, Eagle3Head)
    return head


def layer_tensors(dice: Dice, target: DecoderModel, inputs: int) -> dict[str, Tensor]:
    """The random weights of a draft layer of the target's shape, its attention's input ``inputs`` wide."""
    config = target.config
    size, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or size // heads
    width, kv_width = heads * head_dim, config.num_key_value_heads * head_dim
    shapes = {
        "self_attn.q_proj": (width, inputs),
        "self_attn.k_proj": (kv_width, inputs),
        "self_attn.v_proj": (kv_width, inputs),
        "self_attn.o_proj": (size, width),
        "mlp.gate_proj": (inner, size),
        "mlp.up_proj": (inner, size),
        "mlp.down_proj": (size, inner),
    }
    tensors = {f"layers.0.{name}.weight": dice.normal(*shape) for name, shape in shapes.items()}
    return tensors | {"layers.0.post_attention_layernorm.weight": dice.ones(size)}


def _config(target: DecoderModel) -> dict[str, Any]:
    config = target.config
    return {"num_attention_heads": config.num_attention_heads, "rms_norm_eps": config.rms_norm_eps}


def _made(
    family: Family, config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: DecoderModel
) -> MedusaHead | Eagle2Head | Eagle3Head:
    head = build(Checkpoint("random weights", family, config, in_memory(tensors)), target)
    merge_projections(head)
    return head

"""Tiny draft heads in every published layout, and what they must compute, written plainly and apart from the engine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import tiny_models
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.transformers.loading import make_neutral

Tensors = dict[str, Tensor]

ROWS, SIZE, INNER, HEADS, KV_HEADS = tiny_models.ROWS, 32, 48, 4, 2
LAYERS = 8
TAPS = (2, 4, 5)  # of LAYERS layers, as the published code chooses
CONFIG = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "hidden_size": SIZE, "rms_norm_eps": 1e-5}


def target(family: str = "llama", taps: Sequence[int] = (), **shape: int) -> DecoderModel:
    """A random target in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = tiny_models.FAMILIES[family](**({"num_hidden_layers": LAYERS} | shape)).eval()  # type: ignore[call-arg]
    return DecoderModel(make_neutral(f"tiny {family}", model, tiny_models.tokenizer()), taps)


def draw(*shape: int, seed: int = 0, spread: float = 0.3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * spread


def layer(name: str, inputs: int = SIZE, head_dim: int = 8, norms: Sequence[str] = (), seed: int = 0) -> Tensors:
    """A Llama layer's tensors under ``name``, with further norms before its attention."""
    width, kv_width = HEADS * head_dim, KV_HEADS * head_dim
    shapes = {
        "self_attn.q_proj": (width, inputs),
        "self_attn.k_proj": (kv_width, inputs),
        "self_attn.v_proj": (kv_width, inputs),
        "self_attn.o_proj": (SIZE, width),
        "mlp.gate_proj": (INNER, SIZE),
        "mlp.up_proj": (INNER, SIZE),
        "mlp.down_proj": (SIZE, INNER),
    }
    tensors = {f"{name}.{part}.weight": draw(*shape, seed=seed + i) for i, (part, shape) in enumerate(shapes.items())}
    for i, part in enumerate(("post_attention_layernorm", *norms)):
        tensors[f"{name}.{part}.weight"] = 1 + draw(SIZE, seed=seed + 20 + i)
    return tensors


def eagle2(model: DecoderModel, bias: bool = True) -> Tensors:
    """As the published EAGLE-1/2 files: a copy of the embeddings, no norm before the attention, none at the end."""
    tensors = layer("layers.0") | {"fc.weight": draw(SIZE, 2 * SIZE, seed=40)}
    tensors["embed_tokens.weight"] = model.model.get_input_embeddings().weight.detach().clone()
    return tensors | ({"fc.bias": draw(SIZE, seed=41)} if bias else {})


def eagle3(first: str = "midlayer", features: int = 3, rows: int = 24, head_dim: int = 8, width: int = SIZE) -> Tensors:
    """As the published EAGLE-3 files: ``rows`` draft tokens, spread over the vocabulary."""
    ids = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))[:rows].sort().values
    known = torch.zeros(ROWS, dtype=torch.bool)
    known[ids] = True
    return layer(first, 2 * SIZE, head_dim, ("input_layernorm", "hidden_norm")) | {
        "fc.weight": draw(SIZE, features * width, seed=50),
        "norm.weight": 1 + draw(SIZE, seed=51),
        "lm_head.weight": draw(rows, SIZE, seed=52),
        "d2t": ids - torch.arange(rows),
        "t2d": known,
    }


def medusa(heads: int, layers: int = 1) -> Tensors:
    """As the published Medusa-1 files."""
    tensors: Tensors = {}
    for head in range(heads):
        for i in range(layers):
            tensors[f"{head}.{i}.linear.weight"] = draw(SIZE, SIZE, seed=60 + 10 * head + i)
            tensors[f"{head}.{i}.linear.bias"] = draw(SIZE, seed=65 + 10 * head + i)
        tensors[f"{head}.{layers}.weight"] = draw(ROWS, SIZE, seed=200 + head)
    return tensors


def renamed(tensors: Tensors, *changes: tuple[str, str]) -> Tensors:
    """The same tensors with the beginnings of their names changed."""
    out: Tensors = {}
    for name, tensor in tensors.items():
        for old, new in changes:
            if name.startswith(old):
                name = new + name.removeprefix(old)
                break
        out[name] = tensor
    return out


def write(
    folder: Path, tensors: Tensors, config: Mapping[str, Any] | None = None, file: str = "model.safetensors"
) -> str:
    """Write a checkpoint as its publishers do, and name it as a plan would."""
    folder.mkdir(exist_ok=True)
    if file.endswith(".safetensors"):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def rms(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _rotate(x: Tensor, position: int, frequencies: Tensor) -> Tensor:
    """Rotary positions as complex numbers: the i-th of the first half with the i-th of the second."""
    half = len(x) // 2
    turned = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones(half), position * frequencies)
    return torch.cat((turned.real, turned.imag))


def reference_layer(
    tensors: Tensors, name: str, x: Tensor, residual: Tensor, base: float = 10000.0, window: int = 10**6
) -> Tensor:
    """A Llama layer over a whole text, head by head and token by token.

    Args:
        x: the attention's input, shape ``(W, inputs)``.
        residual: shape ``(W, SIZE)``.
        base: of the rotary positions.
        window: how many tokens back each sees.
    """

    def project(part: str, value: Tensor) -> Tensor:
        bias = tensors.get(f"{name}.self_attn.{part}_proj.bias", torch.zeros(()))
        return value @ tensors[f"{name}.self_attn.{part}_proj.weight"].T + bias

    queries, keys, values = (project(part, x) for part in "qkv")
    size = queries.shape[1] // HEADS
    frequencies = base ** -(torch.arange(size // 2) * 2 / size)
    mixed = torch.zeros(len(x), HEADS * size)
    for head in range(HEADS):
        own, shared = slice(head * size, (head + 1) * size), head // (HEADS // KV_HEADS)
        group = slice(shared * size, (shared + 1) * size)

        def normed(part: str, value: Tensor) -> Tensor:
            weight = tensors.get(f"{name}.self_attn.{part}_norm.weight")
            return value if weight is None else rms(value, weight)

        for i in range(len(x)):
            seen = range(max(0, i + 1 - window), i + 1)
            query = _rotate(normed("q", queries[i, own]), i, frequencies)
            scores = torch.stack([query @ _rotate(normed("k", keys[j, group]), j, frequencies) for j in seen])
            mixed[i, own] = (scores / math.sqrt(size)).softmax(0) @ values[list(seen), group]
    hidden = residual + project("o", mixed)
    inner = rms(hidden, tensors[f"{name}.post_attention_layernorm.weight"])
    gate = inner @ tensors[f"{name}.mlp.gate_proj.weight"].T
    up = inner @ tensors[f"{name}.mlp.up_proj.weight"].T
    return hidden + (gate * gate.sigmoid() * up) @ tensors[f"{name}.mlp.down_proj.weight"].T


def reference_eagle3(
    tensors: Tensors,
    embedded: Tensor,
    features: Tensor,
    first: str = "midlayer",
    norm_before_residual: bool = False,
    base: float = 10000.0,
    window: int = 10**6,
) -> Tensor:
    """States before the last norm that an EAGLE-3 head gives over a whole text, shape ``(W, SIZE)``.

    Args:
        embedded: of the token after each feature.
        features: after ``fc``.
    """
    normed = rms(features, tensors[f"{first}.hidden_norm.weight"])
    both = torch.cat((rms(embedded, tensors[f"{first}.input_layernorm.weight"]), normed), dim=-1)
    return reference_layer(tensors, first, both, normed if norm_before_residual else features, base, window)

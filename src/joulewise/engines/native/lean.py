"""Lean layers: norms and attention of Llama's kind as a few kernels each, where the families' own modules start dozens.

At batch 1 a layer's matrices take some ten microseconds each, so what lies between them counts: an H200 spent 29 % of a
Llama-8B step there. The modules named here are replaced; all others stay, and run as they are.
"""

# mypy: allow-subclassing-any

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm

from joulewise.engines.native.attention import attend_tokens, turn, turned
from joulewise.engines.native.merged import First

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
"""Families whose attention and norms are Llama's (Qwen2: with biases, Qwen3: with norms of queries and keys)."""


class _Norm(nn.Module):
    """A family's RMS norm in one kernel."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


class _Turn:
    """What all layers of a forward share: cosines, and sines whose first half is negated."""

    def __init__(self) -> None:
        self._sin: Tensor | None = None
        self._made: tuple[Tensor, Tensor] | None = None

    def __call__(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        if self._made is None or self._sin is not sin:
            self._sin, self._made = sin, turn(cos, sin)
        return self._made


class _Attention(nn.Module):
    """A family's attention; queries and keys are turned together."""

    def __init__(self, attention: Any, shared: _Turn) -> None:
        super().__init__()
        for name, part in attention.named_children():
            setattr(self, name, part)  # under its old name, since a draft may share parts of its target
        self.layer_idx, self.head_dim, self.scaling = attention.layer_idx, attention.head_dim, attention.scaling
        self.sliding_window = getattr(attention, "sliding_window", None)  # is looked for
        query, key, value = self.q_proj.sizes
        self._heads, self._kv_heads = query // self.head_dim, key // self.head_dim
        self.groups = self._heads // self._kv_heads
        self._sizes = query + key, value
        self._shared = shared

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Any = None,
        cache: Any = None,
        past_key_values: Any = None,
        joulewise_mask: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        texts, width, _ = hidden_states.shape
        both, value = linear(hidden_states, self.q_proj.weight, self.q_proj.bias).split(self._sizes, dim=-1)
        both = both.view(texts, width, self._heads + self._kv_heads, self.head_dim)
        if hasattr(self, "q_norm"):
            query, key = both.split((self._heads, self._kv_heads), dim=2)
            both = torch.cat((self.q_norm(query), self.k_norm(key)), dim=2)
        query, key = turned(both, *self._shared(*position_embeddings)).split((self._heads, self._kv_heads), dim=2)
        keys, values = key.transpose(1, 2), value.view(texts, width, self._kv_heads, self.head_dim).transpose(1, 2)
        cache = past_key_values if cache is None else cache
        if cache is not None:
            keys, values = cache.update(keys, values, self.layer_idx)
        return self.o_proj(attend_tokens(query, keys, values, joulewise_mask, self.scaling)), None


def make_lean(decoder: nn.Module) -> int | None:
    """Replace the modules of a decoder that are known, in place, after its projections were merged.

    Args:
        decoder: any; layers of other families, and quantised ones, keep their modules.

    Returns:
        Query heads a key head, where all layers' attention was replaced; else None.
    """
    shared = _Turn()
    for parent in list(decoder.modules()):
        for name, child in list(parent.named_children()):
            if _is(child, "RMSNorm"):
                setattr(parent, name, _Norm(child))
            elif _is(child, "Attention") and isinstance(child.q_proj, First):
                setattr(parent, name, _Attention(child, shared))
    groups = {getattr(getattr(layer, "self_attn", None), "groups", None) for layer in getattr(decoder, "layers", ())}
    return groups.pop() if len(groups) == 1 else None


def _is(module: nn.Module, part: str) -> bool:
    """Whether it is Transformers' own; code that comes with a checkpoint may use the name for something else."""
    kind = type(module)
    return kind.__module__.startswith("transformers.") and kind.__name__ in {family + part for family in FAMILIES}

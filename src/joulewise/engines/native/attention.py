"""One attention for targets, draft models and heads: any mask, grouped heads without copies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "joulewise_masked"
"""What the attention is called in Transformers' registry. It has no mask builder there: ours replaces it."""


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None = None) -> Tensor:
    """Attention of ``W`` queries over ``T`` keys.

    Query heads of one group share their keys, so they are laid side by side as more queries: nothing is repeated.

    Args:
        query: shape ``(batch, heads, W, d)``.
        key, value: shape ``(batch, kv_heads, T, d)``.
        mask: true where a query sees a key, shape ``(W, T)`` or ``(batch, 1, W, T)``; None: causal, ``W = T``.
        scale: of the scores; None is ``1 / sqrt(d)``.

    Returns:
        Shape ``(batch, heads, W, d)``.
    """
    batch, heads, width, size = query.shape
    groups = heads // key.shape[1]
    if mask is None:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=groups > 1)
    stacked = query.reshape(batch, heads // groups, groups * width, size)
    rows = mask.view(-1, 1, width, mask.shape[-1]).repeat(1, 1, groups, 1)
    attended = scaled_dot_product_attention(stacked, key, value, attn_mask=rows, scale=scale)
    return attended.reshape(query.shape)  # some kernels leave it in another layout


def _in_transformers(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    joulewise_mask: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    for name in ("softcap", "s_aux", "position_bias"):
        if others.get(name) is not None:
            raise ValueError(f"attention with {name}")
    return attend(query, key, value, joulewise_mask, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _in_transformers)


def causal_mask(positions: Tensor, span: int) -> Tensor:
    """Each token sees the slots up to its own position: shape ``(W, span)`` from positions of shape ``(W,)``."""
    return torch.arange(span, device=positions.device) <= positions[:, None]

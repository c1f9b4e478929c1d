"""One attention for targets, draft models and heads: any mask, grouped heads without copies, rotary positions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "joulewise_masked"
"""What the attention is called in Transformers' registry. It has no mask builder there: ours replaces it."""


class Sight(NamedTuple):
    """What the tokens of a forward see, in place of a mask, where our own kernels attend: all of their text before
    them, and their ancestors among themselves. They go to the slots behind that text.

    Args:
        before: tokens of each text before these, shape ``(texts,)``.
        ancestors: true where a token (row) sees another, shape ``(W, W)``; the same for all texts.
    """

    before: Tensor
    ancestors: Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None = None) -> Tensor:
    """Attention of ``W`` queries over ``T`` keys.

    Query heads of one group share their keys, so they are laid side by side as more queries: nothing is repeated.

    Args:
        query: shape ``(batch, heads, W, d)``.
        key, value: shape ``(batch, kv_heads, T, d)``.
        mask: true where a query sees a key, shape ``(W, T)`` or ``(batch, 1, W, T)``, or the bias of one (``bias_of``);
            None: causal, ``W = T``.
        scale: of the scores; None is ``1 / sqrt(d)``.

    Returns:
        Shape ``(batch, heads, W, d)``.
    """
    batch, heads, width, size = query.shape
    groups = heads // key.shape[1]
    if mask is None:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=groups > 1)
    stacked = query.reshape(batch, heads // groups, groups * width, size)
    rows = bias_of(mask, groups, query.dtype)
    attended = scaled_dot_product_attention(stacked, key, value, attn_mask=rows, scale=scale)
    return attended.reshape(query.shape)  # some kernels leave it in another layout


def attend_tokens(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None = None) -> Tensor:
    """As ``attend``, for queries that lie token by token: nothing is moved where there is one.

    Args:
        query: shape ``(batch, W, heads, d)``.
        key, value, mask, scale: see ``attend``.

    Returns:
        Shape ``(batch, W, heads * d)``.
    """
    batch, width, heads, size = query.shape
    if mask is None:
        attended = attend(query.transpose(1, 2), key, value, None, scale).transpose(1, 2)
        return attended.reshape(batch, width, heads * size)
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    stacked = query.reshape(batch, width, kv_heads, groups, size).permute(0, 2, 3, 1, 4)
    rows = bias_of(mask, groups, query.dtype)
    attended = scaled_dot_product_attention(
        stacked.reshape(batch, kv_heads, groups * width, size), key, value, attn_mask=rows, scale=scale
    )
    attended = attended.reshape(batch, kv_heads, groups, width, size).permute(0, 3, 1, 2, 4)
    return attended.reshape(batch, width, heads * size)


def bias_of(mask: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of stacked queries, shape ``(batch or 1, 1, groups * W, T)``.

    Args:
        mask: true where a query sees a key, shape ``(W, T)`` or ``(batch, 1, W, T)``. A bias is given back as it is,
            since many layers share one.
        groups: query heads a key head.
        dtype: of the queries.
    """
    if mask.dtype != torch.bool:
        return mask
    width, span = mask.shape[-2:]
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
    return bias.view(-1, 1, width, span).repeat(1, 1, groups, 1)


def turn(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines for ``turned``, of shape ``(..., W, 1, d)``, from those of shape ``(..., W, d)``."""
    first, second = sin.chunk(2, dim=-1)
    return cos[..., None, :], torch.cat((-first, second), dim=-1)[..., None, :]


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions put on vectors of shape ``(..., W, heads, d)``; ``cos`` and ``sin`` are those of ``turn``."""
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat((second, first), dim=-1), sin)


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

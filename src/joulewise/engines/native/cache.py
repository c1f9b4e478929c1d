"""KV: the keys and values of all layers in one preallocated tensor, written by slot and rolled back by length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class KV:
    """Room for ``capacity`` tokens. A forward writes at ``slots`` and reads the first ``span`` slots.

    Nothing is ever concatenated or cropped: what lies behind the length that the caller keeps is overwritten later, and
    the mask hides it until then. Transformers' attention layers take it for their cache.

    Args:
        layers, kv_heads, head_dim: of the model.
        capacity: tokens.
        dtype, device: of the model's activations.
        batch: sequences.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        batch: int = 1,
    ) -> None:
        # Zeros, because a masked value still takes part: 0 x NaN is NaN.
        self._buffer = torch.zeros(layers, 2, batch, kv_heads, capacity, head_dim, dtype=dtype, device=device)
        self.capacity = capacity
        self.slots = torch.empty(0, dtype=torch.long, device=device)
        self.span = 0

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write one layer's new keys and values, and return all that the forward may read.

        Args:
            keys, values: shape ``(batch, kv_heads, W, head_dim)``; they go to ``slots``, shape ``(W,)``, or
                ``(batch, W)`` where each sequence has its own.
            layer_idx: the layer.

        Returns:
            Keys and values, shape ``(batch, kv_heads, span, head_dim)``.
        """
        layer = self._buffer[layer_idx]
        if self.slots.dim() == 1:
            layer[0].index_copy_(2, self.slots, keys)
            layer[1].index_copy_(2, self.slots, values)
        else:
            rows = torch.arange(len(self.slots), device=self.slots.device)[:, None]
            layer[0][rows, :, self.slots] = keys.transpose(1, 2)
            layer[1][rows, :, self.slots] = values.transpose(1, 2)
        return layer[0, :, :, : self.span], layer[1, :, :, : self.span]

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values, shape ``(batch, kv_heads, capacity, head_dim)``; views."""
        keys, values = self._buffer[number]
        return keys, values

    def move(self, origins: Tensor, target: int) -> None:
        """Copy what lies in the slots ``origins``, shape ``(n,)``, to the ``n`` slots from ``target`` on."""
        self._buffer[..., target : target + len(origins), :] = self._buffer.index_select(4, origins)

    def move_at(self, origins: Tensor, targets: Tensor) -> None:
        """Copy what lies in the slots ``origins`` to the slots ``targets``, shape ``(n,)`` both, whatever they hold."""
        self._buffer.index_copy_(4, targets, self._buffer.index_select(4, origins))

    def rows(self, length: int) -> Tensor:
        """The first ``length`` tokens, shape ``(layers, 2, batch, kv_heads, length, head_dim)``; a view."""
        return self._buffer[..., :length, :]

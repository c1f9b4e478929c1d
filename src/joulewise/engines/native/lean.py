"""Lean layers of Llama's kind: a few kernels each, where the families' own modules start dozens.

At batch 1 a layer's matrices take some ten microseconds each, so what lies between them counts: an H200 spent 29 % of a
Llama-8B step there. The modules named here are replaced; all others stay, and run as they are.

A forward that is told what its tokens see by a ``Sight``, in place of a mask, runs on the kernels of ``kernels.py``;
every other one on torch's.
"""

# mypy: allow-subclassing-any

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm
from transformers.activations import SiLUActivation

from joulewise.engines.native.attention import Sight, attend_tokens, turn, turned
from joulewise.engines.native.merged import First

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
"""Families whose attention and norms are Llama's (Qwen2: with biases, Qwen3: with norms of queries and keys)."""


class Lean(NamedTuple):
    """What was made lean of a decoder.

    Args:
        groups: query heads a key head, where all layers' attention was replaced; else None.
        rotary: where its forwards can be told what their tokens see by a ``Sight``; else None.
    """

    groups: int | None
    rotary: Rotary | None


class _Shared:
    """What the modules of one decoder hand on to each other within a forward."""

    def __init__(self) -> None:
        self._turn: tuple[Tensor, tuple[Tensor, Tensor]] | None = None
        self._normed: tuple[Tensor, nn.Module, Tensor] | None = None
        self.frequencies: Tensor | None = None
        self.scale = 1.0

    def turn(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines, and sines whose first half is negated: made once for all layers."""
        if self._turn is None or self._turn[0] is not sin:
            self._turn = sin, turn(cos, sin)
        return self._turn[1]

    def keep(self, x: Tensor, norm: nn.Module, normed: Tensor) -> None:
        """Keep what ``norm`` would make of ``x``."""
        self._normed = x, norm, normed

    def kept(self, x: Tensor, norm: nn.Module) -> Tensor | None:
        """What was kept, if it is this."""
        kept, self._normed = self._normed, None
        return kept[2] if kept is not None and kept[0] is x and kept[1] is norm else None


class Rotary(nn.Module):
    """A family's rotary positions, which our kernels compute themselves."""

    def __init__(self, rotary: Any) -> None:
        super().__init__()
        self.rotary = rotary
        self.needed = True
        """Whether the next forward reads them."""

    def forward(self, x: Tensor, position_ids: Tensor) -> Any:
        return self.rotary(x, position_ids) if self.needed else (None, None)


class _Norm(nn.Module):
    """A family's RMS norm in one kernel."""

    def __init__(self, norm: Any, shared: _Shared) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon
        self._shared = shared

    def forward(self, x: Tensor) -> Tensor:
        kept = self._shared.kept(x, self)
        return rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon) if kept is None else kept

    def after(self, x: Tensor, more: Tensor | None) -> tuple[Tensor, Tensor]:
        """The sum, and its norm."""
        from joulewise.engines.native.kernels import add_norm

        return add_norm(x, more, self.weight, self.variance_epsilon)


class _Attention(nn.Module):
    """A family's attention; queries and keys are turned together."""

    def __init__(self, attention: Any, shared: _Shared) -> None:
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
        query, key = turned(both, *self._shared.turn(*position_embeddings)).split((self._heads, self._kv_heads), dim=2)
        keys, values = key.transpose(1, 2), value.view(texts, width, self._kv_heads, self.head_dim).transpose(1, 2)
        cache = past_key_values if cache is None else cache
        if cache is not None:
            keys, values = cache.update(keys, values, self.layer_idx)
        return self.o_proj(attend_tokens(query, keys, values, joulewise_mask, self.scaling)), None

    def by_sight(self, normed: Tensor, positions: Tensor, cache: Any, sight: Sight) -> Tensor:
        """The same on our kernels; ``positions`` of shape ``(texts, W)``."""
        from joulewise.engines.native.kernels import attend_placed, place

        assert self._shared.frequencies is not None
        norms = None
        if hasattr(self, "q_norm"):
            norms = self.q_norm.weight, self.k_norm.weight, self.q_norm.variance_epsilon
        projected = linear(normed, self.q_proj.weight, self.q_proj.bias)
        keys, values = cache.layer(self.layer_idx)
        query = place(
            projected, keys, values, sight.before, positions, self._shared.frequencies, self._shared.scale, norms
        )
        attended = attend_placed(query, keys, values, sight.before, sight.ancestors, self.scaling)
        return linear(attended, self.o_proj.weight, self.o_proj.bias)


class _Layer(nn.Module):
    """A family's layer. What follows an addition is always a norm, so they are one kernel."""

    def __init__(self, layer: Any, shared: _Shared) -> None:
        super().__init__()
        for name, part in layer.named_children():
            setattr(self, name, part)
        self._shared = shared
        self._next: tuple[_Norm, ...] = ()  # in a tuple, because it is no part of this module

    def followed_by(self, norm: _Norm) -> None:
        """Say which norm comes after this layer: the next one's first, or the decoder's last."""
        self._next = (norm,)

    def forward(
        self,
        hidden_states: Tensor,
        position_ids: Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        joulewise_mask: Any = None,
        **others: Any,
    ) -> Tensor:
        cache = past_key_values if cache is None else cache
        if not isinstance(joulewise_mask, Sight):
            attended, _ = self.self_attn(
                self.input_layernorm(hidden_states), cache=cache, joulewise_mask=joulewise_mask, **others
            )
            hidden = hidden_states + attended
            plain: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
            return plain
        normed = self._shared.kept(hidden_states, self.input_layernorm)
        if normed is None:
            normed = self.input_layernorm.after(hidden_states, None)[1]
        attended = self.self_attn.by_sight(normed, position_ids, cache, joulewise_mask)
        hidden, normed = self.post_attention_layernorm.after(hidden_states, attended)
        out, normed = self._next[0].after(hidden, self._fed_forward(normed))
        self._shared.keep(out, self._next[0], normed)
        return out

    def _fed_forward(self, x: Tensor) -> Tensor:
        from joulewise.engines.native.kernels import gated

        down = self.mlp.down_proj
        return linear(gated(linear(x, self.mlp.gate_proj.weight)), down.weight, down.bias)


@lru_cache
def kernels_run(device: torch.device) -> bool:
    """Whether our kernels run on a device."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    able: bool = torch.cuda.get_device_capability(device) >= (8, 0)
    return able


def make_lean(decoder: nn.Module) -> Lean:
    """Replace the modules of a decoder that are known, in place, after its projections were merged.

    Args:
        decoder: any; layers of other families, and quantised ones, keep their modules.
    """
    shared = _Shared()
    for parent in list(decoder.modules()):
        for name, child in list(parent.named_children()):
            if _is(child, "RMSNorm"):
                setattr(parent, name, _Norm(child, shared))
            elif _is(child, "Attention") and isinstance(child.q_proj, First):
                setattr(parent, name, _Attention(child, shared))
    layers: Any = getattr(decoder, "layers", ())
    groups = {getattr(getattr(layer, "self_attn", None), "groups", None) for layer in layers}
    alike = groups.pop() if len(groups) == 1 else None
    return Lean(alike, None if alike is None else _make_sighted(decoder, shared))


def _make_sighted(decoder: Any, shared: _Shared) -> Rotary | None:
    """Replace the layers, too, where our kernels can do all that they do."""
    rotary: Any = getattr(decoder, "rotary_emb", None)
    layers = decoder.layers
    if not kernels_run(next(decoder.parameters()).device) or not all(map(_can_be_fused, layers)):
        return None
    if getattr(rotary, "rope_type", None) not in ("default", "linear", "llama3", "yarn"):
        return None
    frequencies: Tensor = rotary.inv_freq.float().contiguous()
    if 2 * len(frequencies) != layers[0].self_attn.head_dim or not isinstance(decoder.norm, _Norm):
        return None
    shared.frequencies, shared.scale = frequencies, float(rotary.attention_scaling)
    fused = [_Layer(layer, shared) for layer in layers]
    for layer, following in zip(fused, [*(after.input_layernorm for after in fused[1:]), decoder.norm], strict=True):
        layer.followed_by(following)
    decoder.layers, decoder.rotary_emb = nn.ModuleList(fused), Rotary(rotary)
    made: Rotary = decoder.rotary_emb
    return made


def _can_be_fused(layer: Any) -> bool:
    mlp: Any = getattr(layer, "mlp", None)
    attention = layer.self_attn
    parts = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
    size = attention.head_dim
    return (
        _is(layer, "DecoderLayer")
        and {name for name, _ in layer.named_children()} == parts
        and isinstance(getattr(mlp, "gate_proj", None), First)
        and mlp.gate_proj.bias is None
        and type(mlp.down_proj) is nn.Linear
        and isinstance(mlp.act_fn, (nn.SiLU, SiLUActivation))
        and type(attention.o_proj) is nn.Linear
        and size >= 16
        and size & (size - 1) == 0
    )


def _is(module: nn.Module, part: str) -> bool:
    """Whether it is Transformers' own; code that comes with a checkpoint may use the name for something else."""
    kind = type(module)
    return kind.__module__.startswith("transformers.") and kind.__name__ in {family + part for family in FAMILIES}

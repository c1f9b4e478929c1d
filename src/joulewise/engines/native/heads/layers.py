"""The layers of EAGLE's draft networks: Llama's, with other norms in front, on a cache of their own."""

# mypy: allow-subclassing-any

from __future__ import annotations

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN, SiLUActivation
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from joulewise.engines.native.attention import Sight, attend_tokens, turn, turned
from joulewise.engines.native.cache import KV
from joulewise.engines.native.checkpoints import Checkpoint, Weights
from joulewise.engines.native.heads.parts import linear, norm
from joulewise.engines.native.heads.settings import Settings
from joulewise.engines.native.merged import First
from joulewise.errors import UserError, first_paragraph

_ROTARY_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")
_ROTARY_KINDS = ("default", "linear", "llama3", "yarn")


class Rotary:
    """Rotary positions, computed for the positions asked for, so no table can be too short.

    The base is the head's own: where its file names none it is 10,000, which it was then trained with, whatever the
    target's is.
    """

    def __init__(self, checkpoint: Checkpoint, heads: int, head_dim: int) -> None:
        stated = {key: checkpoint.layers[key] for key in _ROTARY_KEYS if checkpoint.layers.get(key) is not None}
        shape = {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": head_dim}
        try:
            config = LlamaConfig(hidden_size=heads * head_dim, **shape, **stated)
            kind, part = config.rope_parameters["rope_type"], config.rope_parameters.get("partial_rotary_factor") or 1.0
            rotary = LlamaRotaryEmbedding(config) if kind in _ROTARY_KINDS and part == 1.0 else None
        except (KeyError, TypeError, ValueError, StrictDataclassError) as error:
            raise UserError(
                f"The config.json of the head {checkpoint.name} does not say how its positions are rotated "
                f"({first_paragraph(error)}): fetch the head again."
            ) from error
        if rotary is None:
            raise UserError(
                f"The head {checkpoint.name} has rotary positions of a kind that the engine `native` does not know "
                f"(rope_type {kind!r}, partial_rotary_factor {part:g}): choose a head of the kinds "
                f"{', '.join(_ROTARY_KINDS)}."
            )
        self.frequencies: Tensor = rotary.inv_freq.float()
        self.scale: float = rotary.attention_scaling

    def to(self, device: torch.device) -> None:
        """Move to a device; the frequencies stay in float32."""
        self.frequencies = self.frequencies.to(device)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What ``turned`` takes for positions of shape ``(W,)``: two tensors of shape ``(W, 1, head_dim)``."""
        angles = positions[:, None].float() * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return turn((angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype))


class Attention(nn.Module):
    """Grouped attention over a head's own cache. Its names are those of the published tensors."""

    def __init__(self, weights: Weights, name: str, settings: Settings, inputs: int, size: int) -> None:
        super().__init__()
        heads = settings.num_attention_heads
        width = weights.shape(f"{name}.q_proj.weight")[0]
        self.head_dim = width // heads
        kv_heads, rest = divmod(weights.shape(f"{name}.k_proj.weight")[0], max(self.head_dim, 1))
        if width % heads or rest or not kv_heads or heads % kv_heads:
            raise UserError(
                f"The head {weights.source} contradicts itself: its config.json states {heads} attention heads, and "
                f"its tensors {weights.named(f'{name}.q_proj.weight')} and k_proj have {width} and "
                f"{weights.shape(f'{name}.k_proj.weight')[0]} rows. Fetch it again."
            )
        self.kv_heads = kv_heads
        self.q_proj = linear(weights, f"{name}.q_proj", width, inputs)
        self.k_proj = linear(weights, f"{name}.k_proj", kv_heads * self.head_dim, inputs)
        self.v_proj = linear(weights, f"{name}.v_proj", kv_heads * self.head_dim, inputs)
        self.o_proj = linear(weights, f"{name}.o_proj", size, width)
        if f"{name}.q_norm.weight" in weights:  # draft layers of the Qwen3 kind
            self.q_norm: nn.Module = norm(weights, f"{name}.q_norm", self.head_dim, settings.rms_norm_eps)
            self.k_norm: nn.Module = norm(weights, f"{name}.k_norm", self.head_dim, settings.rms_norm_eps)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def forward(self, x: Tensor, cache: KV, layer: int, mask: Tensor | None, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Attend: ``x`` of shape ``(W, inputs)``, the result of shape ``(W, H)``; or of several texts, one dimension
        in front of both.
        """
        shape = (*(x.shape[:-2] or (1,)), x.shape[-2], -1, self.head_dim)
        query, key, value = (project(x).view(shape) for project in (self.q_proj, self.k_proj, self.v_proj))
        both = turned(torch.cat((self.q_norm(query), self.k_norm(key)), dim=2), *turn)
        query, key = both.split((query.shape[2], self.kv_heads), dim=2)
        keys, values = cache.update(key.transpose(1, 2), value.transpose(1, 2), layer)
        out: Tensor = self.o_proj(attend_tokens(query, keys, values, mask).view(*x.shape[:-1], -1))
        return out

    def by_sight(self, x: Tensor, cache: KV, layer: int, sight: Sight, positions: Tensor, rotary: Rotary) -> Tensor:
        """The same on our own kernels, for one text; ``positions`` of shape ``(W,)``."""
        from joulewise.engines.native.kernels import attend_placed, place

        norms = None
        if isinstance(self.q_norm, nn.RMSNorm) and isinstance(self.k_norm, nn.RMSNorm):
            norms = self.q_norm.weight, self.k_norm.weight, float(self.q_norm.eps or 0.0)
        keys, values = cache.layer(layer)
        width, nodes = sight.ancestors.shape
        query = place(
            nn.functional.linear(x, self.q_proj.weight, self.q_proj.bias)[None],
            keys,
            values,
            sight.before,
            positions[None],
            rotary.frequencies,
            rotary.scale,
            norms,
            nodes - width,
        )
        attended = attend_placed(query, keys, values, sight.before, sight.ancestors, self.head_dim**-0.5)
        out: Tensor = self.o_proj(attended[0])
        return out


class MLP(nn.Module):
    """Llama's gated MLP."""

    def __init__(self, weights: Weights, name: str, settings: Settings, size: int) -> None:
        super().__init__()
        inner = weights.shape(f"{name}.gate_proj.weight")[0]
        self.gate_proj = linear(weights, f"{name}.gate_proj", inner, size)
        self.up_proj = linear(weights, f"{name}.up_proj", inner, size)
        self.down_proj = linear(weights, f"{name}.down_proj", size, inner)
        self.act = ACT2FN[settings.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """Shape in and out ``(W, H)``."""
        out: Tensor = self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A draft layer. Which norms it has before its attention is what tells the families apart.

    Args:
        inputs: width of the attention's input: H, or 2H in EAGLE-3's first layer.
        size: H.
    """

    def __init__(self, weights: Weights, number: int, settings: Settings, inputs: int, size: int) -> None:
        super().__init__()
        name, eps = f"layers.{number}", settings.rms_norm_eps
        self.window = settings.window(number)
        self.self_attn = Attention(weights, f"{name}.self_attn", settings, inputs, size)
        self.mlp = MLP(weights, f"{name}.mlp", settings, size)
        self.post_attention_layernorm = norm(weights, f"{name}.post_attention_layernorm", size, eps)
        before = {part for part in ("input_layernorm", "hidden_norm") if f"{name}.{part}.weight" in weights}
        if inputs != size:
            before = {"input_layernorm", "hidden_norm"}
        elif number > 0 and not before:
            before = {"input_layernorm"}
        for part in before:
            self.add_module(part, norm(weights, f"{name}.{part}", size, eps))

    def normed(self, x: Tensor) -> Tensor:
        """A later layer's input, normed. SGLang's layers name that norm ``hidden_norm``, and hold an idle other one."""
        out: Tensor = getattr(self, "hidden_norm" if hasattr(self, "hidden_norm") else "input_layernorm")(x)
        return out

    def forward(
        self, x: Tensor, residual: Tensor, cache: KV, number: int, mask: Tensor | None, turn: tuple[Tensor, Tensor]
    ) -> Tensor:
        """From the attention's input ``(W, inputs)`` and what is added to its output ``(W, H)``; shape ``(W, H)``."""
        hidden = residual + self.self_attn(x, cache, number, mask, turn)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out

    @property
    def sights(self) -> bool:
        """Whether our own kernels can do all that it does."""
        size = self.self_attn.head_dim
        return (
            self.window is None
            and isinstance(self.self_attn.q_proj, First)
            and isinstance(self.mlp.gate_proj, First)
            and self.mlp.gate_proj.bias is None
            and isinstance(self.mlp.act, (nn.SiLU, SiLUActivation))
            and size >= 16
            and size & (size - 1) == 0
        )

    def by_sight(
        self, x: Tensor, residual: Tensor, cache: KV, number: int, sight: Sight, positions: Tensor, rotary: Rotary
    ) -> Tensor:
        """``forward`` on our own kernels."""
        from joulewise.engines.native.kernels import add_norm, gated

        attended = self.self_attn.by_sight(x, cache, number, sight, positions, rotary)
        norm = self.post_attention_layernorm
        hidden, normed = add_norm(residual.contiguous(), attended, norm.weight, float(norm.eps or 0.0))
        gates = nn.functional.linear(normed, self.mlp.gate_proj.weight)
        out: Tensor = hidden + self.mlp.down_proj(gated(gates))
        return out

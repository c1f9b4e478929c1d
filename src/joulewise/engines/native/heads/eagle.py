"""The draft networks of EAGLE-1/2 (arXiv 2401.15077, 2406.16858) and EAGLE-3 (arXiv 2503.01840).

A head reads pairs of a target's feature and the *next* token, and predicts what follows that token. Its own output is
the feature of the next step. Where paper and published code differ (EAGLE-3's fusion), the code is right: its weights
are what there is to load.
"""

# mypy: allow-subclassing-any

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from joulewise.engines.native.attention import Sight, causal_mask
from joulewise.engines.native.cache import KV
from joulewise.engines.native.checkpoints import Checkpoint, Family, Weights, misfit
from joulewise.engines.native.heads.layers import Layer, Rotary
from joulewise.engines.native.heads.parts import (
    check_copy,
    check_rows,
    checked_ids,
    embedding,
    linear,
    matrix,
    norm,
    output_rows,
)
from joulewise.engines.native.heads.settings import settings_of
from joulewise.engines.native.lean import kernels_run
from joulewise.engines.native.model import DecoderModel, Hidden


class EagleHead(nn.Module, ABC):
    """What both generations share. Attributes are named as the published tensors, so ``state_dict`` is a checkpoint.

    Args:
        checkpoint: its settings.
        weights: its tensors.
        target: the model that it drafts for.
        size: H of the draft.
        inputs: width of the first layer's attention input.
    """

    family: Family
    note: str = ""

    def __init__(self, checkpoint: Checkpoint, weights: Weights, target: DecoderModel, size: int, inputs: int) -> None:
        super().__init__()
        self.name = checkpoint.name
        self.settings = settings_of(checkpoint)
        count = weights.count(r"layers\.(\d+)\.")
        self.layers = nn.ModuleList(
            Layer(weights, number, self.settings, inputs if number == 0 else size, size) for number in range(count)
        )
        first = self.layers[0].self_attn
        self._rotary = Rotary(checkpoint, self.settings.num_attention_heads, first.head_dim)
        # In a tuple, because these are the target's modules and no part of this one.
        self._targets = (embedding(target), target.head)
        self._rows: int = embedding(target).num_embeddings
        self._device, self._dtype = target.device, target.model.dtype
        self._able = target.kernels_fault is None  # what fails for the target fails here too
        self._sights: bool | None = None
        self.session: object = None
        """What was captured of this head, kept from prompt to prompt."""

    def _finish(self, weights: Weights) -> None:
        weights.finish()
        self.to(device=self._device, dtype=self._dtype)
        self._rotary.to(self._device)
        self.eval()

    @property
    def rows(self) -> int:
        """How many tokens it can propose."""
        return self._rows

    @property
    def sights(self) -> bool:
        """Whether ``forward_at`` takes a ``Sight`` in a mask's place, and then runs on our own kernels."""
        if self._sights is None:
            self._sights = self._able and kernels_run(self._device) and all(layer.sights for layer in self.layers)
        return self._sights

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._device

    def new_cache(self, capacity: int) -> KV:
        """An empty cache for so many pairs."""
        first = self.layers[0].self_attn
        return KV(len(self.layers), first.kv_heads, first.head_dim, capacity, self._dtype, self._device)

    @abstractmethod
    def fuse(self, hidden: Hidden) -> Tensor:
        """The target's features as the states that ``forward`` takes, shape ``(W, H)``."""

    def forward(
        self,
        cache: KV,
        tokens: Tensor,
        states: Tensor,
        start: int,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Read W pairs, which go to the slots from ``start`` on.

        Args:
            cache: the head's own; read and written.
            tokens: of the target's vocabulary, shape ``(W,)``; each is the one *after* its state.
            states: the fused features of the target, or what ``forward`` gave; shape ``(W, H)``.
            start: the first slot.
            mask: true where a pair sees a slot, shape ``(W, start + W)``; None: causal.
            positions: of the states in the text, shape ``(W,)``; None: the slots.

        Returns:
            The states that follow, shape ``(W, H)``.
        """
        span = start + len(tokens)
        slots = torch.arange(start, span, device=tokens.device)
        if positions is None:
            positions = slots
        if mask is None and start > 0:
            mask = causal_mask(positions, span)
        return self.forward_at(cache, tokens, states, slots, span, mask, positions)

    def forward_at(
        self,
        cache: KV,
        tokens: Tensor,
        states: Tensor,
        slots: Tensor,
        span: int,
        mask: Tensor | Sight | None,
        positions: Tensor,
    ) -> Tensor:
        """Read W pairs, all that differs between calls of one shape lying on the device.

        Args:
            cache, tokens, states: as for ``forward``.
            slots: that the pairs go to, shape ``(W,)``.
            span: so many slots are read.
            mask: shape ``(W, span)``; None: causal, with nothing before; or, where it ``sights``, a ``Sight``, which
                tells slots and span as well.
            positions: shape ``(W,)``.
        """
        if isinstance(mask, Sight):
            x, residual = self._enter(self._embed(tokens), states)
            for number, layer in enumerate(self.layers):
                if number > 0:
                    x = layer.normed(residual)
                residual = layer.by_sight(x, residual, cache, number, mask, positions, self._rotary)
            return self._leave(residual)
        cache.slots, cache.span = slots, span
        turn = self._rotary(positions, states.dtype)
        x, residual = self._enter(self._embed(tokens), states)
        for number, layer in enumerate(self.layers):
            if number > 0:
                x = layer.normed(residual)
            residual = layer(x, residual, cache, number, _within(mask, positions, span, layer.window), turn)
        return self._leave(residual)

    def logits(self, states: Tensor) -> Tensor:
        """Of what follows each state, in float32, shape ``(W, rows)``."""
        return self.output(states).float() * self.scale

    scale: float = 1.0
    """Of the logits."""

    @abstractmethod
    def output(self, states: Tensor) -> Tensor:
        """The logits as the output matrix gives them, shape ``(W, rows)``."""

    @property
    def row_ids(self) -> Tensor | None:
        """The token of each row; None where that is its number."""
        return None

    def ids(self, chosen: Tensor) -> Tensor:
        """Numbers of rows as tokens of the target."""
        return chosen if self.row_ids is None else self.row_ids[chosen]

    def _embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self._targets[0](tokens)
        return embedded

    @abstractmethod
    def _enter(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer's attention input and residual."""

    def _leave(self, states: Tensor) -> Tensor:
        return states


def _within(mask: Tensor | None, positions: Tensor, span: int, window: int | None) -> Tensor | None:
    """The mask of a layer that sees only ``window`` tokens back. A tree's own slots always lie within the window."""
    if window is None:
        return mask
    seen = causal_mask(positions, span) if mask is None else mask
    return seen & (positions[:, None] - torch.arange(span, device=positions.device) < window)


class Eagle2Head(EagleHead):
    """EAGLE-1 and EAGLE-2, which share their weights: one feature, the target's embeddings and output matrix."""

    family: Family = "eagle2"

    def __init__(self, checkpoint: Checkpoint, target: DecoderModel) -> None:
        weights, size = checkpoint.weights, target.config.hidden_size
        super().__init__(checkpoint, weights, target, size, inputs=size)
        self.fc = linear(weights, "fc", size, 2 * size)
        if "embed_tokens.weight" in weights:
            check_copy(weights, "embed_tokens.weight", target)
        if "lm_head.weight" in weights:  # a copy too, in renamed files
            check_copy_of_head(weights, target)
        self._finish(weights)

    def fuse(self, hidden: Hidden) -> Tensor:
        return hidden.last

    def output(self, states: Tensor) -> Tensor:
        logits: Tensor = self._targets[1](states)
        return logits

    def _enter(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        fused: Tensor = self.fc(torch.cat((embedded, states), dim=-1))
        return fused, fused


def check_copy_of_head(weights: Weights, target: DecoderModel) -> None:
    """Refuse an EAGLE-1/2 head with an output matrix over another vocabulary; the target's own is what it uses."""
    check_rows(weights, "lm_head.weight", target)
    weights.take("lm_head.weight", None, target.config.hidden_size)


class Eagle3Head(EagleHead):
    """EAGLE-3: the inputs of several target layers, a first layer twice as wide, a vocabulary of its own.

    Args:
        checkpoint: the head's.
        target: tapped at ``taps`` at least.
        taps: the layers whose inputs it reads, in its own order; none: the last hidden state.
    """

    family: Family = "eagle3"

    def __init__(self, checkpoint: Checkpoint, target: DecoderModel, taps: Sequence[int]) -> None:
        weights = checkpoint.weights
        size, width = weights.shape("layers.0.self_attn.o_proj.weight")[0], target.config.hidden_size
        super().__init__(checkpoint, weights, target, size, inputs=2 * size)
        eps = self.settings.rms_norm_eps
        # Which of the features that the target leaves are this head's; other heads may read others.
        places = torch.tensor([target.taps.index(tap) for tap in taps], dtype=torch.long)
        self._features = (width, places.to(target.device)) if tuple(taps) != target.taps else None
        self._last_alone = not taps
        self.scale = self.settings.logit_scale
        if taps:
            self.fc: nn.Module = linear(weights, "fc", size, len(taps) * width)
        elif width == size:
            self.fc = nn.Identity()
        else:
            raise misfit(self.name, f"it is {size} wide and reads only the last hidden state, which is {width} wide")
        self.input_norm: nn.Module = nn.Identity()
        if "input_norm.weight" in weights:
            self.input_norm = norm(weights, "input_norm", len(taps) * width, eps)
        self.fc_norm = nn.ModuleList(
            norm(weights, f"fc_norm.{number}", width, eps) for number in range(weights.count(r"fc_norm\.(\d+)\."))
        )
        self.norm = norm(weights, "norm", size, eps)
        self._own_embedding(weights, target, size)
        self._own_output(weights, target, size)
        self._finish(weights)

    def _own_embedding(self, weights: Weights, target: DecoderModel, size: int) -> None:
        self.embed_tokens: nn.Embedding | None = None
        theirs = embedding(target)
        if "embed_tokens.weight" in weights:
            check_rows(weights, "embed_tokens.weight", target)
            own = weights.take("embed_tokens.weight", None, size)
            same = own.shape == theirs.weight.shape and torch.equal(own.to(theirs.weight), theirs.weight)
            if not same:  # most are copies of the target's: one is enough
                self.embed_tokens = nn.Embedding.from_pretrained(own)
        elif size != theirs.embedding_dim:
            raise misfit(
                self.name, f"it is {size} wide without embeddings of its own, which are {theirs.embedding_dim} wide"
            )

    def _own_output(self, weights: Weights, target: DecoderModel, size: int) -> None:
        ids = offsets = None
        if "d2t" in weights:
            offsets = weights.take("d2t", None)
            ids = checked_ids(weights, torch.arange(len(offsets), device=offsets.device) + offsets, target)
        if "lm_head.weight" in weights:
            if ids is None:
                check_rows(weights, "lm_head.weight", target)
            own = weights.take("lm_head.weight", None if ids is None else len(ids), size)
            self.lm_head: nn.Module | None = matrix(own[: self._rows])
        elif size != target.config.hidden_size:
            raise misfit(self.name, f"it is {size} wide without an output matrix of its own")
        else:
            # Only d2t stored: a variant whose output is the target's own matrix, or rows of it.
            self.lm_head = None if ids is None else output_rows(target, ids)
        self.register_buffer("d2t", offsets)
        self.register_buffer("_ids", ids, persistent=False)
        self._rows = self._rows if self.lm_head is None else self.lm_head.weight.shape[0]

    def fuse(self, hidden: Hidden) -> Tensor:
        if self._last_alone or hidden.taps is None:
            return hidden.last
        features = hidden.taps
        if self._features is not None:
            width, places = self._features
            features = features.unflatten(-1, (-1, width)).index_select(-2, places).flatten(-2)
        features = self.input_norm(features)
        if len(self.fc_norm):
            thirds = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([each(third) for each, third in zip(self.fc_norm, thirds, strict=True)], dim=-1)
        fused: Tensor = self.fc(features)
        return fused

    def output(self, states: Tensor) -> Tensor:
        normed = states if self.settings.norm_output else self.norm(states)
        output: Any = self._targets[1] if self.lm_head is None else self.lm_head
        logits: Tensor = output(normed)
        return logits

    @property
    def row_ids(self) -> Tensor | None:
        ids: Tensor | None = self._ids
        return ids

    def _embed(self, tokens: Tensor) -> Tensor:
        if self.embed_tokens is None:
            return super()._embed(tokens)
        # The target's padding may be longer; such tokens never occur in text.
        embedded: Tensor = self.embed_tokens(tokens.clamp(max=self.embed_tokens.num_embeddings - 1))
        return embedded

    def _enter(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        first = self.layers[0]
        normed = first.hidden_norm(states)
        residual = normed if self.settings.norm_before_residual else states
        return torch.cat((first.input_layernorm(embedded), normed), dim=-1), residual

    def _leave(self, states: Tensor) -> Tensor:
        left: Tensor = self.norm(states) if self.settings.norm_output else states
        return left

"""What every head is built from: layers made of checked tensors, and the target's vocabulary."""

# mypy: allow-subclassing-any

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from joulewise.engines.native.checkpoints import Weights, misfit
from joulewise.engines.native.lean import kernels_run
from joulewise.engines.native.model import DecoderModel
from joulewise.errors import UserError

_PADDING_ROWS = 1024
"""Vocabularies of one family differ by padding (Qwen2.5: 151,936 and 152,064 rows); of other families by more."""
_ROWS_COMPARED = 256
_FEW_ROWS = 64
_LEAST_COSINE = 0.5
"""Between a head's copy of the embeddings and its target's own: 1 but for fine-tuning; about 0 for another model."""


def linear(weights: Weights, name: str, outputs: int | None, inputs: int | None) -> nn.Linear:
    """The linear layer ``name``, with a bias if the checkpoint has one."""
    bias = weights.take(f"{name}.bias", outputs) if f"{name}.bias" in weights else None
    return matrix(weights.take(f"{name}.weight", outputs, inputs), bias)


def matrix(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear layer of given tensors, not trained unless somebody asks for it."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


class _Norm(nn.RMSNorm):
    """An RMSNorm that drafts on our own kernel, which is faster for few rows."""

    def forward(self, x: Tensor) -> Tensor:
        few = x.numel() <= _FEW_ROWS * x.shape[-1] and torch.is_inference_mode_enabled()
        if not few or not kernels_run(x.device):
            return super().forward(x)
        from joulewise.engines.native.kernels import add_norm

        return add_norm(x.contiguous(), None, self.weight, float(self.eps or 0.0))[1]


def norm(weights: Weights, name: str, size: int, eps: float) -> nn.RMSNorm:
    """The RMSNorm ``name``."""
    layer = _Norm(size, eps=eps, device="meta")
    layer.weight = nn.Parameter(weights.take(f"{name}.weight", size), requires_grad=False)
    return layer


def embedding(target: DecoderModel) -> Any:
    """The target's input embeddings."""
    return target.model.get_input_embeddings()


def check_rows(weights: Weights, name: str, target: DecoderModel) -> None:
    """Refuse a table over the vocabulary, ``name``, that is not over the target's.

    Raises:
        UserError: too few rows for the tokenizer, or more than padding explains.
    """
    rows, own = weights.shape(name)[0], embedding(target).num_embeddings
    if rows < len(target.loaded.tokenizer) or rows - own > _PADDING_ROWS:
        raise misfit(
            weights.source,
            f"its tensor {weights.named(name)} has {rows} rows, and the vocabulary of {target.loaded.name} has "
            f"{len(target.loaded.tokenizer)} tokens in {own} rows",
        )


def check_copy(weights: Weights, name: str, target: DecoderModel) -> None:
    """Refuse a head whose copy of the target's embeddings, ``name``, is not like them.

    Raises:
        UserError: a vocabulary or width that is not the target's, or other values.
    """
    check_rows(weights, name, target)
    own = embedding(target)
    copy = weights.take(name, None, own.embedding_dim)
    rows = torch.linspace(0, min(len(copy), own.num_embeddings) - 1, _ROWS_COMPARED).long()
    theirs, ours = copy[rows.to(copy.device)].float(), own.weight.detach()[rows.to(own.weight.device)].float()
    cosine = float(nn.functional.cosine_similarity(theirs.to(ours.device), ours, dim=-1).mean())
    if not cosine >= _LEAST_COSINE:
        raise misfit(
            weights.source,
            f"its copy of the embeddings is not like those of {target.loaded.name} (cosine {cosine:.2f})",
        )


def checked_ids(weights: Weights, ids: Tensor, target: DecoderModel) -> Tensor:
    """Which token of the target each row of a reduced vocabulary stands for, shape ``(rows,)``.

    Raises:
        UserError: a token that the target has not, or two rows for one token.
    """
    rows = embedding(target).num_embeddings
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= rows:
        outside = low if low < 0 else high
        raise misfit(
            weights.source, f"its draft vocabulary points to token {outside}, and {target.loaded.name} has {rows} rows"
        )
    if len(ids.unique()) < len(ids):
        raise UserError(
            f"The draft vocabulary of the head {weights.source} names a token twice: its table d2t (or token_map) is "
            "damaged. Fetch the head again, or choose another."
        )
    return ids.long()


def output_rows(target: DecoderModel, ids: Tensor) -> nn.Linear:
    """The rows ``ids`` of the target's own output matrix, as a matrix of their own.

    Raises:
        UserError: the target's matrix is quantised and has no rows to copy.
    """
    head = target.head
    weight = getattr(head, "weight", None)
    if weight is None or not weight.is_floating_point() or weight.shape[0] != embedding(target).num_embeddings:
        raise UserError(
            f"The head has no output matrix of its own, and that of {target.loaded.name} is quantised: load the target "
            "with quantisation: none, or choose a head with its own matrix."
        )
    ids = ids.to(weight.device)
    bias = getattr(head, "bias", None)
    return matrix(weight.detach()[ids], None if bias is None else bias.detach()[ids])

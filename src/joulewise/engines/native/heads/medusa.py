"""Medusa's heads (arXiv 2401.10774, section 2.1.1): residual blocks over the target's last hidden state."""

# mypy: allow-subclassing-any

from __future__ import annotations

import torch
from torch import Tensor, nn

from joulewise.engines.native.checkpoints import Checkpoint, Family
from joulewise.engines.native.heads.parts import check_rows, checked_ids, embedding, linear, matrix
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.recorded import Recorded
from joulewise.errors import UserError


class ResidualBlocks(nn.Module):
    """``x + SiLU(W x + b)``, once for each of the head's layers."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Shape in and out ``(W, H)``."""
        for layer in self.layers:
            x = x + nn.functional.silu(layer(x))
        return x


class MedusaHead(nn.Module):
    """All heads of a checkpoint. Head ``i`` (from 1) predicts the token ``i`` places after the target's next one.

    How many there are is counted: published configurations state 2 where the file holds 5. Heads without an output
    matrix of their own are a variant, with the target's matrix in its place.
    """

    family: Family = "medusa"
    note: str = ""

    def __init__(self, checkpoint: Checkpoint, target: DecoderModel) -> None:
        super().__init__()
        weights, size = checkpoint.weights, target.config.hidden_size
        self.name = checkpoint.name
        heads = weights.count(r"heads\.(\d+)\.blocks\.")
        self.blocks = nn.ModuleList(
            ResidualBlocks(
                [
                    linear(weights, f"heads.{head}.blocks.{layer}", size, size)
                    for layer in range(weights.count(rf"heads\.{head}\.blocks\.(\d+)\."))
                ]
            )
            for head in range(heads)
        )
        rows = embedding(target).num_embeddings
        ids = checked_ids(weights, weights.take("token_map", None), target) if "token_map" in weights else None
        own = weights.count(r"heads\.(\d+)\.output\.")
        if own not in (0, heads):
            raise UserError(
                f"The head {self.name} has {heads} Medusa heads and {own} output matrices: a file of it is missing; "
                "fetch it again."
            )
        for head in range(own):
            if ids is None:
                check_rows(weights, f"heads.{head}.output.weight", target)
        size_of_map = None if ids is None else len(ids)
        self.outputs = nn.ModuleList(
            matrix(weights.take(f"heads.{head}.output.weight", size_of_map, size)[:rows]) for head in range(own)
        )
        self.register_buffer("token_map", ids)
        weights.finish()
        self.to(device=target.device, dtype=target.model.dtype)
        self.eval()
        self.size: int = size
        self.device: torch.device = target.device
        self.dtype: torch.dtype = target.model.dtype
        self.recorded: dict[int, Recorded[Tensor]] = {}
        """What was captured of its work, by the number of ranks, kept from prompt to prompt."""
        self._target_output = (target.head,)  # in a tuple, because it is no part of this module
        self.rows: int = rows if not own else self.outputs[0].weight.shape[0]
        """How many tokens a head can propose."""

    @property
    def heads(self) -> int:
        """How many tokens after the next one are predicted."""
        return len(self.blocks)

    def ranked(self, feature: Tensor, ranks: int) -> Tensor:
        """The likeliest tokens of every head, best first.

        Args:
            feature: the target's hidden state, after its final norm, where the root was predicted; shape ``(1, H)``.
            ranks: how many.

        Returns:
            Shape ``(heads, ranks)``.
        """
        ranked = self.logits(feature).topk(ranks, dim=-1).indices
        return ranked if self.token_map is None else self.token_map[ranked]

    def logits(self, feature: Tensor) -> Tensor:
        """In float32, shape ``(heads, rows)``, from a feature of shape ``(1, H)``."""
        states = [blocks(feature) for blocks in self.blocks]
        if not len(self.outputs):
            shared: Tensor = self._target_output[0](torch.cat(states))
            return shared.float()
        own = [output(state) for output, state in zip(self.outputs, states, strict=True)]
        return torch.cat(own).float()

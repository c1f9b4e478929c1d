"""Merged projections: matrices that multiply the same input lie in one, so that a step starts one kernel for them.

The modules stay where they are, and so do the forwards of all families that call them: the first one multiplies for all
of its group and keeps the others' parts, which these give out when they are called next.
"""

# mypy: allow-subclassing-any

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of modules that the layers of many families call in this order, with the same input."""


class First(nn.Module):
    """Multiplies for its whole group."""

    def __init__(self, group: list[nn.Linear]) -> None:
        super().__init__()
        first = group[0]
        self.in_features, self.out_features = first.in_features, first.out_features
        self.weight = nn.Parameter(torch.cat([part.weight.data for part in group]), requires_grad=False)
        biases = [part.bias.data for part in group if part.bias is not None]
        self.bias = nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None
        self.sizes = [part.out_features for part in group]
        self._rest: list[Tensor | None] = []

    def forward(self, x: Tensor) -> Tensor:
        """The first matrix's product; the others' wait."""
        first, *self._rest = linear(x, self.weight, self.bias).split(self.sizes, dim=-1)
        return first

    def take(self, number: int) -> Tensor:
        """A part that waits. It is held no longer: kept in every layer, they would fill the memory."""
        part, self._rest[number] = self._rest[number], None
        assert part is not None
        return part


class _Rest(nn.Module):
    """Gives out what the first of the group has multiplied."""

    def __init__(self, first: First, number: int, part: nn.Linear) -> None:
        super().__init__()
        self._first = (first,)  # in a tuple, because it is no part of this module
        self._number = number
        self.in_features, self.out_features = part.in_features, part.out_features

    def forward(self, x: Tensor) -> Tensor:
        """The part that waits; ``x`` is what the first was called with."""
        return self._first[0].take(self._number)


def merge_projections(model: nn.Module) -> int:
    """Merge the groups of a model that can be, in place. Its outputs stay the same but for the order of sums.

    Quantised layers and those that something else has replaced are left as they are.

    Args:
        model: any; its layers' modules are looked at by name.

    Returns:
        How many groups were merged.
    """
    count = 0
    for module in list(model.modules()):
        for names in GROUPS:
            parts = [getattr(module, name, None) for name in names]
            group = [part for part in parts if type(part) is nn.Linear]
            if len(group) < len(names) or not _alike(group):
                continue
            first = First(group)
            setattr(module, names[0], first)
            for number, (name, part) in enumerate(zip(names[1:], group[1:], strict=True)):
                setattr(module, name, _Rest(first, number, part))
            count += 1
    return count


def _alike(group: list[nn.Linear]) -> bool:
    kinds = {(part.in_features, part.bias is None, part.weight.dtype, part.weight.device) for part in group}
    return len(kinds) == 1

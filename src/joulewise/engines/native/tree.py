"""Tree: the shape of a draft, its mask, and the walk that accepts. All on the device, without a wait."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tree:
    """How the nodes of a draft hang together. Node 0 is the root; a node's parent comes before it.

    Args:
        parents: shape ``(W,)``; the root is its own parent.
        ancestors: true where column is an ancestor of row, or the row's own node; shape ``(W, W)``.
        depths: shape ``(W,)``; the root's is 0.
        height: the largest depth there can be.
        chain: whether each node is the parent of the next.
    """

    parents: Tensor
    ancestors: Tensor
    depths: Tensor
    height: int
    chain: bool = False

    @classmethod
    def of(cls, parents: Tensor, height: int, chain: bool = False) -> Tree:
        """The tree of a table of parents.

        Args:
            parents: shape ``(W,)``, ``parents[0] = 0`` and ``parents[i] < i``.
            height: the largest depth there can be.
            chain: whether each node is the parent of the next.
        """
        ancestors = torch.eye(len(parents), dtype=torch.bool, device=parents.device)
        for _ in range(height):
            # A node's ancestors are itself and its parent's; after n steps that holds to depth n.
            ancestors = ancestors | ancestors[parents]
        return cls(parents, ancestors, ancestors.sum(1) - 1, height, chain)

    def mask(self, before: int) -> Tensor:
        """What each node sees: all tokens before the root, its ancestors, itself. Shape ``(W, before + W)``."""
        prefix = self.ancestors.new_ones(len(self.parents), before)
        return torch.cat((prefix, self.ancestors), dim=1)


@lru_cache(maxsize=512)
def chain(tokens: int, device: torch.device) -> Tree:
    """A root and ``tokens`` nodes, each the child of the one before."""
    parents = torch.arange(-1, tokens, device=device).clamp(min=0)
    return Tree.of(parents, tokens, chain=True)


def walk(tree: Tree, tokens: Tensor, drawn: Tensor) -> Tensor:
    """From the root, go to the child that the target drew, as long as there is one.

    Args:
        tree: the draft's.
        tokens: of the nodes below the root, shape ``(W - 1,)``. Siblings differ.
        drawn: what the target drew at every node, shape ``(W,)``.

    Returns:
        The node where the walk ends, shape ``(1,)``: its ancestors were accepted, what was drawn there is the bonus.
    """
    return deepest(tree, tokens == drawn[tree.parents[1:]])


def deepest(tree: Tree, agreed: Tensor, scores: Tensor | None = None) -> Tensor:
    """The end of the longest path from the root on which all nodes are agreed to, shape ``(1,)``.

    Args:
        tree: the draft's.
        agreed: of the nodes below the root, shape ``(W - 1,)``.
        scores: of all nodes, shape ``(W,)``; of several longest paths the largest sum wins. None: the first path.
    """
    agreed = torch.cat((agreed.new_ones(1), agreed))
    depths = torch.where((tree.ancestors & ~agreed).any(dim=1), -1, tree.depths)
    if scores is None:
        return depths.argmax(dim=0, keepdim=True)
    sums = torch.where(tree.ancestors, scores, 0.0).sum(dim=1)
    return torch.where(depths == depths.max(), sums, -torch.inf).argmax(dim=0, keepdim=True)


def path(tree: Tree, last: Tensor) -> Tensor:
    """The nodes from the root to ``last``, shape ``(height + 1,)``, filled up at the end with nodes off the path."""
    width = len(tree.parents)
    # Parents come before children, so the order of the numbers is the order of the depths.
    # The index is a list of one: a single number would make the host wait.
    order = torch.where(tree.ancestors[last][0], 0, width) + torch.arange(width, device=last.device)
    return order.sort().indices[: tree.height + 1]

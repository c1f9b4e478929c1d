"""Medusa's fixed tree (arXiv 2401.10774, section 2.1.2): each node takes one rank of its level's head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from joulewise.decoding.medusa_trees import DEFAULT_TREE, Path, paths_of
from joulewise.engines.native.draft import Draft, Kept
from joulewise.engines.native.fit import require_heads
from joulewise.engines.native.heads.medusa import MedusaHead
from joulewise.engines.native.model import Hidden
from joulewise.engines.native.recorded import Recorded
from joulewise.engines.native.session import Capture, lasting_cuda_graph
from joulewise.engines.native.tree import Tree


class MedusaDrafter:
    """Drafts with Medusa heads. See ``Drafter``.

    Args:
        head: the heads.
        tree: a published tree's name, or paths: ``(0, 2)`` is the third choice of head 2 after the first of head 1.
            Every beginning of a path must be a path too.
        capture: how the heads' work is captured; None: as CUDA graphs on a GPU, elsewhere not at all.

    Raises:
        UserError: no such tree, a tree over the limit, or deeper than there are heads.
    """

    def __init__(
        self, head: MedusaHead, tree: str | Sequence[Sequence[int]] = DEFAULT_TREE, capture: Capture | None = None
    ) -> None:
        ordered = paths_of(tree)
        require_heads(head.name, ordered, head.heads, head.rows)
        self._head = head
        self._ranks = 1 + max(max(path) for path in ordered)
        self.most_nodes = len(ordered)
        self.height = len(ordered[-1])
        self._paths = ordered
        capture = capture or (lasting_cuda_graph if head.device.type == "cuda" else None)
        self._ranked: Callable[[Tensor], Tensor] = partial(head.ranked, ranks=self._ranks)
        if capture is not None:
            self._ranked = _recorded(head, self._ranks, capture)

    def reset(self, prompt: Tensor, hidden: Hidden, root: Tensor, capacity: int) -> None:
        """Take the feature where the root was predicted."""
        self._feature = hidden.last[-1:]

    def propose(self, room: int) -> Draft:
        """The tree, cut to the levels that can still enter the output."""
        levels = min(max(room, 0), len(self._paths[-1]))
        choices, tree = _cut(self._paths, levels, self._ranks, self._feature.device)
        return Draft(self._ranked(self._feature).flatten()[choices], tree)

    def observe(self, kept: Kept) -> None:
        """Take the feature where the new root was predicted."""
        self._feature = kept.hidden.last[-1:]


def _recorded(head: MedusaHead, ranks: int, capture: Capture) -> Callable[[Tensor], Tensor]:
    """The heads' captured work, kept with them for further prompts."""
    if ranks not in head.recorded:
        feature = torch.zeros(1, head.size, dtype=head.dtype, device=head.device)
        head.recorded[ranks] = Recorded(partial(head.ranked, ranks=ranks), (feature,), capture, f"the head {head.name}")
    return head.recorded[ranks]


@lru_cache(maxsize=64)
def _cut(paths: tuple[Path, ...], levels: int, ranks: int, device: torch.device) -> tuple[Tensor, Tree]:
    """The first levels of a tree: which of the heads' choices, laid end to end, each node takes; and its shape."""
    kept = [path for path in paths if len(path) <= levels]
    number = {path: i + 1 for i, path in enumerate(kept)}
    choices = [(len(path) - 1) * ranks + path[-1] for path in kept]
    parents = [0] + [number.get(path[:-1], 0) for path in kept]
    chain = parents == [0, *range(len(kept))]
    return (
        torch.tensor(choices, dtype=torch.long, device=device),
        Tree.of(torch.tensor(parents, device=device), levels, chain),
    )

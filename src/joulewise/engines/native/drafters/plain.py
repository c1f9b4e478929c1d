"""No draft at all: vanilla decoding is the loop with an empty tree."""

from __future__ import annotations

from torch import Tensor

from joulewise.engines.native.draft import Draft, Kept
from joulewise.engines.native.model import Hidden
from joulewise.engines.native.tree import chain


class Plain:
    """Proposes nothing, so that a round is one token. See ``Drafter``."""

    most_nodes = 0
    height = None

    def reset(self, prompt: Tensor, hidden: Hidden, root: Tensor, capacity: int) -> None:
        """Begin a prompt."""
        self._nothing = Draft(prompt[:0], chain(0, prompt.device))

    def propose(self, room: int) -> Draft:
        """The empty draft."""
        return self._nothing

    def observe(self, kept: Kept) -> None:
        """Nothing is learnt."""

"""Draft and Drafter: the one seam between a strategy and the loop. Every draft is a tree; a chain is a special case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from joulewise.engines.native.model import Hidden
from joulewise.engines.native.tree import Tree

if TYPE_CHECKING:
    from joulewise.engines.native.session import Judged


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter proposes for one round.

    Args:
        tokens: of the nodes below the root, shape ``(K,)``; K may be 0.
        tree: how they hang together.
        probabilities: what each token of a *sampled* chain was drawn from, shape ``(K, rows)``; None where the tokens
            were chosen without chance. Must be the distribution that was really sampled from, or the output is biased.
    """

    tokens: Tensor
    tree: Tree
    probabilities: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """What the target made of a draft: the root's accepted descendants and one token of its own.

    Args:
        tokens: the accepted tokens and then the target's own (the next root), shape ``(a + 1,)``.
        ids: the same, known to the host.
        hidden: the target's hidden states at the root and the accepted tokens, ``a + 1`` rows: row ``i`` is where
            ``tokens[i]`` was predicted.
        length: tokens before the root, so ``tokens[0]`` has the position ``length + 1``.
    """

    tokens: Tensor
    ids: Sequence[int]
    hidden: Hidden
    length: int


class Drafter(Protocol):
    """A strategy. It holds no state from one prompt to the next (design, rule 6)."""

    @property
    def most_nodes(self) -> int:
        """The most nodes below the root that a draft may have."""
        ...

    @property
    def height(self) -> int | None:
        """The depth of its trees; None: it drafts chains."""
        ...

    def reset(self, prompt: Tensor, hidden: Hidden, root: Tensor, capacity: int) -> None:
        """Begin a prompt.

        Args:
            prompt: its tokens, shape ``(P,)``.
            hidden: the target's hidden states over them.
            root: the first output token, shape ``(1,)``; position ``P``.
            capacity: the most tokens that prompt, output and one draft may need together.
        """
        ...

    def propose(self, room: int) -> Draft:
        """Propose what may follow the last root. At most ``room`` tokens of a path can enter the output."""
        ...

    def observe(self, kept: Kept) -> None:
        """Take in how the last draft fared.

        Called once after each ``propose``, but not after the last round, and never where ``most_nodes`` is 0.
        """
        ...


@runtime_checkable
class Foresees(Protocol):
    """A drafter that can go on before the host knows what the target made of its draft."""

    def foresee(self, judged: Judged, hidden: Hidden) -> bool:
        """Take in how the last draft fared, from what lies on the device, and begin the next draft.

        Args:
            judged: the target's verdict.
            hidden: its hidden states at the draft's nodes.

        Returns:
            Whether it did; else ``observe`` is called.
        """
        ...

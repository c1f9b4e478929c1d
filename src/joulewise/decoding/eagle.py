"""EAGLE: a head of one layer writes a tree of drafts from the target's own hidden states (paper 1)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from joulewise.decoding.spec import CanBeSynthetic, HeadName


class _Eagle(CanBeSynthetic):
    """The tree grows from its likeliest nodes and is then cut to the ``nodes`` likeliest."""

    needs_head: ClassVar[bool] = True

    draft: None = None
    head: HeadName | None = None
    nodes: int = Field(60, ge=2, le=256)
    depth: int = Field(5, ge=0, le=31)
    top_k: int = Field(10, ge=1, le=64)

    @model_validator(mode="after")
    def _has_so_many(self) -> Self:
        if self.top_k > 1 and self.nodes - 1 > (most := self.top_k + self.depth * self.top_k**2):
            raise ValueError(
                f"top_k {self.top_k} and depth {self.depth} grow {most} nodes below the root, and 'nodes' wants "
                f"{self.nodes} with it: set nodes to {most + 1} at most, or a larger depth"
            )
        return self

    @property
    def label(self) -> str:
        shape = f"chain-{self.path_tokens}" if self.top_k == 1 else f"{self.nodes}x{self.depth}x{self.top_k}"
        return f"{self.kind}-{shape}{self._synthetic_label}"

    @property
    def path_tokens(self) -> int:
        """The tree's height."""
        return min(self.depth + 1, self.nodes - 1)


class Eagle2(_Eagle):
    """EAGLE-2: the head reads the target's last hidden state; its tree follows its own confidence.

    Args:
        head: a hub name, a folder or a file; None takes the engine's.
        nodes: of the tree that is verified, the root included (published: 60). A chain has ``depth + 2`` at most.
        depth: growth steps after the first level, as published: ``depth + 1`` levels below the root.
        top_k: children of a node and nodes that grow in a step; 1 makes a chain.
        synthetic_acceptance: as for CoGA.
    """

    kind: Literal["eagle2"] = "eagle2"


class Eagle3(_Eagle):
    """EAGLE-3: the head reads hidden states of three layers and guesses in a smaller vocabulary.

    Args:
        head: a hub name, a folder or a file; None takes the engine's.
        nodes: of the tree that is verified, the root included (published: 60). A chain has ``depth + 2`` at most.
        depth: growth steps after the first level, as published: ``depth + 1`` levels below the root.
        top_k: children of a node and nodes that grow in a step; 1 makes a chain.
        synthetic_acceptance: as for CoGA.
    """

    kind: Literal["eagle3"] = "eagle3"

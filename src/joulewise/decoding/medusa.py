"""Medusa: heads on the target guess the next tokens, a fixed tree of guesses is verified at once (paper 1)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from joulewise.decoding.medusa_trees import DEFAULT_TREE, paths_of
from joulewise.decoding.spec import CanBeSynthetic, HeadName
from joulewise.errors import UserError


class Medusa(CanBeSynthetic):
    """Each head guesses one position further; the tree's paths name which ranks of which head are combined.

    Args:
        head: the heads: a hub name, a folder or a file; None takes the engine's.
        tree: a published tree's name, or a list of paths, such as ``[[0], [1], [0, 0]]``: rank 0 of the first head, its
            rank 1, and rank 0 of the second head below the former.
        acceptance: ``match`` is lossless. ``typical`` is Medusa's own lossy rule.
        epsilon, alpha: of the rule ``typical``.
        synthetic_acceptance: as for CoGA.
    """

    needs_head: ClassVar[bool] = True

    kind: Literal["medusa"] = "medusa"
    draft: None = None
    head: HeadName | None = None
    tree: str | tuple[tuple[int, ...], ...] = DEFAULT_TREE
    acceptance: Literal["match", "typical"] = "match"
    epsilon: float = Field(0.09, gt=0.0, le=1.0)
    alpha: float = Field(0.3, gt=0.0, le=1.0)

    @field_validator("tree")
    @classmethod
    def _is_one(cls, tree: str | tuple[tuple[int, ...], ...]) -> str | tuple[tuple[int, ...], ...]:
        try:
            paths_of(tree)
        except UserError as error:
            raise ValueError(str(error)) from error
        return tree

    @property
    def label(self) -> str:
        tree = "" if self.tree == DEFAULT_TREE else f"-{self.tree}" if isinstance(self.tree, str) else "-own-tree"
        typical = "-typical" if self.acceptance == "typical" else ""
        return f"medusa{tree}{typical}{self._synthetic_label}"

    @property
    def lossless(self) -> bool:
        """Not by the rule ``typical``, and not by lot."""
        return super().lossless and self.acceptance == "match"

    @property
    def path_tokens(self) -> int:
        """The longest path."""
        return len(paths_of(self.tree)[-1])

"""Medusa: heads on the target guess the next tokens, a fixed tree of guesses is verified at once (paper 1)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from joulewise.decoding.spec import CanBeSynthetic


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
    head: str | None = None
    tree: str | tuple[tuple[int, ...], ...] = "mc_sim_7b_63"
    acceptance: Literal["match", "typical"] = "match"
    epsilon: float = Field(0.09, gt=0.0, le=1.0)
    alpha: float = Field(0.3, gt=0.0, le=1.0)

    @field_validator("tree")
    @classmethod
    def _grows_from_the_root(cls, tree: str | tuple[tuple[int, ...], ...]) -> str | tuple[tuple[int, ...], ...]:
        if isinstance(tree, str):
            return tree
        paths = set(tree)
        if not paths or len(paths) < len(tree) or any(not path or min(path) < 0 for path in paths):
            raise ValueError("a tree is a list of distinct, non-empty paths of ranks from 0")
        for path in paths:
            if len(path) > 1 and path[:-1] not in paths:
                raise ValueError(f"the path {list(path)} has no parent: add {list(path[:-1])}")
        return tree

    @property
    def label(self) -> str:
        tree = "" if self.tree == "mc_sim_7b_63" else f"-{self.tree}" if isinstance(self.tree, str) else "-own-tree"
        typical = "-typical" if self.acceptance == "typical" else ""
        return f"medusa{tree}{typical}{self._synthetic_label}"

    @property
    def lossless(self) -> bool:
        """Not by the rule ``typical``, and not by lot."""
        return super().lossless and self.acceptance == "match"

    @property
    def path_tokens(self) -> int:
        """The longest path; of a named tree, that of the published ones."""
        return 4 if isinstance(self.tree, str) else max(map(len, self.tree))

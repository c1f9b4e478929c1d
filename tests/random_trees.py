"""Drafters for tests: trees of any shape in which the true continuation is planted among wrong siblings."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from joulewise.engines.native.draft import Draft, Kept
from joulewise.engines.native.model import Hidden
from joulewise.engines.native.tree import Tree


class PlantedTrees:
    """Drafts random trees. From the root, the true tokens run down a random path for a random number of steps.

    Args:
        truth: the output that greedy decoding gives, and some tokens more where drafts are to pass its end.
        rows: of the vocabulary.
        chance: of the shapes and tokens.
        most_nodes: below the root.
        deep: from 0 to 1: how much a tree leans towards a chain.
    """

    def __init__(
        self, truth: Sequence[int], rows: int, chance: random.Random, most_nodes: int = 12, deep: float = 0.5
    ) -> None:
        self.most_nodes = most_nodes
        self._truth = list(truth)
        self._rows = rows
        self._chance = chance
        self._deep = deep
        self.planted: list[int] = []
        self.kept: list[Kept] = []

    def reset(self, prompt: Tensor, hidden: Hidden, root: Tensor, capacity: int) -> None:
        self._length = len(prompt)
        self._known = 1  # output tokens up to the root
        self.hidden = hidden

    def propose(self, room: int) -> Draft:
        chance = self._chance
        width = chance.randint(0, self.most_nodes) + 1
        parents = [0]
        for node in range(1, width):
            parents.append(node - 1 if chance.random() < self._deep else chance.randrange(node))
        way = [chance.randrange(width)]
        while way[0] != 0:
            way.insert(0, parents[way[0]])
        right = way[1 : chance.randint(0, len(way) - 1) + 1]  # the nodes that hold true tokens
        right = right[: max(len(self._truth) - self._known, 0)]
        tokens = self._fill(parents, right)
        self.planted.append(len(right))
        return Draft(torch.tensor(tokens, dtype=torch.long), Tree.of(torch.tensor(parents), width - 1))

    def observe(self, kept: Kept) -> None:
        self.kept.append(kept)
        self._known += len(kept.tokens)

    def _fill(self, parents: list[int], right: list[int]) -> list[int]:
        """Tokens of the nodes below the root; siblings differ, and only the nodes of ``right`` are true."""
        true_child = dict(zip([0, *right], self._truth[self._known :], strict=False))
        used: dict[int, set[int]] = {}
        tokens = []
        for node, parent in enumerate(parents[1:], start=1):
            taken = used.setdefault(parent, {true_child[parent]} if parent in true_child else set())
            if node in right:
                token = true_child[parent]
            else:
                token = self._chance.choice([t for t in range(self._rows) if t not in taken])
                taken.add(token)
            tokens.append(token)
        return tokens

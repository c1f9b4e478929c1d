"""Prompt lookup: what followed the last n-gram where it stood before is the draft."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from joulewise.engines.native.draft import Draft, Kept
from joulewise.engines.native.model import Hidden
from joulewise.engines.native.tree import chain


class PromptLookupDrafter:
    """Looks in the tokens so far, on the host. See ``Drafter``.

    Args:
        tokens: at most so many a draft.
        max_ngram: the longest n-gram that is looked for; shorter ones follow.
        ends: a draft stops before one of these.
    """

    def __init__(self, tokens: int, max_ngram: int, ends: Collection[int]) -> None:
        self.most_nodes = tokens
        self.height = None
        self._max_ngram = max_ngram
        self._ends = ends

    def reset(self, prompt: Tensor, hidden: Hidden, root: Tensor, capacity: int) -> None:
        """Begin a prompt."""
        self._device = prompt.device
        self._places = Places(self._max_ngram)
        self._places.add(torch.cat((prompt, root)).tolist())

    def propose(self, room: int) -> Draft:
        """The tokens after the earliest place where the longest n-gram stood; none if none did."""
        found = self._places.look_up(min(self.most_nodes, room))
        found = until_the_first(found, self._ends)
        return Draft(torch.tensor(found, dtype=torch.long, device=self._device), chain(len(found), self._device))

    def observe(self, kept: Kept) -> None:
        """The text has grown."""
        self._places.add(kept.ids)


def until_the_first(tokens: list[int], ends: Collection[int]) -> list[int]:
    """What comes before the first of ``ends``."""
    return tokens[: next((i for i, token in enumerate(tokens) if token in ends), len(tokens))]


class Places:
    """Tokens, and where each n-gram of them first stood with a token behind it.

    Args:
        max_ngram: the longest n-gram that is kept.
    """

    def __init__(self, max_ngram: int) -> None:
        self._max_ngram = max_ngram
        self._tokens: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}

    def add(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            for size in range(1, min(self._max_ngram, len(self._tokens)) + 1):
                self._behind.setdefault(tuple(self._tokens[-size:]), len(self._tokens))
            self._tokens.append(token)

    def look_up(self, count: int) -> list[int]:
        """Up to ``count`` tokens that followed the last n-gram where it first stood, the longest n-gram first."""
        for size in range(min(self._max_ngram, len(self._tokens)), 0, -1):
            place = self._behind.get(tuple(self._tokens[-size:]))
            if place is not None:
                return self._tokens[place : place + max(count, 0)]
        return []

"""Prompt lookup: what followed the last n-gram where it stood before is the draft."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
        self._max_ngram = max_ngram
        self._ends = ends

    def reset(self, prompt: Tensor, hidden: Hidden, root: Tensor, capacity: int) -> None:
        """Begin a prompt."""
        self._device = prompt.device
        self._sequence: list[int] = torch.cat((prompt, root)).tolist()

    def propose(self, room: int) -> Draft:
        """The tokens after the earliest place where the longest n-gram stood; none if none did."""
        found = look_up(self._sequence, min(self.most_nodes, room), self._max_ngram)
        found = found[: next((i for i, token in enumerate(found) if token in self._ends), len(found))]
        return Draft(torch.tensor(found, dtype=torch.long, device=self._device), chain(len(found), self._device))

    def observe(self, kept: Kept) -> None:
        """The sequence has grown."""
        self._sequence += kept.tokens.tolist()


def look_up(sequence: Sequence[int], count: int, max_ngram: int) -> list[int]:
    """Up to ``count`` tokens that followed the last n-gram where it first stood, the longest n-gram first.

    Args:
        sequence: prompt and output so far.
        count: the most tokens to return.
        max_ngram: the longest n-gram that is looked for.
    """
    if count < 1:
        return []
    for size in range(min(max_ngram, len(sequence) - 1), 0, -1):
        ngram = list(sequence[-size:])
        for start in range(len(sequence) - size):
            if list(sequence[start : start + size]) == ngram:
                return list(sequence[start + size : start + size + count])
    return []

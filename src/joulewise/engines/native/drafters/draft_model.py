"""A draft model: a smaller model of the same vocabulary writes a chain (CoGA, DyGA)."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from joulewise.engines.native.accept import Chooser
from joulewise.engines.native.draft import Draft, Kept
from joulewise.engines.native.model import DecoderModel, Hidden
from joulewise.engines.native.session import open_session
from joulewise.engines.native.tree import chain

LONGEST = 128
"""Draft tokens by the heuristic rule at most."""


class Length(Protocol):
    """How many tokens the next draft has."""

    most: int

    def reset(self) -> None:
        """Begin a prompt."""
        ...

    def next(self) -> int:
        """The most tokens of the next draft."""
        ...

    def enough(self, logits: Tensor, token: Tensor) -> bool:
        """Whether the draft ends with ``token``, drawn from ``logits``, shape ``(1, rows)``."""
        ...

    def learn(self, drafted: int, accepted: int) -> None:
        """Take in how a draft fared."""
        ...


class Constant:
    """CoGA: always as many."""

    def __init__(self, tokens: int) -> None:
        self.most = tokens

    def reset(self) -> None:
        """Begin a prompt."""

    def next(self) -> int:
        """Always as many."""
        return self.most

    def enough(self, logits: Tensor, token: Tensor) -> bool:
        """Never before that."""
        return False

    def learn(self, drafted: int, accepted: int) -> None:
        """Nothing is learnt."""


class Heuristic(Constant):
    """DyGA by heuristic: two more after a draft that was accepted whole, else one fewer, never below 1.

    Args:
        tokens: of the first draft. None grows beyond ``LONGEST``.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__(max(tokens, LONGEST))
        self._first = self._tokens = tokens

    def reset(self) -> None:
        """Begin a prompt."""
        self._tokens = self._first

    def next(self) -> int:
        """As learnt."""
        return self._tokens

    def learn(self, drafted: int, accepted: int) -> None:
        """Grow or shrink."""
        self._tokens = min(self._tokens + 2, self.most) if accepted == drafted else max(self._tokens - 1, 1)


class Confidence(Constant):
    """DyGA by confidence: the draft ends after the first token to which the draft model gives less than ``threshold``.

    To know that, the host waits for every drafted token.
    """

    def __init__(self, tokens: int, threshold: float) -> None:
        super().__init__(tokens)
        self._threshold = threshold

    def enough(self, logits: Tensor, token: Tensor) -> bool:
        """Whether the draft model doubts the token."""
        return bool(logits.softmax(dim=-1)[0, token] < self._threshold)


class ModelDrafter:
    """Drafts with a model. See ``Drafter``.

    Args:
        model: with the target's vocabulary.
        length: how long a draft is.
        chooser: how the draft draws: greedily, or from its own distribution, which then goes with the draft.
        rows: of the target's logits; a draft with fewer proposes none of the others.
    """

    def __init__(self, model: DecoderModel, length: Length, chooser: Chooser, rows: int) -> None:
        self.most_nodes = length.most
        self.height = None
        self._model = model
        self._length = length
        self._chooser = chooser
        self._rows = rows

    def reset(self, prompt: Tensor, hidden: Hidden, root: Tensor, capacity: int) -> None:
        """Read the prompt."""
        self._length.reset()
        self._session = open_session(self._model, capacity)
        self._session.prefill(self._known(prompt))
        self._read = len(prompt)  # tokens in the cache that are part of the output
        self._unread = root
        self._drafted = 0

    def propose(self, room: int) -> Draft:
        """A chain of as many tokens as are due, at most ``room``."""
        tokens: list[Tensor] = []
        rows: list[Tensor] = []
        inputs, position = self._unread, self._read
        while len(tokens) < min(self._length.next(), room):
            count = len(inputs)
            logits = self._session.forward(self._known(inputs), position, chain(count - 1, inputs.device))[1]
            position += count
            logits = logits[-1:, : self._rows]
            if self._chooser.greedy:
                inputs = logits.argmax(dim=-1)
            else:
                rows.append(
                    torch.nn.functional.pad(self._chooser.probabilities(logits), (0, self._rows - logits.shape[1]))
                )
                inputs = self._chooser.draw_from(rows[-1])
            tokens.append(inputs)
            if self._length.enough(logits, inputs):
                break
        self._drafted = len(tokens)
        drafted = torch.cat(tokens) if tokens else self._unread[:0]
        return Draft(drafted, chain(len(tokens), drafted.device), torch.cat(rows) if rows else None)

    def observe(self, kept: Kept) -> None:
        """Keep what was read of the accepted tokens; the last drafted token was never read."""
        accepted = len(kept.tokens) - 1
        self._length.learn(self._drafted, accepted)
        known = min(accepted, max(self._drafted - 1, 0))
        if self._drafted == 0:
            self._unread = torch.cat((self._unread, kept.tokens))  # nothing was read at all
            return
        self._read += len(self._unread) + known
        self._unread = kept.tokens[known:]

    def _known(self, tokens: Tensor) -> Tensor:
        """The draft has no row for the padding of a longer vocabulary; such tokens never occur in text."""
        return tokens.clamp(max=self._model.config.vocab_size - 1)

"""Chains for several texts at once: nothing, prompt lookup, a draft model. See ``engines/native/together.py``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch
from torch import Tensor

from joulewise.engines.native.ahead import Blind
from joulewise.engines.native.drafters.draft_model import Constant, Length
from joulewise.engines.native.drafters.prompt_lookup import Places, until_the_first
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import Capture
from joulewise.engines.native.together import Rows, open_rows


class NoChains:
    """Vanilla decoding."""

    most = 0
    blind = Blind(lambda tail, before, span: tail[:, :0])

    def reset(self, prompts: Sequence[Tensor], capacity: int) -> None:
        """Begin."""
        self._nothing = prompts[0].new_zeros(len(prompts), 0)

    def propose(self, texts: Sequence[Sequence[int]], rooms: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Nothing."""
        return self._nothing, [0] * len(texts)

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Nothing is learnt."""


class LookupChains:
    """Prompt lookup, each text in itself.

    Args:
        tokens, max_ngram, ends: as for ``PromptLookupDrafter``.
    """

    blind = None

    def __init__(self, tokens: int, max_ngram: int, ends: Collection[int]) -> None:
        self.most = tokens
        self._max_ngram, self._ends = max_ngram, ends

    def reset(self, prompts: Sequence[Tensor], capacity: int) -> None:
        """Begin."""
        self._device = prompts[0].device
        self._places = [Places(self._max_ngram) for _ in prompts]
        self._known = [0] * len(prompts)

    def propose(self, texts: Sequence[Sequence[int]], rooms: Sequence[int]) -> tuple[Tensor, list[int]]:
        """What followed where the longest n-gram stood."""
        found = []
        for row, (text, room) in enumerate(zip(texts, rooms, strict=True)):
            self._places[row].add(text[self._known[row] :])
            self._known[row] = len(text)
            tokens = self._places[row].look_up(min(self.most, room))
            found.append(until_the_first(tokens, self._ends))
        width = max(map(len, found))
        rows = [tokens + [0] * (width - len(tokens)) for tokens in found]
        drafted = torch.tensor(rows, dtype=torch.long, device=self._device)
        return drafted.view(len(texts), width), list(map(len, found))

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """The texts themselves tell."""


class ModelChains:
    """A draft model writes a chain for every text: all of its forwards of a round are one captured call on a GPU.

    Args:
        model: with the target's vocabulary.
        lengths: makes what tells how long a text's next draft is.
        rows: of the target's logits.
        capture: how its work is captured; None: as CUDA graphs on a GPU, elsewhere not at all.
    """

    def __init__(
        self, model: DecoderModel, lengths: Callable[[], Length], rows: int, capture: Capture | None = None
    ) -> None:
        self.most = lengths().most
        self._constant = type(lengths()) is Constant
        self._model, self._new_length, self._rows = model, lengths, rows
        self._capture = capture

    def reset(self, prompts: Sequence[Tensor], capacity: int) -> None:
        """Read the prompts."""
        self._lengths = [self._new_length() for _ in prompts]
        for length in self._lengths:
            length.reset()
        most = self._model.config.vocab_size - 1
        self._cached = open_rows(self._model, len(prompts), capacity, self._capture)
        self._cached.prefill([prompt.clamp(max=most) for prompt in prompts])

    def propose(self, texts: Sequence[Sequence[int]], rooms: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Chains as long as the longest that is due; a shorter one counts its first tokens only."""
        due = [min(length.next(), room) for length, room in zip(self._lengths, rooms, strict=True)]
        count = max(due)
        device = self._model.device
        if count < 1:
            return torch.zeros(len(texts), 0, dtype=torch.long, device=device), due
        # The token before the last is read again: what was accepted last round may never have been read.
        state = torch.tensor([(*text[-2:], len(text) - 1) for text in texts], device=device)
        span = self._cached.span(max(map(len, texts)) + count)
        work = partial(self._chain, self._cached, count, span)
        return self._cached.run((count, span, "draft"), work, state[:, :2], state[:, 2]), due

    @property
    def blind(self) -> Blind | None:
        """Chains of constant length need no host."""
        rows = self._cached
        return Blind(lambda *at: self._chain(rows, self.most, at[2], at[0], at[1]), rows) if self._constant else None

    def _chain(self, rows: Rows, count: int, span: int, ends: Tensor, before: Tensor) -> Tensor:
        tokens, at, made = ends, before - 1, []
        for _ in range(count):
            hidden = rows.read(tokens.clamp(max=self._model.config.vocab_size - 1), at, span)
            best = self._model.likeliest(self._model.head(hidden[:, -1])[:, : self._rows])[:, None]
            at, tokens = at + tokens.shape[1], best
            made.append(best)
        return torch.cat(made, dim=1)

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """The length rules learn; what was rejected is written over."""
        for length, tokens, kept in zip(self._lengths, drafted, accepted, strict=True):
            if tokens:
                length.learn(tokens, kept)

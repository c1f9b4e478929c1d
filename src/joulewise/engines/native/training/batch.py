"""Many texts written at once: a batch of prompts on one cache, each step one captured forward on a GPU."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from joulewise.engines.native.accept import Chooser
from joulewise.engines.native.cache import KV
from joulewise.engines.native.loop import until_the_end
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import BUCKET, Capture, cuda_graph

FEW_LEFT = 1 / 8
"""Once fewer answers of a batch than that still go on, they are cut: a small model's last ones mostly repeat."""

_MASK_AT_ONCE = 1 << 27
_LOOK_EVERY = 16


def write_batch(
    model: DecoderModel,
    prompts: Sequence[Sequence[int]],
    limit: int,
    ends: Collection[int],
    chooser: Chooser,
    capture: Capture | None = None,
) -> list[list[int]]:
    """What a model writes after each prompt, its end token included.

    Prompts are filled up in front, so that all texts write to one slot a step; what fills them up is never seen.

    Args:
        model: that writes.
        prompts: token ids.
        limit: tokens of each output at most; the last ``FEW_LEFT`` of them may be cut.
        ends: the tokens that end an output.
        chooser: how a token is drawn.
        capture: how a step is captured; None: as a CUDA graph on a GPU, where nothing is left to chance.
    """
    if capture is None and model.device.type == "cuda" and chooser.greedy:
        capture = cuda_graph
    steps = _Steps(model, prompts, limit, chooser)
    last = torch.tensor(sorted(ends), dtype=torch.long, device=model.device)
    done = torch.isin(steps.tokens, last)
    written = [steps.tokens.clone()]
    run, span = steps.run, 0
    for number in range(1, limit):
        # Looking makes the host wait, so it is not done after every step.
        if number % _LOOK_EVERY == 0 and float((~done).float().mean()) < FEW_LEFT:
            break
        if steps.length + 1 > span:
            span = steps.open_next_bucket()
            run = steps.run if capture is None else capture(steps.run)
        run()
        written.append(steps.advance())
        done |= torch.isin(written[-1], last)
    return [row[: until_the_end(row, limit, ends)] for row in torch.stack(written, dim=1).tolist()]


class _Steps:
    """A batch after its prompts. A step may run more than once before ``advance``, as capturing does."""

    def __init__(self, model: DecoderModel, prompts: Sequence[Sequence[int]], limit: int, chooser: Chooser) -> None:
        self._model, self._chooser = model, chooser
        self.length = max(map(len, prompts))
        self._missing = torch.tensor([self.length - len(prompt) for prompt in prompts], device=model.device)
        self._capacity = -(-(self.length + limit) // BUCKET) * BUCKET
        self._cache: KV = model.new_cache(self._capacity, len(prompts))
        self._span = 0
        self.tokens = self._prefill(prompts)
        self._next = torch.empty_like(self.tokens)
        self._at = torch.tensor([self.length], device=model.device)

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read the prompts, some columns at a time, and draw what follows them."""
        device, missing = self._model.device, self._missing
        rows = torch.tensor([[0] * (self.length - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        columns = max(_MASK_AT_ONCE // (len(prompts) * self.length), 1)
        hidden = None
        for first in range(0, self.length, columns):
            slots = torch.arange(first, min(first + columns, self.length), device=device)
            hidden = self._read(rows[:, slots], slots, len(slots) + first, missing)
        assert hidden is not None
        return self._chooser.draw(self._model.head(hidden[:, -1]).float())

    def _read(self, tokens: Tensor, slots: Tensor, span: int, missing: Tensor) -> Tensor:
        places = torch.arange(span, device=tokens.device)
        causal = places <= slots[:, None]
        # What fills a text up sees itself, because a row without any key would be NaN.
        mask = causal & ((places >= missing[:, None, None]) | (places == slots[:, None]))
        self._cache.slots, self._cache.span = slots, span
        positions = (slots - missing[:, None]).clamp(min=0)
        return self._model.read(tokens, self._cache, mask[:, None], positions).last

    def open_next_bucket(self) -> int:
        """Let the next steps read more slots; how many."""
        self._span = min(-(-(self.length + 1) // BUCKET) * BUCKET, self._capacity)
        return self._span

    def run(self) -> None:
        """Read the last tokens and draw the next."""
        hidden = self._read(self.tokens[:, None], self._at, self._span, self._missing)
        self._next.copy_(self._chooser.draw(self._model.head(hidden[:, -1]).float()))

    def advance(self) -> Tensor:
        """Take the drawn tokens for the last ones; a copy of them."""
        self.tokens.copy_(self._next)
        self._at += 1
        self.length += 1
        return self.tokens.clone()

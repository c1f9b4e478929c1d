"""How the target reads a text in forwards of given widths: the control of design rule 4, on the native cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from torch import Tensor

from joulewise.decoding.spec import MOST_NODES
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.transformers.check import Step


def reader(model: DecoderModel) -> Callable[[Any, Tensor, Sequence[int], int, Iterable[Step]], Tensor]:
    """As ``next_logits`` of the engine ``transformers``, by this engine's own forwards over chains."""

    def read(_: Any, prompt: Tensor, tokens: Sequence[int], index: int, steps: Iterable[Step]) -> Tensor:
        ids = prompt[0]
        start, unread = 0, ids
        cache = None
        for step in steps:
            draft = step.draft
            if isinstance(draft, int):
                draft = [*tokens[start : start + draft], *repeat(tokens[0], start + draft - len(tokens))]
            if cache is None:
                cache = model.new_cache(len(ids) + index + MOST_NODES)
            inputs = ids.new_tensor([*unread.tolist(), *draft])
            hidden = model.forward(cache, inputs, 0 if unread is ids else len(ids) + start - 1, None)
            if index <= start + step.accepted:
                return model.logits(hidden[index - start - len(draft) - 1 :][:1])[0]
            start += step.accepted + 1
            unread = ids.new_tensor([tokens[start - 1]])
        raise ValueError(f"the steps end before output token {index}")

    return read

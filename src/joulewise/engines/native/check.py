"""How the target reads a text in forwards of given widths: the control of design rule 4, by the loop's own forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from torch import Tensor

from joulewise.decoding.spec import MOST_NODES
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import open_session
from joulewise.engines.native.tree import chain
from joulewise.engines.transformers.check import Step


def reader(model: DecoderModel) -> Callable[[Any, Tensor, Sequence[int], int, Iterable[Step]], Tensor]:
    """As ``next_logits`` of the engine ``transformers``, by this engine's own forwards over chains."""

    def read(_: Any, prompt: Tensor, tokens: Sequence[int], index: int, steps: Iterable[Step]) -> Tensor:
        ids = prompt[0]
        session = open_session(model, len(ids) + index + MOST_NODES + 1)
        start = 0
        for step in steps:
            draft = step.draft
            if isinstance(draft, int):
                draft = [*tokens[start : start + draft], *repeat(tokens[0], start + draft - len(tokens))]
            if start == 0:
                hidden = session.prefill(ids.new_tensor([*ids.tolist(), *draft]))
                logits = model.logits(hidden[len(ids) - 1 :])
            else:
                nodes = ids.new_tensor([tokens[start - 1], *draft])
                logits = session.forward(nodes, len(ids) + start - 1, chain(len(draft), ids.device))[1]
            if index <= start + step.accepted:
                return logits[index - start].clone()  # what was captured is valid until it runs again
            start += step.accepted + 1
        raise ValueError(f"the steps end before output token {index}")

    return read

"""How the target reads a text in given forwards: the control of design rule 4, by the engine's own forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from joulewise.decoding.spec import MOST_NODES
from joulewise.engines.native.draft import Draft
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import open_session
from joulewise.engines.native.tree import Tree, chain
from joulewise.engines.transformers.check import Step


def reader(model: DecoderModel) -> Callable[[Any, Tensor, Sequence[int], int, Iterable[Step]], Tensor]:
    """As ``next_logits`` of the engine ``transformers``, by this engine's own forwards."""

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
                logits = session.forward(nodes, len(ids) + start - 1, _tree(step, len(draft), ids.device))[1]
            if index <= start + step.accepted:
                return logits[index - start].clone()  # what was captured is valid until it runs again
            start += step.accepted + 1
        raise ValueError(f"the steps end before output token {index}")

    return read


def as_step(draft: Draft, accepted: Sequence[int]) -> Step:
    """A round for ``reader``: its accepted nodes come first, so that what they leave in the cache is moved nowhere.

    Args:
        draft: as it was proposed.
        accepted: its nodes that were accepted, the root's child first.
    """
    tokens, parents = [0, *draft.tokens.tolist()], draft.tree.parents.tolist()
    order = [0, *accepted, *sorted(set(range(1, len(tokens))) - set(accepted))]
    place = {node: number for number, node in enumerate(order)}
    return Step([tokens[node] for node in order[1:]], len(accepted), [place[parents[node]] for node in order[1:]])


def _tree(step: Step, tokens: int, device: torch.device) -> Tree:
    if step.parents is None or list(step.parents) == list(range(tokens)):
        return chain(tokens, device)
    return Tree.of(torch.tensor([0, *step.parents], device=device), tokens)

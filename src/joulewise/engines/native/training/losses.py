"""What each kind of draft is taught: the target's own distribution, at the places where it will have to guess.

All of them see whole batches at once. The target's distribution is made once a batch; the draft's logits are made for a
piece of the places at a time and made again on the way back, so that they are never kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from joulewise.engines.native.attention import causal_mask
from joulewise.engines.native.heads.eagle import EagleHead
from joulewise.engines.native.heads.medusa import MedusaHead
from joulewise.engines.native.model import DecoderModel, Hidden
from joulewise.engines.native.training.data import Batch

_LOGITS_AT_ONCE = 1 << 26
_NOISE = 0.1
_NOISE_TOKENS = 512

Output = Callable[[Tensor], Tensor]
"""Logits of states, in float32: ``(n, H)`` -> ``(n, rows)``."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one batch.

    Args:
        loss: to be lowered.
        agreement: share of places where the best guess is the target's best token; one for each head or step.
    """

    loss: Tensor
    agreement: Tensor


class Wanted:
    """What the target would say next, wherever the next token is one that it wrote. Made once a batch.

    Over a reduced vocabulary the target's distribution is restricted to it, and places where its best token lies
    outside teach nothing (EAGLE-3's published training).

    Args:
        target: frozen.
        features: its hidden states after the final norm, shape ``(texts, W, H)``.
        answer: true where it wrote a token, shape ``(texts, W)``.
        ids: which token each of the draft's rows stands for, shape ``(rows,)``; None: the target's own.
    """

    def __init__(self, target: DecoderModel, features: Tensor, answer: Tensor, ids: Tensor | None = None) -> None:
        needed = functional.pad(answer[:, 1:], (0, 1))
        self._numbers = needed.flatten().cumsum(0).view_as(needed) - 1
        rows = features[needed]
        size = max(_LOGITS_AT_ONCE // target.loaded.vocabulary_rows, 1)
        made: list[tuple[Tensor, ...]] = []
        with torch.no_grad():
            for piece in rows.split(size):
                logits = target.head(piece).float()
                best = logits.argmax(dim=-1)
                if ids is None:
                    counted = torch.ones_like(best, dtype=torch.float32)
                else:
                    counted, logits = torch.isin(best, ids).float(), logits.index_select(-1, ids)
                made.append((logits.softmax(dim=-1).to(rows.dtype), best, counted))
        self.probabilities, self.best, self.counted = (torch.cat(parts) for parts in zip(*made, strict=True))
        self.ids = ids

    def numbers(self, places: Tensor, shift: int) -> Tensor:
        """The rows of this for places that look ``shift`` features on: shapes ``(texts, span)`` -> ``(n,)``."""
        return self._numbers[:, shift : shift + places.shape[1]][places]


def soft_cross_entropy(output: Output, states: Tensor, wanted: Wanted, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of the draft's distribution to the target's, and how often their best tokens are one.

    Args:
        output, states: the draft's, states of shape ``(n, H)``.
        wanted, numbers: the target's, and the row of it for each state, shape ``(n,)``.
    """
    size = max(_LOGITS_AT_ONCE // wanted.probabilities.shape[1], 1)
    parts = [
        checkpoint(_piece, output, some, wanted, its, use_reentrant=False, preserve_rng_state=False)
        for some, its in zip(states.split(size), numbers.split(size), strict=True)
    ]
    loss, hits, counted = (torch.stack(part).sum() for part in zip(*parts, strict=True))
    return loss / counted.clamp(min=1), hits / max(len(states), 1)


def _piece(output: Output, states: Tensor, wanted: Wanted, numbers: Tensor) -> tuple[Tensor, ...]:
    logits, counted = output(states), wanted.counted[numbers]
    each = functional.cross_entropy(logits, wanted.probabilities[numbers].float(), reduction="none")
    guess = logits.detach().argmax(dim=-1)
    guess = guess if wanted.ids is None else wanted.ids[guess]
    return (each * counted).sum(), (guess == wanted.best[numbers]).sum(), counted.sum()


def draft_loss(target: DecoderModel, decoder: Any, batch: Batch) -> Outcome:
    """A draft model guesses each token of the answers.

    Args:
        target: frozen.
        decoder: the draft model without its output matrix, which is the target's.
        batch: texts.
    """
    places = batch.answer[:, 1:]
    hidden = _read(target, batch)
    states = decoder(input_ids=batch.tokens, use_cache=False).last_hidden_state[:, :-1]
    wanted = Wanted(target, hidden.last, batch.answer)
    loss, agreement = soft_cross_entropy(_output_of(target), states[places], wanted, wanted.numbers(places, 0))
    return Outcome(loss, agreement[None])


def medusa_loss(target: DecoderModel, head: MedusaHead, batch: Batch, decay: float) -> Outcome:
    """Head ``i`` (from 1) guesses the token after the next ``i`` ones (arXiv 2401.10774, equation 1, softly).

    Args:
        target: frozen.
        head: with the target's output matrix.
        batch: texts.
        decay: the weight of head ``i`` is ``decay ** i``.
    """
    hidden = _read(target, batch).last
    output, wanted = _output_of(target), Wanted(target, hidden, batch.answer)
    losses, agreements = [], []
    for i, blocks in enumerate(head.blocks, 1):
        span = hidden.shape[1] - 1 - i
        if span < 1:
            break
        places = batch.answer[:, 1 : 1 + span] & batch.answer[:, 1 + i :]
        states = blocks(hidden[:, :span][places])
        loss, agreement = soft_cross_entropy(output, states, wanted, wanted.numbers(places, i))
        losses.append(decay**i * loss)
        agreements.append(agreement)
    return Outcome(torch.stack(losses).sum(), torch.stack(agreements))


class Steps:
    """Keys and values of an unrolled head's steps, one after the other. A cache for ``EagleHead.forward_at``."""

    def __init__(self) -> None:
        self.slots: Tensor | None = None
        self.span = 0
        self._kept: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Keep this step's, shape ``(texts, kv_heads, W, head_dim)``; those of all steps so far."""
        kept = self._kept.setdefault(layer_idx, [])
        kept.append((keys, values))
        every = tuple(torch.cat(parts, dim=2) if len(parts) > 1 else parts[0] for parts in zip(*kept, strict=True))
        return every[0], every[1]


def unrolled(head: EagleHead, tokens: Tensor, states: Tensor, steps: int) -> list[Tensor]:
    """States of a head that reads its own output again and again, as it does when it drafts.

    At place ``i`` step 0 reads the target's feature ``i`` with token ``i + 1``; step ``j`` reads the state of step
    ``j - 1`` with token ``i + 1 + j``, at position ``i + j``. It sees step 0 up to ``i``, and of the later steps those
    at its own place: the prefix is read on the target's features and only the draft on guesses (EAGLE-3's
    training-time test, arXiv 2503.01840, section 3.2).

    Args:
        head: either generation.
        tokens: of the texts, shape ``(texts, W)``.
        states: the fused features of all but the last token, shape ``(texts, W - 1, H)``.
        steps: at least 1.

    Returns:
        One of shape ``(texts, W - 1, H)`` for each step. The last ``j`` places of step ``j`` mean nothing.
    """
    width = states.shape[1]
    places = torch.arange(width, device=tokens.device)
    seen = causal_mask(places, width)
    itself = torch.eye(width, dtype=torch.bool, device=tokens.device)
    cache: Any = Steps()
    made: list[Tensor] = []
    for step in range(steps):
        mask = torch.cat((seen, *[itself] * step), dim=1) if step else None
        read = functional.pad(tokens[:, 1 + step :], (0, step))
        states = head.forward_at(cache, read, states, places, (step + 1) * width, mask, places + step)
        made.append(states)
    return made


def eagle_loss(
    target: DecoderModel,
    head: EagleHead,
    batch: Batch,
    steps: int,
    decay: float,
    feature_weight: float = 0.0,
    noise: torch.Generator | None = None,
) -> Outcome:
    """Step ``j`` at place ``i`` guesses token ``i + 2 + j``.

    Args:
        target: frozen, tapped as the head wants it.
        head: either generation.
        batch: texts.
        steps: of the unroll; EAGLE-2 is published with 1, EAGLE-3 with 7.
        decay: the weight of step ``j`` is ``decay ** j``.
        feature_weight: of the smooth L1 distance between the state and the target's feature (EAGLE-1/2, arXiv
            2401.15077, section 3.2: 10 times that of the cross-entropy). EAGLE-3 has none.
        noise: draws the uniform noise on the features that EAGLE-1/2 are trained with; None: no noise.
    """
    hidden = _read(target, batch)
    width = batch.tokens.shape[1]
    known = hidden[:, :-1]
    if noise is not None:
        by = torch.rand(known.last.shape, generator=noise, device=known.last.device, dtype=torch.float32) * 2 - 1
        known = Hidden(known.last + (by * _NOISE * min(1.0, _NOISE_TOKENS / width)).to(known.last.dtype), known.taps)
    losses, agreements = [], []
    reduced = head.rows < target.loaded.vocabulary_rows
    ids = head.ids(torch.arange(head.rows, device=head.device)) if reduced else None
    wanted = Wanted(target, hidden.last, batch.answer, ids)
    for step, states in enumerate(unrolled(head, batch.tokens, head.fuse(known), min(steps, width - 2))):
        span = width - 2 - step
        places = batch.answer[:, 1 : 1 + span] & batch.answer[:, 2 + step :]
        states = states[:, :span][places]
        loss, agreement = soft_cross_entropy(head.logits, states, wanted, wanted.numbers(places, 1 + step))
        if feature_weight:
            features = hidden.last[:, 1 + step : 1 + step + span][places]
            apart = functional.smooth_l1_loss(states.float(), features.float(), reduction="sum")
            loss = loss + feature_weight * apart / max(states.numel(), 1)
        losses.append(decay**step * loss)
        agreements.append(agreement)
    return Outcome(torch.stack(losses).sum(), torch.stack(agreements))


def _read(target: DecoderModel, batch: Batch) -> Hidden:
    with torch.no_grad():
        return target.read(batch.tokens)


def _output_of(target: DecoderModel) -> Output:
    def output(states: Tensor) -> Tensor:
        logits: Tensor = target.head(states)
        return logits.float()

    return output

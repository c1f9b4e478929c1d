"""Which of several continuations a model finds the most likely: one forward, nothing generated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joulewise.engines.engine import Generation, Message
from joulewise.engines.transformers.loading import Loaded
from joulewise.engines.transformers.prompts import encode
from joulewise.errors import UserError


@dataclass(frozen=True, slots=True)
class Compared:
    """The token ids of a prompt and of what may follow it.

    Args:
        prompt: shape ``(1, tokens)``.
        rows: what the decoder reads, shape ``(texts, W)``: the prompt alone where every continuation is one token, else
            a text a continuation, without its last token and filled up behind its end.
        start: the place in ``rows`` at which a continuation begins.
        tails: the tokens of each continuation.
    """

    prompt: Tensor
    rows: Tensor
    start: int
    tails: tuple[tuple[int, ...], ...]


def compared(
    target: Loaded, messages: Sequence[Message], continuations: Sequence[str], thinking: bool | None = None
) -> Compared:
    """Tokenise a prompt with each continuation: as the beginning of the assistant's answer, or behind a space where
    the model has no chat template.

    Where tokens of the prompt's end and of a continuation merge, all continuations begin before that.

    Raises:
        UserError: a continuation has no tokens.
    """
    prompt = encode(target, messages, thinking)
    if target.encoder_decoder:
        wholes = [[target.decoder_start, *_ids(target, text)] for text in continuations]
        start = 1
    else:
        wholes = [encode(target, _followed(target, messages, text), thinking)[0].tolist() for text in continuations]
        begun = prompt[0].tolist()
        start = min(_common(begun, whole) for whole in wholes)
    tails = tuple(tuple(whole[start:]) for whole in wholes)
    if not all(tails) or start == 0:
        empty = next((text for text, tail in zip(continuations, tails, strict=True) if not tail), continuations[0])
        raise UserError(f"The continuation {empty!r} has no tokens for {target.name}: leave it out.")
    texts = [whole[:start] for whole in wholes[:1]] if all(len(t) == 1 for t in tails) else [w[:-1] for w in wholes]
    width = max(map(len, texts))
    rows = torch.tensor([text + text[-1:] * (width - len(text)) for text in texts])
    return Compared(prompt, rows, start, tails)


def choose(
    given: Compared,
    continuations: Sequence[str],
    logits_of: Callable[[Compared], Tensor],
    start_s: float,
    synchronize: Callable[[], None],
) -> Generation:
    """The continuation with the highest log-probability (of equal ones the first), with all of them.

    Args:
        given: of ``continuations``.
        continuations: the texts.
        logits_of: one forward over ``rows``; the logits from place ``start - 1`` on, shape ``(texts, places, rows)``.
        start_s: when the work began.
        synchronize: waits for the device.
    """
    with torch.inference_mode():
        log_probabilities = torch.log_softmax(logits_of(given).float(), dim=-1)
        sums = [
            float(
                sum(log_probabilities[row if len(given.rows) > 1 else 0, place, token] for place, token in enumerate(t))
            )
            for row, t in enumerate(given.tails)
        ]
    synchronize()
    best = max(range(len(sums)), key=sums.__getitem__)
    return Generation(
        text=continuations[best],
        token_ids=(),
        prompt_tokens=given.prompt.shape[1],
        finish_reason="length",
        start_s=start_s,
        end_s=time.monotonic(),
        log_probabilities=tuple(sums),
    )


def _followed(target: Loaded, messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    if target.tokenizer.chat_template:
        return (*messages, Message("assistant", text))
    *before, last = messages
    return (*before, Message(last.role, f"{last.content} {text}"))


def _ids(target: Loaded, text: str) -> list[int]:
    ids: Any = target.tokenizer(text, add_special_tokens=False)["input_ids"]
    return list(ids)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))

"""Whether a first difference from vanilla is a near-tie that vanilla itself shows (design, rule 4).

A forward over several tokens uses other kernels, and sums in another order, than a forward over one. In low precision
that moves logits, and where the best lie close together either may win. An int8 forward goes further: which
activations stay unquantised depends on every token in it, so drafted tokens move the logits before them too, even where
they are rejected.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache

from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import LosslessCheck, Request
from joulewise.engines.transformers.loading import Loaded, quiet

_LOW_PRECISION = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Step:
    """One forward of a reading.

    Args:
        draft: what goes through behind the token that is due: so many of the output's own tokens, or these token ids.
        accepted: how many of them stay in the cache, from the first on; ``Step(0, 0)`` is vanilla's step.
        parents: whose child each is (0: the token that was due, i: the i-th of these); None: of the one before it.
            Only the engine `native` reads trees.
    """

    draft: int | Sequence[int]
    accepted: int
    parents: Sequence[int] | None = None


PLAIN = Step(0, 0)

Reader = Callable[[Loaded, Any, Sequence[int], int, Iterable[Step]], Any]
"""Takes what ``next_logits`` takes, and gives what it gives."""


def verdict_at_sight(
    request: Request, decoding: Decoding, reference: Sequence[int], output: Sequence[int]
) -> LosslessCheck | None:
    """The verdict where none of the target's forwards is needed for it; None where one is."""
    if not request.sampling.greedy:
        return LosslessCheck("not_checked", note="sampled output")
    if not decoding.lossless:
        return LosslessCheck("not_checked", note=f"{decoding.label} is lossy")
    return LosslessCheck("identical") if tuple(reference) == tuple(output) else None


def explain_difference(
    target: Loaded,
    prompt: Any,
    reference: Sequence[int],
    output: Sequence[int],
    widths: Sequence[int],
    rounds: Sequence[Step],
    read: Reader | None = None,
) -> LosslessCheck:
    """The verdict on two different outputs.

    ``gap`` is the difference between the target's logits of vanilla's token and of the other one (its two best, as a
    rule) where the outputs part, as vanilla sees it: the prompt in one forward, then one token at a time. ``control``
    is the largest change of that difference when the target alone reads the same tokens in other widths: all in one
    forward, so many at a time as ``widths`` say, and in the very forwards of the rounds.

    Args:
        target: the model.
        prompt: token ids, shape ``(1, tokens)``.
        reference: vanilla's output tokens.
        output: the other decoding's.
        widths: of forwards; that of a verification forward (drafted tokens and one more) among them.
        rounds: those that gave ``output``, with what they drafted; empty if not known.
        read: how the target reads; None is ``next_logits``.
    """
    pairs = enumerate(zip(reference, output, strict=False))
    index = next((i for i, (a, b) in pairs if a != b), None)
    if index is None:
        shorter = min(len(reference), len(output))
        return LosslessCheck("different", shorter, note="one output ends where the other goes on")
    ids = prompt.to(target.model.device)
    ours, theirs = reference[index], output[index]
    read = read or next_logits
    others: list[Iterable[Step]] = [[Step(index, index)], *(repeat(Step(width - 1, width - 1)) for width in widths)]
    if rounds:
        others.append(rounds)
    with quiet(), torch.inference_mode():
        logits = read(target, ids, reference, index, repeat(PLAIN))
        changed = [read(target, ids, output, index, way) for way in others]
    gap = float(logits[ours] - logits[theirs])
    control = max(abs(float(o[ours] - o[theirs]) - gap) for o in changed)
    better = int((logits > logits[theirs]).sum()) - int(gap > 0)
    low_precision = target.model.dtype in _LOW_PRECISION or target.quantisation is not None
    return judge(index, gap, control, better=better, low_precision=low_precision)


def judge(index: int, gap: float, control: float, *, better: int, low_precision: bool) -> LosslessCheck:
    """``tie`` only in low precision, and only within what vanilla itself shows.

    Args:
        index: which output token differs.
        gap: logit of vanilla's token less that of the other.
        control: the largest change of the gap between forward widths.
        better: how many further tokens the target likes better than the other one.
        low_precision: whether the model runs in bfloat16 or float16, or is quantised.
    """
    if not low_precision:
        return LosslessCheck("different", index, gap, control, "float32 leaves no room for ties")
    note = f"{better} more token(s) lie between the two" if better else None
    return LosslessCheck("tie" if abs(gap) <= control else "different", index, gap, control, note)


def next_logits(target: Loaded, prompt: Any, tokens: Sequence[int], index: int, steps: Iterable[Step]) -> Any:
    """The target's logits for output token ``index``, shape ``(rows,)``, float32, read as rounds of speculation would.

    Args:
        target: the model.
        prompt: token ids, shape ``(1, tokens)``.
        tokens: the output; the first ``index`` come before, and what follows only fills a forward's width.
        index: which output token is asked for.
        steps: the forwards, in order.
    """
    model = target.model
    name = "input_ids"
    fixed: dict[str, Any] = {}
    if target.encoder_decoder:
        mask = torch.ones_like(prompt)
        fixed = {"encoder_outputs": model.get_encoder()(input_ids=prompt, attention_mask=mask), "attention_mask": mask}
        name = "decoder_input_ids"
        prompt = prompt.new_tensor([[target.decoder_start]])
    cache = _fresh_cache(model)
    # The argument was renamed on the way from Transformers 5.17 to 5.24.
    cache_name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
    fixed |= {cache_name: cache, "use_cache": True}
    start, unread = 0, prompt
    for step in steps:
        draft = step.draft
        if isinstance(draft, int):
            draft = [*tokens[start : start + draft], *repeat(tokens[0], start + draft - len(tokens))]
        inputs = torch.cat((unread, prompt.new_tensor([draft])), dim=1)
        kept = {"logits_to_keep": len(draft) + 1} if model._supports_logits_to_keep() else {}
        outputs = model(**{name: inputs}, **fixed, **kept)
        if index <= start + step.accepted:
            return outputs.logits[0, index - start - len(draft) - 1].float()
        if len(draft) > step.accepted:
            cache.crop(step.accepted - len(draft))
        start += step.accepted + 1
        unread = prompt.new_tensor([[tokens[start - 1]]])
    raise ValueError(f"the steps end before output token {index}")


def _fresh_cache(model: Any) -> Any:
    config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=config)
    if model.config.is_encoder_decoder:
        cache = EncoderDecoderCache(cache, DynamicCache(config=config))
    cache.activate_past_recording()
    return cache

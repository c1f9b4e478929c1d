"""Whether a first difference from vanilla is a near-tie that vanilla itself shows (design, rule 4).

A forward over several tokens uses other kernels, and sums in another order, than a forward over one. In low precision
that moves logits, and where the two best lie close together either may win.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from joulewise.engines.engine import LosslessCheck
from joulewise.engines.transformers.loading import Loaded, quiet

_EVERY_WIDTH_TO = 8  # above that, only the widest
_LOW_PRECISION = (torch.bfloat16, torch.float16)


def explain_difference(
    target: Loaded, prompt: Any, reference: Sequence[int], output: Sequence[int], width: int
) -> LosslessCheck:
    """The verdict on two different outputs.

    ``gap`` is the difference between the target's two best logits where the outputs part, seen as vanilla sees it: the
    prompt in one forward, then one token at a time. ``control`` is the largest change of that difference when the same
    tokens go through in other widths: all in one forward, and 2, 3, ... up to ``width`` at a time, as verification does
    it. So many, because logits in bfloat16 come in coarse steps, and a single width may happen to change nothing.

    Args:
        target: the model.
        prompt: token ids, shape ``(1, tokens)``.
        reference: vanilla's output tokens.
        output: the other decoding's.
        width: the most tokens of one verification forward (drafted tokens and one more).
    """
    pairs = enumerate(zip(reference, output, strict=False))
    index = next((i for i, (a, b) in pairs if a != b), None)
    if index is None:
        shorter = min(len(reference), len(output))
        return LosslessCheck("different", shorter, note="one output ends where the other goes on")
    ids = prompt.to(target.model.device)
    with quiet(), torch.inference_mode():
        logits = next_logits(target, ids, reference, index, 0, 1)
        best, second = logits.topk(2).indices.tolist()
        gap = float(logits[best] - logits[second])
        widths = {width, *range(2, min(width, _EVERY_WIDTH_TO) + 1)} - {1}
        ways = {(index, 1)} | {(first, w) for w in widths for first in (w - 1, (w - 1) // 2)}
        others = [next_logits(target, ids, output, index, *way) for way in ways]
    control = max(abs(float(o[best] - o[second]) - gap) for o in others)
    return judge(
        index,
        gap,
        control,
        top_two={reference[index], output[index]} == {best, second},
        low_precision=target.model.dtype in _LOW_PRECISION,
    )


def judge(index: int, gap: float, control: float, *, top_two: bool, low_precision: bool) -> LosslessCheck:
    """``tie`` only in low precision, between the two best tokens, and within what vanilla itself shows."""
    if not low_precision:
        return LosslessCheck("different", index, gap, control, "float32 leaves no room for ties")
    if not top_two:
        return LosslessCheck("different", index, gap, control, "the two tokens are not the target's two best")
    return LosslessCheck("tie" if gap <= control else "different", index, gap, control)


def next_logits(target: Loaded, prompt: Any, tokens: Sequence[int], index: int, first: int, width: int) -> Any:
    """The target's logits for output token ``index``, shape ``(rows,)``, float32.

    Args:
        target: the model.
        prompt: token ids, shape ``(1, tokens)``.
        tokens: the output; the first ``index`` come before, and what follows only fills the last forward's width.
        index: which output token is asked for.
        first: output tokens that go through with the prompt (the first verification forward holds it and a draft).
        width: output tokens in each forward after that.
    """
    model = target.model
    fixed: dict[str, Any] = {"use_cache": True}
    name = "input_ids"
    if target.encoder_decoder:
        mask = torch.ones_like(prompt)
        fixed |= {"encoder_outputs": model.get_encoder()(input_ids=prompt, attention_mask=mask), "attention_mask": mask}
        name = "decoder_input_ids"
        prompt = prompt.new_tensor(
            [[target.special.get("decoder_start_token_id", target.special.get("bos_token_id", 0))]]
        )
    done = min(first, len(tokens))
    outputs = model(**{name: torch.cat((prompt, prompt.new_tensor([list(tokens[:done])])), dim=1)}, **fixed)
    while done < index:
        chunk = list(tokens[done : done + width])
        outputs = model(**{name: prompt.new_tensor([chunk])}, **fixed, **_cache(outputs))
        done += len(chunk)
    return outputs.logits[0, index - done - 1].float()


def _cache(outputs: Any) -> dict[str, Any]:
    """The cache as an argument of the next forward: ``past_key_values`` was renamed ``cache`` on the way to 5.24."""
    name = "cache" if "cache" in list(outputs) else "past_key_values"
    return {name: outputs[name]}

"""Several texts sampled side by side, each from a seed of its own: one forward of the target serves them all.

A text's draws are those that it would have alone. Where the same prompt begins all texts, it is read once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from joulewise.engines.native.accept import Chooser
from joulewise.engines.native.loop import Decoded, log_probabilities
from joulewise.engines.native.session import BUCKET, ROOM, fill_up
from joulewise.engines.native.together import Rows
from joulewise.engines.phases import Stopwatch


def sample_together(
    rows: Rows,
    prompts: Sequence[Tensor],
    limits: Sequence[int],
    ends: Collection[int],
    choosers: Sequence[Chooser],
    rated: bool = False,
) -> tuple[Decoded, ...]:
    """Sample from several prompts at once, token by token.

    Args:
        rows: with room for these texts.
        prompts: token ids on the model's device, each of shape ``(P,)``.
        limits: the most output tokens of each, at least 1.
        ends: the tokens that end an output.
        choosers: one for each text, all with the same sampling.
        rated: whether the outputs' log-probabilities are asked for.

    Returns:
        One for each prompt, without rounds; ``phases_s`` is of all of them together, the same in each.
    """
    model = rows.model
    watch = Stopwatch(model.device)
    logits = model.head(_prefill(rows, prompts))
    drawn = _draw(logits, choosers)
    likely = [log_probabilities(logits, drawn)] if rated else []
    outputs = [[token] for token in drawn.tolist()]
    first_token_s = time.monotonic()
    seen = [[(1, first_token_s)] for _ in prompts]
    watch.mark("prefill")

    def open_(row: int) -> bool:
        return outputs[row][-1] not in ends and len(outputs[row]) < limits[row]

    each = range(len(prompts))
    while any(map(open_, each)):
        # A text that is done reads its last token again, where it stands.
        ends_at = [len(prompt) + len(output) - 1 for prompt, output in zip(prompts, outputs, strict=True)]
        state = torch.tensor([[output[-1] for output in outputs], ends_at], device=model.device)
        watch.mark("host")
        logits = _logits(rows, rows.span(max(ends_at) + 1), state[0, :, None], state[1])
        watch.mark("verify")
        drawn = _draw(logits, choosers)
        if rated:
            likely.append(log_probabilities(logits, drawn))
        for row, token in enumerate(drawn.tolist()):  # the step's one wait
            if open_(row):
                outputs[row].append(token)
                seen[row].append((len(outputs[row]), time.monotonic()))
        watch.mark("accept")

    each_likely = torch.stack(likely, dim=1) if rated else None
    phases_s = watch.seconds()
    return tuple(
        Decoded(
            tuple(output),
            (),
            0,
            "eos" if output[-1] in ends else "length",
            first_token_s,
            dict(phases_s),
            None if each_likely is None else float(each_likely[row, : len(output)].sum()),
            tuple(seen[row]),
        )
        for row, output in enumerate(outputs)
    )


def open_sampling(rows: Rows) -> Rows:
    """Capture all that steps will need. The rows must hold no text yet."""
    zeros = torch.zeros(rows.texts, dtype=torch.long, device=rows.model.device)
    capacity = rows.cache.capacity
    for span in sorted({rows.span(tokens) for tokens in (*range(1, capacity, BUCKET), capacity)}):
        _logits(rows, span, zeros[:, None], zeros)
    return rows


def room_for(tokens: int) -> int:
    """So much room that rows for texts of so many tokens need not be made again soon."""
    return max(tokens, ROOM)


def _prefill(rows: Rows, prompts: Sequence[Tensor]) -> Tensor:
    """Each prompt's last hidden state, shape ``(texts, H)``."""
    first, *others = prompts
    if not others or any(len(prompt) != len(first) for prompt in others) or (torch.stack(others) != first).any():
        return rows.prefill(prompts)
    count = len(first)
    filled, positions = fill_up(first, rows.prompt_width(count))
    once = rows.model.new_cache(len(filled))
    hidden = rows.model.forward(once, filled, 0, None, positions).last
    rows.cache.rows(count).copy_(once.rows(count))
    return hidden[count - 1 : count].expand(len(prompts), -1)


def _logits(rows: Rows, span: int, tokens: Tensor, before: Tensor) -> Tensor:
    """The next token's logits behind one token of each text, shape ``(texts, rows)``; captured where that is done."""

    def read(tokens: Tensor, before: Tensor) -> Tensor:
        logits: Tensor = rows.model.head(rows.read(tokens, before, span)[:, 0])
        return logits

    return rows.run(("sampled", span), read, tokens, before)


def _draw(logits: Tensor, choosers: Sequence[Chooser]) -> Tensor:
    """One token for each text, shape ``(texts,)``."""
    probabilities = choosers[0].probabilities(logits)
    return torch.cat([chooser.draw_from(p[None]) for chooser, p in zip(choosers, probabilities, strict=True)])

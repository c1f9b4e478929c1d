"""Several texts sampled in one call of ``generate``, each from a seed of its own.

The library draws all rows of a batch from one source of chance. So the draw is made here, where the library asks for
the next token's scores, in the way in which it draws for one row: the same seed gives the same token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from joulewise.engines.engine import Request
from joulewise.engines.transformers.loading import Loaded


class Drawn(LogitsProcessor):  # type: ignore[misc]
    """Draws each row's token, and leaves it as the only one with a score: a greedy step takes it.

    Args:
        requests: one a row, all with the same sampling.
        device: of the scores.
    """

    def __init__(self, requests: Sequence[Request], device: torch.device) -> None:
        self._generators = [torch.Generator(device).manual_seed(request.seed) for request in requests]
        sampling = requests[0].sampling
        self._rated = any(request.log_probability for request in requests)
        self._likely: list[Any] = []
        self._warpers = [TemperatureLogitsWarper(sampling.temperature)]
        if sampling.top_k:
            self._warpers.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1.0:
            self._warpers.append(TopPLogitsWarper(sampling.top_p))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Scores, shape ``(texts, rows)``."""
        raw = scores
        for warper in self._warpers:
            scores = warper(input_ids, scores)
        rows = zip(scores.softmax(dim=-1).split(1), self._generators, strict=True)
        # As torch.multinomial draws one of many.
        drawn = torch.stack([(p / torch.empty_like(p).exponential_(generator=g)).argmax(dim=-1) for p, g in rows])
        if self._rated:
            self._likely.append(raw.log_softmax(dim=-1).gather(1, drawn)[:, 0])
        return torch.full_like(scores, -torch.inf).scatter(1, drawn, 0.0)

    def log_probability(self, row: int, tokens: int) -> float | None:
        """Of the first so many tokens of a row; None where it was not asked for."""
        return float(torch.stack(self._likely[:tokens])[:, row].sum()) if self._rated else None


def padded(target: Loaded, prompts: Sequence[Any]) -> tuple[Any, Any]:
    """Prompts of shape ``(1, P)`` side by side: token ids and mask, shape ``(texts, P)``; output follows at the end."""
    longest = max(prompt.shape[1] for prompt in prompts)
    fill = target.special["pad_token_id"]
    ids, mask = [], []
    for prompt in prompts:
        room = longest - prompt.shape[1]
        sides = (0, room) if target.encoder_decoder else (room, 0)
        ids.append(torch.nn.functional.pad(prompt, sides, value=fill))
        mask.append(torch.nn.functional.pad(torch.ones_like(prompt), sides))
    return torch.cat(ids), torch.cat(mask)

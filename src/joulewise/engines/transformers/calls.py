"""What a call of ``generate`` is told: a config of its own, a seed of its own, and nothing that outlives it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from joulewise.decoding import CoGA, DyGA, PromptLookup
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import Request
from joulewise.engines.phases import Stopwatch
from joulewise.engines.transformers.loading import Loaded

_THRESHOLD_OFF = 0.0  # None would be filled with the library's default, 0.4


def generation_config(target: Loaded, request: Request, decoding: Decoding) -> GenerationConfig:
    """The target's config for one request: greedy is a plain argmax, sampling has the request's own knobs."""
    sampling = request.sampling
    knobs: dict[str, Any] = {"do_sample": False}
    if not sampling.greedy:
        knobs = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
        }
    if isinstance(decoding, PromptLookup):
        knobs |= {"prompt_lookup_num_tokens": decoding.tokens, "max_matching_ngram_size": decoding.max_ngram}
    ends = None if request.ignore_eos else list(target.eos_token_ids) or None
    return GenerationConfig(max_new_tokens=request.max_new_tokens, eos_token_id=ends, **knobs, **target.special)


def set_draft(draft: Loaded, decoding: Decoding) -> None:
    """Give the draft a fresh config for one call: this is where the library looks for how to draft."""
    knobs: dict[str, Any]
    match decoding:
        case CoGA(tokens=tokens):
            knobs = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": _THRESHOLD_OFF}
        case DyGA(tokens=tokens, rule="heuristic"):
            # The plain "heuristic" would write its last length back and leak it into the next call.
            knobs = {
                "num_assistant_tokens_schedule": "heuristic_transient",
                "assistant_confidence_threshold": _THRESHOLD_OFF,
            }
        case DyGA(tokens=tokens, threshold=threshold):
            knobs = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": threshold}
        case _:
            raise TypeError(f"{decoding.kind} has no draft model")
    draft.model.generation_config = GenerationConfig(num_assistant_tokens=tokens, **knobs, **draft.special)


@contextmanager
def seeded(request: Request) -> Iterator[None]:
    """Sample from the request's seed, and put the random state back afterwards."""
    if request.sampling.greedy:
        yield
        return
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(request.seed)
        yield


@contextmanager
def forwards_watched(model: Any, synchronize: Callable[[], None], watch: Stopwatch) -> Iterator[list[float]]:
    """Note when the model's first forward, which gives the first token, is done, and how long all forwards take.

    For the first one the loop waits on the device, for the others it does not. What is noted after that is when each
    further forward began: the loop looks at every token before it goes on.
    """
    times: list[float] = []

    def before(*_: Any) -> None:
        watch.mark("host" if times else "prefill")
        if times:
            times.append(time.monotonic())

    def after(*_: Any) -> None:
        watch.mark("verify" if times else "prefill")
        if not times:
            synchronize()
            times.append(time.monotonic())

    handles = model.register_forward_pre_hook(before), model.register_forward_hook(after)
    try:
        yield times
    finally:
        for handle in handles:
            handle.remove()

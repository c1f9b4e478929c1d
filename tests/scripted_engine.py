"""An engine without a model: its outputs follow from the question alone, and every decoding takes its own time.

Stands in for `transformers` where a test is about the loop around the engine; the engine itself is tested on models.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from joulewise.decoding import Decoding
from joulewise.engines.engine import EngineInfo, Generation, LosslessCheck, Request, Round
from joulewise.engines.spec import TransformersSpec
from joulewise.errors import ContextLengthError

CALLS: list[tuple[str, str]] = []
"""(decoding, last message) of every generation since a test cleared it."""


class ScriptedEngine:
    """Answers with numbers drawn from a hash of the prompt. A prompt with the word OVERLONG does not fit the context.

    Decodings other than vanilla give vanilla's output, but for `prompt_lookup` on prompts with the word DIFFER. With
    JOULEWISE_TEST_BLOCK set, a prompt with the word BLOCK says so on standard output and waits for a signal.
    """

    def __init__(self, spec: TransformersSpec) -> None:
        self.spec = spec

    def refuses(self, decoding: Decoding) -> str | None:
        if decoding.needs_draft and not (decoding.draft or self.spec.draft):
            return "no draft model is named"
        return None

    def load(self, decodings: Sequence[Decoding]) -> EngineInfo:
        return EngineInfo("transformers", self.spec.model, "Scripted", 1, "float32", ("cpu",), 512)

    def generate(self, request: Request, decoding: Decoding) -> Generation:
        prompt = request.messages[-1].content
        CALLS.append((decoding.label, prompt))
        if "OVERLONG" in prompt:
            raise ContextLengthError("prompt of 900 tokens and 16 new ones do not fit the context of 512 tokens")
        if "BLOCK" in prompt and "JOULEWISE_TEST_BLOCK" in os.environ:
            print("blocked", flush=True)
            while True:
                signal.pause()
        start_s = time.monotonic()
        digest = hashlib.sha256(prompt.encode()).digest()
        first_token_s = time.monotonic()
        tokens = tuple(digest[: min(request.max_new_tokens, 8)])
        if "DIFFER" in prompt and decoding.label.startswith("prompt-lookup"):
            tokens = (*tokens[:-1], tokens[-1] + 1)
        rounds = () if decoding.label == "vanilla" else (Round(5, len(tokens) - 1),)
        return Generation(
            text=f"Answer: {tokens[0]}",
            token_ids=tokens,
            prompt_tokens=len(prompt.split()),
            finish_reason="eos" if len(tokens) < request.max_new_tokens else "length",
            start_s=start_s,
            end_s=time.monotonic(),
            first_token_s=first_token_s,
            rounds=rounds,
        )

    def refuses_together(self, decoding: Decoding, greedy: bool) -> str | None:
        return None if decoding.label == "vanilla" else f"{decoding.label} cannot run several at once"

    def generate_together(self, requests: Sequence[Request], decoding: Decoding) -> tuple[Generation, ...]:
        made = [self.generate(request, decoding) for request in requests]
        return tuple(replace(one, start_s=made[0].start_s, end_s=made[-1].end_s) for one in made)

    def check_lossless(
        self, request: Request, decoding: Decoding, reference: Sequence[int], output: Sequence[int]
    ) -> LosslessCheck:
        first = next((i for i, (a, b) in enumerate(zip(reference, output, strict=False)) if a != b), None)
        return LosslessCheck("identical") if first is None else LosslessCheck("different", first, 1.0, 0.0)

    def close(self) -> None:
        pass

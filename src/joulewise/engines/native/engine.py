"""NativeEngine: the requests of a plan through Joulewise's own loop. Light: torch is loaded with the model."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from joulewise.decoding import Eagle2, Eagle3, Medusa, Vanilla
from joulewise.decoding.spec import RANDOM_HEAD, Decoding
from joulewise.engines.engine import EngineInfo, Generation, LosslessCheck, Request
from joulewise.engines.native.drafters import CHAINS, DRAFTERS
from joulewise.engines.shipped import shipped_fault, shipped_for
from joulewise.engines.spec import HeadKind, NativeSpec
from joulewise.engines.together import require_one_rule
from joulewise.engines.transformers.info import draft_fault
from joulewise.engines.transformers.quantisation import require_packages
from joulewise.errors import UserError

if TYPE_CHECKING:
    from joulewise.engines.native.given import Given
    from joulewise.engines.native.loaded import LoadedEngine


class NativeEngine:
    """One target model, its drafts and heads, and one loop for all decodings. See ``Engine`` for the contract."""

    def __init__(self, spec: NativeSpec) -> None:
        require_packages(spec.quantisation, f"quantisation: {spec.quantisation}")
        require_packages(spec.draft_quantisation, f"draft_quantisation: {spec.draft_quantisation}")
        self._spec = spec
        self._loaded: LoadedEngine | None = None

    def refuses(self, decoding: Decoding) -> str | None:
        """Why this engine cannot do ``decoding``; None if it can, as far as can be told before loading."""
        if type(decoding) not in DRAFTERS:
            return f"the engine `native` knows no decoding {decoding.kind}"
        head = head_of(self._spec, decoding)
        if decoding.needs_head and head is None:
            return (
                f"{decoding.label} needs a head, and neither the decoding nor the engine {self._spec.label} names one: "
                f"set `head`, or `heads: {{{decoding.kind}: ...}}` of the engine, to a hub name, a folder or a file"
            )
        if head is not None and (reason := shipped_fault(head[0], self._spec.model, head[1])):
            return reason
        if head is not None and head[0] == RANDOM_HEAD and decoding.synthetic is None:
            return (
                f"the head `{RANDOM_HEAD}` of {decoding.label} guesses at random, to measure a head's work: set "
                "synthetic_acceptance with it, or name a trained head"
            )
        return draft_fault(self._spec, decoding)

    def load(self, decodings: Sequence[Decoding]) -> EngineInfo:
        """Load the target and every draft and head that ``decodings`` need, each once."""
        from joulewise.engines.native.loaded import LoadedEngine

        for decoding in decodings:
            self._require(decoding)
        self._loaded = None
        self._loaded = LoadedEngine(self._spec, decodings)
        return self._loaded.info

    def generate(self, request: Request, decoding: Decoding) -> Generation:
        """Generate by the native loop; see ``Engine.generate``."""
        return self._ready(decoding).generate(request, decoding)

    def refuses_together(self, decoding: Decoding, greedy: bool) -> str | None:
        """Why several texts at once cannot be decoded so: vanilla and chains can, and vanilla alone samples."""
        if type(decoding) not in CHAINS or getattr(decoding, "rule", None) == "confidence":
            return (
                f"{decoding.label} cannot be decoded for several texts at once: vanilla, CoGA, DyGA by the rule "
                "heuristic and prompt lookup can"
            )
        if not greedy and not isinstance(decoding, Vanilla):
            return f"{decoding.label} cannot sample several texts at once: vanilla can"
        return None

    def generate_together(self, requests: Sequence[Request], decoding: Decoding) -> tuple[Generation, ...]:
        """Generate from several requests side by side; see ``Together``. A prompt that all sample from is read once."""
        if not requests:
            return ()
        require_one_rule(requests)
        if reason := self.refuses_together(decoding, requests[0].sampling.greedy):
            raise UserError(f"{reason}.")
        return self._ready(decoding).generate_together(requests, decoding)

    def compare(self, request: Request, continuations: Sequence[str]) -> Generation:
        """The most likely of ``continuations``; see ``ComparingEngine.compare``."""
        return self._ready(Vanilla()).compare(request, continuations)

    def given(self, capacity: int) -> Given:
        """Batches of prompts of random tokens, decoded by vanilla: for a sweep, where lengths are all that matters.

        Args:
            capacity: prompt and output tokens of the longest request.

        Raises:
            ContextLengthError: layers that do not see so far back.
        """
        return self._ready(Vanilla()).given(capacity)

    def check_lossless(
        self, request: Request, decoding: Decoding, reference: Sequence[int], output: Sequence[int]
    ) -> LosslessCheck:
        """Compare ``output`` with vanilla's; at a first difference, look at the target's own near-ties there."""
        return self._ready(Vanilla()).check_lossless(request, decoding, reference, output)

    def close(self) -> None:
        """Free the device memory. Idempotent."""
        if self._loaded is None:
            return
        import torch

        self._loaded = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _require(self, decoding: Decoding) -> None:
        if reason := self.refuses(decoding):
            raise UserError(f"{reason[0].upper()}{reason[1:]}.")

    def _ready(self, decoding: Decoding) -> LoadedEngine:
        if self._loaded is None or not self._loaded.has(decoding):
            raise RuntimeError(f"load() was not called for {decoding.label}")
        self._require(decoding)
        return self._loaded


def head_of(spec: NativeSpec, decoding: Decoding) -> tuple[str, HeadKind] | None:
    """Name and family of a decoding's head: the default model has some; None where it needs none or none is named."""
    if not isinstance(decoding, Medusa | Eagle2 | Eagle3):
        return None
    name = decoding.head or spec.heads.get(decoding.kind) or shipped_for(spec.model, decoding.kind)
    return None if name is None else (name, decoding.kind)

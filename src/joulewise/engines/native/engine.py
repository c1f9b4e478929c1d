"""NativeEngine: the requests of a plan through Joulewise's own loop."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import torch

from joulewise.decoding import Eagle2, Eagle3, Medusa, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import EngineInfo, Generation, LosslessCheck, Request, Sampling
from joulewise.engines.native.accept import Chooser, Rule, match, synthetic, typical
from joulewise.engines.native.check import as_step, reader
from joulewise.engines.native.draft import Draft
from joulewise.engines.native.drafters import DRAFTERS, Parts, make_drafter
from joulewise.engines.native.heads import Head, open_head, published_taps, taps_of
from joulewise.engines.native.heads.formats import Family
from joulewise.engines.native.heads.gate import Gate
from joulewise.engines.native.heads.synthetic import random_eagle2, random_eagle3, random_medusa
from joulewise.engines.native.loop import Decoded, decode
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import WIDTHS, prepare_session
from joulewise.engines.spec import RANDOM_HEAD, NativeSpec
from joulewise.engines.transformers.check import PLAIN, explain_difference, verdict_at_sight
from joulewise.engines.transformers.info import draft_fault, draft_name, engine_info
from joulewise.engines.transformers.quantisation import require_packages
from joulewise.errors import ContextLengthError, UserError

if TYPE_CHECKING:
    from joulewise.engines.transformers.drafts import Draft as DraftModel
    from joulewise.engines.transformers.loading import Loaded

RANDOM_ROWS = 32_000
"""A random EAGLE-3 head guesses among so many tokens at most, as published ones do."""

MOST_PREPARED = 63
"""Forwards over a root and so many nodes at most are captured before anything is measured."""

_CONTROL_WIDTHS = (2, 4, 8, 16, 32, 64)


class NativeEngine:
    """One target model, its drafts and heads, and one loop for all decodings. See ``Engine`` for the contract."""

    def __init__(self, spec: NativeSpec) -> None:
        require_packages(spec.quantisation, f"quantisation: {spec.quantisation}")
        require_packages(spec.draft_quantisation, f"draft_quantisation: {spec.draft_quantisation}")
        self._spec = spec
        self._target: DecoderModel | None = None
        self._drafts: dict[str, tuple[DraftModel, DecoderModel]] = {}
        self._heads: dict[tuple[str, Family], Head] = {}
        self._gates: dict[str, Gate] = {}

    def refuses(self, decoding: Decoding) -> str | None:
        """Why this engine cannot do ``decoding``; None if it can, as far as can be told before loading."""
        if type(decoding) not in DRAFTERS:
            return f"the engine `native` knows no decoding {decoding.kind}"
        head = self._head(decoding)
        if decoding.needs_head and head is None:
            return (
                f"{decoding.label} needs a head, and neither the decoding nor the engine {self._spec.label} names one: "
                f"set `head`, or `heads: {{{decoding.kind}: ...}}` of the engine, to a hub name, a folder or a file"
            )
        if head is not None and head[0] == RANDOM_HEAD and decoding.synthetic is None:
            return (
                f"the head `{RANDOM_HEAD}` of {decoding.label} guesses at random, to measure a head's work: set "
                "synthetic_acceptance with it, or name a trained head"
            )
        return draft_fault(self._spec, decoding)

    def load(self, decodings: Sequence[Decoding]) -> EngineInfo:
        """Load the target and every draft and head that ``decodings`` need, each once."""
        from joulewise.engines.transformers.drafts import open_draft
        from joulewise.engines.transformers.loading import load

        spec = self._spec
        for decoding in decodings:
            if reason := self.refuses(decoding):
                raise UserError(f"{reason[0].upper()}{reason[1:]}.")
        self._drafts, self._heads = {}, {}
        loaded = load(spec.model, spec.revision, spec.dtype, spec.device, spec.quantisation)
        heads = {head for d in decodings if (head := self._head(d)) is not None}
        layers = int(loaded.model.config.get_text_config(decoder=True).num_hidden_layers)
        taps = {tap for name, kind in heads for tap in _taps(name, kind, layers)}
        self._target = target = DecoderModel(loaded, sorted(taps))
        self._heads = {head: _open(*head, target) for head in heads}
        notes = {}
        for decoding in decodings:
            if (head := self._head(decoding)) is not None:
                notes[decoding.label] = self._heads[head].note
            name = draft_name(spec, decoding)
            if name is None:
                continue
            if name not in self._drafts:
                draft = open_draft(name, loaded, spec.draft_quantisation)
                if not draft.same_tokenizer:
                    raise UserError(
                        f"The draft {name} has another tokenizer than {loaded.name}, and the engine `native` does not "
                        "translate: use the engine `transformers` for this pair, or a draft of the target's family."
                    )
                self._drafts[name] = draft, DecoderModel(draft.loaded)
            notes[decoding.label] = self._drafts[name][0].note
        self._prepare(decodings)
        others = [draft.loaded for draft, _ in self._drafts.values()]
        return engine_info(spec, loaded, others, notes, ("attention: masked, on a preallocated cache",))

    def _prepare(self, decodings: Sequence[Decoding]) -> None:
        """On a GPU, capture what will be needed."""
        target = self._ready(Vanilla())
        chooser = Chooser.of(Sampling(), 0, target.device)
        nodes = [make_drafter(d, self._parts(d, chooser, ())).most_nodes for d in decodings]
        with torch.inference_mode():
            prepare_session(target, 1 + min(max(nodes, default=0), MOST_PREPARED))
            for _, model in self._drafts.values():
                prepare_session(model, 2)  # the last drafted token and the root

    def _parts(self, decoding: Decoding, chooser: Chooser, ends: Collection[int]) -> Parts:
        assert self._target is not None
        name, head = draft_name(self._spec, decoding), self._head(decoding)
        return Parts(
            self._target,
            self._drafts[name][1] if name is not None else None,
            self._heads[head] if head is not None else None,
            chooser,
            ends,
        )

    def generate(self, request: Request, decoding: Decoding) -> Generation:
        """Generate by the native loop; see ``Engine.generate``."""
        from joulewise.engines.transformers.loading import out_of_memory, quiet
        from joulewise.engines.transformers.prompts import encode, require_context

        start_s = time.monotonic()
        target = self._ready(decoding)
        loaded = target.loaded
        name = draft_name(self._spec, decoding)
        draft = self._drafts[name] if name is not None else None
        prompt = encode(loaded, request.messages)
        require_context(loaded, draft[0] if draft else None, prompt, request.max_new_tokens)
        self._require_window(target, prompt.shape[1] + request.max_new_tokens)
        _require_one_scale(loaded, prompt.shape[1], request.max_new_tokens)
        try:
            with quiet():
                decoded = self._decode(request, decoding, prompt)
                text = loaded.tokenizer.decode(decoded.tokens, skip_special_tokens=True)
        except torch.OutOfMemoryError as error:
            what = (
                f"{prompt.shape[1]} prompt and {request.max_new_tokens} new tokens of {loaded.name} ({decoding.label})"
            )
            raise out_of_memory(what, str(target.device)) from error
        end_s = time.monotonic()
        if (head := self._head(decoding)) is not None and decoding.synthetic is None:
            self._gates.setdefault(decoding.label, Gate(decoding.label, head[0])).see(decoded.rounds)
        phases_s = dict(decoded.phases_s)
        # What the loop did not see: the prompt's tokens and the output's text.
        phases_s["host"] = phases_s.get("host", 0.0) + max(end_s - start_s - sum(phases_s.values()), 0.0)
        return Generation(
            text=text,
            token_ids=decoded.tokens,
            prompt_tokens=prompt.shape[1],
            finish_reason=decoded.finish_reason,
            start_s=start_s,
            end_s=end_s,
            first_token_s=decoded.first_token_s,
            wasted_tokens=decoded.wasted_tokens,
            rounds=() if isinstance(decoding, Vanilla) else decoded.rounds,
            phases_s=phases_s,
        )

    def _decode(
        self,
        request: Request,
        decoding: Decoding,
        prompt: torch.Tensor,
        witness: Callable[[Draft, list[int]], None] | None = None,
    ) -> Decoded:
        target = self._ready(decoding)
        free = request.ignore_eos or decoding.synthetic is not None
        ends = () if free else target.loaded.eos_token_ids
        chooser = Chooser.of(request.sampling, request.seed, target.device)
        with torch.inference_mode():
            return decode(
                target,
                make_drafter(decoding, self._parts(decoding, chooser, ends)),
                prompt[0].to(target.device),
                request.max_new_tokens,
                ends,
                _rule(decoding, request.seed, target.device),
                chooser,
                witness,
            )

    def check_lossless(
        self, request: Request, decoding: Decoding, reference: Sequence[int], output: Sequence[int]
    ) -> LosslessCheck:
        """Compare ``output`` with vanilla's; at a first difference, look at the target's own near-ties there."""
        from joulewise.engines.transformers.prompts import encode

        if verdict := verdict_at_sight(request, decoding, reference, output):
            return verdict
        target = self._ready(Vanilla())
        prompt = encode(target.loaded, request.messages)
        rounds = [PLAIN]
        again = self._decode(request, decoding, prompt, lambda *seen: rounds.append(as_step(*seen)))
        if again.tokens != tuple(output):
            rounds = []
        return explain_difference(
            target.loaded, prompt, reference, output, _CONTROL_WIDTHS, rounds, read=reader(target)
        )

    def close(self) -> None:
        """Free the device memory. Idempotent."""
        if self._target is None:
            return
        self._target = None
        self._drafts, self._heads, self._gates = {}, {}, {}
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _head(self, decoding: Decoding) -> tuple[str, Family] | None:
        """Name and family of the decoding's head; None where it needs none or none is named."""
        if not isinstance(decoding, Medusa | Eagle2 | Eagle3):
            return None
        name = decoding.head or self._spec.heads.get(decoding.kind)
        return None if name is None else (name, decoding.kind)

    def _ready(self, decoding: Decoding) -> DecoderModel:
        name, head = draft_name(self._spec, decoding), self._head(decoding)
        missing = (name is not None and name not in self._drafts) or (head is not None and head not in self._heads)
        if self._target is None or missing:
            raise RuntimeError(f"load() was not called for {decoding.label}")
        if reason := self.refuses(decoding):
            raise UserError(f"{reason[0].upper()}{reason[1:]}.")
        return self._target

    def _require_window(self, target: DecoderModel, tokens: int) -> None:
        window = target.window
        if window is not None and tokens > window:
            raise ContextLengthError(
                f"{target.loaded.name} has layers that see {window} tokens back, and prompt and output together may be "
                f"{tokens}: the engine `native` has no such window; shorten the question, lower max_new_tokens, or use "
                "the engine `transformers`."
            )


def _require_one_scale(loaded: Loaded, prompt: int, new: int) -> None:
    """Refuse a text on whose way a model changes the scale of its positions (LongRoPE: Phi-3, Phi-4-mini).

    The keys in the cache would have to be computed again there. A draft may reach over the output's end.
    """
    rope = getattr(loaded.model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return
    turn = int(rope["original_max_position_embeddings"])
    if prompt <= turn < prompt + new + WIDTHS[-1]:
        raise ContextLengthError(
            f"{loaded.name} reads texts over {turn} tokens with other positions, and this one may grow over that "
            f"({prompt} prompt tokens, {new} new ones, and up to {WIDTHS[-1]} for a draft): the engine `native` does "
            "not read it again there; shorten the question, lower max_new_tokens, or use the engine `transformers`."
        )


def _rule(decoding: Decoding, seed: int, device: torch.device) -> Rule:
    if decoding.synthetic is not None:
        return synthetic(decoding.synthetic, seed, device)
    if isinstance(decoding, Medusa) and decoding.acceptance == "typical":
        return typical(decoding.epsilon, decoding.alpha)
    return match


def _taps(name: str, kind: Family, layers: int) -> tuple[int, ...]:
    if name == RANDOM_HEAD:
        return published_taps(layers) if kind == "eagle3" else ()
    return taps_of(name, layers)


def _open(name: str, kind: Family, target: DecoderModel) -> Head:
    if name != RANDOM_HEAD:
        return open_head(name, target, kind)
    if kind == "medusa":
        return random_medusa(target)
    if kind == "eagle2":
        return random_eagle2(target)
    rows = target.loaded.vocabulary_rows
    return random_eagle3(target, RANDOM_ROWS if rows > RANDOM_ROWS else None)

"""LoadedEngine: what ``NativeEngine`` is once its models are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

import torch

from joulewise.decoding import Medusa, Vanilla
from joulewise.decoding.spec import RANDOM_HEAD, Decoding
from joulewise.engines.engine import Cut, EngineInfo, Generation, LosslessCheck, Request, Sampling
from joulewise.engines.native.accept import Chooser, Lot, Rule, match, typical
from joulewise.engines.native.check import as_step, reader
from joulewise.engines.native.checkpoints import Family
from joulewise.engines.native.draft import Draft
from joulewise.engines.native.drafters import CHAINS, Parts, make_drafter, runs_ahead
from joulewise.engines.native.engine import head_of
from joulewise.engines.native.given import Given
from joulewise.engines.native.given_up import note_of, noting
from joulewise.engines.native.heads import Head, open_head, published_taps, taps_of
from joulewise.engines.native.heads.eagle import EagleHead
from joulewise.engines.native.heads.gate import Gate
from joulewise.engines.native.heads.synthetic import random_eagle2, random_eagle3, random_medusa
from joulewise.engines.native.loop import Decoded, decode
from joulewise.engines.native.model import OWN_KERNELS, TORCH_KERNELS, DecoderModel
from joulewise.engines.native.sampled import open_sampling, room_for, sample_together
from joulewise.engines.native.session import CHAIN, WIDTHS, height_class, prepare_session
from joulewise.engines.native.together import Rows, decode_together, prepare_ahead
from joulewise.engines.spec import NativeSpec
from joulewise.engines.transformers.check import PLAIN, explain_difference, verdict_at_sight
from joulewise.engines.transformers.drafts import Draft as DraftModel
from joulewise.engines.transformers.drafts import open_draft
from joulewise.engines.transformers.info import draft_name, engine_info
from joulewise.engines.transformers.likelihood import Compared, choose, compared
from joulewise.engines.transformers.loading import Loaded, load, out_of_memory, quiet
from joulewise.engines.transformers.prompts import encode, require_context, thinking_open
from joulewise.errors import ContextLengthError, UserError

RANDOM_ROWS = 32_000
"""A random EAGLE-3 head guesses among so many tokens at most, as published ones do."""

MOST_PREPARED = 63
"""Forwards over a root and so many nodes at most are captured before anything is measured."""

_CONTROL_WIDTHS = (2, 4, 8, 16, 32, 64)


class LoadedEngine:
    """One target model with the drafts and heads of some decodings, each loaded once, ready to generate.

    Args:
        spec: as the plan says.
        decodings: none that the engine refuses.
    """

    def __init__(self, spec: NativeSpec, decodings: Sequence[Decoding]) -> None:
        self._spec = spec
        self._gates: dict[str, Gate] = {}
        self._sampling: dict[int, Rows] = {}
        self._drafts: dict[str, tuple[DraftModel, DecoderModel]] = {}
        loaded = load(spec.model, spec.revision, spec.dtype, spec.device, spec.quantisation)
        heads = {head for d in decodings if (head := head_of(spec, d)) is not None}
        layers = int(loaded.model.config.get_text_config(decoder=True).num_hidden_layers)
        taps = {tap for name, kind in heads for tap in _taps(name, kind, layers)}
        self.target = DecoderModel(loaded, sorted(taps))
        self._heads = {head: _open(*head, self.target) for head in heads}
        notes = {}
        for decoding in decodings:
            if (head := head_of(spec, decoding)) is not None:
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
        with noting() as given_up:
            self._prepare(decodings)
        lacking = note_of(given_up)
        others = [draft.loaded for draft, _ in self._drafts.values()]
        self.info: EngineInfo = engine_info(
            spec,
            loaded,
            others,
            notes,
            ("attention: masked, on a preallocated cache", *self._kernels(), *([lacking] if lacking else [])),
        )

    def _kernels(self) -> tuple[str, ...]:
        """Whose kernels run: the target's, and those of drafts and heads that differ."""
        of = {f" of the draft {name}": model.kernels for name, (_, model) in self._drafts.items()}
        of |= {
            f" of the head {head.name}": OWN_KERNELS if head.sights else TORCH_KERNELS
            for head in self._heads.values()
            if isinstance(head, EagleHead)
        }
        others = (
            f"kernels{whose}: {kernels}"
            for whose, kernels in of.items()
            if (kernels == OWN_KERNELS) != self.target.sights
        )
        return (f"kernels: {self.target.kernels}", *others)

    def has(self, decoding: Decoding) -> bool:
        """Whether what ``decoding`` needs was loaded."""
        name, head = draft_name(self._spec, decoding), head_of(self._spec, decoding)
        return (name is None or name in self._drafts) and (head is None or head in self._heads)

    def _prepare(self, decodings: Sequence[Decoding]) -> None:
        """On a GPU, capture what will be needed."""
        chooser = Chooser.of(Sampling(), 0, self.target.device)
        most: dict[int | None, int] = {CHAIN: 1}
        for decoding in decodings:
            drafter = make_drafter(decoding, self._parts(decoding, chooser, ()))
            judged = CHAIN if drafter.height is None else height_class(drafter.height)
            most[judged] = max(most.get(judged, 1), 1 + min(drafter.most_nodes, MOST_PREPARED))
        with torch.inference_mode():
            prepare_session(self.target, most)
            for _, model in self._drafts.values():
                prepare_session(model, {None: 2})  # the last drafted token and the root
            for decoding in decodings:
                parts = self._parts(decoding, chooser, ())
                if runs_ahead(decoding, parts):
                    prepare_ahead(self.target, CHAINS[type(decoding)](decoding, parts))

    def _parts(self, decoding: Decoding, chooser: Chooser, ends: Collection[int]) -> Parts:
        name, head = draft_name(self._spec, decoding), head_of(self._spec, decoding)
        return Parts(
            self.target,
            self._drafts[name][1] if name is not None else None,
            self._heads[head] if head is not None else None,
            chooser,
            ends,
        )

    def _prompt(self, request: Request, decoding: Decoding) -> torch.Tensor:
        """A request's tokens, shape ``(1, P)``, if they and the output fit."""
        loaded = self.target.loaded
        name = draft_name(self._spec, decoding)
        draft = self._drafts[name] if name is not None else None
        prompt: torch.Tensor = encode(loaded, request.messages, request.thinking)
        require_context(loaded, draft[0] if draft else None, prompt, request.max_new_tokens)
        _require_window(self.target, prompt.shape[1] + request.max_new_tokens)
        _require_one_scale(loaded, prompt.shape[1], request.max_new_tokens)
        return prompt

    def generate_together(self, requests: Sequence[Request], decoding: Decoding) -> tuple[Generation, ...]:
        """See ``NativeEngine.generate_together``."""
        start_s = time.monotonic()
        loaded, device = self.target.loaded, self.target.device
        prompts = [self._prompt(request, decoding) for request in requests]
        free = requests[0].ignore_eos or decoding.synthetic is not None
        ends = () if free else loaded.eos_token_ids
        limits = [request.max_new_tokens for request in requests]
        tokens = [prompt[0].to(device) for prompt in prompts]
        try:
            with quiet(), noting() as given_up, torch.inference_mode():
                if requests[0].sampling.greedy:
                    chains = CHAINS[type(decoding)](decoding, self._parts(decoding, Chooser(Sampling()), ends))
                    lot = None if decoding.synthetic is None else Lot(decoding.synthetic, requests[0].seed, device)
                    together = decode_together(self.target, chains, tokens, limits, ends, lot)
                else:
                    rows = self._rows(max(len(p) + limit for p, limit in zip(tokens, limits, strict=True)), len(tokens))
                    choosers = [Chooser.of(request.sampling, request.seed, device) for request in requests]
                    rated = any(request.log_probability for request in requests)
                    together = sample_together(rows, tokens, limits, ends, choosers, rated)
                texts = [loaded.tokenizer.decode(one.tokens, skip_special_tokens=True) for one in together]
        except torch.OutOfMemoryError as error:
            raise out_of_memory(f"{len(requests)} texts of {loaded.name} ({decoding.label})", str(device)) from error
        end_s = time.monotonic()
        phases_s = None  # those of the batch are not a text's
        note = note_of(given_up)
        return tuple(
            _generation(loaded, decoding, request.cuts, prompt, one, text, (start_s, end_s), phases_s, note)
            for request, text, one, prompt in zip(requests, texts, together, prompts, strict=True)
        )

    def compare(self, request: Request, continuations: Sequence[str]) -> Generation:
        """See ``NativeEngine.compare``."""
        start_s = time.monotonic()
        target = self.target
        given = compared(target.loaded, request.messages, continuations, request.thinking)
        self._prompt(replace(request, max_new_tokens=max(map(len, given.tails))), Vanilla())

        def logits_of(given: Compared) -> torch.Tensor:
            return target.logits(target.read(given.rows.to(target.device))[:, given.start - 1 :])

        try:
            return choose(given, continuations, logits_of, start_s, partial(_synchronize, target.device))
        except torch.OutOfMemoryError as error:
            what = f"{given.rows.numel()} tokens of {target.loaded.name} (comparing answers)"
            raise out_of_memory(what, str(target.device)) from error

    def _rows(self, tokens: int, texts: int) -> Rows:
        """Rows to sample so many texts in; on a GPU they are kept, with what was captured of them."""
        kept = self._sampling.get(texts)
        if kept is not None and kept.cache.capacity >= tokens:
            return kept
        if self.target.device.type != "cuda":
            return Rows(self.target, texts, tokens, None)
        self._sampling.pop(texts, None)
        self._sampling[texts] = open_sampling(Rows(self.target, texts, room_for(tokens), None))
        return self._sampling[texts]

    def given(self, capacity: int) -> Given:
        """See ``NativeEngine.given``."""
        _require_window(self.target, capacity)
        return Given(self.target, capacity)

    def generate(self, request: Request, decoding: Decoding) -> Generation:
        """See ``Engine.generate``."""
        start_s = time.monotonic()
        loaded = self.target.loaded
        prompt = self._prompt(request, decoding)
        try:
            with quiet(), noting() as given_up:
                decoded = self._decode(request, decoding, prompt)
                text = loaded.tokenizer.decode(decoded.tokens, skip_special_tokens=True)
        except torch.OutOfMemoryError as error:
            what = (
                f"{prompt.shape[1]} prompt and {request.max_new_tokens} new tokens of {loaded.name} ({decoding.label})"
            )
            raise out_of_memory(what, str(self.target.device)) from error
        end_s = time.monotonic()
        if (head := head_of(self._spec, decoding)) is not None and decoding.synthetic is None:
            self._gates.setdefault(decoding.label, Gate(decoding.label, head[0])).see(decoded.rounds)
        phases_s = dict(decoded.phases_s)
        # What the loop did not see: the prompt's tokens and the output's text.
        phases_s["host"] = phases_s.get("host", 0.0) + max(end_s - start_s - sum(phases_s.values()), 0.0)
        note = note_of(given_up)
        return _generation(loaded, decoding, request.cuts, prompt, decoded, text, (start_s, end_s), phases_s, note)

    def _decode(
        self,
        request: Request,
        decoding: Decoding,
        prompt: torch.Tensor,
        witness: Callable[[Draft, list[int]], None] | None = None,
    ) -> Decoded:
        target = self.target
        free = request.ignore_eos or decoding.synthetic is not None
        ends = () if free else target.loaded.eos_token_ids
        chooser = Chooser.of(request.sampling, request.seed, target.device)
        parts, rule = self._parts(decoding, chooser, ends), _rule(decoding, request.seed, target.device)
        tokens, limit = prompt[0].to(target.device), request.max_new_tokens
        with torch.inference_mode():
            if witness is None and not request.log_probability and runs_ahead(decoding, parts):
                chains, lot = CHAINS[type(decoding)](decoding, parts), rule if isinstance(rule, Lot) else None
                return decode_together(target, chains, [tokens], [limit], ends, lot)[0]
            drafter = make_drafter(decoding, parts)
            return decode(target, drafter, tokens, limit, ends, rule, chooser, witness, request.log_probability)

    def check_lossless(
        self, request: Request, decoding: Decoding, reference: Sequence[int], output: Sequence[int]
    ) -> LosslessCheck:
        """See ``Engine.check_lossless``."""
        if verdict := verdict_at_sight(request, decoding, reference, output):
            return verdict
        target = self.target
        prompt = encode(target.loaded, request.messages, request.thinking)
        rounds = [PLAIN]
        again = self._decode(request, decoding, prompt, lambda *seen: rounds.append(as_step(*seen)))
        if again.tokens != tuple(output):
            rounds = []
        return explain_difference(
            target.loaded, prompt, reference, output, _CONTROL_WIDTHS, rounds, read=reader(target)
        )


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _require_window(target: DecoderModel, tokens: int) -> None:
    """Refuse a text over what some layers see."""
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


def _generation(
    loaded: Loaded,
    decoding: Decoding,
    cuts: Sequence[int],
    prompt: torch.Tensor,
    decoded: Decoded,
    text: str,
    between_s: tuple[float, float],
    phases_s: dict[str, float] | None,
    note: str | None,
) -> Generation:
    start_s, end_s = between_s
    tokenizer, tokens = loaded.tokenizer, decoded.tokens
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
        log_probability=decoded.log_probability,
        thinking_open=thinking_open(loaded, prompt),
        cuts=tuple(
            Cut(k, tokenizer.decode(tokens[:k], skip_special_tokens=True), next(t for n, t in decoded.seen if n >= k))
            for k in cuts
            if k < len(tokens)
        ),
        note=note,
    )


def _rule(decoding: Decoding, seed: int, device: torch.device) -> Rule:
    if decoding.synthetic is not None:
        return Lot(decoding.synthetic, seed, device)
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

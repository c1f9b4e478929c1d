"""TransformersEngine: the requests of a plan through ``model.generate``, with exact counts."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulewise.decoding import CoGA, DyGA, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import Cut, EngineInfo, Generation, LosslessCheck, Request, Sampling
from joulewise.engines.spec import TransformersSpec
from joulewise.engines.together import require_one_rule
from joulewise.engines.transformers.info import draft_fault, draft_name, engine_info
from joulewise.engines.transformers.quantisation import require_packages
from joulewise.errors import UserError

if TYPE_CHECKING:
    from joulewise.engines.transformers.drafts import Draft
    from joulewise.engines.transformers.loading import Loaded
    from joulewise.engines.transformers.rounds import Proposal


class TransformersEngine:
    """One target model, its drafts, and Transformers' own loops. See ``Engine`` for the methods' contract."""

    def __init__(self, spec: TransformersSpec) -> None:
        require_packages(spec.quantisation, f"quantisation: {spec.quantisation}")
        require_packages(spec.draft_quantisation, f"draft_quantisation: {spec.draft_quantisation}")
        self._spec = spec
        self._target: Loaded | None = None
        self._drafts: dict[str, Draft] = {}

    def refuses(self, decoding: Decoding) -> str | None:
        """Why this engine cannot do ``decoding``; None if it can, as far as can be told before loading."""
        if not isinstance(decoding, Vanilla | CoGA | DyGA | PromptLookup):
            return f"Transformers' own loop has no {decoding.kind}: the engine `native` has"
        if decoding.synthetic is not None:
            return "Transformers' own loop accepts by merit alone: synthetic_acceptance needs the engine `native`"
        if reason := draft_fault(self._spec, decoding):
            return reason
        if not isinstance(decoding, Vanilla) and self._target is not None and self._target.model._is_stateful:
            return f"{self._spec.model} keeps a state that cannot be rolled back, as {decoding.label} would need"
        if isinstance(decoding, PromptLookup) and self._encoder_decoder():
            return (
                "prompt lookup looks for drafts in the decoder's tokens alone, and an encoder-decoder such as "
                f"{self._spec.model} has its prompt in the encoder, so nothing of it would be looked up"
            )
        return None

    def load(self, decodings: Sequence[Decoding]) -> EngineInfo:
        """Load the target and every draft that ``decodings`` need, each once."""

        from joulewise.engines.transformers.drafts import open_draft
        from joulewise.engines.transformers.loading import load

        spec = self._spec
        self._target = target = load(spec.model, spec.revision, spec.dtype, spec.device, spec.quantisation)
        drafts = {}
        for decoding in decodings:
            if reason := self.refuses(decoding):
                raise UserError(f"{reason[0].upper()}{reason[1:]}.")
            name = draft_name(self._spec, decoding)
            if name is None:
                continue
            if name not in self._drafts:
                self._drafts[name] = open_draft(name, target, spec.draft_quantisation)
            drafts[decoding.label] = self._drafts[name].note
        others = [draft.loaded for draft in self._drafts.values()]
        attention = f"attention: {target.model.config._attn_implementation}"
        return engine_info(spec, target, others, drafts, (attention,))

    def generate(self, request: Request, decoding: Decoding) -> Generation:
        """Generate by one call of ``model.generate``; see ``Engine.generate``."""
        return self._generate(request, decoding)[0]

    def _generate(self, request: Request, decoding: Decoding) -> tuple[Generation, list[Proposal]]:
        """The generation and what each round of it proposed."""
        import torch

        from joulewise.engines.phases import Stopwatch
        from joulewise.engines.transformers.calls import forwards_watched, generation_config, seeded, set_draft
        from joulewise.engines.transformers.loading import out_of_memory, quiet
        from joulewise.engines.transformers.prompts import encode, require_context, thinking_open
        from joulewise.engines.transformers.rounds import count_rounds, recorded

        start_s = time.monotonic()
        target, draft = self._ready(decoding)
        if draft is not None and not draft.same_tokenizer and not request.sampling.greedy:
            raise UserError(
                f"{decoding.label} cannot sample with the draft {draft.loaded.name}, which has another tokenizer: the "
                "library would rewrite its head for good. Set temperature: 0, or take a draft of the target's family."
            )
        prompt = encode(target, request.messages, request.thinking)
        with quiet():  # decoding for a draft's tokenizer warns of clean-up that it leaves out
            require_context(target, draft, prompt, request.max_new_tokens)
        if draft is not None:
            set_draft(draft.loaded, decoding)
        # Validation in the library wants the tokenizers where the models' rows differ, and only there.
        arguments: dict[str, Any] = {}
        if draft is not None:
            arguments["assistant_model"] = draft.loaded.model
            if draft.loaded.vocabulary_rows != target.vocabulary_rows:
                arguments |= {"tokenizer": target.tokenizer, "assistant_tokenizer": draft.loaded.tokenizer}
        watch = Stopwatch(target.model.device)
        try:
            with (
                quiet(),
                seeded(request),
                forwards_watched(target.model, self._synchronize, watch) as first_token,
                recorded(target.model, target.tokenizer, draft, watch) as proposals,
            ):
                ids = prompt.to(target.model.device)
                made = target.model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    generation_config=generation_config(target, request, decoding),
                    return_dict_in_generate=True,
                    output_logits=request.log_probability,
                    **arguments,
                )
                sequence = made.sequences[0].tolist()
        except torch.OutOfMemoryError as error:
            what = (
                f"{prompt.shape[1]} prompt and {request.max_new_tokens} new tokens of {target.name} ({decoding.label})"
            )
            raise out_of_memory(what, str(target.model.device)) from error
        watch.mark("host")
        self._synchronize()
        end_s = time.monotonic()

        rounds = count_rounds(proposals, sequence)
        new = sequence[1 if target.encoder_decoder else prompt.shape[1] :]
        ends = () if request.ignore_eos else target.eos_token_ids
        length = next((i + 1 for i, token in enumerate(new) if token in ends), len(new))
        produced = sum(r.accepted + 1 for r in rounds) if rounds else len(new)
        with quiet():
            text = target.tokenizer.decode(new[:length], skip_special_tokens=True)
        generation = Generation(
            text=text,
            token_ids=tuple(new[:length]),
            prompt_tokens=prompt.shape[1],
            finish_reason="eos" if new and new[length - 1] in ends else "length",
            start_s=start_s,
            end_s=end_s,
            first_token_s=first_token[0] if first_token else None,
            wasted_tokens=produced - length,
            rounds=rounds,
            phases_s=watch.seconds(within_s=end_s - start_s),
            log_probability=_log_probability(made.logits, new[:length]) if request.log_probability else None,
            thinking_open=thinking_open(target, prompt),
            cuts=_cuts(target, request.cuts, new[:length], first_token if isinstance(decoding, Vanilla) else ()),
        )
        return generation, proposals

    def compare(self, request: Request, continuations: Sequence[str]) -> Generation:
        """The most likely of ``continuations``; see ``ComparingEngine.compare``."""
        import torch

        from joulewise.engines.transformers.likelihood import Compared, choose, compared
        from joulewise.engines.transformers.loading import out_of_memory, quiet
        from joulewise.engines.transformers.prompts import require_context

        start_s = time.monotonic()
        target, _ = self._ready(Vanilla())
        given = compared(target, request.messages, continuations, request.thinking)
        require_context(target, None, given.prompt, max(map(len, given.tails)))

        def logits_of(given: Compared) -> Any:
            rows = given.rows.to(target.model.device)
            if target.encoder_decoder:
                prompts = given.prompt.to(rows.device).expand(len(rows), -1)
                return target.model(input_ids=prompts, decoder_input_ids=rows, use_cache=False).logits
            places = rows.shape[1] - given.start + 1
            return target.model(input_ids=rows, use_cache=False, logits_to_keep=places).logits[:, -places:]

        try:
            with quiet():
                return choose(given, continuations, logits_of, start_s, self._synchronize)
        except torch.OutOfMemoryError as error:
            what = f"{given.rows.numel()} tokens of {target.name} (comparing answers)"
            raise out_of_memory(what, str(target.model.device)) from error

    def refuses_together(self, decoding: Decoding, greedy: bool) -> str | None:
        """Why several texts at once cannot be decoded so: vanilla alone can."""
        if isinstance(decoding, Vanilla):
            return None
        return f"Transformers' own loop cannot draft for several texts at once, as {decoding.label} would need"

    def generate_together(self, requests: Sequence[Request], decoding: Decoding) -> tuple[Generation, ...]:
        """Generate by one call of ``model.generate``; see ``Together``. A prompt that all share is read for each."""
        import torch
        from transformers import LogitsProcessorList

        from joulewise.engines.phases import Stopwatch
        from joulewise.engines.transformers.calls import forwards_watched, generation_config
        from joulewise.engines.transformers.loading import out_of_memory, quiet
        from joulewise.engines.transformers.prompts import encode, require_context, thinking_open
        from joulewise.engines.transformers.sampled import Drawn, padded

        if not requests:
            return ()
        require_one_rule(requests)
        greedy = requests[0].sampling.greedy
        if reason := self.refuses_together(decoding, greedy):
            raise UserError(f"{reason}.")
        start_s = time.monotonic()
        target, _ = self._ready(decoding)
        device = target.model.device
        prompts = [encode(target, request.messages, request.thinking) for request in requests]
        limits = [request.max_new_tokens for request in requests]
        for prompt, limit in zip(prompts, limits, strict=True):
            require_context(target, None, prompt, limit)
        longest = replace(requests[0], max_new_tokens=max(limits), sampling=Sampling())
        drawn = None if greedy else Drawn(requests, device)
        ids, mask = padded(target, prompts)
        require_context(target, None, ids, longest.max_new_tokens)
        try:
            with quiet(), forwards_watched(target.model, self._synchronize, Stopwatch(device)) as first_token:
                sequences = target.model.generate(
                    ids.to(device),
                    attention_mask=mask.to(device),
                    generation_config=generation_config(target, longest, decoding),
                    logits_processor=LogitsProcessorList([] if drawn is None else [drawn]),
                ).tolist()
        except torch.OutOfMemoryError as error:
            raise out_of_memory(f"{len(requests)} texts of {target.name}", str(device)) from error
        self._synchronize()
        end_s = time.monotonic()
        ends = () if requests[0].ignore_eos else target.eos_token_ids
        made = []
        for row, (request, prompt, sequence) in enumerate(zip(requests, prompts, sequences, strict=True)):
            new = sequence[1 if target.encoder_decoder else ids.shape[1] :][: request.max_new_tokens]
            new = new[: next((i + 1 for i, token in enumerate(new) if token in ends), len(new))]
            with quiet():
                text = target.tokenizer.decode(new, skip_special_tokens=True)
            made.append(
                Generation(
                    text=text,
                    token_ids=tuple(new),
                    prompt_tokens=prompt.shape[1],
                    finish_reason="eos" if new and new[-1] in ends else "length",
                    start_s=start_s,
                    end_s=end_s,
                    first_token_s=first_token[0] if first_token else None,
                    log_probability=drawn.log_probability(row, len(new)) if drawn is not None else None,
                    thinking_open=thinking_open(target, prompt),
                    cuts=_cuts(target, request.cuts, new, first_token),
                )
            )
        return tuple(made)

    def check_lossless(
        self, request: Request, decoding: Decoding, reference: Sequence[int], output: Sequence[int]
    ) -> LosslessCheck:
        """Compare ``output`` with vanilla's; at a first difference, look at the target's own near-ties there."""
        from joulewise.engines.transformers.check import Step, explain_difference, verdict_at_sight
        from joulewise.engines.transformers.prompts import encode

        if verdict := verdict_at_sight(request, decoding, reference, output):
            return verdict
        target, _ = self._ready(Vanilla())
        width = decoding.tokens + 1 if isinstance(decoding, CoGA | DyGA | PromptLookup) else 1
        again, proposals = self._generate(request, decoding)
        drafts = [proposal.draft.tolist() for proposal in proposals] if again.token_ids == tuple(output) else []
        rounds = [Step(draft, r.accepted) for draft, r in zip(drafts, again.rounds, strict=False)]
        prompt = encode(target, request.messages, request.thinking)
        return explain_difference(target, prompt, reference, output, [width], rounds)

    def close(self) -> None:
        """Free the device memory. Idempotent."""
        if self._target is None:
            return
        import torch

        self._target = None
        self._drafts = {}
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _encoder_decoder(self) -> bool:
        if self._target is not None:
            return self._target.encoder_decoder
        return _states_encoder_decoder(self._spec.model, self._spec.revision)

    def _ready(self, decoding: Decoding) -> tuple[Loaded, Draft | None]:
        """The target and the draft for ``decoding``."""
        name = draft_name(self._spec, decoding)
        if self._target is None or (name is not None and name not in self._drafts):
            raise RuntimeError(f"load() was not called for {decoding.label}")
        if reason := self.refuses(decoding):
            raise UserError(f"{reason[0].upper()}{reason[1:]}.")
        return self._target, self._drafts[name] if name is not None else None

    def _synchronize(self) -> None:
        """Wait until every device that holds weights is done."""
        if self._target is None:
            return
        import torch

        for device in {p.device for p in self._target.model.parameters() if p.device.type == "cuda"}:
            torch.cuda.synchronize(device)


def _cuts(target: Loaded, cuts: Sequence[int], tokens: Sequence[int], times_s: Sequence[float]) -> tuple[Cut, ...]:
    """As in ``Generation``.

    Args:
        target: whose tokens.
        cuts: as in ``Request``.
        tokens: the output.
        times_s: when the first token was there, and when each further forward began; empty where a forward may give
            several tokens.
    """
    decode = target.tokenizer.decode
    return tuple(
        Cut(k, decode(tokens[:k], skip_special_tokens=True), times_s[k] if k < len(times_s) else None)
        for k in cuts
        if k < len(tokens)
    )


def _log_probability(logits: Sequence[Any], tokens: Sequence[int]) -> float:
    """Of an output, by the logits of each of its steps, shape ``(1, rows)``."""
    import torch

    each = [step[0].float().log_softmax(dim=-1)[token] for step, token in zip(logits, tokens, strict=False)]
    return float(torch.stack(each).sum())


def _states_encoder_decoder(model: str, revision: str | None) -> bool:
    """Whether the files at hand say that ``model`` is an encoder-decoder; loads no model and asks no hub."""
    file: object = Path(model) / "config.json"
    if not Path(model).is_dir():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            file = try_to_load_from_cache(model, "config.json", revision=revision)
        except HFValidationError:
            return False
    if not isinstance(file, str | Path) or not Path(file).is_file():
        return False
    config = json.loads(Path(file).read_text(encoding="utf-8"))
    return bool(config.get("is_encoder_decoder", False))

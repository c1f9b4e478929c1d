"""Exact counts of what was drafted and what was accepted, round by round.

Transformers reports neither. All its strategies propose through one method of a candidate generator,
``get_candidates(sequence so far) -> sequence with the draft``, once a round; what a round emitted is what the sequence
has grown by at the next. Recording the proposals and comparing them with the finished output afterwards gives the
counts without a step of the loop waiting for them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from joulewise.engines.engine import Round
from joulewise.engines.phases import Stopwatch
from joulewise.engines.transformers.drafts import Draft


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one round began with.

    Args:
        start: length of the sequence (prompt and output so far).
        draft: the drafted token ids, shape ``(drafted,)``, on the device.
    """

    start: int
    draft: Any


@contextmanager
def recorded(target: Any, target_tokenizer: Any, draft: Draft | None, watch: Stopwatch) -> Iterator[list[Proposal]]:
    """Record the proposals of the ``generate`` call in the body, and set right what its arguments cannot.

    - Which tokenizers take part is decided here. The library goes by the number of rows of the two models, which
      padding makes differ within a family and chance makes agree between families.
    - The adaptive confidence threshold is off. It would depend on whether scikit-learn is installed.
    - An encoder-decoder draft gets a mask for its decoder. By its length the library tells which tokens are new to the
      draft; without one it feeds the whole sequence again, behind what the cache holds already, and nothing after the
      first round is any good.
    - A draft with fewer rows than the target (whose vocabulary is padded further) is shown no id beyond them.
    - A draft leaves room for the bonus token within the length limit, so that the target accepts nothing that has to be
      thrown away there. Prompt lookup and drafts of another tokenizer do not see to that themselves.
    """
    proposals: list[Proposal] = []

    def build(**arguments: Any) -> Any:
        translate = draft is not None and not draft.same_tokenizer
        arguments["target_tokenizer"] = target_tokenizer if translate else None
        arguments["assistant_tokenizer"] = draft.loaded.tokenizer if draft is not None and translate else None
        generator = type(target)._get_candidate_generator(target, **arguments)
        if draft is not None:
            # The copy that stops a draft early keeps the threshold; only the rule that adapts it reads this one.
            generator.assistant_generation_config.assistant_confidence_threshold = 0.0
            if target.config.is_encoder_decoder:
                ones = torch.ones_like(arguments["input_ids"], device=draft.loaded.model.device)
                generator.assistant_kwargs["decoder_attention_mask"] = ones
        longest = arguments["generation_config"].max_length - 1
        rows = draft_rows = target.config.get_text_config(decoder=True).vocab_size
        if draft is not None and draft.same_tokenizer:
            draft_rows = draft.loaded.vocabulary_rows  # never more: see _drop_padding
        propose = type(generator).get_candidates
        # A strong reference would close a cycle that holds the draft's cache until the garbage collector comes.
        itself = weakref.ref(generator)

        def get_candidates(input_ids: Any, **others: Any) -> tuple[Any, Any]:
            watch.mark("host")
            start = input_ids.shape[1]
            known = input_ids.clamp(max=draft_rows - 1) if draft_rows < rows else input_ids
            candidates, logits = propose(itself(), known, **others)
            tokens = candidates[:, start : max(longest, start)].to(input_ids.device)
            proposals.append(Proposal(start, tokens[0]))
            if logits is not None and draft_rows < rows:
                logits = torch.nn.functional.pad(logits, (0, rows - draft_rows), value=-torch.inf)
            watch.mark("draft")
            return torch.cat((input_ids, tokens), dim=1), logits

        generator.get_candidates = get_candidates
        return generator

    target._get_candidate_generator = build
    try:
        yield proposals
    finally:
        del target._get_candidate_generator


def count_rounds(proposals: Sequence[Proposal], sequence: Sequence[int]) -> tuple[Round, ...]:
    """The rounds of a finished generation.

    A draft token counts as accepted where it entered the sequence. Each round emits its accepted tokens and one more,
    the target's own; only where the sequence ends with an accepted end-of-sequence token is that one thrown away.

    Args:
        proposals: in order.
        sequence: prompt and output, as the library returned it.
    """
    ends = [*(p.start for p in proposals[1:]), len(sequence)]
    return tuple(_round(p, sequence[p.start : end]) for p, end in zip(proposals, ends, strict=False))


def _round(proposal: Proposal, emitted: Sequence[int]) -> Round:
    draft: list[int] = proposal.draft.tolist()
    pairs = zip(draft, emitted, strict=False)
    accepted = next((i for i, (d, e) in enumerate(pairs) if d != e), min(len(draft), len(emitted)))
    return Round(len(draft), accepted)

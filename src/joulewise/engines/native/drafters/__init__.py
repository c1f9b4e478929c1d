"""Drafters: how each strategy proposes. One file each, and one line in the registry.

Light: a drafter's file, and torch with it, is loaded when the drafter is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from joulewise.decoding import CoGA, DyGA, Eagle2, Eagle3, Medusa, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding

if TYPE_CHECKING:
    from joulewise.engines.native.accept import Chooser
    from joulewise.engines.native.draft import Drafter
    from joulewise.engines.native.model import DecoderModel
    from joulewise.engines.native.together import Chains


@dataclass(frozen=True, slots=True)
class Parts:
    """What a drafter may be made of.

    Args:
        target: the model that verifies.
        draft: the draft model, where the decoding needs one.
        head: the head on the target, where the decoding needs one.
        chooser: how tokens are drawn.
        ends: the tokens that end an output.
    """

    target: DecoderModel
    draft: DecoderModel | None
    head: Any
    chooser: Chooser
    ends: Collection[int]

    @property
    def draft_model(self) -> DecoderModel:
        """The draft model of a decoding that needs one."""
        assert self.draft is not None
        return self.draft

    @property
    def rows(self) -> int:
        """Of the target's logits."""
        return self.target.loaded.vocabulary_rows


def _plain(_decoding: Vanilla, _parts: Parts) -> Drafter:
    from joulewise.engines.native.drafters.plain import Plain

    return Plain()


def _dyga(decoding: DyGA, parts: Parts) -> Drafter:
    from joulewise.engines.native.drafters.draft_model import Confidence, Constant, Heuristic, ModelDrafter

    length: Constant = Confidence(decoding.tokens, decoding.threshold)
    if decoding.rule == "heuristic":
        length = Heuristic(decoding.tokens)
    return ModelDrafter(parts.draft_model, length, parts.chooser, parts.rows)


def _coga(decoding: CoGA, parts: Parts) -> Drafter:
    from joulewise.engines.native.drafters.draft_model import Constant, ModelDrafter

    return ModelDrafter(parts.draft_model, Constant(decoding.tokens), parts.chooser, parts.rows)


def _prompt_lookup(decoding: PromptLookup, parts: Parts) -> Drafter:
    from joulewise.engines.native.drafters.prompt_lookup import PromptLookupDrafter

    return PromptLookupDrafter(decoding.tokens, decoding.max_ngram, parts.ends)


def _medusa(decoding: Medusa, parts: Parts) -> Drafter:
    from joulewise.engines.native.drafters.medusa import MedusaDrafter

    return MedusaDrafter(parts.head, decoding.tree)


def _eagle(decoding: Eagle2 | Eagle3, parts: Parts) -> Drafter:
    from joulewise.engines.native.drafters.eagle import EagleDrafter

    by_lot = decoding.synthetic is not None
    return EagleDrafter(parts.head, decoding.nodes, decoding.depth, decoding.top_k, whole=by_lot)


DRAFTERS: dict[type[Decoding], Callable[[Any, Parts], Drafter]] = {
    Vanilla: _plain,
    CoGA: _coga,
    DyGA: _dyga,
    PromptLookup: _prompt_lookup,
    Medusa: _medusa,
    Eagle2: _eagle,
    Eagle3: _eagle,
}
"""The registry: a decoding -> what makes its drafter. A new drafter is one file and one line here."""


def _no_chains(_decoding: Vanilla, _parts: Parts) -> Chains:
    from joulewise.engines.native.drafters.chains import NoChains

    return NoChains()


def _model_chains(decoding: CoGA | DyGA, parts: Parts) -> Chains:
    from joulewise.engines.native.drafters.chains import ModelChains
    from joulewise.engines.native.drafters.draft_model import Constant, Heuristic

    kind = Constant if isinstance(decoding, CoGA) else Heuristic
    return ModelChains(parts.draft_model, partial(kind, decoding.tokens), parts.rows)


def _lookup_chains(decoding: PromptLookup, parts: Parts) -> Chains:
    from joulewise.engines.native.drafters.chains import LookupChains

    return LookupChains(decoding.tokens, decoding.max_ngram, parts.ends)


CHAINS: dict[type[Decoding], Callable[[Any, Parts], Chains]] = {
    Vanilla: _no_chains,
    CoGA: _model_chains,
    DyGA: _model_chains,
    PromptLookup: _lookup_chains,
}
"""What can be decoded for several texts at once. DyGA by confidence cannot: it waits for every token of every text."""


def runs_ahead(decoding: Decoding, parts: Parts) -> bool:
    """Whether one text is best decoded as a batch of one (``together.py``): its rounds then run ahead of the host.

    So it is on a GPU, greedily, where drafts have a constant length and all models run on our own kernels.
    """
    models = [parts.target, *([parts.draft] if parts.draft is not None else [])]
    able = type(decoding) in (Vanilla, CoGA) and parts.chooser.greedy
    return able and all(model.device.type == "cuda" and model.sights for model in models)


def make_drafter(decoding: Decoding, parts: Parts) -> Drafter:
    """The drafter of a decoding, fresh: nothing of an earlier prompt is in it."""
    return DRAFTERS[type(decoding)](decoding, parts)

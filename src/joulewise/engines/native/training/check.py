"""The acceptance of a head or draft on prompts, through the engine's own loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from joulewise.decoding import CoGA, Eagle2, Eagle3, Medusa, PromptLookup
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import Round, Sampling
from joulewise.engines.native.accept import Chooser, match
from joulewise.engines.native.checkpoints import open_checkpoint
from joulewise.engines.native.drafters import Parts, make_drafter
from joulewise.engines.native.heads import Head, open_head, taps_of
from joulewise.engines.native.loop import decode
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.training.students import Kind
from joulewise.engines.transformers.drafts import FIRST_LAYERS, open_draft, shares_embeddings
from joulewise.engines.transformers.loading import Loaded, quiet
from joulewise.errors import UserError

GATE = 1.3
"""A head or draft of its target keeps more than so many tokens a round; below it, something does not fit."""

REPEATED = 0.1
"""An output with less of its 8-grams repeated counts as free of repetition."""

_GRAM = 8


@dataclass(frozen=True, slots=True)
class Fared:
    """How a decoding did on some outputs.

    Args:
        outputs, tokens, rounds: how many.
        length: mean acceptance length, tokens a round with the target's own one; None without rounds.
        per_position: share of rounds in which the first, second, ... drafted token was accepted.
        by_output: rounds, and draft tokens accepted in them, of each output.
    """

    outputs: int
    tokens: int
    rounds: int
    length: float | None
    per_position: tuple[float, ...]
    by_output: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """One decoding's acceptance.

    Args:
        label: the decoding's.
        everything: over all outputs.
        unrepetitive: over those with less than 10 % repeated 8-grams.
    """

    label: str
    everything: Fared
    unrepetitive: Fared


def kind_of(name: str) -> Kind:
    """Whether ``name`` is a head, and of which kind, or else a draft model: told by what a folder holds.

    Raises:
        UserError: it is neither.
    """
    if name.startswith(FIRST_LAYERS) or shares_embeddings(name) or (Path(name) / "tokenizer_config.json").is_file():
        return "draft"
    return open_checkpoint(name).family


def decodings_of(kind: Kind) -> tuple[Decoding, ...]:
    """What a head or draft is checked with: the published shape first, and a chain for EAGLE; prompt lookup beside."""
    own: dict[Kind, tuple[Decoding, ...]] = {
        "draft": (CoGA(tokens=5),),
        "medusa": (Medusa(),),
        "eagle2": (Eagle2(), Eagle2(top_k=1, nodes=6, depth=4)),
        "eagle3": (Eagle3(), Eagle3(top_k=1, nodes=6, depth=4)),
    }
    return (*own[kind], PromptLookup())


def check(
    name: str,
    kind: Kind,
    loaded: Loaded,
    prompts: Sequence[Tensor],
    limit: int,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Checked, ...]:
    """Decode prompts greedily and count what is accepted. The first result is the one that the gate is for.

    Args:
        name: of the head or draft.
        kind: which it is.
        loaded: the target; its attention is replaced for good.
        prompts: token ids, shape ``(P,)`` each.
        limit: output tokens of each.
        say: told of the progress.

    Raises:
        UserError: a head or draft that is not this target's.
    """
    layers = int(loaded.model.config.get_text_config(decoder=True).num_hidden_layers)
    target = DecoderModel(loaded, () if kind == "draft" else taps_of(name, layers))
    head: Head | None = None
    draft: DecoderModel | None = None
    if kind == "draft":
        opened = open_draft(name, loaded)
        if not opened.same_tokenizer:
            raise UserError(f"The draft {name} has another tokenizer than {loaded.name}: name a draft of its family.")
        draft = DecoderModel(opened.loaded)
    else:
        head = open_head(name, target, kind)
    chooser = Chooser.of(Sampling(), 0, target.device)
    ends = loaded.eos_token_ids
    checked = []
    for decoding in decodings_of(kind):
        outputs: list[tuple[tuple[int, ...], tuple[Round, ...]]] = []
        start_s = time.monotonic()
        for prompt in prompts:
            with quiet(), torch.inference_mode():
                drafter = make_drafter(decoding, Parts(target, draft, head, chooser, ends))
                decoded = decode(target, drafter, prompt.to(target.device), limit, ends, match, chooser)
            outputs.append((decoded.tokens, decoded.rounds))
        unrepetitive = [output for output in outputs if repeated_share(output[0]) < REPEATED]
        checked.append(Checked(decoding.label, _fared(outputs), _fared(unrepetitive)))
        say(f"{decoding.label}: {len(outputs)} outputs in {time.monotonic() - start_s:.0f} s")
    return tuple(checked)


def repeated_share(tokens: Sequence[int]) -> float:
    """Share of an output's 8-grams that stood in it before."""
    grams = [tuple(tokens[i : i + _GRAM]) for i in range(len(tokens) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def gate(checked: Sequence[Checked]) -> str | None:
    """Why the acceptance is too low to be that of a head of this target; None if it is not."""
    first = checked[0]
    if first.everything.length is None:
        return f"{first.label} had no rounds: every output ended with its first token; give other prompts"
    if first.everything.length > GATE:
        return None
    return (
        f"{first.label} keeps {first.everything.length:.2f} tokens a round, and a head of its own target more than "
        f"{GATE}: it was made for another model or chat template, reads other layers, or was hardly trained"
    )


def _fared(outputs: Sequence[tuple[tuple[int, ...], tuple[Round, ...]]]) -> Fared:
    rounds = [round_ for _, its in outputs for round_ in its]
    deepest = max((r.accepted for r in rounds), default=0)
    shares = tuple(sum(r.accepted >= i for r in rounds) / len(rounds) for i in range(1, deepest + 1))
    tokens = sum(len(tokens) for tokens, _ in outputs)
    by_output = tuple((len(its), sum(r.accepted for r in its)) for _, its in outputs)
    return Fared(len(outputs), tokens, len(rounds), 1 + sum(shares) if rounds else None, shares, by_output)

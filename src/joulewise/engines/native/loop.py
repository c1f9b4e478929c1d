"""The decoding loop: one round is one draft, one forward of the target over all its nodes, one walk, one wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from joulewise.engines.engine import FinishReason, Round
from joulewise.engines.native.accept import Chooser, Lot, Rule, match
from joulewise.engines.native.ahead import Told
from joulewise.engines.native.draft import Draft, Drafter, Foresees, Kept
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import Judging, Session, open_session
from joulewise.engines.native.tree import path
from joulewise.engines.phases import Stopwatch


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the loop made of one prompt.

    Args:
        tokens: the output, the end token included where it was produced.
        rounds: one for each forward of the target after the prompt's; drafted 0 where there was no draft.
        wasted_tokens: accepted or drawn past the end of the output.
        finish_reason: ``eos`` or ``length``.
        first_token_s: when the first token was there, monotonic seconds.
        phases_s: seconds by phase.
        log_probability: of the tokens, under the target; None where it was not asked for.
        seen: how many tokens there were after each round, and when the host saw them, monotonic seconds.
    """

    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]
    wasted_tokens: int
    finish_reason: FinishReason
    first_token_s: float
    phases_s: dict[str, float]
    log_probability: float | None = None
    seen: tuple[tuple[int, float], ...] = ()


def decode(
    model: DecoderModel,
    drafter: Drafter,
    prompt: Tensor,
    limit: int,
    ends: Collection[int],
    accept: Rule,
    chooser: Chooser,
    witness: Callable[[Draft, list[int]], None] | None = None,
    rated: bool = False,
) -> Decoded:
    """Generate from one prompt.

    Args:
        model: the target.
        drafter: the strategy.
        prompt: token ids on the model's device, shape ``(P,)``.
        limit: the most output tokens, at least 1.
        ends: the tokens that end an output; none to go on to the limit.
        accept: what of a draft enters the output.
        chooser: how a token is drawn.
        witness: told every draft and its accepted nodes.
        rated: whether the output's log-probability is asked for.
    """
    watch = Stopwatch(model.device)
    capacity = len(prompt) + limit + drafter.most_nodes + 1
    session = open_session(model, capacity)
    watch.mark("memory")
    hidden = session.prefill(prompt)
    logits = model.logits(hidden[-1:])
    root = chooser.draw(logits)
    likely = [log_probabilities(logits, root)] if rated else []
    output = root.tolist()
    first_token_s = time.monotonic()
    watch.mark("prefill")
    if limit > 1 and output[0] not in ends:
        drafter.reset(prompt, hidden, root, capacity)
        watch.mark("draft_prefill")

    rounds: list[Round] = []
    times = [(1, first_token_s)]
    length = len(prompt)
    wasted = 0
    while len(output) < limit and output[-1] not in ends:
        foreseen = False
        draft = drafter.propose(limit - len(output) - 1)
        watch.mark("draft")

        tree = draft.tree
        nodes = torch.cat((root, draft.tokens))
        hidden, logits, judged = session.forward(nodes, length, tree, _judging(session, accept, chooser))
        watch.mark("verify")

        if judged is not None:
            way, root = judged.way, judged.told[-1:]
            told = Told(judged.told, judged.host)  # goes to the host before more work is queued
            # The device goes on while the host reads; at the text's end for nothing.
            foreseen = witness is None and isinstance(drafter, Foresees) and drafter.foresee(judged, hidden)
            watch.mark("draft")
        else:
            last, root = accept(draft, logits, chooser)
            way = path(tree, last)
            told = Told(torch.cat((tree.depths[last], nodes[way[1:]], root)), None)
        accepted, *tokens = told.read()  # the round's one wait
        watch.mark("accept")

        if judged is None and not tree.chain:
            session.cache.move(length + way, length)
        watch.mark("memory")

        emitted = tokens[:accepted] + tokens[-1:]
        kept = until_the_end(emitted, limit - len(output), ends)
        output += emitted[:kept]
        times.append((len(output), time.monotonic()))
        if rated:
            likely.append(log_probabilities(logits[way[:kept]], torch.tensor(emitted[:kept], device=model.device)))
        wasted += len(emitted) - kept
        rounds.append(Round(len(draft.tokens), min(accepted, kept)))
        if witness is not None:
            witness(draft, way[1 : accepted + 1].tolist())
        watch.mark("host")

        if drafter.most_nodes and not foreseen and len(output) < limit and output[-1] not in ends:
            # A chain's accepted nodes are its first ones: to slice moves nothing.
            seen = slice(accepted + 1) if tree.chain else way[: accepted + 1]
            drafter.observe(Kept(torch.cat((nodes[seen][1:], root)), emitted, hidden[seen], length))
            watch.mark("draft")
        length += accepted + 1

    finish: FinishReason = "eos" if output[-1] in ends else "length"
    log_probability = float(torch.cat(likely).sum()) if rated else None
    phases_s = watch.seconds()
    return Decoded(tuple(output), tuple(rounds), wasted, finish, first_token_s, phases_s, log_probability, tuple(times))


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of each token by its row of ``logits``, shape ``(W, rows)``, at a temperature of 1; float32, shape ``(W,)``."""
    return logits.float().log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0]


def _judging(session: Session, accept: Rule, chooser: Chooser) -> Judging | None:
    """How the target's forward itself can judge by a rule; None where it judges nothing anyway."""
    if not session.judges:
        return None
    if chooser.greedy and isinstance(accept, Lot):
        return Judging(depth=accept.depth())
    return Judging(match=chooser.greedy and accept is match)


def until_the_end(tokens: list[int], room: int, ends: Collection[int]) -> int:
    """How many of ``tokens`` enter the output: up to the first end token, and no more than ``room``."""
    first = next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))
    return min(first, room)

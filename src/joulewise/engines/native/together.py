"""Several texts decoded side by side, vanilla or by chains, greedily: one forward of the target serves them all.

Each text has its own length: a forward writes row by row, and a round that accepted less of one text than of another
rolls that text back further. A text that is done stays in the batch, counted no more, until all are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from joulewise.engines.engine import Round
from joulewise.engines.native.accept import Lot
from joulewise.engines.native.ahead import Ahead, Blind, Told
from joulewise.engines.native.attention import Sight
from joulewise.engines.native.loop import Decoded, until_the_end
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.recorded import Recorded
from joulewise.engines.native.session import (
    BUCKET,
    ROOM,
    Capture,
    cuda_graph,
    fill_up,
    lasting_cuda_graph,
    prompt_width,
)
from joulewise.engines.phases import Stopwatch


class Chains(Protocol):
    """Drafts for several texts at once. Like a ``Drafter``, on the host's side of what was kept."""

    most: int
    """The most tokens of a draft."""

    @property
    def blind(self) -> Blind | None:
        """How to draft ``most`` tokens without the host, once begun; None: it must know the texts."""
        ...

    def reset(self, prompts: Sequence[Tensor], capacity: int) -> None:
        """Begin with these prompts, each of shape ``(P,)``."""
        ...

    def propose(self, texts: Sequence[Sequence[int]], rooms: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Draft for each text, prompt and output so far, at most ``rooms`` tokens.

        Returns:
            Tokens, shape ``(texts, K)``, and how many of each row count.
        """
        ...

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Take in how each text's draft fared; a text that is done has drafted none."""
        ...


class Rows:
    """A cache for several texts of a model. What runs on it is captured once for each shape where there is a GPU.

    Args:
        model: the model.
        texts: how many.
        capacity: tokens of each.
        capture: how; None: as CUDA graphs on a GPU, elsewhere not at all.
    """

    def __init__(self, model: DecoderModel, texts: int, capacity: int, capture: Capture | None) -> None:
        self.model, self.texts = model, texts
        self.cache = model.new_cache(-(-capacity // BUCKET) * BUCKET, texts)
        self._capture = capture or (lasting_cuda_graph if model.device.type == "cuda" else None)
        self._made: dict[Any, Recorded[Tensor]] = {}
        self._ahead: dict[tuple[int, DecoderModel | None], Ahead] = {}

    def ahead(self, chains: Chains) -> Ahead | None:
        """What runs rounds ahead of the host, if these chains can and it pays: where rounds are captured."""
        blind = chains.blind
        if self._capture is None or blind is None:
            return None
        key = chains.most, None if blind.rows is None else blind.rows.model
        kept = self._ahead.get(key)
        if kept is None or kept.blind.rows is not blind.rows:  # for longer texts a draft model has new rows
            kept = self._ahead[key] = Ahead(self, blind, chains.most, partial(_judged, self))
        return kept

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture work that leaves nothing in the memory which captured work shares."""
        assert self._capture is not None
        return (cuda_graph if self._capture is lasting_cuda_graph else self._capture)(run)

    def prefill(self, prompts: Sequence[Tensor]) -> Tensor:
        """Read prompts, each from slot 0 on; each one's last hidden state, shape ``(texts, H)``."""
        # What fills prompts up stands behind their ends, where no token sees it before it is written over.
        tokens = torch.nn.utils.rnn.pad_sequence(list(prompts), batch_first=True)
        tokens, positions = fill_up(tokens, self.prompt_width(tokens.shape[1]))
        cache = self.cache
        cache.slots, cache.span = torch.arange(tokens.shape[1], device=tokens.device), tokens.shape[1]
        hidden = self.model.read(tokens, cache, None, positions.expand(tokens.shape)).last
        lasts = torch.tensor([len(prompt) - 1 for prompt in prompts], device=tokens.device)
        return hidden[torch.arange(len(prompts), device=tokens.device), lasts]

    def prompt_width(self, tokens: int) -> int:
        """How many tokens are read for a prompt of so many: more where forwards have fixed shapes."""
        return tokens if self._capture is None else min(prompt_width(tokens), self.cache.capacity)

    def read(self, tokens: Tensor, before: Tensor, span: int) -> Tensor:
        """Read chains of tokens, shape ``(texts, W)``, each behind its own ``before`` tokens; hidden states."""
        width = tokens.shape[1]
        slots = before[:, None] + torch.arange(width, device=tokens.device)
        self.cache.slots, self.cache.span = slots, span
        if self.model.sights:
            chain = torch.ones(width, width, dtype=torch.bool, device=tokens.device).tril()
            return self.model.read(tokens, self.cache, Sight(before, chain), slots).last
        mask = torch.arange(span, device=tokens.device) <= slots[:, :, None]
        return self.model.read(tokens, self.cache, mask[:, None], slots).last

    def span(self, tokens: int) -> int:
        """How many slots a forward reads that reaches up to so many tokens."""
        return self.cache.capacity if self.model.sights else min(-(-tokens // BUCKET) * BUCKET, self.cache.capacity)

    def run(self, shape: Any, work: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """The result of ``work``, which all calls of this shape have in common; valid until the next of them."""
        if self._capture is None:
            return work(*inputs)
        if shape not in self._made:
            what = f"a forward of {self.model.loaded.name} for {self.texts} texts"
            self._made[shape] = Recorded(work, inputs, self._capture, what)
        return self._made[shape](*inputs)


def open_rows(model: DecoderModel, texts: int, capacity: int, capture: Capture | None = None) -> Rows:
    """Rows with room for so many tokens. On a GPU a model's are taken again, with what they captured."""
    kept = model.rows.get(texts > 1)
    if isinstance(kept, Rows) and kept.texts == texts and kept.cache.capacity >= capacity:
        return kept
    if model.device.type != "cuda":
        return Rows(model, texts, capacity, capture)
    rows = model.rows[texts > 1] = Rows(model, texts, max(capacity, ROOM), capture)
    return rows


def decode_together(
    model: DecoderModel,
    chains: Chains,
    prompts: Sequence[Tensor],
    limits: Sequence[int],
    ends: Collection[int],
    lot: Lot | None = None,
    capture: Capture | None = None,
    rows: Rows | None = None,
) -> tuple[Decoded, ...]:
    """Generate from several prompts at once, greedily; each text is what it would be alone.

    Args:
        model: the target.
        chains: the strategy.
        prompts: token ids on the model's device, each of shape ``(P,)``.
        limits: the most output tokens of each, at least 1.
        ends: the tokens that end an output.
        lot: accepts drafted tokens in place of the target.
        capture: how a round's forward is captured; None: as a CUDA graph on a GPU, elsewhere not at all.
        rows: with room for these texts; None: the model's, or new ones.

    Returns:
        One for each prompt; ``phases_s`` is of all of them together, the same in each.
    """
    watch = Stopwatch(model.device)
    capacity = max(len(p) + limit for p, limit in zip(prompts, limits, strict=True)) + chains.most + 2
    rows = rows or open_rows(model, len(prompts), capacity, capture)
    last = rows.prefill(prompts)
    roots: list[int] = model.head(last).argmax(dim=-1).tolist()
    first_token_s = time.monotonic()
    watch.mark("prefill")
    chains.reset(prompts, capacity)
    watch.mark("draft_prefill")

    texts = [[*prompt.tolist(), root] for prompt, root in zip(prompts, roots, strict=True)]
    starts = [len(prompt) for prompt in prompts]
    rounds: list[list[Round]] = [[] for _ in prompts]
    wasted = [0] * len(prompts)
    seen = [[(1, first_token_s)] for _ in prompts]

    def left(row: int) -> int:
        """Output tokens that are still to come; 0 for a text that is done."""
        return 0 if texts[row][-1] in ends else limits[row] - (len(texts[row]) - starts[row])

    def step(rooms: Sequence[int]) -> tuple[Told, list[int]]:
        """A round that begins with what the host knows."""
        drafted, counts = chains.propose(texts, rooms)
        watch.mark("draft")
        state = [(text[-1], len(text) - 1, count, -1) for text, count in zip(texts, counts, strict=True)]
        root, before, counted, forced = torch.tensor(state, device=model.device).unbind(dim=1)
        nodes = torch.cat((root[:, None], drafted), dim=1)
        if lot is not None:
            forced = lot.depths(len(texts))
        span = rows.span(max(map(len, texts)) + drafted.shape[1])
        told = Told(_round(rows, span, nodes, before, counted, forced), None)
        watch.mark("verify")
        return told, counts

    each = range(len(texts))
    width = chains.most + 1
    ahead = rows.ahead(chains)
    lots: list[Tensor] = []
    flight: deque[tuple[Told, list[int]]] = deque()  # rounds that the host has not read
    while flight or any(map(left, each)):
        rooms = [max(left(row) - 1, 0) for row in each]
        if ahead is None or (chains.most and not any(rooms) and not flight):
            flight.append(step(rooms))
        elif any(map(left, each)) and (
            not flight or min(left(row) for row in each if left(row)) >= (len(flight) + 1) * width
        ):
            counts = [min(chains.most, room) for room in rooms]
            if not flight:
                ahead.start(texts, counts)
            if lot is not None and not lots:
                lots = list(lot.depths(_LOTS * len(texts)).view(_LOTS, -1).unbind())
            span = rows.span(max(map(len, texts)) + (len(flight) + 1) * width)
            flight.append((ahead.run(span, lots.pop() if lots else None, watch.mark), counts))
            if len(flight) < 2:
                continue
        told, counts = flight.popleft()
        verdicts = told.read()  # the round's one wait
        if not flight:
            watch.mark("accept")
        accepted = [verdict[0] for verdict in verdicts]
        for row, (kept, *tokens) in enumerate(verdicts):
            if (room := left(row)) == 0:
                continue
            emitted = tokens[:kept] + tokens[-1:]
            taken = until_the_end(emitted, room, ends)
            texts[row] += emitted[:taken]
            wasted[row] += len(emitted) - taken
            seen[row].append((len(texts[row]) - starts[row], time.monotonic()))
            rounds[row].append(Round(counts[row], min(kept, taken)))
        chains.observe(counts, accepted)
        if not flight:
            watch.mark("host")

    phases_s = watch.seconds()
    return tuple(
        Decoded(
            tuple(text[start:]),
            tuple(its),
            waste,
            "eos" if text[-1] in ends else "length",
            first_token_s,
            dict(phases_s),
            seen=tuple(when),
        )
        for text, start, its, waste, when in zip(texts, starts, rounds, wasted, seen, strict=True)
    )


def prepare_ahead(model: DecoderModel, chains: Chains) -> None:
    """On a GPU, capture what one text needs whose rounds run ahead of the host."""
    prompt = torch.zeros(2, dtype=torch.long, device=model.device)
    rows = open_rows(model, 1, ROOM)
    chains.reset([prompt], ROOM)
    prepare_rows(rows, chains, ROOM, ROOM)


def prepare_rows(rows: Rows, chains: Chains, first: int, last: int) -> None:
    """Capture what rounds need from one length to another, in tokens. The rows must hold no text yet."""
    zeros = torch.zeros(rows.texts, dtype=torch.long, device=rows.model.device)
    ahead = rows.ahead(chains)
    for span in sorted({rows.span(tokens) for tokens in (*range(first, last, BUCKET), last)}):
        if ahead is not None:
            ahead.prepare(span)
        if ahead is None or chains.most:  # a last token, for which nothing is drafted
            _round(rows, span, zeros[:, None], zeros, zeros, zeros - 1)


def _round(rows: Rows, span: int, nodes: Tensor, before: Tensor, counts: Tensor, forced: Tensor) -> Tensor:
    """``_judged``, captured."""
    return rows.run((nodes.shape[1], span), partial(_judged, rows, span), nodes, before, counts, forced)


_LOTS = 64
"""Rounds for which lots are drawn at once."""


def _judged(rows: Rows, span: int, nodes: Tensor, before: Tensor, counts: Tensor, forced: Tensor) -> Tensor:
    """Accepted tokens of each text, its drafted ones, and the token that follows: shape ``(texts, W + 1)``."""
    drawn = rows.model.likeliest(rows.model.head(rows.read(nodes, before, span)))
    places = torch.arange(nodes.shape[1] - 1, device=nodes.device)
    agreed = (nodes[:, 1:] == drawn[:, :-1]) & (places < counts[:, None])
    accepted = torch.where(forced < 0, agreed.cumprod(dim=1).sum(dim=1), torch.minimum(forced, counts))[:, None]
    return torch.cat((accepted, nodes[:, 1:], drawn.gather(1, accepted)), dim=1)

"""EAGLE-2's dynamic tree (arXiv 2406.16858, section 4), for EAGLE heads of all kinds; a chain is its narrowest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from joulewise.decoding.spec import MOST_NODES
from joulewise.engines.native.attention import Sight, causal_mask
from joulewise.engines.native.cache import KV
from joulewise.engines.native.draft import Draft, Kept
from joulewise.engines.native.fit import require_rows
from joulewise.engines.native.heads.eagle import EagleHead
from joulewise.engines.native.model import Hidden
from joulewise.engines.native.recorded import Recorded
from joulewise.engines.native.session import (
    BUCKET,
    Capture,
    Judged,
    fill_up,
    lasting_cuda_graph,
    prompt_width,
    prompt_widths,
)
from joulewise.engines.native.tree import Tree, chain
from joulewise.errors import UserError

MOST_CHILDREN, MOST_NODES_GROWN = 16, 1024
"""Children of a node, and nodes that grow, for which our own kernels are made."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How a tree grows.

    Args:
        top_k: children of each node, and nodes that are followed further on each level.
        levels: of the tree, so paths have at most so many tokens.
        nodes: that are kept, the root apart.
        whole: keep the likeliest path to the last level, however unlikely it is.
    """

    top_k: int
    levels: int
    nodes: int
    whole: bool = False

    @property
    def width(self) -> int:
        """Slots of the head's cache that growing fills."""
        return (self.levels - 1) * self.top_k

    @property
    def grown(self) -> int:
        """Nodes that grow before the best are kept, the root apart."""
        return self.top_k + (self.levels - 1) * self.top_k**2

    def within(self, room: int) -> Growth:
        """The same without the levels below ``room``, at least 1, and with no more nodes than then grow."""
        if room >= self.levels:
            return self
        lower = replace(self, levels=room)
        return replace(lower, nodes=min(self.nodes, lower.grown))


class EagleDrafter:
    """Drafts with an EAGLE head. See ``Drafter``.

    After every round the head reads the kept tokens with the target's own features (draft extend); what it wrote while
    it drafted, on features that it had guessed, is overwritten. To keep it would cost acceptance length.

    Args:
        head: of either generation.
        nodes: of the tree, the root included: those with the highest product of probabilities are kept.
        depth: forwards of the head in a draft, so paths have at most ``depth + 1`` tokens.
        top_k: children of each node, and nodes that are followed further on each level; 1 gives a chain.
        capture: how the head's work is captured; None: as CUDA graphs on a GPU, elsewhere not at all.
        whole: keep a path of full height in every tree. For acceptance by lot, which must find what it accepts: the
            trees of a head that guesses evenly are wide and flat.

    Raises:
        UserError: a tree over the limit, or wider than the head's vocabulary.
    """

    def __init__(
        self,
        head: EagleHead,
        nodes: int = 60,
        depth: int = 7,
        top_k: int = 10,
        capture: Capture | None = None,
        whole: bool = False,
    ) -> None:
        if not (2 <= nodes <= MOST_NODES and 0 <= depth < MOST_NODES and top_k >= 1):
            raise UserError(
                f"A draft tree of {nodes} nodes with depth {depth} and top_k {top_k} is not possible: nodes may be 2 "
                f"to {MOST_NODES}, depth 0 to {MOST_NODES - 1}, top_k at least 1."
            )
        require_rows(head.name, top_k, head.rows)
        self.most_nodes = min(nodes - 1, top_k + depth * top_k**2)
        levels = min(depth + 1, self.most_nodes)  # a deeper one cannot be kept
        self._growth = Growth(top_k, levels, self.most_nodes, whole)
        self.height = None if top_k == 1 else levels
        self._head = head
        self._capture = capture or (lasting_cuda_graph if head.device.type == "cuda" else None)

    def reset(self, prompt: Tensor, hidden: Hidden, root: Tensor, capacity: int) -> None:
        """Read the prompt: each feature with the token after it."""
        self._session = _open_session(self._head, capacity + self._growth.width, self._capture)
        self._state = self._session.begin(torch.cat((prompt[1:], root)), hidden)
        self._length: int | Tensor = len(prompt)  # on the device, once it went on without the host
        self._begun: Draft | None = None

    def observe(self, kept: Kept) -> None:
        """Read the kept tokens on the target's features."""
        self._state = self._session.read(self._growth, kept.tokens, kept.hidden, self._length, len(kept.tokens))
        self._length = self._length + len(kept.tokens)

    def foresee(self, judged: Judged, hidden: Hidden) -> bool:
        """The same on the device, and the next draft: where our own kernels find their lengths there."""
        rows = self._growth.levels + 1
        if not isinstance(self._session, _Captured) or not self._head.sights or len(judged.way) < rows:
            return False
        accepted = judged.told[:1]
        each = torch.arange(rows, device=accepted.device)
        tokens = torch.where(each == accepted, judged.told[-1:], judged.told[1 : 1 + rows])
        way = judged.way[:rows].clamp(max=len(hidden.last) - 1)  # behind the path it says nothing
        self._state = self._session.read(self._growth, tokens, hidden[way], self._length, accepted + 1)
        self._length = self._length + accepted + 1
        self._begun = self._session.grow(self._growth, self._state, self._length, self._growth.levels)
        return True

    def propose(self, room: int) -> Draft:
        """The best nodes of a tree that grows by its likeliest nodes, level by level; a chain is cut to ``room``.

        A captured tree has all its levels up to the text's end: each room would be a capture of its own, for one round
        of an answer, and where the device went on by itself the tree has grown before the host knows the room.
        """
        if room < 1:
            return Draft(self._state.new_empty(0, dtype=torch.long), chain(0, self._state.device))
        draft, self._begun = self._begun or self._session.grow(self._growth, self._state, self._length, room), None
        if not draft.tree.chain:
            return draft
        tokens = draft.tokens[:room]
        return Draft(tokens, chain(len(tokens), tokens.device))


def read(
    head: EagleHead, cache: KV, span: int, length: Tensor, count: Tensor, tokens: Tensor, *features: Tensor
) -> Tensor:
    """Read pairs behind ``length`` others, of which the first ``count`` are true, and give the state after these.

    Args:
        head, cache: the head and its cache.
        span: slots that are read.
        length, count: shape ``(1,)``.
        tokens: shape ``(R,)``.
        features: the target's, as ``Hidden`` holds them, ``R`` rows each.

    Returns:
        Shape ``(1, H)``.
    """
    each = torch.arange(len(tokens), device=tokens.device)
    positions = length + each
    mask = Sight(length, each <= each[:, None]) if head.sights else causal_mask(positions, span)
    states = head.fuse(Hidden(*features))
    states = head.forward_at(cache, tokens, states, positions, span, mask, positions)
    return states.index_select(0, count - 1)


def grow(head: EagleHead, cache: KV, span: int, growth: Growth, length: Tensor, state: Tensor) -> Draft:
    """Grow a tree. All scores are in float32, and nothing waits for the device.

    Args:
        head, cache: the head and its cache; it writes behind ``length``.
        span: slots that are read.
        growth: how.
        length: pairs that were read, which is the root's position; shape ``(1,)``.
        state: after the root, shape ``(1, H)``.
    """
    if head.sights and growth.top_k <= MOST_CHILDREN and growth.grown <= MOST_NODES_GROWN:
        return _grow_by_kernels(head, cache, growth, length, state)
    k, device = growth.top_k, state.device
    itself = torch.eye(k, dtype=torch.bool, device=device)
    behind = torch.arange(span, device=device) - length
    each = torch.arange(k, device=device)

    scores, tokens = _children(head, state, state.new_zeros(1, dtype=torch.float32), k)
    scores_of, tokens_of = [scores], [tokens]
    parents_of = [torch.zeros_like(each)]
    numbers = each + 1  # of the nodes that are followed; the root is 0
    followed = [numbers]
    states, seen, made = state.expand(k, -1), itself, 1 + k
    for level in range(growth.levels - 1):
        width = (level + 1) * k
        drafted = (behind >= 0) & (behind < width)
        mask = (behind < 0) | (drafted & seen[:, behind.clamp(0, width - 1)])
        slots, positions = length + level * k + each, (length + level).expand(k)
        states = head.forward_at(cache, tokens, states, slots, span, mask, positions)
        child_scores, child_tokens = _children(head, states, scores, k)
        scores_of.append(child_scores)
        tokens_of.append(child_tokens)
        parents_of.append(numbers.repeat_interleave(k))

        best = _best(child_scores, k)
        origins = best // k
        scores, tokens, numbers = child_scores[best], child_tokens[best], made + best
        states, seen = states[origins], torch.cat((seen[origins], itself), dim=1)
        followed.append(numbers)
        made += k * k

    score = torch.cat(scores_of)
    if growth.whole:
        # The best node of the last level is followed first, and ``seen`` tells its ancestors.
        raised = torch.where(seen[0], torch.inf, 0.0)
        score = score.scatter_add(0, torch.cat(followed) - 1, raised)
    kept = _best(score, growth.nodes).sort().values
    ordered = torch.arange(1, len(kept) + 1, device=device)
    places = torch.zeros(made, dtype=torch.long, device=device).scatter(0, kept + 1, ordered)
    parents = torch.cat((places[:1], places[torch.cat(parents_of)[kept]]))
    return Draft(torch.cat(tokens_of)[kept], Tree.of(parents, growth.levels, chain=k == 1))


def _grow_by_kernels(head: EagleHead, cache: KV, growth: Growth, length: Tensor, state: Tensor) -> Draft:
    """``grow`` on our own kernels."""
    from joulewise.engines.native.draft_kernels import children, follow, keep

    k, device = growth.top_k, state.device
    scores = torch.empty(growth.grown, dtype=torch.float32, device=device)
    tokens, parents = length.new_empty(2, growth.grown)
    out = scores, tokens, parents
    root = length.new_zeros(1)
    children(head.output(state), head.scale, head.row_ids, scores.new_zeros(1), root, _cut(out, 0, k))
    numbers = torch.arange(1, k + 1, device=device)
    score, token = scores[:k], tokens[:k]
    states, seen = state.repeat(k, 1), torch.eye(k, dtype=torch.bool, device=device)
    followed, made = [numbers], k
    for level in range(growth.levels - 1):
        positions = (length + level).repeat(k)
        states = head.forward_at(cache, token, states, positions, 0, Sight(length, seen), positions)
        grown = _cut(out, made, k * k)
        children(head.output(states), head.scale, head.row_ids, score, numbers, grown)
        score, token, numbers, states, seen = follow(grown[0], grown[1], states, seen, made + 1)
        followed.append(numbers)
        made += k * k
    if growth.whole:
        scores.scatter_add_(0, torch.cat(followed) - 1, torch.where(seen[0], torch.inf, 0.0))
    kept, linked, ancestors, depths = keep(scores, tokens, parents, growth.nodes, growth.levels)
    return Draft(kept, Tree(linked, ancestors, depths, growth.levels, chain=k == 1))


def _cut(of: tuple[Tensor, Tensor, Tensor], first: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    one, two, three = (each[first : first + count] for each in of)
    return one, two, three


def _children(head: EagleHead, states: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The log-probabilities of the paths to each state's likeliest tokens, and those tokens; shape ``(n k,)``."""
    logits = head.logits(states)
    best = logits.topk(k, dim=-1)
    steps = best.values - logits.logsumexp(dim=-1, keepdim=True)
    return (scores[:, None] + steps).flatten(), head.ids(best.indices).flatten()


def _best(scores: Tensor, count: int) -> Tensor:
    """The places of the highest scores. Of equal ones the earlier wins, so a node never goes before its parent."""
    order: Tensor = scores.sort(descending=True, stable=True).indices
    return order[:count]


class _Session(Protocol):
    """A head's work on one cache."""

    def begin(self, tokens: Tensor, hidden: Hidden) -> Tensor:
        """Read a prompt's pairs; the state after them."""
        ...

    def read(self, growth: Growth, tokens: Tensor, hidden: Hidden, length: int | Tensor, count: int | Tensor) -> Tensor:
        """Read the pairs of a round, of which ``count`` are true; the state after these."""
        ...

    def grow(self, growth: Growth, state: Tensor, length: int | Tensor, room: int) -> Draft:
        """Grow a tree, valid until the next call; levels below ``room`` may be left out."""
        ...


class _Plain:
    """As it is. See ``_Session``."""

    def __init__(self, head: EagleHead, capacity: int) -> None:
        self._head, self.cache = head, head.new_cache(capacity)

    def begin(self, tokens: Tensor, hidden: Hidden) -> Tensor:
        return self._head.forward(self.cache, tokens, self._head.fuse(hidden), 0)[-1:]

    def read(self, growth: Growth, tokens: Tensor, hidden: Hidden, length: int | Tensor, count: int | Tensor) -> Tensor:
        return self._head.forward(self.cache, tokens, self._head.fuse(hidden), int(length))[-1:]

    def grow(self, growth: Growth, state: Tensor, length: int | Tensor, room: int) -> Draft:
        growth = growth.within(room)
        at = torch.full((1,), int(length), device=state.device)
        return grow(self._head, self.cache, int(length) + growth.width, growth, at, state)


class _Captured:
    """One captured call for each shape: all levels of a draft are one. See ``_Session``."""

    def __init__(self, head: EagleHead, capacity: int, capture: Capture) -> None:
        self.capacity = capacity
        self._head, self._capture = head, capture
        self.cache = head.new_cache(_bucket(capacity))
        self._reads: dict[tuple[int, int], Recorded[Tensor]] = {}
        self._growths: dict[tuple[Growth, int], Recorded[Draft]] = {}
        self._prepared = False

    def begin(self, tokens: Tensor, hidden: Hidden) -> Tensor:
        """Not captured, but of a length that others have too, as the target's reading of a prompt."""
        if not self._prepared:
            self._prepared = True
            if self._head.device.type == "cuda":  # where the library chooses its kernels by the length
                for width in prompt_widths():
                    if width <= self.cache.capacity:
                        self._begin(tokens[:1], hidden[:1], width)
        return self._begin(tokens, hidden, min(prompt_width(len(tokens)), self.cache.capacity))

    def _begin(self, tokens: Tensor, hidden: Hidden, width: int) -> Tensor:
        count = len(tokens)
        filled, positions = fill_up(tokens, width)
        states = self._head.fuse(hidden[positions])  # the last feature again, since a cache must hold finite values
        return self._head.forward(self.cache, filled, states, 0, None, positions)[count - 1 : count]

    def read(self, growth: Growth, tokens: Tensor, hidden: Hidden, length: int | Tensor, count: int | Tensor) -> Tensor:
        rows, features = growth.levels + 1, [f for f in (hidden.last, hidden.taps) if f is not None]
        span = self._span(length, rows)
        if (rows, span) not in self._reads:
            number = tokens.new_zeros(1)
            self._reads[rows, span] = Recorded(
                partial(read, self._head, self.cache, span),
                (number, number, tokens.new_zeros(rows), *(f.new_zeros(rows, f.shape[1]) for f in features)),
                self._capture,
                f"a forward of the head {self._head.name}",
            )
        return self._reads[rows, span](length, count, tokens, *features)

    def grow(self, growth: Growth, state: Tensor, length: int | Tensor, room: int) -> Draft:
        span = self._span(length, growth.width)
        if (growth, span) not in self._growths:
            self._growths[growth, span] = Recorded(
                partial(grow, self._head, self.cache, span, growth),
                (torch.zeros(1, dtype=torch.long, device=state.device), state),
                self._capture,
                f"a draft of the head {self._head.name}",
            )
        return self._growths[growth, span](length, state)

    def _span(self, length: int | Tensor, more: int) -> int:
        return self.cache.capacity if self._head.sights else _bucket(int(length) + more)


def _bucket(tokens: int) -> int:
    return -(-tokens // BUCKET) * BUCKET


def _open_session(head: EagleHead, capacity: int, capture: Capture | None) -> _Session:
    """A session with room for ``capacity`` pairs. What was captured of a head is kept for further prompts."""
    if capture is None:
        return _Plain(head, capacity)
    kept = head.session
    if not isinstance(kept, _Captured) or kept.capacity < capacity:
        kept = head.session = _Captured(head, capacity, capture)
    return kept

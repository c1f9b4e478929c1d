"""EAGLE-2's dynamic tree (arXiv 2406.16858, section 4), for EAGLE heads of all kinds; a chain is its narrowest."""

from __future__ import annotations

import torch
from torch import Tensor

from joulewise.engines.native.draft import Draft, Kept
from joulewise.engines.native.drafters.limits import MOST_NODES
from joulewise.engines.native.heads.eagle import EagleHead
from joulewise.engines.native.model import Hidden
from joulewise.engines.native.tree import Tree, chain
from joulewise.errors import UserError


class EagleDrafter:
    """Drafts with an EAGLE head. See ``Drafter``.

    After every round the head reads the kept tokens with the target's own features (draft extend); what it wrote while
    it drafted, on features that it had guessed, is overwritten. To keep it would cost acceptance length.

    Args:
        head: of either generation.
        nodes: of the tree, the root included: those with the highest product of probabilities are kept.
        depth: forwards of the head in a draft, so paths have at most ``depth + 1`` tokens.
        top_k: children of each node, and nodes that are followed further on each level; 1 gives a chain.

    Raises:
        UserError: a tree over the limit, or wider than the head's vocabulary.
    """

    def __init__(self, head: EagleHead, nodes: int = 60, depth: int = 7, top_k: int = 10) -> None:
        if not (2 <= nodes <= MOST_NODES and 0 <= depth < MOST_NODES and top_k >= 1):
            raise UserError(
                f"A draft tree of {nodes} nodes with depth {depth} and top_k {top_k} is not possible: nodes may be 2 "
                f"to {MOST_NODES}, depth 0 to {MOST_NODES - 1}, top_k at least 1."
            )
        if top_k > head.rows:
            raise UserError(f"top_k {top_k} is more than the {head.rows} tokens that the head {head.name} can propose.")
        self._head = head
        self._top_k = top_k
        self._depth = depth
        self.most_nodes = min(nodes - 1, top_k + depth * top_k**2)

    def reset(self, prompt: Tensor, hidden: Hidden, root: Tensor, capacity: int) -> None:
        """Read the prompt: each feature with the token after it."""
        self._cache = self._head.new_cache(capacity + self._depth * self._top_k)
        self._length = 0
        self._extend(torch.cat((prompt[1:], root)), hidden)

    def observe(self, kept: Kept) -> None:
        """Read the kept tokens on the target's features."""
        self._extend(kept.tokens, kept.hidden)

    def propose(self, room: int) -> Draft:
        """The best nodes of a tree that grows by its likeliest nodes, level by level. All scores are in float32."""
        levels = min(self._depth + 1, room)
        if self._top_k == 1:
            levels = min(levels, self.most_nodes)
        if levels < 1:
            return Draft(self._state.new_empty(0, dtype=torch.long), chain(0, self._state.device))
        k, device = self._top_k, self._state.device
        itself = torch.eye(k, dtype=torch.bool, device=device)

        scores, tokens = self._children(self._state, self._state.new_zeros(1, dtype=torch.float32))
        scores_of, tokens_of = [scores], [tokens]
        parents_of = [tokens.new_zeros(k)]
        numbers = torch.arange(1, k + 1, device=device)  # of the nodes that are followed; the root is 0
        states, seen, made = self._state.expand(k, -1), itself, 1 + k
        for level in range(levels - 1):
            states = self._head(
                self._cache,
                tokens,
                states,
                start=self._length + level * k,
                mask=torch.cat((seen.new_ones(k, self._length), seen), dim=1),
                positions=numbers.new_full((k,), self._length + level),
            )
            child_scores, child_tokens = self._children(states, scores)
            scores_of.append(child_scores)
            tokens_of.append(child_tokens)
            parents_of.append(numbers.repeat_interleave(k))

            best = _best(child_scores, k)
            origins = best // k
            scores, tokens, numbers = child_scores[best], child_tokens[best], made + best
            states, seen = states[origins], torch.cat((seen[origins], itself), dim=1)
            made += k * k

        kept = _best(torch.cat(scores_of), self.most_nodes).sort().values
        drafted = torch.cat(tokens_of)[kept]
        if k == 1:
            return Draft(drafted, chain(len(drafted), device))
        places = numbers.new_zeros(made)
        places[kept + 1] = torch.arange(1, len(kept) + 1, device=device)
        parents = torch.cat((places[:1], places[torch.cat(parents_of)[kept]]))
        return Draft(drafted, Tree.of(parents, levels))

    def _extend(self, tokens: Tensor, hidden: Hidden) -> None:
        states = self._head(self._cache, tokens, self._head.fuse(hidden), start=self._length)
        self._length += len(tokens)
        self._state = states[-1:]

    def _children(self, states: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probabilities of the paths to each state's likeliest tokens, and those tokens; shape ``(n k,)``."""
        logits = self._head.logits(states)
        best = logits.topk(self._top_k, dim=-1)
        steps = best.values - logits.logsumexp(dim=-1, keepdim=True)
        return (scores[:, None] + steps).flatten(), self._head.ids(best.indices).flatten()


def _best(scores: Tensor, count: int) -> Tensor:
    """The places of the highest scores. Of equal ones the earlier wins, so a node never goes before its parent."""
    order: Tensor = scores.sort(descending=True, stable=True).indices
    return order[:count]

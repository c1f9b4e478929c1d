"""What of a draft enters the output: one path for greedy and sampled decoding, chains and trees.

The target draws one token at *every* node, and the draft is walked from the root along what was drawn. Greedy draws the
most likely token; sampling draws by chance, so each emitted token is a draw from the target's own distribution whatever
the draft was. A chain that was itself drawn by chance is judged by the residual rule instead, which accepts more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from joulewise.engines.engine import Sampling
from joulewise.engines.native.draft import Draft
from joulewise.engines.native.tree import deepest, walk


@dataclass(frozen=True, slots=True)
class Chooser:
    """Draws tokens as a request's sampling says.

    Args:
        sampling: temperature, top-p, top-k.
        generator: the source of chance, on the model's device; None for greedy decoding.
    """

    sampling: Sampling
    generator: torch.Generator | None = None

    @property
    def greedy(self) -> bool:
        """True where each token is the most likely one."""
        return self.generator is None

    @classmethod
    def of(cls, sampling: Sampling, seed: int, device: torch.device) -> Chooser:
        """A chooser whose draws depend on ``seed`` alone."""
        return cls(sampling, None if sampling.greedy else torch.Generator(device).manual_seed(seed))

    def draw(self, logits: Tensor) -> Tensor:
        """One token for each row of ``logits``, shape ``(W, rows)`` -> ``(W,)``."""
        return logits.argmax(dim=-1) if self.generator is None else self.draw_from(self.probabilities(logits))

    def draw_from(self, probabilities: Tensor) -> Tensor:
        """One token for each row, of weights that need not add up to 1; ``(W, rows)`` -> ``(W,)``."""
        # The largest of p / e, e exponential, falls on each token with its probability: no sum, no wait.
        noise = torch.empty_like(probabilities).exponential_(generator=self.generator)
        return (probabilities / noise.clamp(min=torch.finfo(noise.dtype).tiny)).argmax(dim=-1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """What is drawn from: temperature, then top-k, then top-p; float32, shape ``(W, rows)``."""
        sampling = self.sampling
        logits = logits.float() / sampling.temperature
        if 0 < sampling.top_k < logits.shape[-1]:
            least = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        probabilities = logits.softmax(dim=-1)
        if sampling.top_p < 1.0:
            ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
            # A token stays while those before it have not reached top_p; so the first always stays.
            ordered = ordered.masked_fill(ordered.cumsum(dim=-1) - ordered >= sampling.top_p, 0.0)
            probabilities = torch.zeros_like(probabilities).scatter(-1, order, ordered)
            probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
        return probabilities

    def uniform(self, count: int, device: torch.device) -> Tensor:
        """Numbers from [0, 1), float64, shape ``(count,)``."""
        return torch.rand(count, dtype=torch.float64, device=device, generator=self.generator)


Rule = Callable[[Draft, Tensor, Chooser], tuple[Tensor, Tensor]]
"""Takes a draft, the target's logits at its nodes, shape ``(W, rows)``, and the chooser; gives the node where the
accepted path ends and the token that follows it, shape ``(1,)`` both."""


def match(draft: Draft, logits: Tensor, chooser: Chooser) -> tuple[Tensor, Tensor]:
    """The lossless rule."""
    if draft.probabilities is not None and not chooser.greedy:
        return _residual(draft.tokens, draft.probabilities, chooser.probabilities(logits), chooser)
    drawn = chooser.draw(logits)
    last = walk(draft.tree, draft.tokens, drawn)
    return last, drawn[last]


def _residual(tokens: Tensor, q: Tensor, p: Tensor, chooser: Chooser) -> tuple[Tensor, Tensor]:
    """Speculative sampling (Leviathan et al. 2023, algorithm 1).

    Args:
        tokens: the chain, shape ``(K,)``, each drawn from its row of ``q``.
        q: shape ``(K, rows)``.
        p: the target's, shape ``(K + 1, rows)``.
        chooser: the source of chance.
    """
    count = len(tokens)
    each = torch.arange(count, device=tokens.device)
    accepted = chooser.uniform(count, tokens.device) * q[each, tokens] < p[each, tokens]
    last = accepted.cumprod(dim=0).sum(dim=0, keepdim=True)
    rest = torch.cat(((p[:-1] - q).clamp(min=0.0), p[-1:]))[last]
    # Where p equals q nothing is left to draw from, and nothing is refused but by rounding.
    rest = torch.where(rest.sum(dim=-1, keepdim=True) > 0, rest, p[last])
    return last, chooser.draw_from(rest)


def typical(epsilon: float, alpha: float) -> Rule:
    """Medusa's typical acceptance: lossy. A token passes if p(x) > min(epsilon, alpha exp(-H(p))), H the entropy.

    Of several longest paths the likeliest is taken, and the token after it is drawn from the target.

    Args:
        epsilon: a token with more than this passes in any case; published 0.09.
        alpha: published 0.3.
    """

    def accept(draft: Draft, logits: Tensor, chooser: Chooser) -> tuple[Tensor, Tensor]:
        parents = draft.tree.parents[1:]
        # Under greedy decoding the rule is that of temperature 1.
        p = logits.softmax(dim=-1) if chooser.greedy else chooser.probabilities(logits)
        entropy = -torch.xlogy(p, p).sum(dim=-1)
        least = (alpha * torch.exp(-entropy)).clamp(max=epsilon)
        likely = p[parents, draft.tokens]
        scores = torch.cat((likely.new_zeros(1), likely.clamp(min=torch.finfo(likely.dtype).tiny).log()))
        last = deepest(draft.tree, likely > least[parents], scores)
        return last, chooser.draw(logits[last])

    return accept


class Lot:
    """Accept by lot: the text is meaningless, the work is real. See ``Rule``.

    Args:
        rates: in which share of rounds the first, second, ... drafted token of a path is accepted; never rising. Deeper
            ones are not.
        seed: of the lot.
        device: the model's.
    """

    def __init__(self, rates: tuple[float, ...], seed: int, device: torch.device) -> None:
        self._limits = torch.tensor(rates, dtype=torch.float64, device=device)
        self._generator = torch.Generator(device).manual_seed(seed)

    def depth(self) -> Tensor:
        """How many tokens the next round accepts where its draft has as many, shape ``(1,)``."""
        return self.depths(1)

    def depths(self, rounds: int) -> Tensor:
        """The same for so many rounds, shape ``(rounds,)``."""
        # One number for the round: that position 2 is accepted implies that position 1 is.
        numbers = torch.rand(rounds, 1, dtype=torch.float64, device=self._limits.device, generator=self._generator)
        return (numbers < self._limits).sum(dim=1)

    def __call__(self, draft: Draft, logits: Tensor, chooser: Chooser) -> tuple[Tensor, Tensor]:
        """The first node of that depth, or of the greatest there is."""
        depths = draft.tree.depths
        last = torch.where(depths <= self.depth(), depths, -1).argmax(dim=0, keepdim=True)
        return last, chooser.draw(logits[last])

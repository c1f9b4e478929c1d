"""How often must a chain's tokens be accepted for an acceptance length? The formula of Leviathan et al., and back.

With each token accepted with the chance alpha where the one before it was, a round of K draft tokens keeps

    tau = 1 + alpha + ... + alpha^K = (1 - alpha^(K + 1)) / (1 - alpha)

tokens on average, the bonus token among them (arXiv 2211.17192, equation 1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

_CHAIN = re.compile(r"coga-|dyga-|prompt-lookup-|.*-chain-")


def is_chain(decoding: str) -> bool:
    """Whether the decoding of this label drafts chains; the formula does not hold for trees."""
    return _CHAIN.match(decoding) is not None


def expected_length(acceptance: float, rounds: Sequence[int]) -> float:
    """Mean tokens kept per round.

    Args:
        acceptance: alpha, from 0 to 1.
        rounds: how many rounds drafted 0, 1, 2 ... tokens; at least one did.
    """
    kept = np.cumsum(float(acceptance) ** np.arange(len(rounds)))
    return float(np.dot(kept, rounds) / np.sum(rounds))


def acceptance_for(length: float, rounds: Sequence[int]) -> float | None:
    """The acceptance per token that gives a mean length, by bisection; None where no acceptance does.

    Args:
        length: tokens kept per round.
        rounds: as for ``expected_length``.
    """
    if not np.any(rounds[1:]) or not 1.0 <= length <= expected_length(1.0, rounds):
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if expected_length(middle, rounds) < length else (low, middle)
    return (low + high) / 2

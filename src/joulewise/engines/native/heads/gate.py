"""Gate: a head can fit by every shape and still be the wrong one. What is accepted of its drafts tells."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from joulewise.engines.engine import Round

_GENERATIONS = 10
_LEAST = 1.3
"""Tokens a round, the target's own counted. Published heads reach 2 and more; a wrong one stays near 1."""


class Gate:
    """Warns once, after ten generations, of a head whose drafts are hardly ever accepted.

    Args:
        label: of the decoding.
        name: of the head.
    """

    def __init__(self, label: str, name: str) -> None:
        self._label, self._name = label, name
        self._generations = self._rounds = self._accepted = 0

    def see(self, rounds: Sequence[Round]) -> None:
        """Take in one generation."""
        self._generations += 1
        self._rounds += len(rounds)
        self._accepted += sum(each.accepted for each in rounds)
        if self._generations != _GENERATIONS or not self._rounds:
            return
        length = 1 + self._accepted / self._rounds
        if length < _LEAST:
            warnings.warn(
                f"{self._label}: a round gives {length:.2f} tokens over the first {_GENERATIONS} answers, the target's "
                f"own counted; a head of this target should give {_LEAST} at least. Suspect that {self._name} was made "
                "for another fine-tune or chat template, or that its config.json is wrong on "
                "eagle_aux_hidden_state_layer_ids or norm_before_residual.",
                RuntimeWarning,
                stacklevel=2,
            )

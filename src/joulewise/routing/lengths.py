"""How long an option's answer will be: output lengths of its past answers, by length of the prompt and by domain.

A small group says little, so each group's quantiles are drawn to those of the group around it: domain within thirds of
the prompt length, thirds within all answers of the option. Numpy alone; a look-up costs microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulewise.errors import UserError

Floats = npt.NDArray[np.float64]

ATOMS = 40
"""A distribution is held as so many lengths of equal chance: the quantiles at (i + 0.5) / ATOMS."""
THIRDS = (1 / 3, 2 / 3)
SHRINK = 20.0
"""A group of so many answers counts as much as the group around it."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """Output lengths of one option, in tokens.

    Args:
        edges: prompt lengths that part the thirds, in tokens.
        groups: by third, and by third and domain: ``ATOMS`` lengths, ascending. None as the third: all answers.
        answers: how many were learnt from.
    """

    edges: Floats
    groups: Mapping[tuple[int | None, str | None], Floats]
    answers: int

    def tokens(self, prompt_tokens: float, domain: str | None = None) -> Floats:
        """``ATOMS`` lengths of equal chance, ascending; a domain that was not learnt is as good as none."""
        return self.of_third(int(np.searchsorted(self.edges, prompt_tokens, side="right")), domain)

    def of_third(self, third: int, domain: str | None = None) -> Floats:
        """The same, for prompts of a third."""
        for key in ((third, domain), (None, domain), (third, None)):
            if key in self.groups:
                return self.groups[key]
        return self.groups[None, None]


def fit_lengths(
    prompt_tokens: Sequence[float], output_tokens: Sequence[float], domains: Sequence[str | None] | None = None
) -> Lengths:
    """Learn from an option's answers; answers that were cut off count as long as they got.

    Args:
        prompt_tokens, output_tokens: of each answer.
        domains: of each query, None where not known.

    Raises:
        UserError: no answers, not as many of one as of the other, or a length below 0.
    """
    prompts, outputs = np.asarray(prompt_tokens, np.float64), np.asarray(output_tokens, np.float64)
    names = np.array([None] * len(outputs) if domains is None else list(domains), dtype=object)
    if not len(outputs):
        raise UserError("There are no answers to learn output lengths from: give at least one an option.")
    if not len(prompts) == len(outputs) == len(names):
        raise UserError(
            f"{len(prompts)} prompt lengths, {len(outputs)} output lengths and {len(names)} domains: give one of each "
            "an answer."
        )
    if not (np.isfinite(prompts) & np.isfinite(outputs) & (prompts >= 0) & (outputs >= 0)).all():
        raise UserError("Lengths are numbers of tokens, at least 0: leave answers of unknown length out.")
    edges = np.quantile(prompts, THIRDS)
    thirds = np.searchsorted(edges, prompts, side="right")
    whole = _atoms(outputs)
    groups: dict[tuple[int | None, str | None], Floats] = {(None, None): whole}
    known = sorted({name for name in names if name is not None})
    for name in known:
        groups[None, name] = _drawn_to(whole, outputs[names == name])
    for third in range(len(THIRDS) + 1):
        mine = thirds == third
        if mine.any():
            around = groups[third, None] = _drawn_to(whole, outputs[mine])
            for name in known:
                if len(part := outputs[mine & (names == name)]):
                    groups[third, name] = _drawn_to(around, part)
    return Lengths(edges, groups, len(outputs))


def _atoms(lengths: Floats) -> Floats:
    """Quantiles as order statistics for new answers (Weibull's positions i / (n + 1))."""
    return np.asarray(np.quantile(lengths, (np.arange(ATOMS) + 0.5) / ATOMS, method="weibull"), dtype=np.float64)


def _drawn_to(around: Floats, lengths: Floats) -> Floats:
    own = len(lengths) / (len(lengths) + SHRINK)
    return own * _atoms(lengths) + (1.0 - own) * around

"""Joules of an answer from its tokens, learnt from past answers alone: what is used where there is no operating curve.

It says nothing of other loads than that of the answers, and of modelled joules it only gives the model back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulewise.analysis.least_squares import non_negative
from joulewise.errors import UserError
from joulewise.routing.joule_sources import JouleSource

Floats = npt.NDArray[np.float64]

GIVEN = "as given"
"""Provenance of joules in a file of outcomes: nobody says how they came about."""

_FOLDS = 5
_FEWEST = 10
"""With fewer answers no error is told."""
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class AnswerJoules:
    """Joules of one sample: ``request_j + prompt_token_j x prompt tokens + output_token_j x output tokens``.

    Args:
        request_j, prompt_token_j, output_token_j: at least 0.
        error: median relative error of answers that were not learnt from; None with too few.
        provenance: of the joules: ``measured``, ``modelled`` if any were, or else ``as given`` if any were a file's.
        prompt_tokens, output_tokens: the least and the most that was learnt from.
        answers: how many were learnt from.
        sources: whose joules; of several, all are learnt together. Empty where that is not known.
    """

    request_j: float
    prompt_token_j: float
    output_token_j: float
    error: float | None
    provenance: str
    prompt_tokens: tuple[float, float]
    output_tokens: tuple[float, float]
    answers: int
    sources: tuple[JouleSource, ...] = ()

    def warnings(self, prompt_tokens: float, output_tokens: float, running: float) -> list[str]:
        """What of a request lies outside of what was learnt from."""
        found = []
        if self.provenance == GIVEN:
            found.append(
                "the joules that were learnt from are as a file gave them: whether they were measured is not known"
            )
        elif self.provenance != "measured":
            found.append(f"the joules that were learnt from are {self.provenance}")
        if running > 1:
            found.append(
                f"{running:,.6g} running requests: joules are known for one at a time only, so the figure is too high"
            )
        for what, value, (low, high) in (
            ("prompt", prompt_tokens, self.prompt_tokens),
            ("output", output_tokens, self.output_tokens),
        ):
            if not low / 2 <= value <= high * 2:
                found.append(
                    f"{value:,.0f} {what} tokens: far from what was learnt from ({low:,.0f} to {high:,.0f}), so the "
                    "figure is a guess"
                )
        return found


def fit_answer_joules(prompt_tokens: Floats, output_tokens: Floats, energy_j: Floats, provenance: str) -> AnswerJoules:
    """Learn from past answers, each by its relative error; the learnt joules sum to those of the answers.

    Args:
        prompt_tokens, output_tokens, energy_j: of one sample each, shape ``(answers,)``; joules above 0.

    Raises:
        UserError: there are no answers.
    """
    if not len(energy_j):
        raise UserError("There are no answers with known joules to learn from.")
    request_j, prompt_j, output_j = map(float, _fitted(prompt_tokens, output_tokens, energy_j))
    error = None
    if len(energy_j) >= _FEWEST:
        fold = np.arange(len(energy_j)) % _FOLDS
        off = np.empty(len(energy_j))
        for i in range(_FOLDS):
            learn, test = fold != i, fold == i
            told = _columns(prompt_tokens[test], output_tokens[test]) @ _fitted(
                prompt_tokens[learn], output_tokens[learn], energy_j[learn]
            )
            off[test] = np.abs(told / energy_j[test] - 1.0)
        error = float(np.median(off))
    return AnswerJoules(
        request_j,
        prompt_j,
        output_j,
        error,
        provenance,
        (float(prompt_tokens.min()), float(prompt_tokens.max())),
        (float(output_tokens.min()), float(output_tokens.max())),
        len(energy_j),
    )


def _columns(prompt_tokens: Floats, output_tokens: Floats) -> Floats:
    return np.stack([np.ones(len(prompt_tokens)), prompt_tokens, output_tokens], axis=1)


def _fitted(prompt_tokens: Floats, output_tokens: Floats, energy_j: Floats) -> Floats:
    columns, fitted = _columns(prompt_tokens, output_tokens), energy_j
    if len(energy_j) < _FEWEST:  # too few to tell apart what a request, its prompt and its output draw
        columns = columns * (np.array([0.0, 0.0, 1.0]) if output_tokens.sum() > 0 else np.array([1.0, 0.0, 0.0]))
    found = np.zeros(3)
    for _ in range(_ROUNDS):
        scaled = columns / fitted[:, None]
        found = non_negative((scaled.T @ scaled)[None], (scaled.T @ (energy_j / fitted))[None])[0]
        fitted = np.maximum(columns @ found, 0.05 * energy_j)
    total = float((columns @ found).sum())
    return np.asarray(found * (float(energy_j.sum()) / total) if total > 0 else np.array([energy_j.mean(), 0.0, 0.0]))

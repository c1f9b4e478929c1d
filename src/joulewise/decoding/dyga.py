"""DyGA: dynamic generation by the assistant (paper 1)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from joulewise.decoding.spec import Decoding, DraftName


class DyGA(Decoding):
    """A draft model proposes a number of tokens that adapts.

    Args:
        tokens: draft tokens of the first round (``heuristic``) or the most of any round (``confidence``).
        rule: ``heuristic``: two more after a round in which all were accepted, else one fewer, never below 1, starting
            afresh with every prompt. ``confidence``: stop drafting after the first token to which the draft model gives
            less than ``threshold``; that token stays in the draft.
        threshold: for the rule ``confidence``.
        draft: as for CoGA.
    """

    needs_draft: ClassVar[bool] = True

    kind: Literal["dyga"] = "dyga"
    tokens: int = Field(20, ge=1, le=256)
    rule: Literal["heuristic", "confidence"] = "heuristic"
    threshold: float = Field(0.4, gt=0.0, lt=1.0)
    draft: DraftName | None = None

    @property
    def label(self) -> str:
        if self.rule == "heuristic":
            return f"dyga-{self.tokens}"
        return f"dyga-{self.tokens}-confidence-{self.threshold:g}"

"""CoGA: constant generation by the assistant (paper 1)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from joulewise.decoding.spec import CanBeSynthetic, DraftName


class CoGA(CanBeSynthetic):
    """A draft model proposes exactly ``tokens`` tokens every round (fewer only at the length limit).

    Paper 1's CoGA-x: constant draft length, no confidence stop.

    Args:
        tokens: draft tokens a round.
        draft: the draft model: a hub name, a folder, or ``first-layers:N`` of the target; None takes the engine's.
        synthetic_acceptance: accept by lot: the rate of each token given the one before it, or a list of the shares of
            rounds in which the first, second, ... token is accepted. The text is then meaningless (engine ``native``).
    """

    needs_draft: ClassVar[bool] = True

    kind: Literal["coga"] = "coga"
    tokens: int = Field(5, ge=1, le=256)
    draft: DraftName | None = None

    @property
    def label(self) -> str:
        return f"coga-{self.tokens}{self._synthetic_label}"

    @property
    def path_tokens(self) -> int:
        """The whole chain."""
        return self.tokens

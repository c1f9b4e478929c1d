"""CoGA: constant generation by the assistant (paper 1)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from joulewise.decoding.spec import Decoding


class CoGA(Decoding):
    """A draft model proposes exactly ``tokens`` tokens every round (fewer only at the length limit).

    Paper 1's CoGA-x: constant draft length, no confidence stop.

    Args:
        tokens: draft tokens a round.
        draft: the draft model: a hub name, a folder, or ``first-layers:N`` of the target; None takes the engine's.
    """

    needs_draft: ClassVar[bool] = True

    kind: Literal["coga"] = "coga"
    tokens: int = Field(5, ge=1, le=256)
    draft: str | None = None

    @property
    def label(self) -> str:
        return f"coga-{self.tokens}"

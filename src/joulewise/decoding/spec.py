"""Decoding: a small frozen value that names a way to produce tokens and knows nothing about any engine."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Decoding(BaseModel):
    """Base of all decodings. A subclass has a literal ``kind`` and its parameters.

    ``lossless`` says whether greedy output must equal vanilla's (design, rule 4); ``needs_draft`` whether a draft model
    takes part.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lossless: ClassVar[bool] = True
    needs_draft: ClassVar[bool] = False

    kind: str
    draft: str | None = None

    @property
    def label(self) -> str:
        """Short unique name within a grid, such as ``coga-5``."""
        return self.kind

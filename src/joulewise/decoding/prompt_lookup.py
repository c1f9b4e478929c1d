"""Prompt lookup: the text so far is the draft model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from joulewise.decoding.spec import Decoding


class PromptLookup(Decoding):
    """Propose what followed the last n-gram where it stood earlier in the sequence.

    Args:
        tokens: at most so many draft tokens a round.
        max_ngram: the longest n-gram that is looked for; shorter ones follow.
    """

    kind: Literal["prompt_lookup"] = "prompt_lookup"
    tokens: int = Field(10, ge=1, le=256)
    max_ngram: int = Field(2, ge=1, le=16)
    draft: None = None

    @property
    def label(self) -> str:
        return f"prompt-lookup-{self.tokens}" + ("" if self.max_ngram == 2 else f"-ngram-{self.max_ngram}")

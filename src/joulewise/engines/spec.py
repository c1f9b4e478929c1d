"""Engine specs: what a plan says of an engine. Light: loads no engine."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TransformersSpec(BaseModel):
    """Hugging Face Transformers' own ``generate`` over one target model.

    Args:
        model: ``default`` (the embedded SmolLM2-135M-Instruct), a hub name, or a folder.
        draft: the draft model for decodings that need one and name none: a hub name, a folder, or ``first-layers:N``
            (the target's own first N layers: a correctness fixture, not a fast draft).
        dtype: ``auto`` is bfloat16 on a GPU and float32 on a CPU.
        device: ``auto`` is the GPU where there is one; ``balanced`` spreads the target over all visible GPUs.
        name: label in tables; None takes the model's name.
        revision: the target's revision on the hub.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["transformers"] = "transformers"
    model: str = "default"
    draft: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda|cuda:\d+|balanced)$")
    name: str | None = None
    revision: str | None = None

    @property
    def label(self) -> str:
        """Short name within a grid: the given one, or the last part of the model's name and the engine's kind."""
        return self.name or f"{self.model.rstrip('/').rsplit('/', 1)[-1]}@transformers"


EngineSpec = TransformersSpec
"""The union of all engine specs (one member so far)."""

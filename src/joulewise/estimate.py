"""How long will it take? A rough figure for a dry run, from sizes alone: nothing is loaded and nothing is run.

Batch-1 decoding reads every weight once a token, so a step takes at least weights / memory bandwidth; on a GPU the
eager loop's host work per layer is the larger term (1.1 ms a layer for Llama shapes on an H200 host: 35 ms with 32
layers, 20 ms with 16).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joulewise.decoding import CoGA, Decoding, DyGA, Eagle2, Eagle3, Medusa, PromptLookup
from joulewise.engines.endpoint_spec import EndpointSpec
from joulewise.engines.spec import EngineSpec

GPU_BANDWIDTH_B_S = 1.5e12
GPU_LAYER_S = 1.1e-3
DRAFT_COST = 0.2
"""Cost of a draft step relative to a target step where the draft's size is not known here."""
TOKENS_A_ROUND = 2.0
"""A usual acceptance length of a plain draft."""
HEAD_COST = 0.3
"""Cost of a head's draft and of a tree's wider verification relative to a target step."""
DYGA_MEAN_DRAFT = 0.5
"""Mean draft length of DyGA relative to its first one, with a draft that fits moderately."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What the estimate needs of a model: bytes of its weights as they lie on the device, and its layers."""

    weight_bytes: float
    layers: int


def model_size(spec: EngineSpec, on_gpu: bool) -> ModelSize | None:
    """The size of a model that is at hand: the default one or a folder. None for others (a hub name, a server's)."""
    if isinstance(spec, EndpointSpec):
        return None
    half = spec.dtype in ("bfloat16", "float16") or (spec.dtype == "auto" and on_gpu)
    if spec.model == "default":
        return ModelSize(134.5e6 * (2 if half else 4), 30)
    folder = Path(spec.model)
    files = list(folder.glob("*.safetensors"))
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        layers = int(config["num_hidden_layers"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no folder, or a model whose config names its layers otherwise: no estimate, the run will tell
    stored_half = str(config.get("dtype", config.get("torch_dtype", "float32"))) != "float32"
    scale = (0.5 if half else 1.0) * (2.0 if stored_half else 1.0)
    return ModelSize(sum(f.stat().st_size for f in files) * scale, layers) if files else None


def memory_bandwidth_b_s() -> float:
    """How fast this machine's memory is read by a plain copy, in bytes per second (takes about a tenth of a second)."""
    import numpy as np

    source = np.ones(2**24)
    target = np.empty_like(source)
    best_s = float("inf")
    for _ in range(3):
        start_s = time.perf_counter()
        np.copyto(target, source)
        best_s = min(best_s, time.perf_counter() - start_s)
    return 2 * source.nbytes / best_s


def seconds_per_token(size: ModelSize, on_gpu: bool, bandwidth_b_s: float) -> float:
    """Seconds of one plain decoding step."""
    if on_gpu:
        return max(size.weight_bytes / GPU_BANDWIDTH_B_S, GPU_LAYER_S * size.layers)
    return size.weight_bytes / bandwidth_b_s


def relative_cost(decoding: Decoding, draft: str | None, layers: int) -> float:
    """Seconds per output token relative to vanilla's."""
    if isinstance(decoding, PromptLookup):
        return 1.1
    if isinstance(decoding, (CoGA, DyGA)):
        name = decoding.draft or draft or ""
        step = int(name.removeprefix("first-layers:")) / layers if name.startswith("first-layers:") else DRAFT_COST
        drafted = decoding.tokens * (DYGA_MEAN_DRAFT if isinstance(decoding, DyGA) else 1.0)
        return (1 + drafted * step) / TOKENS_A_ROUND
    if isinstance(decoding, Medusa | Eagle2 | Eagle3):
        return (1 + HEAD_COST) / TOKENS_A_ROUND
    return 1.0


def total(seconds_by_engine: Mapping[str, float | None]) -> float | None:
    """The sum; None if any part is not known."""
    known = [s for s in seconds_by_engine.values() if s is not None]
    return sum(known) if len(known) == len(seconds_by_engine) else None

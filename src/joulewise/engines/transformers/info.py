"""What ran, for the record; and what can be said of a draft before anything is loaded. For all engines with a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import EngineInfo
from joulewise.engines.shipped import PREFIX, shipped_fault, shipped_for
from joulewise.engines.spec import ModelSpec
from joulewise.engines.transformers.quantisation import libraries, parameters

if TYPE_CHECKING:
    from joulewise.engines.transformers.loading import Loaded

_LIBRARIES = ("transformers", "tokenizers", "accelerate", "safetensors")


def draft_name(spec: ModelSpec, decoding: Decoding) -> str | None:
    """The draft model of a decoding: the default model has one; None where it needs none or none is named."""
    if not decoding.needs_draft:
        return None
    return decoding.draft or spec.draft or shipped_for(spec.model, "draft")


def draft_fault(spec: ModelSpec, decoding: Decoding) -> str | None:
    """What is wrong with a decoding's draft, one sentence; None if nothing, as far as its name tells."""
    draft = draft_name(spec, decoding)
    if decoding.needs_draft and draft is None:
        return (
            f"{decoding.label} needs a draft model, and neither the decoding nor the engine {spec.label} names one: "
            "set `draft` to a hub name, a folder or first-layers:N"
        )
    if draft and draft.startswith(PREFIX) and (reason := shipped_fault(draft, spec.model, "draft")):
        return reason
    if draft and draft.startswith("first-layers:") and not re.fullmatch(r"first-layers:[1-9]\d*", draft):
        return f"draft {draft!r} is not of the form first-layers:N with N from 1"
    if draft and draft.startswith("first-layers:") and spec.draft_quantisation != "none":
        return (
            f"the draft {draft} shares the target's weights, which draft_quantisation: {spec.draft_quantisation} "
            "cannot change: leave that out, or name a model as the draft (the target itself, say)"
        )
    return None


def engine_info(
    spec: ModelSpec, target: Loaded, others: Iterable[Loaded], drafts: Mapping[str, str], notes: tuple[str, ...]
) -> EngineInfo:
    """The record of a loaded engine.

    Args:
        spec: as the plan says.
        target: the model.
        others: draft models.
        drafts: by decoding label, what drafts.
        notes: what a reader of the results must know besides what is known of the target.
    """
    import torch

    model = target.model
    versions = {"torch": torch.__version__} | {name: _version(name) for name in _LIBRARIES}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    for loaded in (target, *others):
        versions |= libraries(loaded.quantisation)
    return EngineInfo(
        engine=spec.kind,
        model=spec.model,
        model_class=type(model).__name__,
        parameters=parameters(model),
        dtype=str(model.dtype).removeprefix("torch."),
        devices=tuple(sorted({str(parameter.device) for parameter in model.parameters()})),
        context_length=target.context_length,
        versions=versions,
        drafts=drafts,
        notes=(*target.notes, *notes, f"torch threads: {torch.get_num_threads()}"),
        quantisation=target.quantisation,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"

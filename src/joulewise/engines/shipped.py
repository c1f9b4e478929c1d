"""The draft heads and the draft that come with Joulewise, for its default model.

In a checkout they lie under ``assets/``; a wheel carries them inside the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import joulewise
from joulewise.errors import EnvironmentFault, UserError

ShippedKind = Literal["draft", "medusa", "eagle2", "eagle3"]

PREFIX = "shipped:"
"""Begins the name of one of them, such as ``shipped:eagle3``."""

_MODEL = "SmolLM2-135M-Instruct"
_FILES = ("config.json", "model.safetensors")


def shipped_for(model: str, kind: ShippedKind) -> str | None:
    """What drafts for a model where a plan names nothing; None for any model but ``default``."""
    return f"{PREFIX}{kind}" if model == "default" else None


def shipped_fault(name: str, model: str, kind: ShippedKind) -> str | None:
    """Why a shipped head or draft cannot serve, one sentence; None if it can, or for a name of any other form."""
    if not name.startswith(PREFIX) or name.removeprefix(PREFIX) not in get_args(ShippedKind):
        return None  # what is not shipped at all is told where it is opened
    if model != "default":
        return f"{name} was trained for the default model and drafts for no other: name one of {model}'s own"
    if name != f"{PREFIX}{kind}":
        return f"{name} stands where {PREFIX}{kind} belongs: name that, or leave it out, since it is taken by itself"
    return None


def shipped_folder(name: str) -> Path | None:
    """The folder of a shipped head or draft; None for a name of any other form.

    Raises:
        UserError: nothing of this name is shipped.
        EnvironmentFault: its files are not there.
    """
    if not name.startswith(PREFIX):
        return None
    kind = name.removeprefix(PREFIX)
    if kind not in get_args(ShippedKind):
        kinds = ", ".join(f"{PREFIX}{kind}" for kind in get_args(ShippedKind))
        raise UserError(f"There is no {name!r}: Joulewise comes with {kinds}.")
    folder = _heads() / _MODEL / kind
    for file in _FILES:
        if not (folder / file).is_file():
            raise EnvironmentFault(
                f"{name} comes with Joulewise, but its file {folder / file} is not there: install Joulewise again, or "
                f"name one of your own (`joulewise heads train default --kind {kind}` makes one)."
            )
    return folder


def _heads() -> Path:
    package = Path(joulewise.__file__).parent
    inside = package / "assets" / "heads"
    return inside if inside.is_dir() else package.parents[1] / "assets" / "heads"

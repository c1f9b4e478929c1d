"""Router files: the fitted estimator as an npz archive with schema and version. No pickle is written or read."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from joulewise.errors import UserError, first_paragraph
from joulewise.routing.features import BUCKETS, STRUCTURE
from joulewise.routing.performance import FOURIER, Performance

VERSION = 1
MOST_BYTES = 20_000_000
_ARRAYS = {
    "table": (np.float16, ("buckets", "columns")),
    "center": (np.float64, ("structure",)),
    "scale": (np.float64, ("structure",)),
    "waves": (np.float64, ("fourier", "structure")),
    "phases": (np.float64, ("fourier",)),
    "heads": (np.float64, ("fourier", "options")),
    "means": (np.float64, ("options",)),
    "slopes": (np.float64, ("options",)),
    "platt": (np.float64, ("two", "options")),
    "domain_effects": (np.float64, ("domains", "options")),
    "labels": (np.int64, ("options",)),
    "calibration_error": (np.float64, ("options",)),
}


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_name: Literal["joulewise-router"]
    version: int
    options: tuple[str, ...]
    reference: int
    domains: tuple[str, ...]
    seed: int


def save(model: Performance, path: os.PathLike[str] | str) -> None:
    """Write a router file; a file of that name is replaced only by a whole one.

    Raises:
        UserError: it would be larger than 20 MB.
    """
    header = _Header(
        schema_name="joulewise-router", version=VERSION, options=model.options, reference=model.reference,
        domains=model.domains, seed=model.seed,
    )  # fmt: skip
    arrays: dict[str, Any] = {name: getattr(model, name).astype(kind) for name, (kind, _) in _ARRAYS.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in (
            ("header.json", header.model_dump_json().encode()),
            *((n, _npy(a)) for n, a in arrays.items()),
        ):
            member = name if name.endswith(".json") else f"{name}.npy"
            archive.writestr(zipfile.ZipInfo(member), data, zipfile.ZIP_DEFLATED)  # a fixed date: same fit, same bytes
    if buffer.tell() > MOST_BYTES:
        raise UserError(
            f"The router of {len(model.options)} options takes {buffer.tell()} bytes; at most {MOST_BYTES} do."
        )
    path = Path(path)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(buffer.getvalue())
    Path(file.name).replace(path)


def load_router(path: os.PathLike[str] | str) -> Performance:
    """Read a router file.

    Raises:
        UserError: it is absent, truncated, damaged, no router file, or of another version.
    """
    path = Path(path)
    again = "fit it again with this version of Joulewise"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is larger than {MOST_BYTES} bytes and no router file of Joulewise's.")
        with zipfile.ZipFile(path) as archive:
            written = json.loads(archive.read("header.json"))
            version = written.get("version") if isinstance(written, dict) else None
            if version != VERSION:
                raise UserError(f"{path} is a router file of version {version}, and this reads {VERSION}: {again}.")
            header = _Header.model_validate(written)
            sizes = {
                "buckets": BUCKETS, "columns": 1 + len(header.options), "structure": len(STRUCTURE), "fourier": FOURIER,
                "options": len(header.options), "two": 2, "domains": len(header.domains),
            }  # fmt: skip
            arrays = {
                name: _array(archive, name, kind, tuple(sizes[axis] for axis in axes))
                for name, (kind, axes) in _ARRAYS.items()
            }
        if not 0 <= header.reference < len(header.options):
            raise ValueError("the reference is none of the options")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError, ValidationError) as error:
        raise UserError(
            f"{path} is truncated, damaged or no router file ({first_paragraph(error)}): {again}."
        ) from error
    table = arrays.pop("table").astype(np.float32)
    return Performance(
        options=header.options,
        reference=header.reference,
        domains=header.domains,
        seed=header.seed,
        table=table,
        **arrays,
    )


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def _array(archive: zipfile.ZipFile, name: str, kind: Any, shape: tuple[int, ...]) -> Any:
    """An array of the archive, of the type and shape that the header asks for: a few bytes cannot ask for gigabytes."""
    member = archive.getinfo(f"{name}.npy")
    expected = int(np.prod(shape)) * np.dtype(kind).itemsize
    if member.file_size > expected + 4096:
        raise ValueError(f"{name} holds {member.file_size} bytes, and {expected} are expected")
    array = np.lib.format.read_array(io.BytesIO(archive.read(member)), allow_pickle=False)
    if array.dtype != kind or array.shape != shape:
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, and {shape} is expected")
    if name not in ("calibration_error",) and not np.isfinite(array).all():
        raise ValueError(f"{name} holds numbers that are not finite")
    return array

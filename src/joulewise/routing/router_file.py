"""Router files: all that was learnt, with schema and version. No pickle is written or read.

An npz archive (arrays, and ``header.json``), or JSON with the same arrays in base64 where the file is named ``.json``.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from joulewise.analysis.curve_file import CurveFile, curve_json, curve_of, origin_of
from joulewise.analysis.curve_points import Origin
from joulewise.analysis.curves import Curve
from joulewise.errors import EnvironmentFault, UserError, first_paragraph
from joulewise.routing.answer_joules import AnswerJoules
from joulewise.routing.energy import OptionEnergy, PublishedCurve
from joulewise.routing.features import BUCKETS, STRUCTURE
from joulewise.routing.latency import Latency
from joulewise.routing.lengths import ATOMS, Lengths
from joulewise.routing.past_answers import Way
from joulewise.routing.performance import FOURIER, Performance
from joulewise.routing.policy import Option
from joulewise.routing.router import Learnt, PromptLength, Router
from joulewise.whole_file import whole_file
from joulewise.yaml_file import in_words

VERSION = 2
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


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Group = tuple[int | None, str | None]


class _Lengths(_Part):
    """Output lengths; the lengths themselves are rows of the array ``lengths``, from ``first`` on."""

    edges: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...]
    groups: tuple[_Group, ...]
    first: Annotated[int, Field(ge=0)]
    answers: int


class _Energy(_Part):
    lengths: _Lengths
    curve: str
    votes: float
    at_once: bool
    prompt_read_once: bool
    most_output_tokens: float | None
    retry_chance: float
    retries: int


class _Learnt(_Part):
    option: Option
    energy: _Energy | None
    latency: Latency | None
    prompt: PromptLength
    way: Way | None
    answers_as: str
    provenance: str


class _Header(_Part):
    schema_name: Literal["joulewise-router"]
    version: int
    options: tuple[str, ...]
    reference: int
    domains: tuple[str, ...]
    seed: int
    learnt: dict[str, _Learnt]
    measured: dict[str, CurveFile]
    published: dict[str, PublishedCurve]
    answers: dict[str, AnswerJoules]
    cascades: tuple[Option, ...]
    seen: Annotated[int, Field(ge=0)]
    lengths: Annotated[int, Field(ge=0)]
    routing_j: Annotated[float, Field(ge=0, allow_inf_nan=False)]


def save(router: Router, path: os.PathLike[str] | str) -> None:
    """Write a router file; a file of that name is replaced only by a whole one.

    Raises:
        UserError: it would be larger than 20 MB.
        EnvironmentFault: it cannot be written.
    """
    model, path = router.performance, Path(path)
    curves: dict[str, dict[str, Any]] = {"measured": {}, "published": {}, "answers": {}}
    rows: list[Any] = []
    learnt = {name: _written(known, curves, rows) for name, known in router.learnt.items()}
    header = _Header(
        schema_name="joulewise-router", version=VERSION, options=model.options, reference=model.reference,
        domains=model.domains, seed=model.seed, learnt=learnt, cascades=router.cascades, seen=len(router.seen),
        lengths=len(rows), routing_j=router.routing_j, **curves,
    )  # fmt: skip
    arrays: dict[str, Any] = {name: getattr(model, name).astype(kind) for name, (kind, _) in _ARRAYS.items()}
    arrays |= {"lengths": np.array(rows, np.float32).reshape(-1, ATOMS), "seen": router.seen.astype(np.uint64)}
    text = header.model_dump_json().encode()
    members = {name: _npy(array) for name, array in arrays.items()}
    data = _as_json(text, members) if path.suffix.lower() == ".json" else _as_archive(text, members)
    if len(data) > MOST_BYTES:
        raise UserError(f"The router of {len(model.options)} options takes {len(data)} bytes; at most {MOST_BYTES} do.")
    try:
        with whole_file(path) as part:
            part.write_bytes(data)
    except OSError as error:
        raise EnvironmentFault(f"{path}: cannot be written ({error.strerror}); name another file") from error


def _as_archive(header: bytes, members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in (("header.json", header), *((f"{name}.npy", data) for name, data in members.items())):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # a fixed date: same fit, same bytes
    return buffer.getvalue()


def _as_json(header: bytes, members: Mapping[str, bytes]) -> bytes:
    arrays = {name: base64.b64encode(zlib.compress(data, 6)).decode() for name, data in members.items()}
    return (json.dumps({"header": json.loads(header), "arrays": arrays}) + "\n").encode()


def _written(known: Learnt, curves: dict[str, dict[str, Any]], rows: list[Any]) -> _Learnt:
    """One option, its curve put among the curves and its output lengths among the rows."""
    energy = None
    if (found := known.energy) is not None:
        kind = {Curve: "measured", PublishedCurve: "published", AnswerJoules: "answers"}[type(found.curve)]
        values = curves[kind]
        content = _curve_entry(found.curve, known.origin) if isinstance(found.curve, Curve) else found.curve
        name = next((n for n, there in values.items() if there == content), f"{kind}-{len(values)}")
        values[name] = content
        lengths = _Lengths(
            edges=tuple(found.lengths.edges.tolist()),
            groups=tuple(found.lengths.groups),
            first=len(rows),
            answers=found.lengths.answers,
        )
        rows.extend(found.lengths.groups.values())
        energy = _Energy(
            lengths=lengths, curve=name, votes=found.votes, at_once=found.at_once,
            prompt_read_once=found.prompt_read_once, most_output_tokens=found.most_output_tokens,
            retry_chance=found.retry_chance, retries=found.retries,
        )  # fmt: skip
    return _Learnt(
        option=known.option, energy=energy, latency=known.latency, prompt=known.prompt, way=known.way,
        answers_as=known.answers_as, provenance=known.provenance,
    )  # fmt: skip


def _curve_entry(curve: Curve, origin: Origin | None) -> CurveFile:
    assert origin is not None, "a measured curve tells what it is of"
    return CurveFile.model_validate_json(curve_json(curve, origin))


def load_router(path: os.PathLike[str] | str) -> Router:
    """Read a router file.

    Raises:
        UserError: it is absent, truncated, damaged, no router file, or of another version.
    """
    path = Path(path)
    again = "fit it again with this version of Joulewise"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is larger than {MOST_BYTES} bytes and no router file of Joulewise's.")
        data = path.read_bytes()
        written, member = _of_json(data) if data[:1] == b"{" else _of_archive(data)
        version = written.get("version") if isinstance(written, dict) else None
        if version != VERSION:
            raise UserError(f"{path} is a router file of version {version}, and this reads {VERSION}: {again}.")
        header = _Header.model_validate(written)
        sizes = {
            "buckets": BUCKETS, "columns": 1 + len(header.options), "structure": len(STRUCTURE), "fourier": FOURIER,
            "options": len(header.options), "two": 2, "domains": len(header.domains),
        }  # fmt: skip
        arrays = {
            name: _array(member(name, _bytes_of(kind, shape)), name, kind, shape)
            for name, (kind, axes) in _ARRAYS.items()
            for shape in [tuple(sizes[axis] for axis in axes)]
        }
        shape = header.lengths, ATOMS
        rows = _array(member("lengths", _bytes_of(np.float32, shape)), "lengths", np.float32, shape).astype(np.float64)
        seen = _array(member("seen", header.seen * 8), "seen", np.uint64, (header.seen,))
        if not 0 <= header.reference < len(header.options):
            raise ValueError("the reference is none of the options")
        if not header.learnt or {known.answers_as for known in header.learnt.values()} - set(header.options):
            raise ValueError("its options are not those of its estimator")
        curves = {
            **{name: (curve_of(entry), origin_of(entry)) for name, entry in header.measured.items()},
            **{name: (entry, None) for name, entry in (header.published | header.answers).items()},
        }
        learnt = {name: _read(header.learnt[name], curves, rows) for name in header.learnt}
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (zipfile.BadZipFile, binascii.Error, zlib.error, KeyError, EOFError, ValueError) as error:
        raise UserError(f"{path} is truncated, damaged or no router file ({_told(error)}): {again}.") from error
    table = arrays.pop("table").astype(np.float32)
    performance = Performance(
        options=header.options,
        reference=header.reference,
        domains=header.domains,
        seed=header.seed,
        table=table,
        **arrays,
    )
    return Router(performance, learnt, seen, header.routing_j, header.cascades)


def _told(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {in_words(first)}"
    return first_paragraph(error)


def _read(known: _Learnt, curves: Mapping[str, Any], rows: Any) -> Learnt:
    energy, origin = None, None
    if (found := known.energy) is not None:
        curve, origin = curves[found.curve]
        told, last = found.lengths, found.lengths.first + len(found.lengths.groups)
        if last > len(rows) or (None, None) not in told.groups:
            raise ValueError("output lengths are missing")
        groups = dict(zip(told.groups, rows[told.first : last], strict=True))
        lengths = Lengths(np.array(told.edges), groups, told.answers)
        energy = OptionEnergy(
            lengths, curve, found.votes, found.at_once, found.prompt_read_once, found.most_output_tokens,
            found.retry_chance, found.retries,
        )  # fmt: skip
    return Learnt(
        known.option, energy, known.latency, known.prompt, known.way, known.answers_as, known.provenance, origin
    )


Member = Callable[[str, int], bytes]
"""The bytes of an array by its name, at most about so many as are expected."""


def _of_archive(data: bytes) -> tuple[Any, Member]:
    archive = zipfile.ZipFile(io.BytesIO(data))
    if archive.getinfo("header.json").file_size > MOST_BYTES:
        raise ValueError("the header is too large")

    def member(name: str, expected: int) -> bytes:
        if (size := archive.getinfo(f"{name}.npy").file_size) > expected + 4096:
            raise ValueError(f"{name} holds {size} bytes, and {expected} are expected")
        return archive.read(f"{name}.npy")

    return json.loads(archive.read("header.json")), member


def _of_json(data: bytes) -> tuple[Any, Member]:
    whole = TypeAdapter(dict[str, Any]).validate_json(data)

    def member(name: str, expected: int) -> bytes:
        arrays = TypeAdapter(dict[str, str]).validate_python(whole["arrays"])
        packed = zlib.decompressobj()
        found = packed.decompress(base64.b64decode(arrays[name], validate=True), expected + 4096)
        if packed.unconsumed_tail:
            raise ValueError(f"{name} holds more than the {expected} bytes that are expected")
        return found

    return whole.get("header", whole), member


def _bytes_of(kind: Any, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * int(np.dtype(kind).itemsize)


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def _array(data: bytes, name: str, kind: Any, shape: tuple[int, ...]) -> Any:
    """An array, of the type and shape that the header asks for."""
    array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    if array.dtype != kind or array.shape != shape:
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, and {shape} is expected")
    if name not in ("calibration_error", "seen") and not np.isfinite(array).all():
        raise ValueError(f"{name} holds numbers that are not finite")
    return array

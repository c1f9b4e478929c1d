"""The lines of a ledger: one Trial or Check each, read strictly; a last line that was cut off is told, not repaired."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from joulewise.errors import EnvironmentFault, UserError
from joulewise.records import SCHEMA_VERSION, Check, Trial
from joulewise.yaml_file import in_words


@dataclass(frozen=True)
class LedgerContent:
    """What a ledger file holds.

    Args:
        trials: in the order written; several attempts at one Trial are all here.
        checks: the last verdict by ``trial_id``.
        intact_bytes: length of the file up to the end of the last whole line.
        torn: the bytes of a last line that was cut off; empty if none was.
    """

    trials: tuple[Trial, ...]
    checks: Mapping[str, Check]
    intact_bytes: int
    torn: bytes


def read_ledger(path: Path) -> LedgerContent:
    """Read a ledger; a torn last line is left out and told, not repaired.

    Raises:
        UserError: a broken line that is not the last one, or lines of a newer schema; with file and line.
    """
    trials: list[Trial] = []
    checks: dict[str, Check] = {}
    intact, torn = 0, b""
    for _, line, record in ledger_lines(path):
        if record is None:
            torn = line
            break
        if isinstance(record, Trial):
            trials.append(record)
        else:
            checks[record.trial_id] = record
        intact += len(line)
    return LedgerContent(tuple(trials), checks, intact, torn)


def ledger_lines(path: Path) -> Iterator[tuple[int, bytes, Trial | Check | None]]:
    """Number, bytes and value of each line; the value of a last line that was cut off is None. No file, no lines."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield number, line, _parse(line, f"{path}:{number}") if line.endswith(b"\n") else None
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_read(path, error) from error


def cannot_read(path: Path, error: OSError) -> EnvironmentFault:
    """The error for a file of a run folder that the system does not give."""
    return EnvironmentFault(f"{path}: cannot be read ({error.strerror}); check that it is a file and its permissions")


_LINE: TypeAdapter[Trial | Check] = TypeAdapter(Annotated[Trial | Check, Field(discriminator="kind")])


def _parse(line: bytes, where: str) -> Trial | Check:
    try:
        record = _LINE.validate_json(line)
    except ValidationError as error:
        raise UserError(f"{where}: {_what_is_wrong(line, error)}") from error
    if record.schema_version > SCHEMA_VERSION:
        raise UserError(f"{where}: {newer(record.schema_version)}")
    return record


def _what_is_wrong(line: bytes, error: ValidationError) -> str:
    """Why a line is none, one sentence; that it is of a newer schema comes before what is odd about it."""
    try:
        data = json.loads(line)
        version, kind = data["schema_version"], data["kind"]
    except (ValueError, KeyError, TypeError):
        version = kind = None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return newer(version)
    if kind not in ("trial", "check"):
        return "not a line of a Joulewise ledger; restore the file from a copy"
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"][1:]))  # the first part is the kind of line
    return f"{field}: {in_words(first)}; restore the file from a copy"


def newer(version: int) -> str:
    """What is said of a schema that this version does not know."""
    return f"written by a newer Joulewise (schema {version}; this one reads up to {SCHEMA_VERSION}): upgrade"

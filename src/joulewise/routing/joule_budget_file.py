"""A joule budget's account as a file that several processes share: each change is whole, or not there."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from joulewise.errors import EnvironmentFault, UserError
from joulewise.routing.joule_budget import Account, Begun, Period, Window
from joulewise.whole_file import whole_file

MOST_BYTES = 1 << 20

_Number = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Window(_Entry):
    began_s: _Number
    drawn_j: _Number
    share: Annotated[float, Field(ge=0.1, le=1)]
    power_w: _Number | None
    at_s: _Number | None


class _Begun(_Entry):
    at_s: _Number
    expected_j: _Number


class _File(_Entry):
    kind: Literal["joulewise-joule-budget"] = "joulewise-joule-budget"
    version: Literal[1] = 1
    windows: dict[Period, _Window]
    begun: dict[str, _Begun]


def read_account(path: Path) -> Account:
    """The account in a file; an empty one where there is no file.

    Raises:
        UserError: it cannot be read, or is no such file.
    """
    again = "name another with --budget-file, or remove it to begin anew"
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return Account()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or error}; name another file with --budget-file"
        ) from error
    try:
        if len(data) > MOST_BYTES:
            raise UserError(f"{path} is larger than {MOST_BYTES:,} bytes, and no joule budget: {again}")
        found = _File.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        told = f"{place}: {first['msg']}" if place else first["msg"]
        raise UserError(f"{path} is truncated, damaged or no joule budget ({told}): {again}") from error
    windows = {period: Window(**window.model_dump()) for period, window in found.windows.items()}
    return Account(windows, {name: Begun(one.at_s, one.expected_j) for name, one in found.begun.items()})


def change_account(path: Path, change: Callable[[Account], Account]) -> Account:
    """Read, change and write; others wait meanwhile.

    Raises:
        UserError: as ``read_account``.
        EnvironmentFault: it cannot be written.
    """
    try:
        with _alone(path.absolute().parent):
            account = change(read_account(path))
            file = _File(
                windows={p: _Window(**_plain(w)) for p, w in account.windows.items()},
                begun={name: _Begun(**_plain(one)) for name, one in account.begun.items()},
            )
            with whole_file(path) as part:
                part.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
            return account
    except OSError as error:
        raise EnvironmentFault(
            f"{path}: cannot be written ({error.strerror or error}); make room, or name another with --budget-file"
        ) from error


def _plain(value: Window | Begun) -> dict[str, float | None]:
    return {name: getattr(value, name) for name in value.__slots__}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else changes an account in this folder: the file itself is replaced, so it cannot carry the lock."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

"""Where questions come from: JSON Lines files with errors that name the line, or a data set of a hub."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from joulewise.errors import EnvironmentFault, UserError
from joulewise.yaml_file import suggest

DATA_VARIABLE = "JOULEWISE_DATA"
"""Environment variable that names the data folder where none is given."""

Row = Mapping[str, Any]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What a task is opened with.

    Args:
        data_dir: the folder with data files; None takes the one that ``JOULEWISE_DATA`` names, if any.
        options: the task's own options, by name.
    """

    data_dir: Path | None = None
    options: Mapping[str, object] = field(default_factory=dict)

    def folder(self) -> tuple[Path, str] | None:
        """The data folder and who named it; None where nobody did."""
        if self.data_dir is not None:
            return self.data_dir, "given as the data folder"
        named = os.environ.get(DATA_VARIABLE)
        return (Path(named), f"named by {DATA_VARIABLE}") if named else None


class TaskOptions(BaseModel):
    """Base of a task's options: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Options = TypeVar("Options", bound=TaskOptions)


def parse_options(model: type[Options], context: TaskContext, task: str) -> Options:
    """The options of ``context`` as ``model``.

    Raises:
        UserError: an unknown option (with the nearest right one) or a value that does not fit.
    """
    try:
        return model.model_validate(dict(context.options))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known = sorted(model.model_fields)
            hint = suggest(name, known) if known else "; this task has no options"
            raise UserError(f"task {task}: unknown option '{name}'{hint}") from error
        raise UserError(f"task {task}: option '{name}': {first['msg']} (found {first['input']!r})") from error


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set of a hub: repository, configuration, split."""

    repository: str
    config: str
    split: str

    def __str__(self) -> str:
        return f"{self.repository} ({self.config}, {self.split})"


def find_rows(context: TaskContext, task: str, file_name: str, hub: HubDataset) -> tuple[bool, list[tuple[str, Row]]]:
    """The rows of a third-party task.

    Args:
        context: names the data folder, if there is one.
        task: the task's name, for messages.
        file_name: the file in the data folder.
        hub: what is fetched where there is no data folder.

    Returns:
        Whether the rows are a local file's, and each row with its place for messages.

    Raises:
        UserError: the data folder or its file is missing or broken.
        EnvironmentFault: the hub's data set cannot be had.
    """
    named = context.folder()
    if named is None:
        return False, _hub_rows(task, file_name, hub)
    folder, by = named
    path = folder / file_name
    if not path.is_file():
        what = f"no file {file_name} in {folder}" if folder.is_dir() else f"no folder {folder}"
        raise UserError(
            f"task {task}: {what} ({by}); put the file there, or name no data folder to fetch {hub} from the hub"
        )
    return True, read_jsonl(path)


def read_jsonl(path: Path) -> list[tuple[str, Row]]:
    """The objects of a JSON Lines file (gzip where its name ends in ``.gz``); blank lines are skipped.

    Returns:
        ``path:line`` and the object, for each.

    Raises:
        UserError: the file is missing, unreadable, empty, or has a line that is not a JSON object.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: not UTF-8 text ({error.reason}); save the file as UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    rows: list[tuple[str, Row]] = []
    for number, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(content)
        except json.JSONDecodeError as error:
            raise UserError(f"{where}: not valid JSON: {error.msg} (column {error.colno})") from error
        except RecursionError as error:
            raise UserError(f"{where}: not valid JSON: nested too deeply") from error
        if not isinstance(row, dict):
            raise UserError(f"{where}: expected a JSON object, found {type(row).__name__}")
        rows.append((where, row))
    if not rows:
        raise UserError(f"{path}: holds no questions; it needs one JSON object a line")
    return rows


def validated(model: type[Model], rows: Iterable[tuple[str, Row]]) -> list[tuple[str, Model]]:
    """Each row as ``model``, with its place.

    Raises:
        UserError: a row lacks a field or has a wrong one.
    """
    good = []
    for where, row in rows:
        try:
            good.append((where, model.model_validate(row)))
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            what = "is missing" if first["type"] == "missing" else f"is wrong: {first['msg']}"
            raise UserError(f"{where}: the field '{name}' {what}") from error
    return good


def _hub_rows(task: str, file_name: str, hub: HubDataset) -> list[tuple[str, Row]]:
    way_out = f"name a data folder that holds {file_name} (--data, or {DATA_VARIABLE})"
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise EnvironmentFault(
            f"task {task}: the data set {hub} is fetched with the package 'datasets', which is not installed: "
            f"pip install 'joulewise[datasets]', or {way_out}"
        ) from error
    try:
        data = datasets.load_dataset(hub.repository, hub.config, split=hub.split)
    except (OSError, ValueError, DatasetsError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise EnvironmentFault(
            f"task {task}: the data set {hub} could not be fetched from the hub ({reason}); {way_out}"
        ) from error
    return [(f"{hub} row {i}", row) for i, row in enumerate(data)]

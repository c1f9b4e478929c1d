"""Where questions come from: JSON Lines files with errors that name the line, or a data set of a hub."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from joulewise.errors import EnvironmentFault, UserError
from joulewise.tasks.task import Question
from joulewise.yaml_file import in_words, suggest

DATA_VARIABLE = "JOULEWISE_DATA"
"""Environment variable that names the data folder where none is given."""

REACH_S = 5.0
"""So long the hub may take to answer before it counts as out of reach."""

Row = Mapping[str, Any]
Rows = Sequence[tuple[str, Row | UserError]]
"""In order, each row's place for messages, and its fields or why it cannot be read."""
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What a task is opened with.

    Args:
        data_dir: the folder with data files; None takes the one that ``JOULEWISE_DATA`` names, if any.
        options: the task's own options, by name.
        skip_bad: told of every broken row, which is then left out; None refuses the first one.
    """

    data_dir: Path | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    skip_bad: Callable[[str], None] | None = None

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
    if fault := option_fault(model, context.options):
        place, message = fault
        raise UserError(f"task {task}: option '{'.'.join(map(str, place))}': {message}")
    return model.model_validate(dict(context.options))


def option_fault(model: type[TaskOptions], options: Mapping[str, object]) -> tuple[tuple[str | int, ...], str] | None:
    """The first fault of a task's options: its place in them and what is wrong; None if there is none."""
    try:
        model.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] != "extra_forbidden":
            return first["loc"], f"{in_words(first)} (found {first['input']!r})"
        known = sorted(model.model_fields)
        hint = suggest(str(first["loc"][0]), known) if known else "; this task has no options"
        return first["loc"], f"unknown option '{first['loc'][0]}'{hint}"
    return None


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set of a hub.

    Args:
        repository, config, split: its name there.
        as_local: turns its rows into those of the local file where they differ.
    """

    repository: str
    config: str
    split: str
    as_local: Callable[[Iterable[Row]], Iterable[Row]] = iter

    def __str__(self) -> str:
        return f"{self.repository} ({self.config}, {self.split})"


def find_rows(context: TaskContext, task: str, file_name: str, hub: HubDataset) -> Rows:
    """The rows of a third-party task, from a local file where a data folder is named, else from a hub.

    Args:
        context: names the data folder, if there is one.
        task: the task's name, for messages.
        file_name: the file in the data folder.
        hub: what is fetched where there is no data folder.

    Raises:
        UserError: the data folder or its file is missing or unreadable.
        EnvironmentFault: the hub's data set cannot be had.
    """
    named = context.folder()
    if named is None:
        return _hub_rows(task, file_name, hub)
    folder, by = named
    path = folder / file_name
    if not path.is_file():
        what = f"no file {file_name} in {folder}" if folder.is_dir() else f"no folder {folder}"
        raise UserError(
            f"task {task}: {what} ({by}); put the file there, or name no data folder to fetch {hub} from the hub"
        )
    return read_jsonl(path)


def read_jsonl(path: Path) -> Rows:
    """The objects of a JSON Lines file (gzip where its name ends in ``.gz``); blank lines are left out.

    Returns:
        ``path:line`` and the object, or what is wrong with the line.

    Raises:
        UserError: the file is missing, unreadable or empty.
    """
    try:
        data = path.read_bytes()
        content = gzip.decompress(data) if path.suffix == ".gz" else data
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: cannot be read: it is a folder; name a JSON Lines file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: not a whole gzip file; fetch it anew") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check the file and its permissions") from error
    lines = enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1)
    rows = [(f"{path}:{number}", _object(line, f"{path}:{number}")) for number, line in lines if line.strip()]
    if not rows:
        raise UserError(f"{path}: holds no questions; it needs one JSON object a line")
    return rows


def _object(line: bytes, where: str) -> Row | UserError:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return UserError(f"{where}: not UTF-8 text ({error.reason}); save the file as UTF-8")
    except json.JSONDecodeError as error:
        return UserError(f"{where}: not valid JSON: {error.msg} (column {error.colno})")
    except ValueError:
        return UserError(f"{where}: not valid JSON: a number with too many digits")
    except RecursionError:
        return UserError(f"{where}: not valid JSON: nested too deeply")
    return row if isinstance(row, dict) else UserError(f"{where}: expected a JSON object, found {type(row).__name__}")


def questions(context: TaskContext, rows: Rows, make: Callable[[Row, str, int], Question]) -> tuple[Question, ...]:
    """The questions of rows. A broken row ends it, or is told to ``context.skip_bad`` and left out.

    Args:
        context: says what to do with broken rows.
        rows: from ``find_rows`` or ``read_jsonl``.
        make: the question of a row, its place and its number (from 0, broken rows counted, so that skipping one renames
            no other); raises UserError where the row is broken. ``validated`` helps.

    Raises:
        UserError: a broken row, an id that an earlier row has, or no row that can be used.
    """
    made: dict[str, Question] = {}
    places: dict[str, str] = {}
    broken: list[str] = []
    for number, (where, row) in enumerate(rows):
        try:
            if isinstance(row, UserError):
                raise row
            question = make(row, where, number)
            name = question.question_id
            if name in made:
                raise UserError(f"{where}: the id '{name}' stands already at {places[name]}; ids must differ")
        except UserError as error:
            broken.append(str(error))
        else:
            made[name], places[name] = question, where
    if len(broken) > 1 and not made:
        raise UserError(f"none of {len(broken)} lines can be used; the first: {broken[0]}")
    if broken and (context.skip_bad is None or not made):
        others = ", or use the other lines with --skip-bad" if made else ""
        raise UserError(f"{broken[0]}; correct it{others}")
    if context.skip_bad is not None:
        for fault in broken:
            context.skip_bad(fault)
    return tuple(made.values())


def validated(model: type[Model], row: Row, where: str) -> Model:
    """A row as ``model``.

    Raises:
        UserError: it lacks a field or has a wrong one.
    """
    try:
        return model.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        what = "is missing" if first["type"] == "missing" else f"is wrong: {in_words(first)}"
        raise UserError(f"{where}: the field '{name}' {what}") from error


def _hub_rows(task: str, file_name: str, hub: HubDataset) -> Rows:
    way_out = f"name a data folder that holds {file_name} (--data, or {DATA_VARIABLE})"
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise EnvironmentFault(
            f"task {task}: the data set {hub} is fetched with the package 'datasets', which is not installed: "
            f"pip install 'joulewise[datasets]', or {way_out}"
        ) from error
    fault = hub_out_of_reach()
    try:
        with offline() if fault else nullcontext():
            data = datasets.load_dataset(hub.repository, hub.config, split=hub.split)
    except (OSError, ValueError, DatasetsError) as error:
        reason = fault or (str(error) or type(error).__name__).splitlines()[0]
        raise EnvironmentFault(
            f"task {task}: the data set {hub} could not be fetched from the hub ({reason}); {way_out}"
        ) from error
    return [(f"{hub} row {i}", row) for i, row in enumerate(hub.as_local(data))]


def hub_out_of_reach() -> str | None:
    """Why the hub cannot be reached now; None if it can. Asked once: the hub's own client tries for half a minute."""
    import urllib.error
    import urllib.request

    from huggingface_hub import constants

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set, and it is not in the hub's cache"
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=REACH_S).close()
    except urllib.error.HTTPError:
        return None  # it answers
    except OSError:
        return f"{constants.ENDPOINT} cannot be reached, and it is not in the hub's cache"
    return None


@contextmanager
def offline() -> Iterator[None]:
    """Let ``datasets`` look into its cache alone meanwhile."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before

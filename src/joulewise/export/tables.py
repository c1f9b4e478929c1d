"""Runs as files for other programs: their Trials and their timeline, as Parquet or CSV. Units stand in the names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from joulewise.errors import EnvironmentFault, UserError
from joulewise.table import RunTable
from joulewise.whole_file import whole_file

_T = TypeVar("_T")

SUFFIXES = (".parquet", ".csv")


def check_suffix(target: Path) -> None:
    """Raises ``UserError`` if the name of ``target`` says neither Parquet nor CSV."""
    if target.suffix not in SUFFIXES:
        raise UserError(f"{target}: its name must end in {' or '.join(SUFFIXES)}, which says what to write")


def write_trials(table: RunTable, target: Path) -> int:
    """Write one row per Trial; how many. Columns as in ``joulewise.table.SCHEMA``; in CSV lists are words (``3 0 5``)
    and what a load was is JSON.

    Raises:
        UserError: a suffix other than those in ``SUFFIXES``, or there is no Trial.
        EnvironmentFault: the file cannot be written.
    """
    if not table.arrow.num_rows:
        folders = ", ".join(str(folder) for folder in table.folders.values())
        raise UserError(f"{folders}: no Trial yet, so there is nothing to write; go on with the run, or leave it out")
    return _write(target, table.arrow.schema, [table.arrow])


def write_timeline(table: RunTable, target: Path) -> int:
    """Write one row per reading, with its run's name; how many.

    ``time_s`` is on the monotonic clock that the Trials' ``start_s`` and ``end_s`` are on; of runs on several machines
    each has its own.

    Raises:
        UserError: a suffix other than those in ``SUFFIXES``; no run has a timeline; a part of one is damaged.
        EnvironmentFault: a file cannot be read or written.
    """
    parts = [(run, file) for run, folder in table.folders.items() for file in sorted(folder.glob("timeline/*.parquet"))]
    if not parts:
        folders = ", ".join(str(folder) for folder in table.folders.values())
        raise UserError(f"{folders}: no timeline, so there is nothing to write; leave --timeline out")
    # Runs of several versions may have different columns.
    schemas = [pa.schema([("run", pa.string())]), *(_plain(_read(pq.read_schema, file)) for _, file in parts)]
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    return _write(target, schema, (_timeline_part(run, file, schema) for run, file in parts))


def _timeline_part(run: str, part: Path, schema: pa.Schema) -> pa.Table:
    table = _read(_parquet, part)
    there = {name: table[name] for name in table.column_names} | {"run": pa.repeat(pa.scalar(run), table.num_rows)}
    columns = [there[f.name].cast(f.type) if f.name in there else pa.nulls(table.num_rows, f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _parquet(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:  # pq.read_table would import pandas
        return file.read()


def _plain(schema: pa.Schema) -> pa.Schema:
    """Without dictionaries, whose words differ from file to file."""
    return pa.schema([(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in schema])


def _read(read: Callable[[Path], _T], part: Path) -> _T:
    try:
        return read(part)
    except OSError as error:
        raise EnvironmentFault(f"{part}: cannot be read ({error.strerror or error})") from error
    except pa.ArrowInvalid as error:
        raise UserError(f"{part}: cut off or damaged; copy it again from where it was run") from error


def _write(target: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Write tables one after the other, the file whole or not at all."""
    check_suffix(target)
    rows = 0
    with _whole(target) as part:
        if target.suffix == ".csv":
            schema = pa.schema([(f.name, pa.string() if pa.types.is_nested(f.type) else f.type) for f in schema])
            writer: pa.csv.CSVWriter | pq.ParquetWriter = pyarrow.csv.CSVWriter(part, schema)
        else:
            writer = pq.ParquetWriter(part, schema, compression="zstd")
        with writer:
            for table in tables:
                writer.write_table(_words(table, schema) if target.suffix == ".csv" else table)
                rows += table.num_rows
    return rows


def _words(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Lists as words, and structs as JSON: CSV has neither."""
    return pa.Table.from_arrays([_in_words(column) for column in table.columns], schema=schema)


def _in_words(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_list(column.type):
        return pc.binary_join(column.cast(pa.list_(pa.string())), " ")
    if pa.types.is_struct(column.type):
        told = [None if value is None else json.dumps(value) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(told, pa.string())])
    return column


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    try:
        with whole_file(target) as part:
            yield part
    except OSError as error:
        raise EnvironmentFault(
            f"{target}: cannot be written ({error.strerror or error}); choose another file"
        ) from error

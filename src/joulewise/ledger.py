"""What happened? A run folder: append-only, resumable, safe against kill -9 and a full disk.

plan.yaml           the plan as it was run
environment.json    versions, devices, clocks, limits, git state, engines, sources
idle.json           idle power with the weights loaded, before and after the Trials of each engine and session
skipped.json        broken lines of task data that were left out (--skip-bad), if there were any
judgements.jsonl    what a judge said of the answers (`joulewise judge`), if one was asked
cross_check.json    each counter against its device's power readings, over the whole run
ledger.jsonl        one Trial or Check per line, flushed to disk
requests/*.jsonl.gz every request of each Trial under load
timeline/*.parquet  the raw readings of every source between
run.lock            held while a run writes here
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from joulewise.errors import EnvironmentFault, UserError
from joulewise.ledger_lines import LedgerContent, cannot_read, ledger_lines, newer, read_ledger
from joulewise.plan import Plan
from joulewise.records import SCHEMA_VERSION, Check, Trial
from joulewise.whole_file import whole_file
from joulewise.yaml_file import load_yaml

if TYPE_CHECKING:
    import pyarrow as pa

    from joulewise.energy.crosscheck import CrossCheck
    from joulewise.energy.meter import TimelineRow
    from joulewise.energy.reading import DeviceState
    from joulewise.table import RunTable

LEDGER = "ledger.jsonl"
IDLE = "idle.json"
CROSS_CHECK = "cross_check.json"
SKIPPED = "skipped.json"


class RunFolder:
    """A run folder that this process writes. Use as a context manager; holds the folder's lock.

    Attributes:
        path: the folder.
        content: what the ledger held when the folder was opened.
        notices: what was noticed and repaired on opening, in words.
    """

    def __init__(self, path: Path, plan: Plan, resume: bool) -> None:
        """Create the folder, or open it to go on.

        Raises:
            UserError: it holds a run and ``resume`` is not asked for, or the run was made with another plan.
            EnvironmentFault: it cannot be written, or another run writes in it now.
        """
        self.path = path
        self.notices: list[str] = []
        if resume:
            _check_resumable(path)
        with _told(path):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
        with contextlib.ExitStack() as unless_opened:
            unless_opened.callback(os.close, self._lock)
            self._take_lock()
            self.content = self._open(plan, resume)
            with _told(path):
                self._ledger = os.open(path / LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            unless_opened.pop_all()
        self._size = self.content.intact_bytes

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentFault(
                f"{self.path}: another run is writing in this folder; wait for it, or choose another with --out"
            ) from None

    def _open(self, plan: Plan, resume: bool) -> LedgerContent:
        content = _content(self.path, plan, resume)
        if not resume:
            # A run that failed before its first Trial (no such model, say) leaves nothing that is worth keeping.
            for left_over in ("environment.json", IDLE, CROSS_CHECK, SKIPPED):
                (self.path / left_over).unlink(missing_ok=True)
            self.write("plan.yaml", yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
        if content.torn:
            with _told(self.path):
                with open(self.path / f"{LEDGER}.torn", "ab") as keep:
                    keep.write(content.torn + b"\n")
                os.truncate(self.path / LEDGER, content.intact_bytes)
            self.notices.append(
                f"the ledger's last line was cut off ({len(content.torn)} bytes): the Trial in flight is lost and "
                f"will be run again; the bytes are kept in {LEDGER}.torn"
            )
        return content

    def append(self, record: Trial | Check) -> None:
        """Write one line and flush it to disk. A line that does not fit is taken back whole.

        Raises:
            EnvironmentFault: no space left, or the like; what was written before is intact.
        """
        line = record.model_dump_json().encode() + b"\n"
        try:
            written = 0
            while written < len(line):
                written += os.write(self._ledger, line[written:])
            os.fsync(self._ledger)
        except OSError as error:
            os.ftruncate(self._ledger, self._size)
            raise EnvironmentFault(
                f"{self.path / LEDGER}: cannot be written ({error.strerror}); everything up to the last whole Trial is "
                "intact: make room and go on with --resume"
            ) from error
        self._size += len(line)

    def write(self, name: str, text: str) -> None:
        """Write one small file whole or not at all."""
        target = self.path / name
        with _told(target), whole_file(target) as part:
            part.write_text(text, encoding="utf-8")

    def write_json(self, name: str, data: Any) -> None:
        """``write`` of a value as JSON."""
        self.write(name, json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def append_timeline(self, rows: Sequence[TimelineRow]) -> None:
        """Write raw readings as a further Parquet file of ``timeline/``.

        One file per call, since a Parquet file that a kill cut off cannot be read.
        """
        if not rows:
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        folder = self.path / "timeline"
        table = pa.Table.from_pydict(  # pa.table() would import pandas
            {
                "time_s": pa.array([r.time_s for r in rows], pa.float64()),
                "source_id": pa.array([r.source_id for r in rows]).dictionary_encode(),
                "energy_j": pa.array([r.energy_j for r in rows], pa.float64()),
                "power_w": pa.array([r.power_w for r in rows], pa.float64()),
            }
            | _states([r.state for r in rows])
        )
        with _told(folder):
            folder.mkdir(exist_ok=True)
            target = folder / f"{sum(1 for _ in folder.glob('*.parquet')):05d}.parquet"
            with whole_file(target) as part:
                pq.write_table(table, part, compression="zstd")

    def cross_check(self) -> None:
        """Write ``cross_check.json``: the counters against the power readings, over the timelines of all sessions."""
        if rows := [asdict(check) for check in cross_checks(self.path)]:
            self.write_json(CROSS_CHECK, {"cross_check": rows})

    def close(self) -> None:
        """Close the ledger and let go of the lock."""
        os.close(self._ledger)
        os.close(self._lock)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_folder(path: Path, plan: Plan, resume: bool) -> None:
    """Refuse what ``RunFolder`` would refuse, without writing anything.

    Raises:
        UserError, EnvironmentFault: as ``RunFolder``.
    """
    place = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        what = "no permission to write here" if place.is_dir() else "not a folder"
        raise EnvironmentFault(f"{place}: {what}; choose another folder with --out")
    if resume:
        _check_resumable(path)
    _content(path, plan, resume)


def resumable_plan(path: Path) -> Plan:
    """The plan of a run that may go on.

    Raises:
        UserError: there is no run here, or files of it are missing or damaged.
    """
    _check_resumable(path)
    return _recorded_plan(path / "plan.yaml")


def _check_resumable(path: Path) -> None:
    if not (path / "plan.yaml").exists() and not (path / LEDGER).exists():
        raise UserError(f"{path}: there is no run to resume here; leave out --resume to start one")
    _check_complete(path)


def _content(path: Path, plan: Plan, resume: bool) -> LedgerContent:
    """What a folder's ledger holds, if a run of the plan may begin, or go on, there."""
    content = read_ledger(path / LEDGER)
    if content.trials and not resume:
        raise UserError(f"{path}: holds a run; go on with --resume, or choose another with --out")
    if resume:
        before = _recorded_plan(path / "plan.yaml")
        if before.content_hash != plan.content_hash:
            changed = ", ".join(n for n in Plan.model_fields if getattr(before, n) != getattr(plan, n))
            raise UserError(
                f"{path}: the run was started with another plan (they differ in: {changed}); "
                "restore the plan, or start a new run with --out"
            )
    return content


def _states(states: Sequence[DeviceState | None]) -> dict[str, Any]:
    """The devices' states as columns: null in every row that tells a counter or a power."""
    import pyarrow as pa

    from joulewise.energy.reading import DeviceState

    nothing = DeviceState()
    columns = zip(*(state or nothing for state in states), strict=True)
    return {
        name: pa.array(column, pa.string() if name == "throttled_by" else pa.float64())
        for name, column in zip(DeviceState._fields, columns, strict=True)
    }


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn an operating-system error into one sentence for a person."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(
            f"{error.filename or path}: cannot be written ({error.strerror}); choose another folder with --out, "
            "or make room or ask for permission"
        ) from error


def cross_checks(folder: Path) -> tuple[CrossCheck, ...]:
    """Each counter of a run against its device's power readings, from the run's timeline; empty where it has none.

    Raises:
        UserError: a file of the timeline is damaged.
    """
    files = sorted((folder / "timeline").glob("*.parquet"))
    if not files:
        return ()
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from joulewise.energy.crosscheck import cross_check

    names = ("source_id", "time_s", "energy_j", "power_w")
    tables = []
    for file in files:
        try:
            tables.append(pq.read_table(file, columns=list(names)))
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"{file}: cannot be read, so counters and power readings are not compared ({error}); "
                "copy it again from where it was run"
            ) from error
    table = pa.concat_tables(tables)
    ids, *columns = (table[name].to_pylist() if name == "source_id" else table[name].to_numpy() for name in names)
    return cross_check(ids, *(np.asarray(column, dtype=np.float64) for column in columns))


def new_run_folder(plan: Plan) -> Path:
    """The default place of a new run: ``runs/NAME-DATE-TIME``."""
    return Path("runs") / f"{plan.name}-{datetime.now():%Y%m%d-%H%M%S}"


def latest_run_folder(plan: Plan) -> Path:
    """The plan's latest run in the default place.

    Raises:
        UserError: there is none.
    """
    earlier = [f.parent for f in sorted(Path("runs").glob(f"{plan.name}-[0-9]*-[0-9]*/{LEDGER}")) if f.stat().st_size]
    if not earlier:
        raise UserError(f"runs: no earlier run of the plan '{plan.name}' to resume; name its folder with --out")
    return earlier[-1]


def load(runs: os.PathLike[str] | str | Iterable[os.PathLike[str] | str]) -> RunTable:
    """Read one run, or several side by side, as a typed table.

    Args:
        runs: run folders (those that ``joulewise run`` wrote), or what ``joulewise.run`` returned.

    Raises:
        UserError: not a run folder, one with files missing or damaged, or one of a newer version.
    """
    import pyarrow as pa

    from joulewise.judge.ratings import rated
    from joulewise.judge.record import read_judgements
    from joulewise.ledger_columns import LARGE_BYTES, quick_rows
    from joulewise.table import SCHEMA, RunTable, rows_to_arrow

    folders = [Path(runs)] if isinstance(runs, (str, os.PathLike)) else [Path(r) for r in runs]
    tables: list[pa.Table] = []
    plans: dict[str, Any] = {}
    environments: dict[str, Any] = {}
    named: dict[str, Path] = {}
    warnings: list[str] = []
    for folder in folders:
        _check_complete(folder)
        name = _unique(folder.resolve().name, named)
        named[name] = folder
        plans[name] = _recorded_plan(folder / "plan.yaml").model_dump(mode="json")
        parts = [read_json(folder / part) for part in ("environment.json", IDLE, CROSS_CHECK, SKIPPED)]
        environments[name] = {key: value for part in parts for key, value in part.items()}
        for task, faults in parts[-1].get("skipped", {}).items():
            warnings.append(
                f"{name}: broken lines of the task {task} were left out: {len(faults)} ({SKIPPED} lists them)"
            )
        ledger = folder / LEDGER
        quick = None
        if ledger.exists() and ledger.stat().st_size >= LARGE_BYTES:
            quick = quick_rows(name, ledger, partial(_tell_repeated, name, warnings))
        rows = rows_to_arrow(name, _whole(ledger, name, warnings)) if quick is None else quick
        rows, told = rated(rows, read_judgements(folder))
        warnings += [f"{name}: {text}" for text in (*told, *_notes(rows))]
        tables.append(rows)
        if tables[-1].num_rows and not parts[0]:
            warnings.append(
                f"{name}: environment.json is missing, so what it ran on is not known; copy the whole folder"
            )
    arrow = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
    return RunTable(arrow, plans, environments, named, tuple(warnings))


def _notes(rows: pa.Table) -> list[str]:
    """What must be known of how answers came about, a sentence a reasoning and note."""
    counts = rows.filter(rows["note"].is_valid()).group_by(["reasoning", "note"]).aggregate([([], "count_all")])
    return [
        f"{c['reasoning']}: {c['note']} ({c['count_all']:,} Trial{'s' * (c['count_all'] > 1)})"
        for c in counts.to_pylist()
    ]


def _whole(path: Path, name: str, warnings: list[str]) -> Iterator[tuple[int, Trial | Check]]:
    """Number and value of each whole line, one at a time: a ledger may be larger than the memory."""
    from joulewise.probing import probed_trials

    seen: set[tuple[str, int]] = set()
    trials = 0
    for number, _, record in ledger_lines(path):
        if record is None:
            warnings.append(f"{name}: the ledger's last line is cut off and was left out; `--resume` repairs it")
            continue
        if isinstance(record, Trial):
            seen.add((record.trial_id, record.attempt))
            trials += 1
        yield number, record
        if isinstance(record, Trial) and record.probes:
            yield from ((number, probed) for probed in probed_trials(record))
    _tell_repeated(name, warnings, trials - len(seen))


def _tell_repeated(name: str, warnings: list[str], lines: int) -> None:
    if lines:
        what = "1 line of the ledger repeats" if lines == 1 else f"{lines:,} lines of the ledger repeat"
        warnings.append(f"{name}: {what} a Trial and attempt that an earlier line has; of such lines the last counts")


def _check_complete(folder: Path) -> None:
    """Make sure that a folder holds a run that can be read or gone on with.

    Raises:
        UserError: it holds none, a part of one only, or one of a newer version.
    """
    has = {name for name in ("plan.yaml", "environment.json", LEDGER) if (folder / name).exists()}
    if not has:
        if folder.is_file():
            inside = f"name the folder {folder.parent}" if (folder.parent / LEDGER).exists() else "name a folder"
            raise UserError(f"{folder}: a file, and no run folder; {inside}")
        problem = "not a run folder" if folder.is_dir() else "no such folder"
        raise UserError(f"{folder}: {problem}; name one that `joulewise run` made (runs/NAME-DATE-TIME)")
    # The ledger is made right after the plan, so only a run that was killed in between has the plan alone.
    if has == {"plan.yaml"}:
        return
    missing = {"plan.yaml", LEDGER} - has
    if missing:
        raise UserError(
            f"{folder}: a run folder without {' and '.join(sorted(missing))}, so a part of one; copy the whole folder "
            "from where it was run"
        )
    try:
        with (folder / LEDGER).open("rb") as file:
            first = file.readline()
    except OSError as error:
        raise cannot_read(folder / LEDGER, error) from error
    # Before the plan, whose keys may be newer too.
    with contextlib.suppress(ValueError, KeyError, TypeError):
        version = json.loads(first)["schema_version"]
        if version > SCHEMA_VERSION:
            raise UserError(f"{folder / LEDGER}:1: {newer(version)}")


def _recorded_plan(path: Path) -> Plan:
    try:
        return load_yaml(path, Plan)
    except UserError as error:
        raise UserError(
            f"{error}\n{path}: the plan of a run does not change; copy it again from where it was run"
        ) from error


def _unique(name: str, taken: Mapping[str, Path]) -> str:
    return name if name not in taken else next(f"{name}-{i}" for i in range(2, 10_000) if f"{name}-{i}" not in taken)


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON file of the run folder; empty if it is not there.

    Raises:
        UserError: it is cut off or damaged.
    """
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise cannot_read(path, error) from error
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise UserError(f"{path}: cut off or damaged; copy it again from where it was run, or delete it to do without")
    return data

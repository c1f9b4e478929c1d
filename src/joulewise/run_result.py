"""Where a run stands, and how it ended: what is told to whoever started it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from joulewise.records import Trial

if TYPE_CHECKING:
    from joulewise.under_load import Live


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, for whoever shows it.

    Args:
        stage: ``load``, ``warm-up``, ``idle``, ``trial``, ``live``, ``notice`` or ``done``.
        text: one phrase for people.
        done: Trials done, those of earlier sessions included.
        total: all Trials of the plan (within ``limit``).
        trial: the Trial that has just ended, for the stage ``trial``.
        live: how a stretch under load goes, for the stage ``live``, about once a second and from another thread.
    """

    stage: str
    text: str
    done: int
    total: int
    trial: Trial | None = None
    live: Live | None = None


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Args:
        folder: the run folder.
        done: Trials in the ledger.
        total: Trials of the plan.
        failed: Trials with an error.
        interrupted: whether it was stopped before its end (go on with ``resume``).
        different: lossless Trials whose output differs from vanilla's beyond what arithmetic explains.
        not_loaded: engines that could not be loaded, by label, and why; ``resume`` tries them again.
        notes: of a sweep: what a reader must know of a point, once for each point that has such a note.
    """

    folder: Path
    done: int
    total: int
    failed: int
    interrupted: bool
    different: int
    not_loaded: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __fspath__(self) -> str:
        return str(self.folder)

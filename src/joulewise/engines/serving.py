"""Serving: what an engine has besides whose model runs in a server, a process of its own or on another host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from joulewise.decoding.spec import Decoding
from joulewise.energy.part import WHOLE, Part
from joulewise.engines.engine import Engine, Request, Tally

if TYPE_CHECKING:
    import psutil

    from joulewise.energy.source import SourceSpec
    from joulewise.engines.openai_api.answer import Answer


@dataclass(frozen=True, slots=True)
class Counted:
    """What a server counted over a Trial.

    Args:
        tally: None where nothing was drafted, or nobody knows (``known`` tells which).
        known: whether the server tells what was drafted.
        shared: whether others used the server meanwhile, so that neither its counters nor its joules are ours alone.
        note: what a reader must know.
        fault: why the Trial is none of its cell.
    """

    tally: Tally | None = None
    known: bool = True
    shared: bool = False
    note: str | None = None
    fault: str | None = None


@runtime_checkable
class Serving(Protocol):
    """An engine before a server. What may take long, and what is no work of a Trial, it does outside of windows."""

    def attach(self, folder: Path, first: Decoding, tell: Callable[[str], None]) -> None:
        """Before ``load``: where its logs go, which decoding comes first, and who is told how a start goes on."""
        ...

    def part(self, sources: Sequence[SourceSpec]) -> Part:
        """Which sources of the meter are the server's. After ``load``.

        Raises:
            UserError: a device that the plan names has no source.
        """
        ...

    def refuses_request(self, request: Request, decoding: Decoding) -> str | None:
        """Why its server cannot be asked that, one sentence with a way out; None if it can. After ``load``."""
        ...

    def prepare(self, decoding: Decoding) -> bool:
        """Make the server for ``decoding`` ready, and begin to count. Whether it must be warmed up.

        Raises:
            ServerError: it cannot be had.
        """
        ...

    def counted(self) -> Counted:
        """What the server counted since ``prepare``."""
        ...

    def processes(self) -> list[psutil.Process] | None:
        """Those of the servers that run on this machine; None where nobody tells which they are."""
        ...


@dataclass(frozen=True, slots=True)
class Sending:
    """How many requests at once are sent to a server, on one event loop.

    Args:
        send: one request; raises a ``JoulewiseError`` where there is no answer to it.
        ended: why no answer will come any more, with the log's last lines; None while the server runs.
        drafted: draft tokens so far, and those accepted; None where answers do not tell.
    """

    send: Callable[[Request], Awaitable[Answer]]
    ended: Callable[[], str | None]
    drafted: Callable[[], tuple[int, int] | None]


@runtime_checkable
class ManyAtOnce(Serving, Protocol):
    """An engine whose server takes many requests at once."""

    def sending(self, decoding: Decoding) -> AbstractAsyncContextManager[Sending]:
        """After ``prepare``: what sends requests on the running event loop, counted as those of a Trial.

        Raises:
            ServerError: there is no server.
        """
        ...


def part_of(engine: Engine, sources: Sequence[SourceSpec]) -> Part:
    """Whose joules an engine's Trials have."""
    return engine.part(sources) if isinstance(engine, Serving) else WHOLE


def counted(engine: Engine) -> Counted:
    """What a server counted over the Trial that has just ended; nothing for other engines, which tell of each round."""
    return engine.counted() if isinstance(engine, Serving) else Counted()


def processes(engine: Engine) -> list[psutil.Process] | None:
    """The server's processes on this machine; None where nobody tells which they are."""
    return engine.processes() if isinstance(engine, Serving) else []

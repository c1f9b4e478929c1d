"""One server for one decoding: started here or met where it runs, asked for its counters, and stopped again."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from joulewise.decoding.spec import Decoding
from joulewise.engines.endpoint_spec import ServerSpec
from joulewise.engines.servers import SERVERS, open_recipe
from joulewise.engines.servers.counters import Asked, Counters, reckon
from joulewise.engines.servers.process import ServerProcess, free_port, require_free, wait_until_healthy
from joulewise.engines.servers.server import LOCAL, About, Command, Fetch, Launch, ServerRecipe, fetcher
from joulewise.engines.serving import Counted
from joulewise.errors import ServerError

TRIES = 3
"""A free port may be taken by another program before the server takes it."""

LOOK_S = 1.0
"""How often a server that is not ready yet is asked."""

CATCH_UP_S = 1.0
"""Servers count a request a moment after they have answered it."""


@dataclass
class Served:
    """A server that answers.

    Args:
        decoding: what it speculates by.
        base: its address, with the ``/v1``.
        recipe: its kind.
        about: what it told of itself.
        fetch: asks it for a path.
        process: where it was started here; else None.
        started_s: seconds until it answered; None where it ran already.
        cold: whether it has answered no request of ours.
        before: its totals when a Trial's counting began.
        asked: the Trial's requests so far.
        owner: the process that listens, of a server that ran already, once it has been looked for.
    """

    decoding: Decoding
    base: str
    recipe: ServerRecipe
    about: About
    fetch: Fetch
    process: ServerProcess | None = None
    started_s: float | None = None
    cold: bool = True
    before: Counters | None = None
    asked: list[Asked] = field(default_factory=list)
    owner: psutil.Process | None = None

    @property
    def dead(self) -> bool:
        """Whether it was started here and has ended."""
        return self.process is not None and not self.process.running

    def begin(self) -> None:
        """Count from here on."""
        self.asked.clear()
        self.before = self.recipe.counters(self.fetch, self.decoding)

    def counted(self) -> Counted:
        """What it counted since ``begin``."""
        after = self.recipe.counters(self.fetch, self.decoding)
        expected = sum(one.output_tokens for one in self.asked)
        give_up_s = time.monotonic() + CATCH_UP_S
        while self._lags(after, expected) and time.monotonic() < give_up_s:
            time.sleep(0.02)
            after = self.recipe.counters(self.fetch, self.decoding)
        path = _path(self.decoding)
        return reckon(self.before, after, self.asked, path)

    def _lags(self, after: Counters | None, expected: int) -> bool:
        if self.before is None or after is None or after.output_tokens is None:
            return False
        # Fewer than before: it was reset, and waiting does not help.
        return 0 <= after.output_tokens - (self.before.output_tokens or 0) < expected

    def processes(self) -> list[psutil.Process] | None:
        """Its processes, where it runs on this machine; None where nobody tells which they are."""
        if self.process is not None:
            return self.process.processes()
        if self.owner is None or not self.owner.is_running():
            self.owner = listener(urllib.parse.urlsplit(self.base).port or 80)
        try:
            return None if self.owner is None else [self.owner, *self.owner.children(recursive=True)]
        except psutil.NoSuchProcess:
            return None

    def stop(self) -> None:
        """Where it was started here. Idempotent."""
        if self.process is not None:
            self.process.stop()


def _path(decoding: Decoding) -> int:
    """The most draft tokens that a round can accept."""
    return int(getattr(decoding, "path_tokens", getattr(decoding, "tokens", 0)))


def start(
    recipe: ServerRecipe,
    launch: Launch,
    env: Mapping[str, str],
    log: Path,
    tell: Callable[[str], None],
) -> Served:
    """Start a server and wait until it answers.

    Args:
        recipe: its kind.
        launch: what to start; a port of 0 is any free one.
        env: its whole environment.
        log: gets what it prints.
        tell: hears how it goes on.

    Raises:
        ServerError: it ended, or did not answer in time; with its log's last lines.
        EnvironmentFault: a port that is named is taken, or the program cannot be started.
    """
    for attempt in range(TRIES):
        port = launch.port or free_port()
        if launch.port:
            require_free(port)
        at_port = Launch(launch.server, launch.decoding, launch.speculator, port, launch.alias)
        command = recipe.command(at_port)
        process = ServerProcess(command.argv, log, {**env, **launch.server.env, **command.env})
        root = f"http://{LOCAL}:{port}"
        fetch = fetcher(root)
        try:
            took_s = wait_until_healthy(
                process,
                lambda fetch=fetch: fetch(recipe.health)[0] == 200,  # type: ignore[misc]
                launch.server.start_timeout_s,
                tell,
            )
        except ServerError:
            if launch.port or attempt + 1 == TRIES or not process.port_was_taken:
                raise
            continue
        except BaseException:  # Ctrl-C too: a server that nobody holds must not stay
            process.stop()
            raise
        return Served(launch.decoding, f"{root}/v1", recipe, recipe.about(fetch) or About(), fetch, process, took_s)
    raise AssertionError


def wait_until_loaded(base: str, key: str | None, timeout_s: float, tell: Callable[[str], None]) -> None:
    """Wait while a server that runs already says that it is not ready (HTTP 503).

    Args:
        base: its address.
        key: a bearer token.
        timeout_s: so long it may take.
        tell: hears about every second how long it has been.

    Raises:
        ServerError: it was not ready in time.
    """
    base = base.rstrip("/")
    start_s = time.monotonic()
    # llama.cpp lists its model before it is loaded; others have no /health.
    while 503 in (fetcher(_root(base), key)("/health")[0], fetcher(base, key)("/models")[0]):
        waited_s = time.monotonic() - start_s
        if waited_s > timeout_s:
            raise ServerError(
                f"{base} says that it is not ready (HTTP 503), and still did after {timeout_s:g} s: see its log, or "
                "give it more with `timeout_s`"
            )
        tell(f"{waited_s:.0f} s: {base} is not ready yet")
        time.sleep(min(LOOK_S, timeout_s))


def _root(base: str) -> str:
    parts = urllib.parse.urlsplit(base)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def meet(decoding: Decoding, base: str, key: str | None) -> Served:
    """A server that runs already, by what it says that it is."""
    fetch = fetcher(_root(base), key)
    for kind in SERVERS:
        recipe = open_recipe(kind)
        about = recipe.about(fetch)
        if about is not None:
            return Served(decoding, base, recipe, about, fetch)
    raise AssertionError("the last recipe fits all")


def listener(port: int) -> psutil.Process | None:
    """The process that listens on a port of this machine; None where there is none, or it is another user's."""
    try:
        listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr]
        pids = [c.pid for c in listening if c.laddr and c.laddr.port == port]
        return next((psutil.Process(pid) for pid in pids if pid is not None), None)
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return None


def shown(command: Command, server: ServerSpec) -> str:
    """A command line for the record: the same in every session, so without the port."""
    words = list(command.argv)
    told = [word for i, word in enumerate(words) if "--port" not in (word, words[i - 1] if i else "")]
    sets = [f"{name}={value}" for name, value in {**server.env, **command.env}.items()]
    return " ".join([*sets, Path(told[0]).name, *told[1:]])

"""A server that runs already, of whatever kind it turns out to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joulewise.decoding.spec import Decoding
from joulewise.engines.endpoint_spec import ServerSpec
from joulewise.engines.servers.counters import Counters, Drafted
from joulewise.engines.servers.server import About, Command, Fetch, Launch
from joulewise.errors import EnvironmentFault


class Running:
    """An OpenAI-compatible server of which nothing more is known: it is asked, and tells usage at best."""

    kind = "running"
    name = "another server"
    health = "/v1/models"
    ignores_eos = False
    all_tokens: int | None = None
    continuing: Mapping[str, Any] | None = None
    counting: Mapping[str, Any] = {}
    ways: Mapping[str, str] = {}
    lacks: Mapping[str, str] = {}

    def missing(self, server: ServerSpec) -> str | None:
        """It is never started."""
        return "a server that runs already is named by its `url`"

    def refuses(self, decoding: Decoding, server: ServerSpec | None) -> str | None:
        """What it does is the user's word."""
        return None

    def command(self, launch: Launch) -> Command:
        """It is never started."""
        raise EnvironmentFault(f"{self.name} is never started: {self.missing(launch.server)}")

    def packages(self, server: ServerSpec) -> tuple[str, ...]:
        """Nobody knows."""
        return ()

    def gpu_count(self, server: ServerSpec) -> int | None:
        """Nobody knows."""
        return None

    def about(self, fetch: Fetch) -> About | None:
        """Nothing."""
        return About()

    def body(self) -> Mapping[str, Any]:
        """Nothing beside the API's own."""
        return {}

    def counters(self, fetch: Fetch, decoding: Decoding) -> Counters | None:
        """None."""
        return None

    def drafted(self, extra: Mapping[str, Any]) -> Drafted | None:
        """Nothing."""
        return None

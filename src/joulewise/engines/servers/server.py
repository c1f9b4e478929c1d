"""A server recipe: how one kind of server is started, asked, and what it can do. One file a server."""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from joulewise.decoding.spec import Decoding
from joulewise.engines.endpoint_spec import ServerSpec
from joulewise.engines.servers.counters import Counters, Drafted

LOCAL = "127.0.0.1"

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be started.

    Args:
        server: as the plan says.
        decoding: that its speculation is for.
        speculator: the draft model or head, where the decoding needs one.
        port: where it is to listen.
        alias: the model's name in requests.
    """

    server: ServerSpec
    decoding: Decoding
    speculator: str | None
    port: int
    alias: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, and what its environment has on top."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class About:
    """What a server tells of itself; None for what it does not.

    Args:
        version: of the server.
        model: what it serves, such as a file's name.
        model_class, parameters, quantisation: of the model.
        context_length: tokens of prompt and output together.
        prefix_cache: whether prompts may be answered from earlier ones' prefills.
        chat: whether it has a chat template.
        thinking_switch: whether the template can switch thinking on and off.
    """

    version: str | None = None
    model: str | None = None
    model_class: str | None = None
    parameters: int | None = None
    quantisation: str | None = None
    context_length: int | None = None
    prefix_cache: bool | None = None
    chat: bool | None = None
    thinking_switch: bool = False


Fetch = Callable[[str], "tuple[int, str]"]
"""Of a path on the server: HTTP status and body; status 0 where it cannot be reached."""


class ServerRecipe(Protocol):
    """One kind of server."""

    kind: str
    name: str
    ways: Mapping[str, str]
    """By decoding kind: what the server does for it, in its own terms, and how that differs. Others it cannot do."""
    lacks: Mapping[str, str]
    """By decoding kind: why it cannot do it."""
    health: str
    """The path that answers 200 once it is ready."""
    ignores_eos: bool
    """Whether a request can go on past the end token."""
    all_tokens: int | None
    """The ``top_k`` that leaves none out; None where nobody knows one."""
    continuing: Mapping[str, Any] | None
    """What a request says whose last message the model is to go on with; None where nobody knows."""
    counting: Mapping[str, Any]
    """What a request says so that each piece of its answer tells its tokens; empty where nobody knows."""

    def missing(self, server: ServerSpec) -> str | None:
        """Why it cannot be started here, one sentence with the way out; None if it can. Starts nothing."""
        ...

    def refuses(self, decoding: Decoding, server: ServerSpec | None) -> str | None:
        """Why the decoding cannot be done as the plan says it, one sentence; None if it can, or nobody knows yet."""
        ...

    def command(self, launch: Launch) -> Command:
        """How to start it, prefix caching off, its counters on."""
        ...

    def packages(self, server: ServerSpec) -> tuple[str, ...]:
        """Packages of this environment whose version says more than the server does of itself."""
        ...

    def gpu_count(self, server: ServerSpec) -> int | None:
        """How many GPUs it takes; None for all that are visible."""
        ...

    def about(self, fetch: Fetch) -> About | None:
        """What a running server tells of itself; None where it is of another kind."""
        ...

    def body(self) -> Mapping[str, Any]:
        """What every request says beside the API's own fields."""
        ...

    def counters(self, fetch: Fetch, decoding: Decoding) -> Counters | None:
        """Its running totals; None where it does not tell."""
        ...

    def drafted(self, extra: Mapping[str, Any]) -> Drafted | None:
        """What an answer's further fields tell of its own speculation; None for nothing."""
        ...


def fetcher(root: str, key: str | None = None, timeout_s: float = 5.0) -> Fetch:
    """Asks for paths of a server.

    Args:
        root: scheme, host and port.
        key: a bearer token.
        timeout_s: of one step of a request.
    """

    def fetch(path: str) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(f"{root}{path}", headers=headers)
        try:
            with _OPENER.open(request, timeout=timeout_s) as response:
                return response.status, response.read(_MOST_BYTES).decode(errors="replace")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, ""
        except (OSError, ValueError, http.client.HTTPException):  # nobody there yet, or no HTTP
            return 0, ""

    return fetch


_MOST_BYTES = 16_000_000


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def fetched_object(fetch: Fetch, path: str) -> dict[str, Any] | None:
    """A JSON object that the server gives there; None where it gives none."""
    status, body = fetch(path)
    if status != 200:
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def hub_model(name: str) -> str:
    """A model by what a server of Hugging Face checkpoints calls it."""
    if name != "default":
        return name
    from joulewise.engines.default_model import default_model_folder

    return str(default_model_folder())


def flags(args: Mapping[str, Any]) -> list[str]:
    """A plan's ``args`` as a command line has them."""
    found: list[str] = []
    for name, value in args.items():
        if value is False:
            found.append(f"--no-{name}")
            continue
        found.append(f"--{name}")
        if isinstance(value, Mapping):
            found.append(json.dumps(value))
        elif isinstance(value, list | tuple):
            found += map(str, value)
        elif value is not True:
            found.append(str(value))
    return found


def launcher(server: ServerSpec, default: str | None, module: str, *words: str) -> list[str]:
    """How a Python server is called: its own program, or the module by this Python (or by the one that is named).

    Args:
        server: as the plan says.
        default: the program's name on the PATH; None if it has none.
        module: what ``python -m`` runs.
        words: that follow.
    """
    import shutil

    program = server.program or (default and shutil.which(default))
    if program is not None and not re.match(r"python[\d.]*$", Path(program).name):
        return [program, *words]
    return [program or sys.executable, "-m", module, *words]


def installed_version(server: ServerSpec, package: str) -> Version | None:
    """A package's version beside the program that the plan names, else in this environment; None if it is not there."""
    if server.program is not None:
        home = Path(server.program).parent.parent
        found = sorted(home.glob(f"lib/python*/site-packages/{package}-*.dist-info"))
        return version_of(found[-1].name.split("-")[1].removesuffix(".dist")) if found else None
    try:
        return version_of(metadata.version(package))
    except metadata.PackageNotFoundError:
        return None


def version_of(text: str) -> Version | None:
    """``0.20.2.dev3`` as ``(0, 20, 2)``; None for what begins with no number."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else None


def gpu_environment(gpus: tuple[int | str, ...] | None, count: int | None, here: int) -> dict[str, str]:
    """What makes a server use these GPUs and no others.

    Args:
        gpus: as the plan names them; None: the first visible ones.
        count: how many the server takes; None for all that are visible.
        here: how many this machine has.
    """
    if gpus is not None:
        chosen = ",".join(map(str, gpus))
    elif count is None or not here:
        return {}
    else:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        entries = visible.split(",") if visible is not None else [str(i) for i in range(here)]
        chosen = ",".join(entries[:count])
    return {"CUDA_VISIBLE_DEVICES": chosen, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

"""Which servers can be started, or met where they run? One file and one line each."""

from __future__ import annotations

from importlib import import_module

from joulewise.engines.servers.server import ServerRecipe

SERVERS: dict[str, str] = {
    "llamacpp": "joulewise.engines.servers.llamacpp:LlamaCpp",
    "vllm": "joulewise.engines.servers.vllm:Vllm",
    "sglang": "joulewise.engines.servers.sglang:Sglang",
    "running": "joulewise.engines.servers.running:Running",
}
"""The registry: ``kind`` of a ``server`` in a plan -> ``module:class``. A server at a ``url`` is the first one that it
says it is; the last one fits all.
"""


def open_recipe(kind: str) -> ServerRecipe:
    """The recipe of one kind of server."""
    module, name = SERVERS[kind].split(":")
    recipe: ServerRecipe = getattr(import_module(module), name)()
    return recipe

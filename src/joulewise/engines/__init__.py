"""Who generates? Engines behind one protocol; each is loaded only when a plan names it."""

from __future__ import annotations

from importlib import import_module

from joulewise.engines.engine import Engine
from joulewise.engines.spec import EngineSpec

ENGINES: dict[str, str] = {
    "transformers": "joulewise.engines.transformers:TransformersEngine",
    "native": "joulewise.engines.native:NativeEngine",
    "endpoint": "joulewise.engines.endpoint:EndpointEngine",
}
"""The registry: ``kind`` in a plan -> ``module:callable`` that takes the spec. One file, one line each."""

EXTRAS: dict[str, str] = {"transformers": "transformers", "native": "transformers", "endpoint": "endpoint"}
"""The extra of Joulewise that an engine needs."""


def open_engine(spec: EngineSpec) -> Engine:
    """The engine that a spec names, nothing loaded yet.

    Raises:
        EnvironmentFault: the engine's extra is not installed.
    """
    module, name = ENGINES[spec.kind].split(":")
    engine: Engine = getattr(import_module(module), name)(spec)
    return engine

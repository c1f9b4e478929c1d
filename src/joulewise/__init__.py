"""Joulewise: measure, explain and cut the joules of LLM inference.

with joulewise.measure() as window:
    work()
print(window.energy.total)

result = joulewise.run("plans/demo.yaml")
table = joulewise.load(result).to_pandas()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulewise.api import compare, run
    from joulewise.energy import Energy, measure
    from joulewise.ledger import load
    from joulewise.plan import Plan

__version__ = "0.1.0"

# Name -> module. Loaded on first use, so that `import joulewise` costs next to nothing (design, rule 9).
_LAZY = {
    "Energy": "joulewise.energy",
    "Plan": "joulewise.plan",
    "compare": "joulewise.api",
    "load": "joulewise.ledger",
    "measure": "joulewise.energy",
    "run": "joulewise.api",
}

__all__ = ["Energy", "Plan", "__version__", "compare", "load", "measure", "run"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'joulewise' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)

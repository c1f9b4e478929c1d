"""Modules of ``benchmarks/`` for tests that share something with them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_benchmark(name: str) -> ModuleType:
    """``benchmarks/<name>.py`` as a module, the same one for all tests: one that imports another late finds it too."""
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    there = sys.modules.get(name)
    if there is not None and there.__file__ == str(path):
        return there
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

"""Engine ``native``: Joulewise's own decoding loop over Transformers' modules."""

from importlib.util import find_spec

from joulewise.errors import EnvironmentFault

if _missing := [name for name in ("torch", "transformers", "accelerate") if find_spec(name) is None]:
    raise EnvironmentFault(f"The engine `native` needs {', '.join(_missing)}: pip install 'joulewise[transformers]'")

from joulewise.engines.native.engine import NativeEngine

__all__ = ["NativeEngine"]

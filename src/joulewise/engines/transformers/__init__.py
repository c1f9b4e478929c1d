"""Engine ``transformers``: Hugging Face Transformers' own ``generate`` over one target model.

The modules that import torch are loaded with the model, not before.
"""

from importlib.util import find_spec

from joulewise.errors import EnvironmentFault

if _missing := [name for name in ("torch", "transformers", "accelerate") if find_spec(name) is None]:
    raise EnvironmentFault(
        f"The engine `transformers` needs {', '.join(_missing)}: pip install 'joulewise[transformers]'"
    )

from joulewise.engines.transformers.engine import TransformersEngine

__all__ = ["TransformersEngine"]

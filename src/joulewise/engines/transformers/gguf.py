"""Models in one GGUF file, as llama.cpp and Ollama keep them. The weights are dequantised as they are read."""

from __future__ import annotations

from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import transformers

from joulewise.errors import EnvironmentFault, UserError

NOTE = "weights dequantised from a GGUF file: the values are those of its quantisation, the arithmetic is not"


def is_gguf(name: str) -> bool:
    """Whether a plan's model is a GGUF file."""
    return name.endswith(".gguf")


def load_gguf(path: Path, dtype: torch.dtype, place: str) -> tuple[Any, Any]:
    """The model and the tokenizer of a file.

    Raises:
        UserError: no such file.
        EnvironmentFault: the package that reads such files is missing.
    """
    if not path.is_file():
        raise UserError(f"There is no GGUF file {path}: check the spelling, or name a folder or a model on the hub.")
    if find_spec("gguf") is None:
        raise EnvironmentFault(f"Reading {path.name} needs the package gguf: pip install 'joulewise[default-model]'")
    # The converter draws a progress bar that nothing else turns off.
    with redirect_stderr(StringIO()):
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
    # The library takes it for quantised still, which it no longer is.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model.to(place), tokenizer

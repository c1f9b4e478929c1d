"""Writes a model and its tokenizer as a folder of Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError


def save_folder(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model and its tokenizer.

    Args:
        model, tokenizer: what has ``save_pretrained``.
        folder: an empty one.

    Raises:
        OSError: they cannot be written, whichever library writes.
    """
    try:
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        # The package tokenizers has no type of its own for a file that cannot be written.
        raise OSError(str(error)) from error

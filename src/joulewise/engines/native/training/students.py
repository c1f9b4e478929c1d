"""What is trained: heads and draft models that are new, and how they are published."""

from __future__ import annotations

import copy
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import save
from torch import Tensor, nn

from joulewise.engines.native.attention import NAME
from joulewise.engines.native.checkpoints import Checkpoint, Family, in_memory
from joulewise.engines.native.heads import Head, build, published_taps
from joulewise.engines.native.heads.eagle import Eagle3Head
from joulewise.engines.native.heads.synthetic import Dice, layer_tensors, random_medusa
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.training.data import Batch, Texts
from joulewise.engines.native.training.files import cannot_write, write_json, write_whole
from joulewise.engines.native.training.losses import Outcome, draft_loss, eagle_loss, medusa_loss
from joulewise.engines.transformers.drafts import SHARES
from joulewise.engines.transformers.loading import Loaded, quiet
from joulewise.engines.transformers.saving import save_folder
from joulewise.errors import UserError

Kind = Literal["medusa", "eagle2", "eagle3", "draft"]

VARIANTS: Mapping[Kind, str] = {
    "medusa": "residual blocks over the target's own output matrix (a variant: published heads have their own)",
    "eagle2": "EAGLE-2, one layer, the target's embeddings and output matrix",
    "eagle3": "EAGLE-3, one layer, three tapped layers, the target's embeddings",
    "draft": "a small model with the target's embeddings and output matrix",
}

_SHAPE = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps")


class Recipe(BaseModel):
    """What decides the result, beside target and data.

    Args:
        kind: what is trained.
        epochs: passes over the data.
        lr: the highest learning rate; it rises over the first steps and then falls like a cosine to nothing.
        batch_tokens: tokens of a step, what fills short texts up included.
        longest: tokens that a text is cut to.
        seed: of the new weights, the order of the batches and the noise.
        medusa_heads: of Medusa.
        draft_layers: of the draft model; they begin as the target's first ones.
        without_embeddings: of the draft model: its layers alone are published, and its target lends it the rest.
        draft_rows: of EAGLE-3: so many of the most frequent tokens are its vocabulary; 0: all.
        own_output: of EAGLE-3: its output matrix is trained, not the target's.
        steps: of the unroll. None: 7 for EAGLE-3 and 1 for EAGLE-2, as published.
        decay: weight of each further head or step.
        feature_weight: of EAGLE-2's feature regression, against 1 of the cross-entropy; 10 as published.
        weight_decay, clip: of the optimiser: decoupled weight decay, and the largest norm of a gradient.
        warm_up: share of the steps over which the learning rate rises.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    epochs: int = Field(3, ge=1)
    lr: float = Field(5e-4, gt=0.0)
    batch_tokens: int = Field(8192, ge=16)
    longest: int = Field(2048, ge=8)
    seed: int = 0
    medusa_heads: int = Field(4, ge=1)
    draft_layers: int = Field(2, ge=1)
    without_embeddings: bool = False
    draft_rows: int = Field(16384, ge=0)
    own_output: bool = False
    steps: int | None = Field(None, ge=1)
    decay: float = Field(0.8, gt=0.0, le=1.0)
    feature_weight: float = Field(10.0, ge=0.0)
    weight_decay: float = Field(0.01, ge=0.0)
    clip: float = Field(0.5, gt=0.0)
    warm_up: float = Field(0.03, ge=0.0, lt=1.0)


@dataclass(frozen=True, slots=True)
class Student:
    """Something to train.

    Args:
        trained: its parameters by name, in float32; everything else of it is frozen.
        loss: of a batch, and of the number of the step, which decides any chance in it.
        publish: writes what ``open_head`` or a plan's ``draft`` reads, in the target's dtype.
    """

    trained: Mapping[str, nn.Parameter]
    loss: Callable[[Batch, int], Outcome]
    publish: Callable[[Path], None]


def require_fits(recipe: Recipe, loaded: Loaded) -> None:
    """Make sure that a target has what a recipe asks of it, as far as its configuration tells.

    Raises:
        UserError: fewer layers than the draft or the head needs, or layers that are not Llama's.
    """
    config = loaded.model.config.get_text_config(decoder=True)
    layers = int(config.num_hidden_layers)
    if recipe.kind == "draft" and recipe.draft_layers > layers:
        raise UserError(
            f"--draft-layers {recipe.draft_layers} is not possible: {loaded.name} has {layers} layers, and a draft's "
            "begin as its target's first ones; name fewer."
        )
    if recipe.kind == "eagle3" and not all(0 <= layer < layers for layer in published_taps(layers)):
        raise UserError(
            f"An EAGLE-3 head reads three layers of its target, and {loaded.name} has {layers} in all: train another "
            "--kind, or name another target."
        )
    missing = [name for name in _SHAPE if not hasattr(config, name)]
    if missing and recipe.kind in ("eagle2", "eagle3"):
        raise UserError(
            f"{loaded.name} ({type(loaded.model).__name__}) has no {missing[0]} in its configuration, so no "
            f"{recipe.kind} layer can be shaped after it: train a Medusa head, or name another target."
        )


def open_target(recipe: Recipe, loaded: Loaded) -> tuple[DecoderModel, Any]:
    """Open a target to train for, frozen, and make the new draft model if it is to be one (else None).

    Both at once, because what opens a target merges the matrices that a draft's layers begin as.

    Raises:
        UserError: a target that the engine `native` does not reach, or one that ``require_fits`` refuses.
    """
    require_fits(recipe, loaded)
    small = _small_model(loaded, recipe.draft_layers) if recipe.kind == "draft" else None
    layers = int(loaded.model.config.get_text_config(decoder=True).num_hidden_layers)
    target = DecoderModel(loaded, published_taps(layers) if recipe.kind == "eagle3" else ())
    target.model.requires_grad_(False)
    return target, small


def new_student(recipe: Recipe, target: DecoderModel, small: Any, texts: Texts) -> Student:
    """Make what is to be trained, from the recipe's seed.

    Args:
        recipe: what and how.
        target, small: of ``open_target``.
        texts: tell EAGLE-3's vocabulary.
    """
    if recipe.kind == "draft":
        return _draft(recipe, target, small)
    if recipe.kind == "medusa":
        return _medusa(recipe, target)
    return _eagle(recipe, target, texts)


def _medusa(recipe: Recipe, target: DecoderModel) -> Student:
    head = random_medusa(target, recipe.medusa_heads, own_output=False, seed=recipe.seed)
    trained = _trained(head)
    for parameter in trained.values():  # as published: a new head says what the target's own output says
        nn.init.zeros_(parameter)

    def loss(batch: Batch, step: int) -> Outcome:
        return medusa_loss(target, head, batch, recipe.decay)

    config = {
        "medusa_num_heads": recipe.medusa_heads,
        "medusa_num_layers": 1,
        "base_model_name_or_path": target.loaded.name,
        "hidden_size": target.config.hidden_size,
        "vocab_size": target.loaded.vocabulary_rows,
        "variant": VARIANTS["medusa"],
    }
    return Student(trained, loss, partial(_publish_head, head, trained, config, target))


def _eagle(recipe: Recipe, target: DecoderModel, texts: Texts) -> Student:
    family: Family = "eagle3" if recipe.kind == "eagle3" else "eagle2"
    size, rows = target.config.hidden_size, target.loaded.vocabulary_rows
    dice = Dice(target, recipe.seed)
    config = _llama_config(target)
    if family == "eagle2":
        tensors = layer_tensors(dice, target, size)
        tensors["fc.weight"] = dice.normal(size, 2 * size)
        config |= {"architectures": ["LlamaForCausalLM"], "bias": False}
    else:
        tensors = layer_tensors(dice, target, 2 * size)
        tensors |= {f"layers.0.{name}.weight": dice.ones(size) for name in ("input_layernorm", "hidden_norm")}
        tensors |= {"fc.weight": dice.normal(size, len(target.taps) * size), "norm.weight": dice.ones(size)}
        ids = None
        if 0 < recipe.draft_rows < rows:
            ids = texts.frequent(recipe.draft_rows).to(target.device)
            tensors["d2t"] = ids - torch.arange(len(ids), device=ids.device)
        if recipe.own_output:  # it begins as the target's
            own = target.head.weight.detach()
            tensors["lm_head.weight"] = own.clone() if ids is None else own[ids]
        config |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": rows if ids is None else len(ids)}
    head: Any = build(Checkpoint("the new head", family, config, in_memory(tensors)), target)
    # What stands for the target's output stays as it is, and is not published.
    trained = _trained(head, () if recipe.own_output else ("lm_head.",))
    steps = recipe.steps or (7 if family == "eagle3" else 1)

    def loss(batch: Batch, step: int) -> Outcome:
        if family == "eagle3":
            return eagle_loss(target, head, batch, steps, recipe.decay)
        noise = torch.Generator(target.device).manual_seed(recipe.seed + step)
        return eagle_loss(target, head, batch, steps, recipe.decay, recipe.feature_weight, noise)

    return Student(trained, loss, partial(_publish_head, head, trained, config, target))


def _llama_config(target: DecoderModel) -> dict[str, Any]:
    """What a published head's ``config.json`` says of its layer, after the target's."""
    config = target.config
    rotary = getattr(config, "rope_parameters", None) or {}
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {name: getattr(config, name) for name in _SHAPE} | {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "head_dim": head_dim,
        "hidden_act": getattr(config, "hidden_act", "silu"),
        "vocab_size": target.loaded.vocabulary_rows,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": rotary.get("rope_theta", 10000.0),
        "tie_word_embeddings": False,
        "torch_dtype": str(target.model.dtype).removeprefix("torch."),
    }


def _trained(module: nn.Module, frozen: tuple[str, ...] = ()) -> dict[str, nn.Parameter]:
    """A module's parameters, made float32 and ready to train: bfloat16 would round small steps away."""
    chosen = {name: p for name, p in module.named_parameters() if not name.startswith(frozen or "\0")}
    for parameter in chosen.values():
        parameter.data = parameter.data.float()
        parameter.requires_grad_(True)
    return chosen


def _publish_head(
    head: Head, trained: Mapping[str, nn.Parameter], config: Mapping[str, Any], target: DecoderModel, folder: Path
) -> None:
    tensors: dict[str, Tensor] = {}
    for name, parameter in trained.items():
        name = re.sub(r"^blocks\.(\d+)\.layers\.(\d+)\.", r"\1.\2.linear.", name)
        if head.family == "eagle3":
            name = name.replace("layers.0.", "midlayer.", 1)
        tensors[name] = parameter.detach().to(dtype=target.model.dtype, device="cpu").contiguous()
    if isinstance(head, Eagle3Head) and head.d2t is not None:
        tensors["d2t"] = head.d2t.cpu()
        tensors["t2d"] = torch.zeros(target.loaded.vocabulary_rows, dtype=torch.bool)
        tensors["t2d"][tensors["d2t"] + torch.arange(len(tensors["d2t"]))] = True
    write_json(folder / "config.json", config)
    _write_tensors(folder, tensors)


def _write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    content = save(dict(tensors), {"format": "pt"})
    write_whole(folder / "model.safetensors", lambda part: part.write_bytes(content))


def _small_model(loaded: Loaded, count: int) -> Any:
    """A target's first layers, copied, between its own embeddings and output matrix.

    Before any training they guess better than other choices (SmolLM2-135M: a loss of 14 nats, against 75 of the first
    and the last layer, and 29 to 49 of random ones).
    """
    config = copy.deepcopy(loaded.model.config)
    config.num_hidden_layers = count
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:count]
    with torch.random.fork_rng(devices=[]), quiet():
        model = type(loaded.model)(config).to(loaded.model.device, loaded.model.dtype).eval()
    model.set_input_embeddings(loaded.model.get_input_embeddings())
    model.set_output_embeddings(loaded.model.get_output_embeddings())
    for layer, its in zip(model.base_model.layers, loaded.model.base_model.layers, strict=False):
        layer.load_state_dict(its.state_dict())
    model.base_model.norm.load_state_dict(loaded.model.base_model.norm.state_dict())
    model.config._attn_implementation = NAME  # causal, without masks, as the target's
    return model


def _draft(recipe: Recipe, target: DecoderModel, model: Any) -> Student:
    inner: Any = nn.ModuleDict({"layers": model.base_model.layers, "norm": model.base_model.norm})

    def loss(batch: Batch, step: int) -> Outcome:
        return draft_loss(target, model.base_model, batch)

    return Student(_trained(inner), loss, partial(_publish_draft, model, target, recipe.without_embeddings))


def _publish_draft(model: Any, target: DecoderModel, lends: bool, folder: Path) -> None:
    """An ordinary folder of Transformers, file by file, the weights last; or what the target does not lend alone."""
    from transformers import GenerationConfig

    if lends:
        config = model.config.to_dict() | {
            SHARES: True,
            "_name_or_path": "",
            "dtype": str(target.model.dtype).removeprefix("torch."),
        }
        own = tuple(f"{model.base_model_prefix}.{part}." for part in ("layers", "norm"))
        tensors = {
            name: tensor.to(dtype=target.model.dtype, device="cpu").contiguous()
            for name, tensor in model.state_dict().items()
            if name.startswith(own)
        }
        write_json(folder / "config.json", config)
        _write_tensors(folder, tensors)
        return
    whole = copy.deepcopy(model).to(target.model.dtype)
    whole.config._attn_implementation = "sdpa"
    ends = list(target.loaded.eos_token_ids) or None
    whole.generation_config = GenerationConfig(eos_token_id=ends, **target.loaded.special)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".draft.") as scratch, quiet():
            save_folder(whole, target.loaded.tokenizer, Path(scratch))
            for file in sorted(Path(scratch).iterdir(), key=lambda file: file.suffix == ".safetensors"):
                write_whole(folder / file.name, file.rename)
    except OSError as error:
        raise cannot_write(folder, error) from error

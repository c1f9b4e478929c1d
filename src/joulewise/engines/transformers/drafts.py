"""Draft models: another model, or the target's own first layers; with the target's tokenizer or another one."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from joulewise.engines.shipped import shipped_folder
from joulewise.engines.transformers.loading import Loaded, load, make_neutral, quiet
from joulewise.engines.transformers.quantisation import parameters
from joulewise.errors import UserError, first_paragraph

if TYPE_CHECKING:
    from joulewise.engines.spec import Quantisation

FIRST_LAYERS = "first-layers:"
SHARES = "embeddings_of_target"
"""Stands in the config.json of a draft that is stored without embeddings, output matrix and tokenizer."""

_PROBE = "The sum of 17 and 25 is 42."


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model and how it fits its target.

    Args:
        loaded: the draft.
        same_tokenizer: whether it shares the target's token ids; else the library translates through text.
        note: for a reader of the results.
    """

    loaded: Loaded
    same_tokenizer: bool
    note: str


def open_draft(name: str, target: Loaded, quantisation: Quantisation = "none") -> Draft:
    """Load the draft that a plan names, on the target's device and in its dtype.

    Args:
        name: a hub name, a folder, ``first-layers:N`` of the target, or ``shipped:draft``.
        target: the model that verifies.
        quantisation: of a draft that is a model of its own.

    Raises:
        UserError: no such model, or one that cannot draft for this target.
        EnvironmentFault: no memory left, or a package that is missing.
    """
    if name.startswith(FIRST_LAYERS):
        return _first_layers(int(name.removeprefix(FIRST_LAYERS)), target)
    if shares_embeddings(name):
        if quantisation != "none":
            raise UserError(
                f"The draft {name} holds its layers alone, which draft_quantisation: {quantisation} cannot change: "
                "leave that out, or name a whole model as the draft."
            )
        return _layers_alone(name, target)
    device = str(target.model.device)
    try:
        draft = load(name, None, str(target.model.dtype).removeprefix("torch."), device, quantisation)
    except UserError as error:
        _refuse_head(name, error)
        raise
    if draft.encoder_decoder != target.encoder_decoder:
        kinds = {True: "an encoder-decoder", False: "decoder-only"}
        raise UserError(
            f"The draft {name} is {kinds[draft.encoder_decoder]} and the target {target.name} is "
            f"{kinds[target.encoder_decoder]}: take a draft of the target's kind."
        )
    same = _same_vocabulary(target, draft)
    if same:
        _drop_padding(draft, target)
    else:
        _require_match(target, draft)
    note = f"{name}, {parameters(draft.model):,} parameters"
    if not same:
        note += ", another tokenizer: drafts are translated through text, and drafted tokens are counted after that"
    return Draft(draft, same, "; ".join((note, *draft.notes)))


def _refuse_head(name: str, fault: UserError) -> None:
    """Say of a head that stands in a draft's place what it is, and where it belongs."""
    # Not at the top, because the heads build on this package.
    from joulewise.engines.native.checkpoints import open_checkpoint
    from joulewise.engines.native.fit import no_model

    if not _folder(name).exists():
        return
    try:
        family = open_checkpoint(name).family
    except UserError:
        return  # no head either: the fault in loading it as a model is what counts
    raise no_model(name, family) from fault


def shares_embeddings(name: str) -> bool:
    """Whether a folder holds a draft's layers alone, for a target that lends it the rest."""
    file = _folder(name) / "config.json"
    try:
        config = json.loads(file.read_bytes()) if file.is_file() else None
    except ValueError as error:
        raise UserError(
            f"{file} could not be read as JSON ({error}): train or fetch the draft or the head again."
        ) from error
    return isinstance(config, dict) and config.get(SHARES) is True


def _folder(name: str) -> Path:
    return shipped_folder(name) or Path(name)


def _layers_alone(name: str, target: Loaded) -> Draft:
    """A draft whose embeddings, output matrix and tokenizer are its target's."""
    folder = _folder(name)
    embedding = target.model.get_input_embeddings()
    try:
        with quiet():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            lacks = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"The draft {name} could not be loaded: {first_paragraph(error)}") from error
    shared = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    own = [key for key in lacks.missing_keys if not any(model.get_parameter(key) is weight for weight in shared)]
    if own or lacks.unexpected_keys:
        raise UserError(f"The draft {name} is not whole: {(own + lacks.unexpected_keys)[0]} is missing or too much.")
    if shared[0].shape != embedding.weight.shape:
        raise UserError(
            f"The draft {name} was made for a target with embeddings of the shape {tuple(shared[0].shape)}, and "
            f"those of {target.name} have {tuple(embedding.weight.shape)}: name its own target."
        )
    model = model.to(target.model.device, target.model.dtype)
    model.set_input_embeddings(embedding)
    model.set_output_embeddings(target.model.get_output_embeddings())
    loaded = make_neutral(name, model.eval(), target.tokenizer)
    own_parameters = sum(p.numel() for p in model.parameters() if p is not embedding.weight)
    note = f"{name}, {own_parameters:,} parameters beside the target's embeddings and output matrix"
    return Draft(loaded, True, note)


def _same_vocabulary(target: Loaded, draft: Loaded) -> bool:
    """Whether a token id means the same to both.

    One vocabulary may lack added tokens at the end that the other has, and the models' rows may be padded differently
    (Qwen2.5: 152,064 against 151,936); the draft must have a row for every id of the target.
    """
    ours: dict[str, int]
    theirs: dict[str, int]
    ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    small, large = sorted((ours, theirs), key=len)
    return small.items() <= large.items() and max(ours.values()) < draft.vocabulary_rows


def _drop_padding(draft: Loaded, target: Loaded) -> None:
    """Cut a draft with more rows than the target to the target's, so that it proposes nothing without a row there."""
    if draft.vocabulary_rows > target.vocabulary_rows:
        with quiet():
            draft.model.resize_token_embeddings(target.vocabulary_rows)


def _require_match(target: Loaded, draft: Loaded) -> None:
    def tokenizer(of: Loaded) -> str:
        return f"{of.name} ({type(of.tokenizer).__name__}, {len(of.tokenizer):,} tokens)"

    problem = None
    if target.encoder_decoder:
        problem = "encoder-decoder pairs must share one"
    else:
        ids = draft.tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
        back = draft.tokenizer.decode(ids, skip_special_tokens=True)
        if _letters(back) != _letters(_PROBE):
            problem = f"the draft's cannot even write {_PROBE!r}"
    if problem:
        raise UserError(
            f"The draft's tokenizer, {tokenizer(draft)}, cannot be matched with the target's, {tokenizer(target)}: "
            f"{problem}. Take a draft of the target's own family."
        )


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


def _first_layers(count: int, target: Loaded) -> Draft:
    """The target's own first layers with its embedding and head, as a model that shares every weight with it."""
    config = copy.deepcopy(target.model.config)
    layers = next(n for n in ("num_decoder_layers", "decoder_layers", "num_hidden_layers") if hasattr(config, n))
    total = getattr(config, layers)
    if not 1 <= count <= total:
        raise UserError(
            f"{FIRST_LAYERS}{count} is not possible: {target.name} has {total} layers, so name 1 to {total}."
        )
    setattr(config, layers, count)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:count]
    config._attn_implementation = target.model.config._attn_implementation
    with torch.device("meta"), quiet():
        model = type(target.model)(config)
    _share_modules(model, target.model)
    # Transformers 5.17 sizes a T5 cache by the encoder's number of layers, which is built (and shared) already.
    model.config.num_hidden_layers = count
    loaded = make_neutral(f"{FIRST_LAYERS}{count}", model.eval(), target.tokenizer, quantisation=target.quantisation)
    note = (
        f"the target's own first {count} of {total} layers, {parameters(model):,} parameters, all shared with it: "
        "a correctness fixture, not a fast draft"
    )
    return Draft(loaded, True, note)


def _share_modules(draft: nn.Module, target: nn.Module) -> None:
    """Put the target's modules in the draft's place, wherever both have the same parts.

    Parts, not parameters: a quantised layer may hold its weights as something else, and the draft's are not quantised.
    """
    for name, child in draft.named_children():
        other: Any = getattr(target, name)
        parts = [n for n, _ in child.named_modules()]
        if len(parts) == 1 or parts == [n for n, _ in other.named_modules()]:
            setattr(draft, name, other)
        else:
            _share_modules(child, other)

"""What a head's ``config.json`` says that its tensors do not: the edge where it is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from transformers.activations import ACT2FN

from joulewise.engines.native.checkpoints import Checkpoint, misfit
from joulewise.errors import UserError
from joulewise.yaml_file import in_words

_FEATURES = 3

M = TypeVar("M", bound=BaseModel)


class Settings(BaseModel):
    """Of the draft layers.

    Args:
        num_attention_heads: of the draft layers.
        rms_norm_eps: of all norms.
        hidden_act: of the MLP.
        norm_before_residual: EAGLE-3: the first layer's residual is the normed feature.
        norm_output: EAGLE-3: the state fed back is the normed one (called EAGLE-3.1).
        logit_scale: the logits are multiplied by it.
        layer_types, sliding_window: layers of the type ``sliding_attention`` see only so many tokens back.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    num_attention_heads: int
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    norm_before_residual: bool = False
    norm_output: bool = False
    logit_scale: float = 1.0
    layer_types: tuple[str, ...] | None = None
    sliding_window: int | None = None

    @field_validator("hidden_act")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in ACT2FN:
            raise ValueError(f"no activation {name!r} is known")
        return name

    def window(self, layer: int) -> int | None:
        """How many tokens back a layer sees; None: all."""
        kinds = self.layer_types or ()
        return self.sliding_window if layer < len(kinds) and kinds[layer] == "sliding_attention" else None


class _Layers(BaseModel):
    """``eagle_config``, where layers are named by their outputs."""

    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None
    layer_ids: tuple[int, ...] | None = None
    use_aux_hidden_state: bool | None = None


class _Tapped(BaseModel):
    """The fields about tapped layers, where layers are named by their inputs."""

    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None
    num_aux_hidden_states: int | None = None
    eagle_config: _Layers | None = None


def settings_of(checkpoint: Checkpoint) -> Settings:
    """Read what the layers need.

    Raises:
        UserError: a field is missing or of the wrong kind.
    """
    config, nested = checkpoint.config, checkpoint.config.get("eagle_config")
    stated = {**checkpoint.layers, **(nested if isinstance(nested, dict) else {})}
    stated |= {key: config[key] for key in Settings.model_fields if config.get(key) is not None}
    if "speculators_model_type" in config:
        # The writer leaves out what it holds for a default, and vLLM, which these heads are made for, reads it so.
        stated.setdefault("norm_before_residual", True)
    return _read(Settings, {key: value for key, value in stated.items() if value is not None}, checkpoint.name)


def published_taps(layers: int) -> tuple[int, int, int]:
    """The layers whose inputs the published EAGLE-3 heads read."""
    return 2, layers // 2, layers - 3


def taps_in(checkpoint: Checkpoint, layers: int) -> tuple[int, ...]:
    """Which layers' inputs a head reads of a target with ``layers`` layers. See ``taps_of``.

    Raises:
        UserError: a field of the wrong kind, or layers that the target has not.
    """
    if checkpoint.family != "eagle3":
        return ()
    tapped = _read(_Tapped, checkpoint.config, checkpoint.name)
    nested = tapped.eagle_config or _Layers()
    if nested.use_aux_hidden_state is False:
        return ()
    outputs = nested.eagle_aux_hidden_state_layer_ids or nested.layer_ids or ()
    stated = tapped.eagle_aux_hidden_state_layer_ids or tuple(layer + 1 for layer in outputs)
    taps = stated or published_taps(layers)
    features = tapped.num_aux_hidden_states or len(taps)
    if features != len(taps):
        raise UserError(
            f"The head {checkpoint.name} reads {features} layers of its target, and its config.json names "
            f"{len(stated)}: eagle_aux_hidden_state_layer_ids must hold {features}."
        )
    if any(not 0 <= layer < layers for layer in taps):
        raise misfit(
            checkpoint.name, f"it reads the inputs of the layers {listed(taps)}, and the target has {layers} layers"
        )
    return taps


def listed(layers: tuple[int, ...]) -> str:
    """For a message."""
    return ", ".join(str(layer) for layer in layers) or "none"


def _read(model: type[M], stated: Mapping[str, Any], name: str) -> M:
    try:
        return model.model_validate(stated)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"The config.json of the head {name} is not that of a draft head: {field}: {in_words(first)}. Fetch "
            "the head again, with its config.json."
        ) from error

"""Engine specs: what a plan says of an engine. Light: loads no engine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from joulewise.decoding.spec import FIRST_LAYERS, DraftName, HeadName, Name
from joulewise.decoding.spec import RANDOM_HEAD as RANDOM_HEAD
from joulewise.engines.endpoint_spec import EndpointSpec, Hertz, Watts, setting_label
from joulewise.engines.shipped import PREFIX

Quantisation = Literal["none", "nf4", "int8", "gptq"]
HeadKind = Literal["medusa", "eagle2", "eagle3"]


def _a_model(name: str) -> str:
    if name == RANDOM_HEAD or name.startswith((FIRST_LAYERS, PREFIX)):
        raise ValueError(
            f"{name} stands for a draft or a head, and a model is wanted: name default, a hub's model, a folder "
            f"(./{name}, if it is called so) or a GGUF file"
        )
    return name


class ModelSpec(BaseModel):
    """What every engine that loads a model itself is told; its subclasses say what each field is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    model: Annotated[Name, AfterValidator(_a_model)] = "default"
    draft: DraftName | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantisation: Quantisation = "none"
    draft_quantisation: Quantisation = "none"
    device: str
    name: str | None = None
    revision: str | None = None
    base_model: Name | None = None
    power_limit_w: Watts | None = None
    locked_sm_clock_hz: Hertz | None = None

    @property
    def one_at_a_time(self) -> bool:
        """Whether each decoding needs a start of its own: never here."""
        return False

    @property
    def label(self) -> str:
        """Short name within a grid: the given one, or the last part of the model's name, the quantisations (such as
        ``-nf4`` and ``+int8-draft``) and the engine's kind.
        """
        held = setting_label(self.power_limit_w, self.locked_sm_clock_hz)
        if self.name:
            return f"{self.name}{held}"
        target = "" if self.quantisation == "none" else f"-{self.quantisation}"
        draft = "" if self.draft_quantisation == "none" else f"+{self.draft_quantisation}-draft"
        return f"{self.model.rstrip('/').rsplit('/', 1)[-1]}{target}{draft}@{self.kind}{held}"


class TransformersSpec(ModelSpec):
    """Hugging Face Transformers' own ``generate`` over one target model.

    Args:
        model: ``default`` (the embedded SmolLM2-135M-Instruct), a hub name, a folder, or a GGUF file.
        draft: the draft model for decodings that need one and name none: a hub name, a folder, ``first-layers:N`` (the
            target's own first N layers: a correctness fixture, not a fast draft), or ``shipped:draft``, which the
            default model has and takes where nothing is named.
        dtype: ``auto`` is bfloat16 on a GPU and float32 on a CPU.
        quantisation: of the target. ``none``: as its files are, which may be quantised already. ``nf4`` and ``int8``:
            unquantised files are quantised by bitsandbytes as they are loaded. ``gptq``: the files must be a GPTQ
            checkpoint.
        draft_quantisation: the same of every draft that is a model of its own; ``first-layers:N`` is quantised as the
            target is.
        device: ``auto`` is the GPU where there is one; ``balanced`` spreads the target over all visible GPUs.
        name: label in tables; None takes the model's name and the quantisations.
        revision: the target's revision on the hub.
        base_model: where ``model`` is a quantised form of another model (a GPTQ checkpoint, say), the name of that, so
            that the report holds engines of one model against each other.
        power_limit_w: hold this machine's GPUs at this power limit while the engine runs, and put it back afterwards.
            It needs the right to (root, as a rule). The label tells it.
        locked_sm_clock_hz: likewise lock the GPUs' SM clock; afterwards clocks are unlocked.
    """

    kind: Literal["transformers"] = "transformers"
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda|cuda:\d+|balanced)$")


class NativeSpec(ModelSpec):
    """Joulewise's own decoding loop over Transformers' modules: every decoding, one target model on one device.

    Args:
        model: as for ``transformers``; a causal model that is a plain stack of attention layers.
        draft: as for ``transformers``; it must share the target's tokenizer.
        heads: of the decodings that need one and name none: a hub name, a folder or a file by kind (``medusa``,
            ``eagle2``, ``eagle3``). The default model has ``shipped:medusa``, ``shipped:eagle2`` and ``shipped:eagle3``
            and takes them where nothing is named. ``random`` is one with random weights, for ``synthetic_acceptance``.
        dtype: as for ``transformers``.
        quantisation: as for ``transformers``.
        draft_quantisation: as for ``transformers``.
        device: ``auto`` is the GPU where there is one.
        name: label in tables; None takes the model's name and the quantisations.
        revision: the target's revision on the hub.
        base_model: as for ``transformers``.
        power_limit_w: as for ``transformers``.
        locked_sm_clock_hz: as for ``transformers``.
    """

    kind: Literal["native"] = "native"
    heads: dict[HeadKind, HeadName] = {}
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda|cuda:\d+)$")


def _usual_kind(value: Any) -> Any:
    """A spec without a kind is of the first kind there was."""
    return {"kind": "transformers"} | value if isinstance(value, dict) else value


_AnySpec = Annotated[TransformersSpec | NativeSpec | EndpointSpec, Field(discriminator="kind")]
EngineSpec = Annotated[_AnySpec, BeforeValidator(_usual_kind, json_schema_input_type=_AnySpec)]
"""The union of all engine specs."""

"""What a plan says of a model that runs in a server. Light: starts and asks nothing."""

from __future__ import annotations

import os
import urllib.parse
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from joulewise.decoding.spec import Name
from joulewise.errors import UserError

ServerKind = Literal["llamacpp", "vllm", "sglang"]
Scalar = bool | int | float | str
SpeculatorKind = Literal["medusa", "eagle2", "eagle3"]

_KEYS = ("api-key", "hf-token", "hub-token", "secret", "password")
"""How the names of what must not be written into a plan end."""


Watts = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Hertz = Annotated[float, Field(ge=1e6, allow_inf_nan=False)]
"""NVML takes whole megahertz."""


def setting_label(power_limit_w: float | None, locked_sm_clock_hz: float | None) -> str:
    """What a GPU's setting adds to an engine's label, such as ``+300W+1.41GHz``; nothing where there is none."""
    power = "" if power_limit_w is None else f"+{power_limit_w:g}W"
    return power + ("" if locked_sm_clock_hz is None else f"+{locked_sm_clock_hz / 1e9:g}GHz")


class ServerSpec(BaseModel):
    """A server that Joulewise starts, and stops again.

    Args:
        kind: ``llamacpp``, ``vllm`` or ``sglang``.
        model: what it serves: a hub name or a folder; for llama.cpp a GGUF file; ``default`` is the embedded model.
        args: its own further flags, as ``{max-model-len: 4096, enforce-eager: true}``; ``false`` is the flag with
            ``no-`` before it, a mapping is passed as JSON.
        env: of its environment, on top of Joulewise's own. Keys do not belong here: the plan is kept with the run.
        program: the program that is started; left out, the one on the PATH (llama.cpp: or the wheel ``xllamacpp``).
        port: where it listens; left out, a free one.
        start_timeout_s: so long it may take to answer.
        side_by_side: whether the servers of all decodings run at once, so that Trials interleave; else one after the
            other, in blocks. Left out: those of llama.cpp do, vLLM's and SGLang's, which each take a GPU's memory, not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ServerKind
    model: Name = "default"
    args: dict[str, Scalar | tuple[Scalar, ...] | dict[str, Any]] = {}
    env: dict[str, str] = {}
    program: Name | None = None
    port: int | None = Field(None, ge=1, le=65535)
    start_timeout_s: float = Field(600.0, gt=0.0, allow_inf_nan=False)
    side_by_side: bool | None = None

    @field_validator("args", "env")
    @classmethod
    def _no_keys(cls, given: dict[str, Any]) -> dict[str, Any]:
        for name in given:
            if name.startswith("-"):
                raise ValueError(f"write '{name.lstrip('-')}', without dashes")
            if name.lower().replace("_", "-").endswith(_KEYS):
                raise ValueError(f"'{name}' would be kept with the run: keys belong in the environment")
        return given


class EndpointSpec(BaseModel):
    """A model in a server: one that runs already (``url``), or one that Joulewise starts (``server``).

    Args:
        url: the base of its address, such as ``http://localhost:8000/v1``. One address is that of ``vanilla``; where
            servers of several decodings run, an address each: ``{vanilla: "http://...", coga-4: "http://..."}``.
        server: what to start instead.
        model: its name there; left out, the ``model`` of ``server``.
        key_env: the name of the environment variable that holds the key; never the key itself.
        api: ``chat`` or ``completions``; ``auto`` takes the former where the server has a chat template.
        tokenizer: counts the output where the server does not: a hub name, a folder, or ``default``.
        draft: the draft model of decodings that need one and name none, as the server names models.
        heads: of the decodings that need one and name none, by kind (``medusa``, ``eagle2``, ``eagle3``).
        meter: where the joules are drawn. ``here``: on this machine. ``remote``: on the GPUs that
            ``JOULEWISE_PROMETHEUS`` tells of. ``none``: elsewhere, unmetered. ``auto``: here where Joulewise starts the
            server or the address is this machine's, else remote where ``JOULEWISE_PROMETHEUS`` is set, else none.
        gpus: the server's GPUs, by number in the order of the PCI bus or by UUID; all others are left out of its
            joules. Left out: as many of the visible ones, from the first on, as a started server uses; else all.
        quantisation: what the weights are in, where the server does not tell (vLLM), as the report is to call it:
            ``bfloat16``, ``fp8``, ``gptq, 4 bits``. It is marked as given.
        base_model: as for ``transformers``: the name by which the plan's other engines know this model.
        power_limit_w: as for ``transformers``; of the ``gpus``, or all of this machine's. For servers on this machine.
        locked_sm_clock_hz: likewise.
        timeout_s: so long one answer may take; a server at ``url`` that still loads is given as long.
        name: label in tables; None takes the model's name and the server's kind.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["endpoint"] = "endpoint"
    url: str | dict[str, str] | None = None
    server: ServerSpec | None = None
    model: Name = ""
    key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    api: Literal["auto", "chat", "completions"] = "auto"
    tokenizer: Name | None = None
    draft: Name | None = None
    heads: dict[SpeculatorKind, Name] = {}
    meter: Literal["auto", "here", "remote", "none"] = "auto"
    gpus: tuple[int | str, ...] | None = None
    quantisation: Name | None = None
    base_model: Name | None = None
    power_limit_w: Watts | None = None
    locked_sm_clock_hz: Hertz | None = None
    timeout_s: float = Field(600.0, gt=0.0, allow_inf_nan=False)
    name: str | None = None

    @field_validator("url")
    @classmethod
    def _addresses(cls, url: str | dict[str, str] | None) -> str | dict[str, str] | None:
        for address in url.values() if isinstance(url, dict) else [url] * (url is not None):
            parts = urllib.parse.urlsplit(address)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"'{address}' is no address; write one like http://localhost:8000/v1")
            if parts.username is not None or parts.query:
                raise ValueError("leave names, passwords and queries out of the address; a key belongs in 'key_env'")
        if url == {}:
            raise ValueError("names no address")
        return url

    @model_validator(mode="after")
    def _one_of_both(self) -> EndpointSpec:
        if (self.url is None) == (self.server is None):
            raise ValueError("needs either 'url' (a server that runs) or 'server' (one to start)")
        if not self.model:
            raise ValueError("needs 'model', the name by which the server at 'url' knows it")
        return self

    @model_validator(mode="before")
    @classmethod
    def _model_of_server(cls, data: Any) -> Any:
        if isinstance(data, dict) and "model" not in data and isinstance(server := data.get("server"), dict):
            model = server.get("model", "default")
            if isinstance(model, str) and model:  # else the fault is the server's
                return {**data, "model": model}
        return data

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of running servers by decoding label; empty where one is started."""
        return {} if self.url is None else self.url if isinstance(self.url, dict) else {"vanilla": self.url}

    def key(self) -> str | None:
        """The key, from the environment; None where the plan names none.

        Raises:
            UserError: its variable is not set.
        """
        if self.key_env is None:
            return None
        key = os.environ.get(self.key_env)
        if not key:
            raise UserError(f"engine {self.label}: the environment variable {self.key_env} of `key_env` is not set")
        return key

    @property
    def one_at_a_time(self) -> bool:
        """Whether the servers of several decodings run one after the other."""
        if self.server is None:
            return False
        chosen = self.server.side_by_side
        return self.server.kind != "llamacpp" if chosen is None else not chosen

    @property
    def label(self) -> str:
        """Short name within a grid: the given one, or the last part of the model's name and where it is served."""
        held = setting_label(self.power_limit_w, self.locked_sm_clock_hz)
        if self.name:
            return f"{self.name}{held}"
        first = next(iter(self.addresses.values()), "")
        where = self.server.kind if self.server else urllib.parse.urlsplit(first).netloc.replace(":", "-")
        return f"{self.model.rstrip('/').rsplit('/', 1)[-1]}@{where}{held}"

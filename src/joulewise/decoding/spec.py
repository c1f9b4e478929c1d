"""Decoding: a small frozen value that names a way to produce tokens and knows nothing about any engine."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Name = Annotated[str, Field(min_length=1)]
"""Of a model or a head."""

RANDOM_HEAD = "random"
"""Names a head with random weights of the target's shape."""

FIRST_LAYERS = "first-layers:"
"""Begins the name of a draft that is the target's own first layers."""


def _no_head(name: str) -> str:
    if name == RANDOM_HEAD:
        raise ValueError(
            "`random` stands for a head, and there is no such draft model: name a hub's model, a folder (./random, if "
            "it is called so) or first-layers:N"
        )
    return name


def _no_draft(name: str) -> str:
    if name == "default" or name.startswith(FIRST_LAYERS):
        raise ValueError(
            f"{name} is a model, and a head is wanted: name a head on the hub, a folder (./{name}, if it is called "
            "so) or a file; or leave it out where the model is default, whose heads come with Joulewise"
        )
    return name


DraftName = Annotated[Name, AfterValidator(_no_head)]
HeadName = Annotated[Name, AfterValidator(_no_draft)]

MOST_NODES = 256
"""The most nodes of a draft tree, the root included: more cost more to verify than any head repays."""


class Decoding(BaseModel):
    """Base of all decodings. A subclass has a literal ``kind`` and its parameters.

    ``needs_draft`` says whether a draft model takes part, ``needs_head`` whether a head on the target does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    needs_draft: ClassVar[bool] = False
    needs_head: ClassVar[bool] = False

    kind: str
    draft: DraftName | None = None

    @property
    def label(self) -> str:
        """Short unique name within a grid, such as ``coga-5``."""
        return self.kind

    @property
    def lossless(self) -> bool:
        """Whether greedy output must equal vanilla's (design, rule 4)."""
        return True

    @property
    def synthetic(self) -> tuple[float, ...] | None:
        """In which share of rounds the first, second, ... token of a path is accepted by lot; None: by merit."""
        return None


class CanBeSynthetic(Decoding):
    """A decoding whose drafts may be accepted by lot instead of by merit.

    The text is then meaningless and the answers run to their limit, but the work is real: joules against acceptance can
    be measured on any model's shape, before a draft model or a head is trained.
    """

    synthetic_acceptance: Share | tuple[Share, ...] | None = None

    @field_validator("synthetic_acceptance", mode="before")
    @classmethod
    def _no_switch(cls, rates: Any) -> Any:
        if isinstance(rates, bool):
            raise ValueError("it is no switch: give a rate from 0 to 1, or a list of shares of rounds")
        return rates

    @field_validator("synthetic_acceptance")
    @classmethod
    def _never_rising(cls, rates: float | tuple[float, ...] | None) -> float | tuple[float, ...] | None:
        if rates == ():
            raise ValueError("the list is empty: give a share of rounds for each drafted token, or one rate")
        if isinstance(rates, tuple) and list(rates) != sorted(rates, reverse=True):
            raise ValueError(
                "a token is accepted only where the one before it is: give shares of rounds that never rise, such as "
                "[0.8, 0.6, 0.5]"
            )
        return rates

    @model_validator(mode="after")
    def _on_the_path(self) -> Self:
        rates = self.synthetic_acceptance
        if isinstance(rates, tuple) and len(rates) > self.path_tokens:
            raise ValueError(
                f"synthetic_acceptance gives {len(rates)} shares, and at most {self.path_tokens} drafted tokens can be "
                "accepted in a round: leave the rest out, or let the draft be longer"
            )
        return self

    @property
    @abstractmethod
    def path_tokens(self) -> int:
        """The most tokens of a path that can be accepted in a round."""

    @property
    def lossless(self) -> bool:
        """Not where acceptance is by lot."""
        return self.synthetic_acceptance is None

    @property
    def synthetic(self) -> tuple[float, ...] | None:
        """As given; a single rate is that of each token, given the one before it."""
        rates = self.synthetic_acceptance
        if isinstance(rates, float | int):
            return tuple(rates ** (i + 1) for i in range(self.path_tokens))
        return rates

    @property
    def _synthetic_label(self) -> str:
        rates = self.synthetic_acceptance
        if rates is None:
            return ""
        shown = f"{rates:g}" if isinstance(rates, float | int) else "-".join(f"{r:g}" for r in rates)
        return f"-synthetic-{shown}"

"""Samples: one question answered several times with a temperature, for votes and choices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from joulewise.engines.engine import Request
from joulewise.reasoning.budget import Budget
from joulewise.reasoning.cot import Cot
from joulewise.reasoning.direct import Direct
from joulewise.reasoning.few_shot import FewShot
from joulewise.reasoning.reasoning import Answer, Ask, Asked, Reasoning, Turn, side_by_side


def _by_name(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


class Sampled(Reasoning):
    """Base of reasonings that make one answer of several samples.

    Sample i of a question has the same seed whoever draws it: the samples of a vote are the first ones of a larger
    vote with the same ``of`` and ``temperature``.
    """

    samples: int = Field(3, ge=1)
    of: Annotated[
        Direct | FewShot | Cot | Budget,
        Field(discriminator="kind"),
        BeforeValidator(
            _by_name,
            json_schema_input_type=Direct | FewShot | Cot | Budget | Literal["direct", "few_shot", "cot", "budget"],
        ),
    ] = Direct()
    temperature: float = Field(0.7, gt=0.0, allow_inf_nan=False)
    batched: bool = False

    @field_validator("of")
    @classmethod
    def _not_probed(cls, of: Reasoning) -> Reasoning:
        if isinstance(of, Budget) and of.probes:
            raise ValueError("samples are not probed; leave 'probes' out")
        return of

    def label_of(self, *first: str) -> str:
        """These parts, and what is not as usual of the samples."""
        parts = list(first)
        if not isinstance(self.of, Direct):
            parts.append(self.of.label)
        if self.temperature != 0.7:
            parts.append(f"t{self.temperature:g}")
        if self.batched:
            parts.append("batched")
        return "-".join(parts)

    @property
    def needs_thinking(self) -> bool:
        return self.of.needs_thinking

    @property
    def goes_on(self) -> bool:
        return self.of.goes_on

    @property
    def together(self) -> int:
        return self.samples if self.batched else 0

    def refuses(self, asked: Asked) -> str | None:
        return self.of.refuses(asked)

    def settings(self, template: Request) -> Request:
        return self.of.settings(replace(template, sampling=replace(template.sampling, temperature=self.temperature)))

    def most_tokens(self, template: Request) -> tuple[int, ...]:
        return self.of.most_tokens(template) * self.samples

    def asks_first(self, asked: Asked, template: Request) -> Turn:
        return self.of.asks_first(asked, template)

    def draw(self, asked: Asked, template: Request, ask: Ask) -> Iterator[Answer]:
        """The samples in order: each when it is asked for, or all at once where they are batched."""
        templates = [replace(template, seed=seed_of(template.seed, i)) for i in range(self.samples)]
        if self.batched:
            yield from side_by_side([self.of.think(asked, one) for one in templates], ask.together)
            return
        for one in templates:
            yield self.of.answer(asked, one, ask)


def seed_of(seed: int, sample: int) -> int:
    """The seed of a question's sample, from the question's."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{sample}".encode()).digest()[:4], "big")

"""What a plan says of the load on a server: several levels of it in one entry. Light: sends nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from joulewise.traffic.arrivals import ClosedLoop, Poisson, Replay

LONGEST_S = 3000.0
"""The meter's timeline keeps an hour, and the steady part's joules are read from it when the load has ended."""

MOST_AT_ONCE, MOST_A_SECOND = 20_000, 10_000
"""Of requests: more than one load generator keeps up with, or has ports for."""

Count = Annotated[int, Field(ge=1, le=MOST_AT_ONCE)]
Rate = Annotated[float, Field(gt=0.0, le=MOST_A_SECOND, allow_inf_nan=False)]
Speed = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


def _one_or_several(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else (value,)


Counts = Annotated[
    tuple[Count, ...],
    Field(min_length=1),
    BeforeValidator(_one_or_several, json_schema_input_type=Count | tuple[Count, ...]),
]
Rates = Annotated[
    tuple[Rate, ...],
    Field(min_length=1),
    BeforeValidator(_one_or_several, json_schema_input_type=Rate | tuple[Rate, ...]),
]
Speeds = Annotated[
    tuple[Speed, ...],
    Field(min_length=1),
    BeforeValidator(_one_or_several, json_schema_input_type=Speed | tuple[Speed, ...]),
]


@dataclass(frozen=True, slots=True)
class Stretch:
    """One load for so long: what a cell of the grid is measured under.

    Args:
        load: when which request is due.
        duration_s: for so long requests become due.
        drain_s: so long after that answers are waited for.
        label: short name within a grid, such as ``c16``, ``r0.5`` or ``c1-64``.
    """

    load: ClosedLoop | Poisson | Replay
    duration_s: float
    drain_s: float
    label: str

    @property
    def level(self) -> float | None:
        """Requests in flight or requests per second; None where it changes, or a trace sets it."""
        if isinstance(self.load, Replay) or self.ramp:
            return None
        return float(self.load.concurrency if isinstance(self.load, ClosedLoop) else self.load.rate)

    @property
    def ramp(self) -> bool:
        """Whether the level changes from the first to the last second."""
        match self.load:
            case ClosedLoop():
                return self.load.to_concurrency not in (None, self.load.concurrency)
            case Poisson():
                return self.load.to_rate not in (None, self.load.rate)
        return False


class _Loads(BaseModel):
    """Common to all kinds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    duration_s: float = Field(60.0, gt=0.0, le=LONGEST_S)
    drain_s: float = Field(60.0, ge=0.0, le=600.0)


class ClosedLoads(_Loads):
    """So many requests in flight: each one that ends makes room for the next.

    Args:
        concurrency: how many: one number, or a list, of which each is a load of its own.
        to_concurrency: how many at the end, with an even change in between: a ramp. Left out: as many as at first.
        duration_s: for so many seconds requests become due.
        drain_s: so many seconds after that answers are waited for.
    """

    kind: Literal["closed"] = "closed"
    concurrency: Counts
    to_concurrency: Count | None = None

    def each(self) -> tuple[Stretch, ...]:
        """A load for each level."""
        return tuple(
            self._stretch(ClosedLoop(concurrency=n, to_concurrency=self.to_concurrency)) for n in self.concurrency
        )

    def _stretch(self, load: ClosedLoop) -> Stretch:
        to = "" if load.to_concurrency is None else f"-{load.to_concurrency}"
        return Stretch(load, self.duration_s, self.drain_s, f"c{load.concurrency}{to}")


class PoissonLoads(_Loads):
    """Requests that know nothing of one another, at a mean rate, however slow the server is.

    Args:
        rate: requests per second: one number, or a list, of which each is a load of its own.
        to_rate: at the end, with an even change in between: a ramp. Left out: as at first.
        duration_s: for so many seconds requests become due.
        drain_s: so many seconds after that answers are waited for.
    """

    kind: Literal["poisson"] = "poisson"
    rate: Rates
    to_rate: Rate | None = None

    def each(self) -> tuple[Stretch, ...]:
        """A load for each rate."""
        to = "" if self.to_rate is None else f"-{self.to_rate:g}"
        return tuple(
            Stretch(Poisson(rate=rate, to_rate=self.to_rate), self.duration_s, self.drain_s, f"r{rate:g}{to}")
            for rate in self.rate
        )


class ReplayLoads(_Loads):
    """Requests as a trace has them: their times, and their lengths (prompts by four characters a token).

    Args:
        trace: a CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens, relative to the plan.
        speed: 2 sends them twice as fast: one number, or a list, of which each is a load of its own.
        skip_s: leaves out so much of the trace's beginning, in seconds of the trace.
        most_prompt_tokens, most_output_tokens: longer ones are cut to this; left out, they are not.
        duration_s: for so many seconds requests become due.
        drain_s: so many seconds after that answers are waited for.
    """

    kind: Literal["replay"] = "replay"
    trace: Path
    speed: Speeds = (1.0,)
    skip_s: float = Field(0.0, ge=0.0, allow_inf_nan=False)
    most_prompt_tokens: int | None = Field(None, ge=1)
    most_output_tokens: int | None = Field(None, ge=1)

    @field_validator("trace")
    @classmethod
    def _exists(cls, trace: Path, info: ValidationInfo) -> Path:
        """In a plan file: take the path relative to it, and make sure that the file is there."""
        if not info.context:
            return trace
        path: Path = (info.context["folder"] / trace).resolve()
        if not path.is_file():
            raise ValueError(f"no file {path}; a trace is named by its CSV file, relative to the plan")
        return path

    def each(self) -> tuple[Stretch, ...]:
        """A load for each speed."""
        return tuple(self._stretch(speed) for speed in self.speed)

    def _stretch(self, speed: float) -> Stretch:
        load = Replay(
            trace=self.trace,
            speed=speed,
            skip_s=self.skip_s,
            most_prompt_tokens=self.most_prompt_tokens,
            most_output_tokens=self.most_output_tokens,
        )
        return Stretch(load, self.duration_s, self.drain_s, f"{self.trace.stem}-x{speed:g}")


Loads = Annotated[ClosedLoads | PoissonLoads | ReplayLoads, Field(discriminator="kind")]

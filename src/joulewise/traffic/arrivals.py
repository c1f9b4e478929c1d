"""When is which request due? Closed loops, Poisson arrivals, replayed traces; constant or from one level to another.

Pure but for reading a trace's file. Times are seconds from the load's start.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from joulewise.errors import UserError

_MOST_TOKENS = 999_999_999
"""Of a prompt or an output; more is a mistake in the file."""

PER_START_S = 0.002
"""From one stream's start to the next where a closed loop begins: more at once could not be sent in time."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that is to be sent.

    Args:
        due_s: when, in seconds from the start.
        prompt_tokens, output_tokens: how long the trace says they are; None where the task decides.
    """

    due_s: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class _Load(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClosedLoop(_Load):
    """So many requests in flight: each one that ends makes room for the next. The server's speed sets the rate.

    Args:
        concurrency: how many.
        to_concurrency: how many at the end; in between their number changes evenly. None leaves it as it is.
    """

    kind: Literal["closed"] = "closed"
    concurrency: int = Field(ge=1)
    to_concurrency: int | None = Field(default=None, ge=1)

    @property
    def most(self) -> int:
        """Streams at the highest level."""
        return max(self.concurrency, self.to_concurrency or 0)

    def stream(self, number: int, duration_s: float) -> tuple[float, float]:
        """When a stream begins, and when it begins no further request; seconds from the start.

        Args:
            number: from 0 to ``most - 1``.
            duration_s: of the whole load.
        """
        first, last = self.concurrency, self.to_concurrency or self.concurrency
        begins_s = min(duration_s, number * PER_START_S)
        if number < min(first, last):
            return begins_s, duration_s
        share = (number + 0.5 - first) / (last - first)  # where the line from first to last passes this stream
        return (share * duration_s, duration_s) if last > first else (begins_s, max(begins_s, share * duration_s))


class Poisson(_Load):
    """Requests that know nothing of one another, at a mean rate, however slow the server is.

    Args:
        rate: requests per second.
        to_rate: at the end; in between the rate changes evenly. None leaves it as it is.
        seed: the same seed gives the same times.
    """

    kind: Literal["poisson"] = "poisson"
    rate: float = Field(gt=0.0, allow_inf_nan=False)
    to_rate: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0)

    def arrivals(self, duration_s: float) -> Iterator[Arrival]:
        """Those of that many seconds.

        A unit-rate process in the time that the integrated rate measures (Cinlar 1975, the inversion method): the next
        arrival is where ``rate t + slope t^2 / 2`` has grown by an exponential variate.
        """
        rng, grown = random.Random(self.seed), 0.0
        slope = ((self.to_rate or self.rate) - self.rate) / duration_s
        while True:
            grown += rng.expovariate(1.0)
            # The root of the quadratic in the form that holds where the slope is 0, too.
            under = self.rate**2 + 2.0 * slope * grown
            if under < 0.0:
                return
            due_s = 2.0 * grown / (self.rate + math.sqrt(under))
            if due_s >= duration_s:
                return
            yield Arrival(due_s)


class Replay(_Load):
    """Requests as a trace has them: their times and their lengths.

    Args:
        trace: a CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens, as Azure publishes them.
        speed: 2 sends them twice as fast.
        skip_s: leaves out so much of the trace's beginning, in seconds of the trace.
        most_prompt_tokens, most_output_tokens: longer ones are cut to this; None leaves them.
    """

    kind: Literal["replay"] = "replay"
    trace: Path
    speed: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    skip_s: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    most_prompt_tokens: int | None = Field(default=None, ge=1)
    most_output_tokens: int | None = Field(default=None, ge=1)

    def arrivals(self, duration_s: float) -> Iterator[Arrival]:
        """Those of that many seconds; fewer where the trace ends before. The file is read as they are taken.

        Raises:
            UserError: the file is not there or no such trace; with the line and column of what is wrong.
        """
        for time_s, prompt, output in _rows(self.trace):
            due_s = (time_s - self.skip_s) / self.speed
            if due_s >= duration_s:
                return
            if due_s >= 0.0:
                yield Arrival(due_s, _cut(prompt, self.most_prompt_tokens), _cut(output, self.most_output_tokens))

    def check(self, duration_s: float) -> None:
        """Read of the trace what a load of so many seconds will.

        Raises:
            UserError: as ``arrivals``; or the trace is empty, or no request is due in that time.
        """
        if not sum(1 for _ in self.arrivals(duration_s)):
            if next(_rows(self.trace), None) is None:
                raise UserError(
                    f"trace {self.trace} holds no request, only the names of its columns: name another file"
                )
            span = f"{self.skip_s:g} s to {self.skip_s + duration_s * self.speed:g} s"
            raise UserError(
                f"trace {self.trace} has no request from {span} after its first: change `skip_s`, or the file"
            )


OpenLoop = Poisson | Replay
Load = Annotated[ClosedLoop | Poisson | Replay, Field(discriminator="kind")]


def _cut(tokens: int, most: int | None) -> int:
    return tokens if most is None else min(tokens, most)


def _rows(trace: Path) -> Iterator[tuple[float, int, int]]:
    """Seconds from the first request, prompt tokens, output tokens."""
    try:
        with trace.open(encoding="utf-8-sig", newline="") as lines:
            yield from _parsed(trace, lines)
    except OSError as error:
        raise UserError(f"trace {trace} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"trace {trace} is no CSV file ({error})") from error


def _parsed(trace: Path, lines: Iterator[str]) -> Iterator[tuple[float, int, int]]:
    rows = csv.DictReader(lines)
    if not rows.fieldnames:
        raise UserError(f"trace {trace} is empty: its first line names the columns {', '.join(_COLUMNS)}")
    if missing := [name for name in _COLUMNS if name not in rows.fieldnames]:
        raise UserError(f"trace {trace} has no column {' nor '.join(missing)}; it needs {', '.join(_COLUMNS)}")
    start: datetime | None = None
    last_s = 0.0
    for row in rows:
        where = f"trace {trace}, line {rows.line_num}"
        time, prompt, output = (read(row[name], f"{where}, {name}") for name, read in _COLUMNS.items())
        start = start or time
        if (time.tzinfo is None) != (start.tzinfo is None):
            raise UserError(f"{where}, TIMESTAMP: give all times with their zone, or none")
        time_s = (time - start).total_seconds()
        if time_s < last_s:
            raise UserError(f"{where}, TIMESTAMP: earlier than the line before; sort the file by time")
        last_s = time_s
        yield time_s, prompt, output


def _time(cell: str | None, where: str) -> datetime:
    try:
        return datetime.fromisoformat((cell or "")[:26])  # seven digits of a second are more than it reads
    except ValueError:
        raise UserError(f"{where}: {_found(cell)}; write a time like 2023-11-16 18:17:03.979960") from None


def _tokens(cell: str | None, where: str) -> int:
    text = (cell or "").strip()
    if not (text.isascii() and text.isdecimal()):
        raise UserError(f"{where}: {_found(cell)}; write how many tokens, a whole number such as 374")
    if len(digits := text.lstrip("0")) > len(str(_MOST_TOKENS)):
        raise UserError(
            f"{where}: {_found(cell)}, and no request has more than {_MOST_TOKENS:,} tokens; write how many it has"
        )
    return int(digits or "0")


def _found(cell: str | None) -> str:
    return f"found {cell[:40]!r}" if cell else "nothing is there"


_COLUMNS: dict[str, Callable[[str | None, str], Any]] = {
    "TIMESTAMP": _time,
    "ContextTokens": _tokens,
    "GeneratedTokens": _tokens,
}

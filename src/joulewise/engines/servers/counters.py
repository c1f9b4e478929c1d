"""What servers count, before and after, in one meaning: drafted and accepted tokens without the bonus and the root."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from joulewise.engines.engine import Tally
from joulewise.engines.serving import Counted

OTHERS = "others used the server at the same time (it counted more than was asked of it here)"
RESET = "the server's counters were reset meanwhile, so what was drafted is not known"
UNTOLD = "the server does not tell what was drafted"
MISFIT = "the server's counters do not fit the tokens that it says it produced, so what was drafted is not known"
CACHED = "prompt tokens came from the server's prefix cache: their prefill was not paid for again"
SPECULATES = (
    "the server drafted tokens, and the plan calls it vanilla: name its decoding with its address "
    "(`url: {<decoding>: ...}`), or start it without speculation"
)

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Counters:
    """A server's running totals at one moment; None for what it does not tell.

    Args:
        requests: finished.
        output_tokens: produced.
        cached_tokens: of prompts, taken from the prefix cache.
        drafts: rounds that had a draft.
        drafted, accepted: draft tokens, the root and the bonus left out.
        rounds: all verification forwards.
        per_position: rounds in which the first, second, ... draft token was accepted.
    """

    requests: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    rounds: int | None = None
    per_position: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Drafted:
    """What an answer tells of its own speculation; ``rounds`` and ``drafts`` are None where it does not tell them."""

    drafted: int
    accepted: int
    rounds: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of ours, as far as the counters are checked against it.

    Args:
        output_tokens: by the usage that the server sent, or as they were counted here.
        cached_tokens: of the prompt; None where the server does not tell.
        drafted: what the answer tells of its speculation; None where it does not.
    """

    output_tokens: int
    cached_tokens: int | None = None
    drafted: Drafted | None = None


class Reset(Exception):
    """A total is smaller than it was."""


Exposition = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""By metric name: labels and value of each series."""


def parse_exposition(text: str) -> Exposition:
    """The series of a text in Prometheus' exposition format; other lines are passed over."""
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            try:
                value = float(match[3])
            except ValueError:
                continue
            found.setdefault(match[1], []).append((dict(_LABEL.findall(match[2] or "")), value))
    return found


def total(metrics: Exposition, name: str) -> int | None:
    """A counter's sum over its series, by its name with or without ``_total``; None where it is not there."""
    series = metrics.get(f"{name}_total", metrics.get(name))
    return None if series is None else round(sum(value for _, value in series))


def by_position(metrics: Exposition, name: str) -> tuple[int, ...]:
    """A counter's sums by its label ``position``, from 0 on."""
    sums: dict[int, float] = {}
    for labels, value in metrics.get(f"{name}_total", metrics.get(name, ())):
        position = labels.get("position", "")
        if position.isdecimal():
            sums[int(position)] = sums.get(int(position), 0.0) + value
    return tuple(round(sums.get(i, 0.0)) for i in range(max(sums, default=-1) + 1))


def spec_decode(metrics: Exposition, server: str) -> dict[str, Any]:
    """The speculative counters that llama.cpp and vLLM name alike, by field of ``Counters``."""
    name = f"{server}:spec_decode_num_"
    return {
        "drafts": total(metrics, f"{name}drafts"),
        "drafted": total(metrics, f"{name}draft_tokens"),
        "accepted": total(metrics, f"{name}accepted_tokens"),
        "per_position": by_position(metrics, f"{name}accepted_tokens_per_pos"),
    }


def difference(before: Counters, after: Counters) -> Counters:
    """What was counted in between.

    Raises:
        Reset: a total went down.
    """
    found: dict[str, int | None] = {}
    for name in (f.name for f in fields(Counters) if f.name != "per_position"):
        old, new = getattr(before, name), getattr(after, name)
        # Servers show some series only once there is something to count.
        found[name] = None if new is None else new - (old or 0)
    rows = [
        (before.per_position[i] if i < len(before.per_position) else 0, new) for i, new in enumerate(after.per_position)
    ]
    positions = tuple(new - old for old, new in rows)
    shrunk = len(after.per_position) < len(before.per_position)
    if shrunk or any(value is not None and value < 0 for value in (*found.values(), *positions)):
        raise Reset
    return Counters(**found, per_position=positions)


def reckon(before: Counters | None, after: Counters | None, asked: Sequence[Asked], path: int) -> Counted:
    """What a Trial's speculation was, as far as the server tells.

    The answers' own counts go before the running totals, which are for all clients together. Rounds, where nobody tells
    them, are the output tokens less the first of each answer and the accepted ones: each round puts out one token more
    than it accepts. That is one too few for an answer whose end cut its last round short.

    Args:
        before, after: totals around the Trial; None where the server does not tell.
        asked: the Trial's requests.
        path: the most draft tokens that a round can accept; 0 for plain decoding.
    """
    notes = [CACHED] if any(one.cached_tokens for one in asked) else []
    counted: Counters | None = None
    was_reset = shared = False
    if before is not None and after is not None:
        try:
            counted = difference(before, after)
        except Reset:
            was_reset = True
            notes.append(RESET)
    output = sum(one.output_tokens for one in asked)
    if counted is not None:
        more = counted.requests is not None and counted.requests > len(asked)
        # Past the end of an answer a server may have produced as many tokens as a round can accept.
        more = more or (counted.output_tokens is not None and counted.output_tokens > output + path * len(asked))
        if more:
            shared = True
            notes.append(OTHERS)
        if counted.cached_tokens and CACHED not in notes and not shared:
            notes.append(CACHED)
    own = _own(asked)
    tally = None
    if own is not None:
        tally = _tally(own, output - len(asked), None if shared else counted)
    elif counted is not None and not shared:
        tally = _tally(_of_counters(counted), output - len(asked), counted)
    if tally is not None and tally.accepted > output - len(asked) + path * len(asked):
        tally = None
        notes.append(MISFIT)
    if not path:
        fault = SPECULATES if tally is not None and tally.drafted else None
        return Counted(None, True, shared, "; ".join(notes) or None, fault)
    if tally is None and not (was_reset or shared or MISFIT in notes):
        notes.append(UNTOLD)
    return Counted(tally, tally is not None, shared, "; ".join(notes) or None)


def _own(asked: Sequence[Asked]) -> Drafted | None:
    """The sum of what the answers tell of themselves; None where one does not."""
    told = [one.drafted for one in asked]
    if not told or None in told:
        return None
    known = [one for one in told if one is not None]
    rounds = [one.rounds for one in known if one.rounds is not None]
    return Drafted(
        sum(one.drafted for one in known),
        sum(one.accepted for one in known),
        sum(rounds) if len(rounds) == len(known) else None,
    )


def _of_counters(counted: Counters) -> Drafted | None:
    if counted.drafted is None or counted.accepted is None:
        return None
    return Drafted(counted.drafted, counted.accepted, counted.rounds)


def _tally(drafted: Drafted | None, after_first: int, counted: Counters | None) -> Tally | None:
    """Joined with the totals where these are of the same rounds."""
    if drafted is None:
        return None
    fits = counted is not None and (counted.drafted, counted.accepted) == (drafted.drafted, drafted.accepted)
    rounds = max(0, after_first - drafted.accepted) if drafted.rounds is None else drafted.rounds
    drafts = counted.drafts if counted is not None and fits else None
    return Tally(
        rounds=max(rounds, drafts or 0),
        drafted=drafted.drafted,
        accepted=drafted.accepted,
        drafts=drafts,
        per_position=counted.per_position if counted is not None and fits and counted.per_position else None,
    )

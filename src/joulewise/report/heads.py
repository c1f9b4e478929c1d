"""What `joulewise heads check` found: a table, what to know of it, and the figures for a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from joulewise.analysis.acceptance import acceptance_length
from joulewise.analysis.intervals import MIN_QUESTIONS, Quantity, unknown_quantity

if TYPE_CHECKING:
    from joulewise.engines.native.training.check import Checked, Fared

FEW = 20
"""Fewer prompts leave an interval that is often too wide to choose by (docs/statistics.md)."""


def length_of(fared: Fared) -> Quantity:
    """The mean acceptance length with its interval: a bootstrap over the outputs."""
    if fared.length is None:
        return unknown_quantity("there were no rounds")
    rounds, accepted = np.array(fared.by_output, dtype=np.float64).T
    return acceptance_length(rounds, accepted, np.arange(fared.outputs), fared.outputs)


def table(checked: Sequence[Checked]) -> str:
    """A line a decoding."""
    rows = [
        ("tokens a round (95 % interval), n outputs", "all", "unrepetitive", "accepted at position 1, 2, ... (all), %")
    ]
    for one in checked:
        shares = " ".join(f"{100 * share:.0f}" for share in one.everything.per_position)
        rows.append((one.label, _words(one.everything), _words(one.unrepetitive), shares))
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(f"{a:<{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}   {d}".rstrip() for a, b, c, d in rows)


def _words(fared: Fared) -> str:
    length = length_of(fared)
    if length.value is None:
        return f"-, n {fared.outputs}"
    ends = f" ({length.lower:.2f} – {length.upper:.2f})" if length.lower is not None else ""
    return f"{length.value:.2f}{ends}, n {fared.outputs}"


def warnings(checked: Sequence[Checked], limit: float) -> list[str]:
    """What to know of the first decoding's figure, which the gate is for: few prompts, and a gate within its interval.

    Args:
        checked: what was found.
        limit: the gate.
    """
    first = checked[0].everything
    length, told = length_of(first), []
    if first.outputs < FEW:
        why = (
            f"fewer than {MIN_QUESTIONS} give no interval, and say next to nothing of other prompts"
            if first.outputs < MIN_QUESTIONS
            else "another few may give another figure, as its interval says"
        )
        told.append(
            f"Only {first.outputs} prompt{'s' * (first.outputs != 1)}: {why}; check on at least {FEW} (--questions, "
            "and more held-out texts or --prompts)."
        )
    if length.lower is not None and length.upper is not None and length.lower <= limit < length.upper:
        told.append(f"The gate of {limit} lies within the interval, so which side it is on cannot be told.")
    return told


def as_json(checked: Sequence[Checked], limit: float, **about: Any) -> dict[str, Any]:
    """The figures for a file; an interval of None where there is none.

    Args:
        checked: what was found.
        limit: the gate.
        about: what was checked.
    """
    return about | {"gate": limit, "decodings": [_plain(one) for one in checked]}


def _plain(one: Checked) -> dict[str, Any]:
    found = asdict(one)
    for name, fared in (("everything", one.everything), ("unrepetitive", one.unrepetitive)):
        length = length_of(fared)
        found[name]["interval"] = None if length.lower is None else [length.lower, length.upper]
    return found

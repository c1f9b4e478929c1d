"""Did the decoding write what vanilla writes? The verdicts of the lossless check, counted (design, rule 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from joulewise.analysis.cells import VANILLA, Cell, CellKey


@dataclass(frozen=True, slots=True)
class Lossless:
    """The verdicts on one cell's ok Trials; together they are all of them.

    Args:
        key: which cell.
        identical: outputs equal to vanilla's, token by token.
        tie: outputs that first differ where the target's two best tokens are as near as its own rounding error.
        different: the failures.
        not_checked: sampled outputs, lossy decodings, no vanilla output, or no verdict in the ledger.
        notes: what the ledger says about those that are not ``identical``, most frequent first.
    """

    key: CellKey
    identical: int
    tie: int
    different: int
    not_checked: int
    notes: tuple[str, ...] = ()


def lossless(cells: Iterable[Cell]) -> tuple[Lossless, ...]:
    """The verdicts on every cell but vanilla's own."""
    return tuple(_verdicts(cell) for cell in cells if cell.key.decoding != VANILLA)


def _verdicts(cell: Cell) -> Lossless:
    found = Counter(zip(cell.texts("check_status"), cell.texts("check_note"), strict=True))
    counts: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    for (status, note), n in found.items():
        counts[status or "not_checked"] += n
        if note and status != "identical":
            notes[note] += n
    identical, tie, different = (counts.pop(status, 0) for status in ("identical", "tie", "different"))
    ranked = sorted(notes, key=lambda note: (-notes[note], note))
    return Lossless(cell.key, identical, tie, different, counts.total(), tuple(ranked))

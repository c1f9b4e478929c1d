"""Tables and sentences in plain text, for a terminal of some width or a pipe: what is too wide is folded, never cut."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

_GAP = 2
_MOST_WHOLE = 20
"""A piece of a name that is longer than this may be broken anywhere."""
_PIECES = re.compile(r"[^\s/@>]*(?:[/@>]+|\s+|$)")


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is, or as ``COLUMNS`` says; None for a pipe, which takes any."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def table(rows: Sequence[Sequence[str]], width: int | None = None, indent: int = 0) -> list[str]:
    """Lines of a table; the first row is its head, and figures stand to the right.

    Args:
        width: columns there are; cells are folded, the widest first, until the table fits. None: any.
        indent: spaces before each line, which count.
    """
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    numeric = [all(row[i][:1].isdigit() or row[i] == "unknown" for row in rows[1:]) for i in range(len(rows[0]))]
    if width is not None:
        least = [max(_least(row[i]) for row in rows) for i in range(len(rows[0]))]
        while sum(wide) + _GAP * (len(wide) - 1) + indent > width:
            at = max(range(len(wide)), key=lambda i: wide[i] - least[i])
            if wide[at] <= least[at]:
                break  # it cannot be folded any further
            wide[at] -= 1
    lines = []
    for row in rows:
        cells = [_folded(cell, most) for cell, most in zip(row, wide, strict=True)]
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            line = (" " * _GAP).join(
                f"{part:>{most}}" if right else f"{part:<{most}}"
                for part, most, right in zip(parts, wide, numeric, strict=True)
            )
            lines.append((" " * indent + line).rstrip())
    return lines


def wrapped(lines: Iterable[str], width: int | None) -> list[str]:
    """Sentences, each over as many lines as it needs; what begins with spaces goes on two spaces further in."""
    if width is None:
        return list(lines)
    found = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        found += textwrap.wrap(
            line,
            max(width, indent + _MOST_WHOLE),
            subsequent_indent=" " * (indent + _GAP),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [line]
    return found


def _pieces(cell: str) -> list[str]:
    """A cell in parts between which it may be folded."""
    return [piece for piece in _PIECES.findall(cell) if piece]


def _least(cell: str) -> int:
    return min(_MOST_WHOLE, max((len(piece.rstrip()) for piece in _pieces(cell)), default=0))


def _folded(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    lines = [""]
    for whole in _pieces(cell):
        piece = whole
        if len(lines[-1]) + len(piece.rstrip()) > width and lines[-1]:
            lines.append("")
        while len(piece.rstrip()) > width:
            lines[-1], piece = piece[:width], piece[width:]
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]

"""Docstrings taken apart, for the pages and the schema that are generated from them."""

from __future__ import annotations

from joulewise.docstring import Docstring, parse_docstring


def documented() -> None:
    """Say it.

    In two
    lines:

        code(
            1)

    Args:
        a: the first, which
            goes on: here.
        b, c: both.

    Raises:
        ValueError: never.
    """


def test_every_part_is_found() -> None:
    assert parse_docstring(documented) == Docstring(
        "Say it.\n\nIn two lines:\n\n```python\ncode(\n    1)\n```",
        {"a": "the first, which goes on: here.", "b": "both.", "c": "both."},
        {"Raises": "ValueError: never."},
    )


def test_no_docstring_is_empty() -> None:
    assert parse_docstring(lambda: None) == Docstring("")

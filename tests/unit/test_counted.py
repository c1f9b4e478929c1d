"""Counts in words."""

from __future__ import annotations

import pytest

from joulewise.counted import counted


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 tokens"), (1, "1 token"), (1.0, "1 token"), (2, "2 tokens"), (1024, "1,024 tokens"), (0.9, "1 token")],
)
def test_one_is_no_plural(count: float, words: str) -> None:
    assert counted(count, "token") == words

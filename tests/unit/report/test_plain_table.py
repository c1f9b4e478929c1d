from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.report.plain_table import table, terminal_width, wrapped

LONG = "a-model-with-a-long-name@transformers/prompt-lookup-3/direct"
ROWS = [("option", "joules", "why"), (LONG, "29.7", "taken"), ("b@c/d/e", "1,024", "costs more: 45.3 J against 29.7 J")]


def together(lines: list[str]) -> str:
    return "".join("".join(lines).split())


def test_a_table_that_fits_is_as_wide_as_it_need_be() -> None:
    assert table(ROWS) == table(ROWS, 200)
    assert len(table(ROWS)) == 3
    assert table(ROWS)[1].startswith(f"{LONG}    29.7  taken")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_table_too_wide_is_folded_and_loses_nothing(width: int) -> None:
    lines = table(ROWS, width, indent=2)
    assert max(map(len, lines)) <= width
    assert sorted(together(lines)) == sorted(together(table(ROWS)))
    assert all(line.startswith("  ") for line in lines)


def test_names_are_folded_where_their_parts_meet() -> None:
    names = [line.split("  ")[0].rstrip() for line in table(ROWS, 58)[1:]]
    parts = names[: names.index("b@c/d/e")]
    assert "".join(parts) == LONG
    assert len(parts) > 2
    assert all(part[-1] in "@/" for part in parts[:-1])


def test_a_figure_stands_on_the_right_of_its_column_when_names_are_folded() -> None:
    lines = table([("option", "joules"), (LONG, "1.5"), (LONG, "1,500")], 40)
    assert all(line.rstrip().endswith(("joules", "1.5", "1,500")) for line in lines if line[34:].strip())
    assert sum(line.rstrip().endswith(("1.5", "1,500")) for line in lines) == 2


cells = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Zs")), max_size=60)


@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=5), st.integers(70, 120))
def test_any_table_fits_and_keeps_its_characters(rows: list[tuple[str, str, str]], width: int) -> None:
    lines = table(rows, width)
    assert max(map(len, lines)) <= width
    assert sorted(together(lines)) == sorted("".join("".join(part.split()) for row in rows for part in row))


def test_sentences_go_on_further_in() -> None:
    lines = wrapped(["  one two three four five six seven eight", "short"], 24)
    assert lines == ["  one two three four", "    five six seven eight", "short"]
    assert wrapped(["  as wide as one likes"], None) == ["  as wide as one likes"]


def test_a_pipe_has_no_width_and_columns_goes_before_the_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert terminal_width() is None
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert (terminal_width() or 0) > 0
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal_width() == 72
    monkeypatch.setenv("COLUMNS", "wide")
    assert terminal_width() != 72

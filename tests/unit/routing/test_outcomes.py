from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from joulewise.errors import UserError
from joulewise.routing.outcomes import gather, read_outcomes, read_rows


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_column_an_option(tmp_path: Path) -> None:
    found = read_outcomes(written(tmp_path, "a.csv", 'prompt,small,large\n"two\nlines",True,False\nother,0.25,\n'))
    assert found.queries == ("two\nlines", "other")
    assert found.options == ("small", "large")
    np.testing.assert_array_equal(found.correct, [[1, 0], [0.25, math.nan]])


def test_a_row_an_outcome_and_repeats_are_averaged(tmp_path: Path) -> None:
    text = "query,option,correct,domain\nq,a,1,law\nq,a,0,law\nq,b,yes,law\n"
    found = read_outcomes(written(tmp_path, "a.csv", text))
    np.testing.assert_array_equal(found.correct, [[0.5, 1.0]])
    assert found.domains == ("law",)


def test_json_lines(tmp_path: Path) -> None:
    text = '{"question": "q", "scores": {"a": 1.0, "b": 0}}\n\n{"query": "r", "option": "b", "score": true}\n'
    found = read_outcomes(written(tmp_path, "a.jsonl", text))
    np.testing.assert_array_equal(found.correct, [[1, 0], [math.nan, 1]])


def test_named_options_alone_are_taken(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "prompt,a,a_response\nq,1,some text\n")
    assert read_outcomes(path, options=("a",)).options == ("a",)
    with pytest.raises(UserError, match="field a_response: right and wrong are"):
        read_outcomes(path)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.txt", "x", "read from .csv and .jsonl"),
        ("a.csv", "prompt,a\n", "no outcomes"),
        ("a.csv", "prompt,a,a\nq,1,0\n", "two columns are called a"),
        ("a.csv", "prompt,a\n ,1\n", "line 2: no text under"),
        ("a.csv", "prompt,option,correct\nq,,1\n", "field option: it is empty"),
        ("a.csv", "prompt,a\nq,2\n", "line 2, field a: right and wrong"),
        ("a.csv", "prompt,a\nq,nan\n", "right and wrong"),
        ("a.csv", "prompt,a\nq\n", "line 2: the row has not as many fields"),
        ("a.csv", "text,a\nq,1\n", "no text under any of query, question, prompt"),
        ("a.jsonl", '{"query": "q", "a": 1}\n{"query"\n', "line 2: not JSON"),
        ("a.jsonl", "[1]\n", "line 1: a row is an object"),
        ("a.jsonl", '{"query": "q", "scores": [1]}\n', "field scores: an object"),
        ("a.jsonl", '{"query": "q", "option": "a"}\n', "field score: right and wrong"),
    ],
)
def test_faults_are_told_with_their_place(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_outcomes(written(tmp_path, name, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_outcomes(tmp_path / "none.csv")


def test_nothing_to_gather() -> None:
    with pytest.raises(UserError, match="no outcomes"):
        gather([])


def test_a_row_of_one_option_may_tell_joules_tokens_and_seconds(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "query,option,correct,energy_j,output_tokens,total_s\nq,a,1,2.5,,0.5\n")
    (row,) = read_rows(path)
    assert row.figures == {"energy_j": 2.5, "total_s": 0.5}
    for wrong in ("x", "-1", "nan"):
        path = written(tmp_path, "b.csv", f"query,option,correct,energy_j\nq,a,1,{wrong}\n")
        with pytest.raises(UserError, match="line 2, field energy_j: a number of at least 0"):
            list(read_rows(path))

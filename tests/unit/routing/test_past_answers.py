from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from joulewise.errors import UserError
from joulewise.routing.fitting import fit_router
from joulewise.routing.past_answers import from_file
from joulewise.routing.policy import State


def test_labels_that_contradict_each_other_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    rows = ["q,a,1,law", "q,a,0,law", "q,b,1,law", "q,b,1,law", "r,a,1,", " r,a,0,law", "s,a,0.5,", "s,a,1,"]
    file.write_text("query,option,correct,domain\n" + "\n".join(rows) + "\n")
    # Of q and r by a; b's are twice the same, and a half is neither right nor wrong.
    assert from_file(file).contradictory == 2


def test_joules_of_a_file_are_not_called_measured(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    rows = "".join(f"q{i},a,{i % 2},{5 + i % 3},5,{5 + i % 4}\n" for i in range(20))
    file.write_text(f"query,option,correct,energy_j,prompt_tokens,output_tokens\n{rows}")
    past = from_file(file)
    assert {a.provenance for a in past.answers} == {"as given"}
    pytest.importorskip("scipy", reason="learning needs the extra routing")
    router = fit_router(past)
    assert router.learnt["a"].provenance == "as given"
    told = router.notes("q1", "a", State())
    assert "the joules that were learnt from are as a file gave them: whether they were measured is not known" in told
    measured = replace(past, answers=tuple(replace(a, provenance="measured") for a in past.answers))
    assert fit_router(measured).learnt["a"].provenance == "measured"
    assert fit_router(measured.joined(past)).learnt["a"].provenance == "as given"
    modelled = replace(past, answers=tuple(replace(a, provenance="modelled") for a in past.answers))
    assert fit_router(modelled.joined(past)).learnt["a"].provenance == "modelled"


@pytest.mark.parametrize(
    ("field", "cell"),
    [
        ("energy_j", "1e308"),
        ("energy_j", "1e-300"),
        ("total_s", "1e12"),
        ("first_token_s", "1e12"),
        ("prompt_tokens", "1e12"),
        ("output_tokens", "1e300"),
    ],
)
def test_figures_beyond_what_can_be_are_refused(tmp_path: Path, field: str, cell: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"query,option,correct,{field}\nq,a,1,5\nr,a,1,{cell}\n")
    with pytest.raises(UserError, match=f"line 3, field {field}: 1e.* is no figure of one answer"):
        from_file(file)


def test_an_integer_of_hundreds_of_digits_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"query": "q", "option": "a", "correct": 1, "energy_j": 1{"0" * 400}}}\n')
    with pytest.raises(UserError, match="line 1, field energy_j: a number of at least 0"):
        from_file(file)

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.errors import UserError
from joulewise.routing.answer_joules import fit_answer_joules

positive = st.floats(0.01, 10.0)


@given(positive, st.floats(0.0, 0.1), positive, st.integers(0, 99))
def test_what_draws_by_the_rule_is_found(request: float, prompt: float, token: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, o = rng.uniform(10, 500, 60), rng.uniform(1, 200, 60)
    found = fit_answer_joules(p, o, request + prompt * p + token * o, "measured")
    assert found.request_j + found.prompt_token_j * 100 + found.output_token_j * 100 == pytest.approx(
        request + prompt * 100 + token * 100, rel=1e-3
    )
    assert found.error == pytest.approx(0.0, abs=1e-3)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(1e-3, 1e5)), min_size=1, max_size=40))
def test_the_learnt_joules_sum_to_the_answers(rows: list[tuple[float, float, float]]) -> None:
    p, o, e = np.array(rows).T
    found = fit_answer_joules(p, o, e, "modelled")
    told = found.request_j + found.prompt_token_j * p + found.output_token_j * o
    assert told.sum() == pytest.approx(e.sum(), rel=1e-6)
    assert min(found.request_j, found.prompt_token_j, found.output_token_j) >= 0
    assert (found.error is None) == (len(rows) < 10)


def test_guesses_are_told() -> None:
    found = fit_answer_joules(np.array([10.0, 20.0]), np.array([5.0, 9.0]), np.array([2.0, 3.0]), "modelled")
    assert found.error is None
    assert found.warnings(15, 7, 1) == ["the joules that were learnt from are modelled"]
    far = found.warnings(500, 70, 3)
    assert [words in " ".join(far) for words in ("3 running", "500 prompt tokens", "70 output tokens")] == [True] * 3
    with pytest.raises(UserError, match="no answers with known joules"):
        fit_answer_joules(np.zeros(0), np.zeros(0), np.zeros(0), "measured")

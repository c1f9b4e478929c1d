from __future__ import annotations

import numpy as np
import pytest

from joulewise.routing.rivals import best_single, chance, k_means, nearest
from planted_outcomes import planted

pytest.importorskip("scipy", reason="the rivals' vectors need the extra routing")

QUERIES = ("a polynomial equation with an integer root", "whisk the butter and simmer the onion", "")


@pytest.mark.parametrize("rival", [nearest, k_means])
def test_rivals_tell_the_fields_apart(rival: object) -> None:
    assert callable(rival)
    found = rival(planted(400))(QUERIES)
    assert found.shape == (3, 2)
    assert found[0, 0] + 0.2 < found[1, 0]


def test_the_best_single_option_knows_no_query() -> None:
    found = best_single(planted(400))(QUERIES)
    assert np.ptp(found, axis=0).max() == 0
    assert found[0, 1] > found[0, 0]


def test_chance_is_reproducible() -> None:
    outcomes = planted(40)
    np.testing.assert_array_equal(chance(outcomes, 1)(QUERIES), chance(outcomes, 1)(QUERIES))

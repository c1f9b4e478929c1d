from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.routing.features import BUCKETS, MOST_BUCKETS, STRUCTURE, features


@given(st.text(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_text_has_finite_features(text: str) -> None:
    found = features(text)
    assert found.structure.shape == (len(STRUCTURE),)
    assert np.isfinite(found.structure).all()
    assert len(np.unique(found.buckets)) == len(found.buckets)
    assert ((found.buckets >= 0) & (found.buckets < BUCKETS)).all()


@pytest.mark.parametrize(
    "text", ["", " ", "\ud800 alone", "🦊" * 1000, "犬" * 400_000, "a b " * 250_000, "мир", "سلام"]
)
def test_unusual_texts(text: str) -> None:
    found = features(text)
    assert np.isfinite(found.structure).all()
    assert len(found.buckets) <= MOST_BUCKETS


def test_a_word_is_hashed_alike_wherever_it_stands() -> None:
    alone = set(features("zebra").buckets.tolist())
    within = set(features("the quick Zebra, at last").buckets.tolist())
    assert alone <= within


def test_another_word_has_other_buckets() -> None:
    assert not set(features("zebra").buckets.tolist()) & set(features("monkey").buckets.tolist())


def test_structure_tells_choices_code_and_scripts() -> None:
    def figure(text: str, name: str) -> float:
        return float(features(text).structure[STRUCTURE.index(name)])

    question = "What is 2 + 2?\nA. 3\nB. 4\nC. 5\nD. 22\nAnswer:"
    assert figure(question, "choices") == 4
    assert figure(question, "asks") == 1
    assert figure(question, "choice digits") > 0
    assert figure("Which is NOT a fruit?", "negated") == 1
    assert figure("def f(x): return x", "code") == 1
    assert figure("Какой сегодня день", "cyrillic and greek") > 0.3
    assert figure("今日は何曜日ですか", "east asian") > 0.3


def test_only_the_ends_of_a_long_query_are_read_but_its_length_is_known() -> None:
    short, long = ("a " * 1000 + "x " * n + "end " * 500 for n in (3000, 300_000))
    assert set(features(short).buckets.tolist()) == set(features(long).buckets.tolist())
    assert features(short).structure[0] < features(long).structure[0]

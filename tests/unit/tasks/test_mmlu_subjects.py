"""MMLU's subjects, as its authors group them."""

import json
from collections import Counter

from joulewise.tasks.mmlu_subjects import CATEGORIES, SUBCATEGORIES


def test_subjects_subcategories_and_categories():
    assert len(SUBCATEGORIES) == 57
    assert SUBCATEGORIES.keys() == CATEGORIES.keys()
    assert len(set(SUBCATEGORIES.values())) == 17
    assert Counter(CATEGORIES.values()) == {"STEM": 18, "humanities": 13, "social sciences": 12, "other": 14}
    above = {}
    for subject, subcategory in SUBCATEGORIES.items():
        assert above.setdefault(subcategory, CATEGORIES[subject]) == CATEGORIES[subject]


def test_they_are_the_published_ones(shared_data):
    published = json.loads((shared_data / "mmlu_subjects.json").read_text(encoding="utf-8"))
    assert {s: row["subcategory"] for s, row in published.items()} == SUBCATEGORIES
    assert {s: row["category"].partition(" (")[0] for s, row in published.items()} == CATEGORIES

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from joulewise.errors import UserError
from joulewise.routing.guarantee import Method, certify, p_values

METHODS: tuple[Method, ...] = ("betting", "hoeffding-bentkus")
CALIBRATIONS, LABELS = 1000, 2000
MMLU = Path(__file__).parents[4] / "shared" / "data" / "routellm" / "mmlu"


def paired(loses: float, gains: float, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Losses of 1 with a chance, of -1 with another, else 0."""
    u = np.random.default_rng(seed).random(shape)
    return (u < loses).astype(float) - (u > 1 - gains).astype(float)


def test_over_1000_calibrations_the_loss_exceeds_two_points_in_at_most_5_percent() -> None:
    """Settings that call the strongest option ever less; their true losses are 0.2, 1, 2.2 and 4 points."""
    true = (0.002, 0.01, 0.022, 0.04)
    columns = [paired(0.02 + t, 0.02, (LABELS, CALIBRATIONS), seed) for seed, t in enumerate(true)]
    rejected = np.array([p_values(column, 0.02) <= 0.05 for column in columns])
    certified = np.cumprod(rejected, axis=0).sum(axis=0)
    assert (certified > 2).mean() <= 0.05
    assert (certified >= 1).mean() > 0.8  # it does certify what is safe
    names = ["a", "b", "c", "d"]
    for i in range(20):
        found = certify(np.column_stack([column[:, i] for column in columns]), names)
        assert found.certified == certified[i]


@pytest.mark.skipif(not MMLU.exists(), reason="../shared/data/routellm is absent")
def test_over_1000_calibrations_on_mmlu_too() -> None:
    """A router by subject, learnt from 30 % of MMLU; labels are drawn from the rest, whose mean loss is the truth."""
    loss, subject = [], []
    for file in sorted(MMLU.rglob("*.csv")):
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                weak, strong = row["mistralai/Mixtral-8x7B-Instruct-v0.1"], row["gpt-4-1106-preview"]
                loss.append(float(strong == "True") - float(weak == "True"))
                subject.append(file.stem)
    rng = np.random.default_rng(0)
    values, names = np.array(loss), np.array(subject)
    learnt = rng.random(len(values)) < 0.3
    gap = {s: (values[learnt & (names == s)].sum() + 1.25) / ((learnt & (names == s)).sum() + 10) for s in set(subject)}
    score, rest = np.array([gap[s] for s in subject])[~learnt], values[~learnt]
    cuts = np.quantile(score, (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5))
    settings = np.where(score[:, None] <= cuts, rest[:, None], 0.0)
    too_much = int(np.argmax(settings.mean(axis=0) > 0.02))
    drawn = (settings[rng.choice(len(rest), LABELS)] for _ in range(CALIBRATIONS))
    certified = np.array([np.cumprod(p_values(labels, 0.02) <= 0.05).sum() for labels in drawn])
    assert (certified > too_much).mean() <= 0.05
    assert (certified >= 3).mean() > 0.9


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("loses", "gains"), [(0.02, 0.0), (0.12, 0.1), (0.5, 0.48)])
def test_p_values_are_valid_right_at_the_margin(method: Method, loses: float, gains: float) -> None:
    if method != "betting":
        pytest.importorskip("scipy", reason="Hoeffding-Bentkus needs the extra routing")
    found = p_values(paired(loses, gains, (400, 2000), 7), 0.02, method)
    for risk in (0.05, 0.2):
        assert (found <= risk).mean() <= risk + 3 * math.sqrt(risk * (1 - risk) / 2000)


def test_betting_needs_far_fewer_labels_than_hoeffding_bentkus() -> None:
    pytest.importorskip("scipy", reason="Hoeffding-Bentkus needs the extra routing")
    losses = paired(0.02, 0.02, (3000, 1), 3)
    betting, other = (certify(losses, ["r"], method=m) for m in METHODS)
    assert betting.setting == "r"
    assert other.setting is None
    assert other.needed is not None
    assert 5_000 < other.needed < 60_000


def test_nothing_lost_at_all_needs_about_11000_labels_by_hoeffding_bentkus() -> None:
    pytest.importorskip("scipy", reason="Hoeffding-Bentkus needs the extra routing")
    assert p_values(np.zeros((11_500, 1)), 0.02, "hoeffding-bentkus")[0] < 0.05
    assert p_values(np.zeros((10_000, 1)), 0.02, "hoeffding-bentkus")[0] > 0.05


def test_too_few_labels_cannot_certify_and_say_how_many_would() -> None:
    found = certify(np.array([[1.0]] * 3 + [[-1.0]] * 2 + [[0.0]] * 145), ["router"])
    assert (found.setting, found.certified, found.labels) == (None, 0, 150)
    assert found.needed is not None
    assert found.words.startswith("cannot certify with 150 labels")
    assert found.words.endswith(f"about {found.needed:,} needed")


@pytest.mark.parametrize("method", METHODS)
def test_the_number_needed_is_about_where_half_of_the_calibrations_are_certified(method: Method) -> None:
    if method != "betting":
        pytest.importorskip("scipy", reason="Hoeffding-Bentkus needs the extra routing")
    needed = certify(np.array([[1.0]] * 30 + [[-1.0]] * 25 + [[0.0]] * 945), ["r"], method=method).needed
    assert needed is not None

    def certified(labels: int) -> float:
        return float((p_values(paired(0.03, 0.025, (labels, 200), 5), 0.02, method) <= 0.05).mean())

    assert certified(needed // 2) < 0.5 < certified(2 * needed)


def test_a_loss_above_the_margin_is_never_promised_a_number() -> None:
    found = certify(paired(0.2, 0.0, (500, 1), 0), ["cheap"])
    assert (found.setting, found.needed) == (None, None)
    assert "not seen to be below" in found.words


def test_testing_stops_at_the_first_that_fails() -> None:
    good, bad = np.zeros(2000), paired(0.2, 0.0, (2000, 1), 0)[:, 0]
    found = certify(np.column_stack([good, bad, good]), ["strong", "bad", "fine"])
    assert (found.setting, found.certified) == ("strong", 1)
    assert found.p_values[2] < 0.05
    assert found.words.startswith("strong: the loss exceeds 2 points with probability at most 5 %")
    assert "for bad:" in found.words
    assert certify(good[:, None], ["strong"]).words.endswith("(2,000 labels)")


@pytest.mark.parametrize(
    ("losses", "settings", "margin", "risk"),
    [
        (np.zeros((0, 1)), ["a"], 0.02, 0.05),
        (np.zeros(3), ["a"], 0.02, 0.05),
        (np.full((3, 1), 1.5), ["a"], 0.02, 0.05),
        (np.full((3, 1), np.nan), ["a"], 0.02, 0.05),
        (np.zeros((3, 2)), ["a"], 0.02, 0.05),
        (np.zeros((3, 1)), ["a"], 0.0, 0.05),
        (np.zeros((3, 1)), ["a"], 0.02, 1.0),
    ],
)
def test_what_cannot_be_tested_is_refused(losses: np.ndarray, settings: list[str], margin: float, risk: float) -> None:
    with pytest.raises(UserError):
        certify(losses, settings, margin, risk)

"""Acceptance and lossless verdicts: known answers by hand."""

import pytest

from joulewise.analysis.acceptance import acceptances
from joulewise.analysis.cells import split
from joulewise.analysis.lossless import lossless
from synthetic_table import row, table


def speculating(question, accepted, drafted, **other):
    """A Trial of coga-5 with these accepted and drafted tokens per round."""
    return row(
        "coga-5",
        question,
        rounds=len(accepted),
        accepted_tokens=sum(accepted),
        drafted_tokens=sum(drafted),
        accepted_per_round=accepted,
        drafted_per_round=drafted,
        **other,
    )


def test_acceptance_by_hand():
    rows = [
        speculating("q1", [5, 2, 0], [5, 5, 5], wasted_tokens=1),
        speculating("q2", [1], [5], wasted_tokens=2),
    ]
    (found,) = acceptances(split(table(rows)))
    assert (found.rounds, found.drafted, found.accepted, found.rejected, found.wasted) == (4, 20, 8, 12, 3)
    assert found.length.value == pytest.approx(3.0)  # 1 + 8 accepted / 4 rounds
    assert found.rate == pytest.approx(0.4)  # 8 / 20
    assert found.histogram == (1, 1, 1, 0, 0, 1)  # one round each with 0, 1, 2 and 5
    assert found.length.lower is None  # two questions only
    assert found.length.reason


def test_the_interval_of_the_length_holds_it():
    rows = [speculating(f"q{i}", [i % 4, 3], [5, 5]) for i in range(12)]
    (found,) = acceptances(split(table(rows)))
    # Accepted: 12 * 3 + (0 + 1 + 2 + 3) * 3 = 54 in 24 rounds: 1 + 54 / 24 = 3.25
    assert found.length.value == pytest.approx(3.25)
    assert found.length.lower < 3.25 < found.length.upper


def test_vanilla_and_failed_cells_have_no_acceptance():
    rows = [row("vanilla", "q1"), row("coga-5", "q1", status="failed", rounds=0, error="boom")]
    assert acceptances(split(table(rows))) == ()


def test_nothing_drafted_is_not_a_rate_of_0():
    (found,) = acceptances(split(table([speculating("q1", [0, 0], [0, 0])])))
    assert found.rate is None
    assert found.length.value == 1.0
    assert found.histogram == (2,)


def totals(question, rounds, drafted, accepted):
    """A Trial of a server, which tells no single rounds; None for what it does not tell at all."""
    return row(
        "coga-5",
        question,
        rounds=rounds,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        accepted_per_round=[],
        drafted_per_round=[],
    )


def test_a_server_s_totals_have_no_histogram():
    (found,) = acceptances(split(table([totals("q1", 4, 20, 6), totals("q2", 2, 10, 0)])))
    assert (found.rounds, found.drafted, found.accepted, found.rate) == (6, 30, 6, pytest.approx(0.2))
    assert found.length.value == pytest.approx(2.0)
    assert found.histogram == ()


def test_trials_of_which_a_server_tells_nothing_are_left_out():
    (found,) = acceptances(split(table([totals("q1", 4, 20, 6), totals("q2", None, None, None)])))
    assert (found.rounds, found.drafted, found.accepted) == (4, 20, 6)
    assert acceptances(split(table([totals("q1", None, None, None)]))) == ()


def test_lossless_verdicts_are_counted():
    statuses = ["identical"] * 3 + ["tie", "different", "different", "not_checked", None]
    notes = ["fine"] * 3 + [None, "gap 0.5", "gap 0.5", "sampled output", None]
    rows = [
        row("coga-5", f"q{i}", check_status=status, check_note=note)
        for i, (status, note) in enumerate(zip(statuses, notes, strict=True))
    ] + [row("vanilla", "q0"), row("coga-5", "q99", status="failed", error="boom")]
    (found,) = lossless(split(table(rows)))
    assert found.key.decoding == "coga-5"
    assert (found.identical, found.tie, found.different, found.not_checked) == (3, 1, 2, 2)
    assert found.notes == ("gap 0.5", "sampled output")

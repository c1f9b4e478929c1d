"""What a decoding would need, which size of it is best, and where its seconds went."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.analysis.cells import Cell, split
from joulewise.analysis.chain import acceptance_for, expected_length, is_chain
from joulewise.analysis.explain import Best, Explanation, best, explanations, family
from joulewise.analysis.phases import phase_shares
from speculation import answers
from synthetic_table import table

HEAD = ("r", "e", "m", "direct")


@settings(max_examples=100, deadline=None)
@given(acceptance=st.floats(0.0, 1.0), rounds=st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(any))
def test_the_formula_and_its_inverse(acceptance: float, rounds: list[int]) -> None:
    length = expected_length(acceptance, rounds)
    assert 1.0 <= length <= len(rounds) + 1e-9
    again = acceptance_for(min(length, expected_length(1.0, rounds)), rounds)
    if any(rounds[1:]):
        assert again is not None
        assert expected_length(again, rounds) == pytest.approx(length, abs=1e-6)


def test_the_formula_of_a_constant_chain() -> None:
    rounds = [0, 0, 0, 0, 0, 7]
    assert expected_length(0.5, rounds) == pytest.approx((1 - 0.5**6) / 0.5)
    assert expected_length(1.0, rounds) == 6.0
    # The reference's own example: CoGA-5 at an acceptance length of 2.0 accepts 0.51 of its tokens.
    assert acceptance_for(2.0, rounds) == pytest.approx(0.51, abs=0.005)
    assert acceptance_for(6.1, rounds) is None
    assert acceptance_for(0.9, rounds) is None
    assert acceptance_for(1.0, [3]) is None


@pytest.mark.parametrize(
    ("label", "name", "chain"),
    [
        ("coga-5", "coga", True),
        ("coga-20-synthetic-0.8", "coga-synthetic-0.8", True),
        ("dyga-20-confidence-0.4", "dyga-confidence-0.4", True),
        ("prompt-lookup-10", "prompt-lookup", True),
        ("eagle3-chain-6", "eagle3", True),
        ("eagle3-60x5x10", "eagle3", False),
        ("medusa", "medusa", False),
        ("medusa-synthetic-0.8", "medusa-synthetic-0.8", False),
    ],
)
def test_families_and_chains(label: str, name: str, chain: bool) -> None:
    assert (family(label), is_chain(label)) == (name, chain)


def cells(*rows: list[dict[str, Any]]) -> tuple[Cell, ...]:
    return split(table([one for some in rows for one in some]))


def explained(*rows: list[dict[str, Any]]) -> Explanation:
    (found,) = explanations(cells(answers("vanilla", 0.02, 6.0), *rows), {HEAD: "gpu"}, {})
    return found


def test_what_it_needs_to_save_energy() -> None:
    found = explained(answers("coga-5", 0.018, 7.0, tau=2.0))
    assert (found.time.verdict, found.gross.verdict) == ("saves", "costs")
    assert found.acceptance == pytest.approx(0.51, abs=0.005)
    # 7 J a token at tau 2 are 14 J a round, and 14 / 6 tokens a round break even.
    assert found.gross.needed.value == pytest.approx(14 / 6, rel=0.01)
    assert found.energy_needs.acceptance == pytest.approx(acceptance_for(14 / 6, [0, 0, 0, 0, 0, 1]), abs=0.005)
    assert found.energy_needs.cheaper_round == pytest.approx(1 / 7, rel=0.01)
    assert found.energy_needs.cheaper_draft is None
    assert found.time_needs.cheaper_round is None
    assert found.time_needs.acceptance is not None
    assert found.time_needs.acceptance < found.acceptance
    assert (found.drafted, found.rejected) == (1875, 1500)


@pytest.mark.parametrize(("draft_s", "cheaper"), [(0.01, 0.4), (0.003, None), (None, None)])
def test_how_much_cheaper_the_draft_would_have_to_be(draft_s: float | None, cheaper: float | None) -> None:
    """At tau 2 and 22 ms a token a round is 4 ms too dear."""
    rows = answers("coga-5", 0.022, 6.0, tau=2.0)
    for one in rows:
        one["phase_draft_s"] = None if draft_s is None else draft_s * one["rounds"]
    found = explained(rows)
    assert found.time_needs.cheaper_draft == (None if cheaper is None else pytest.approx(cheaper, rel=0.02))
    assert found.time_needs.cheaper_round == pytest.approx(4 / 44, rel=0.02)


def test_a_length_that_no_acceptance_gives_and_a_tree() -> None:
    dear = explained(answers("coga-5", 0.08, 30.0, tau=2.0))
    assert dear.time.needed.value == pytest.approx(8.0, rel=0.01)
    assert (dear.time_needs.acceptance, dear.acceptance is not None) == (None, True)
    tree = explained(answers("eagle2-60x5x10", 0.03, 8.0, tau=2.0, size=59))
    assert (tree.acceptance, tree.energy_needs.acceptance) == (None, None)
    assert tree.energy_needs.cheaper_round == pytest.approx(0.25, rel=0.01)


def test_what_does_not_speculate_or_has_no_vanilla_is_not_explained() -> None:
    assert explanations(cells(answers("coga-5", 0.02, 6.0, tau=2.0)), {HEAD: "gpu"}, {}) == ()
    assert explanations(cells(answers("vanilla", 0.02, 6.0)), {HEAD: "gpu"}, {}) == ()


def test_the_best_size_differs_for_time_and_energy() -> None:
    found = best(
        cells(
            answers("vanilla", 0.02, 6.0),
            answers("coga-2", 0.015, 4.0, tau=2.0),
            answers("coga-5", 0.010, 5.0, tau=2.0),
            answers("coga-10", 0.030, 9.0, tau=2.0),
            answers("coga-3-synthetic-0.9", 0.001, 1.0, tau=2.0),
        ),
        {HEAD: "gpu"},
    )
    assert [(b.family, b.currency, b.decoding, b.as_good, b.others) for b in found] == [
        ("coga", "time", "coga-5", (), ("coga-2", "coga-10")),
        ("coga", "energy", "coga-2", (), ("coga-5", "coga-10")),
    ]


def test_sizes_that_cannot_be_told_apart_are_told() -> None:
    rows = [answers("coga-2", 0.015, 4.0, tau=2.0), answers("coga-5", 0.0151, 4.0, tau=2.0)]
    for i, one in enumerate(rows[1]):
        one["duration_s"] *= (0.9, 1.2, 0.8, 1.1, 0.9, 1.1)[i]
    (time, energy) = best(cells(*rows), {HEAD: "gpu"})
    assert {time.decoding, *time.as_good} == {"coga-2", "coga-5"}
    assert time.others == ()
    assert energy.currency == "energy"


def test_modelled_joules_have_no_best() -> None:
    rows = [answers(name, 0.015, 4.0, tau=2.0, provenance="modelled") for name in ("coga-2", "coga-5")]
    found: tuple[Best, ...] = best(cells(*rows), {HEAD: "gpu"})
    assert [one.currency for one in found] == ["time"]


PHASES = {
    "prefill": 0.1,
    "draft_prefill": 0.05,
    "draft": 0.4,
    "verify": 1.2,
    "accept": 0.1,
    "memory": 0.05,
    "host": 0.1,
}


def test_phases_and_their_overhead() -> None:
    rows = answers("coga-5", 0.02, 6.0, tau=2.0, **{f"phase_{name}_s": s for name, s in PHASES.items()})
    for one in rows:
        one["duration_s"] = 2.01
    (found,) = phase_shares(cells(rows), {HEAD: "gpu"})
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.shares["verify"] == pytest.approx(0.6)
    assert found.seconds["draft"] == pytest.approx(2.4)
    assert found.overhead.value == pytest.approx(0.125)
    assert found.closure == pytest.approx(2.0 / 2.01 - 1.0)
    assert found.prefill_energy.value == pytest.approx(360 / sum(one["gpu_energy_j"] for one in rows))


def test_cells_that_tell_no_phases_have_no_row_and_no_prefill_joules_are_unknown() -> None:
    assert phase_shares(cells(answers("coga-5", 0.02, 6.0, tau=2.0)), {HEAD: "gpu"}) == ()
    rows = answers("coga-5", 0.02, 6.0, tau=2.0, **{f"phase_{name}_s": s for name, s in PHASES.items()})
    for one in rows:
        one["gpu_prefill_j"] = None
    (found,) = phase_shares(cells(rows), {HEAD: "gpu"})
    assert found.prefill_energy.reason == "what the prefill drew was not recorded"

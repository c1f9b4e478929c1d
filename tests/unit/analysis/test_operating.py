"""The curves of a report: whose, of which points, and how much dearer the last token is than the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from joulewise.analysis import operating
from joulewise.analysis.cells import split
from joulewise.analysis.operating import NoCurve, OperatingCurve, operating_curves
from joulewise.table import RunTable
from planted_curve import PLANTED
from sample_sweep import sample_sweep
from synthetic_table import part, row, table


def curves_of(found: RunTable) -> tuple[OperatingCurve | NoCurve, ...]:
    cells = split(found)
    return operating_curves(cells, {cell.key.head: "gpu" for cell in cells}, found.environments)


def curve_of(found: RunTable) -> OperatingCurve:
    (one,) = curves_of(found)
    assert isinstance(one, OperatingCurve)
    return one


def answers(decoding: str = "vanilla", provenance: str = "measured", **other: Any) -> list[dict[str, Any]]:
    """Forty questions that cost 1 J each, 0.5 J an output token and 0.01 J a prompt token."""
    found = []
    for i in range(40):
        p, o = 50 + 37 * (i % 8), 10 + 13 * (i % 11)
        energy = [part("gpu", 1.0 + 0.5 * o + 0.01 * p, provenance)]
        counts: dict[str, Any] = {"generation_count": 1, "prompt_tokens": p, "output_tokens": o}
        found.append(row(decoding, f"q{i}", energy=energy, **counts, **other))
    return found


def test_every_point_stands_beside_what_the_others_say_of_it() -> None:
    one = curve_of(sample_sweep())
    assert (one.points, len(one.shown)) == (64, 64)
    for seen in one.shown:
        if seen.inside:
            assert seen.told_j == pytest.approx(seen.energy_j, rel=1e-3)
    errors = [abs(seen.told_j / seen.energy_j - 1.0) for seen in one.shown if seen.inside]
    assert one.curve.held_out.inside.points == len(errors)
    assert one.curve.held_out.inside.median == pytest.approx(float(np.median(errors)))


def test_small_middling_and_large_requests_were_measured() -> None:
    one = curve_of(sample_sweep())
    joules = sorted(seen.energy_j for seen in one.shown)
    assert [seen.energy_j for seen, _ in one.typical] == [joules[6], joules[32], joules[57]]


def test_the_last_token_against_the_first_counts_what_the_load_shares() -> None:
    one = curve_of(sample_sweep())
    assert [(at.prompt_tokens, at.output_tokens, at.running) for at in (*one.ends, *one.middle)] == [
        (1280.0, 1.0, 1.0),
        (1280.0, 1024.0, 1.0),
        (1280.0, 72.0, 1.0),
        (1280.0, 72.0, 8.0),
    ]
    flat = PLANTED["token"] + PLANTED["token_shared"] + PLANTED["token_root_shared"]  # one request at the least
    slope = PLANTED["attention"]
    assert one.rise.value == pytest.approx(slope * (1024 - 1) / (flat + slope * (1280 + 1)), rel=0.01)
    assert one.rise.lower is not None
    assert one.rise.upper is not None
    assert one.rise.lower <= one.rise.value <= one.rise.upper


def test_vanilla_is_taken_else_the_only_decoding_else_none() -> None:
    assert curve_of(table(answers() + answers("coga-5"))).origin.decoding == "vanilla"
    assert curve_of(table(answers("coga-5"))).origin.decoding == "coga-5"
    assert curves_of(table(answers("dyga-20") + answers("coga-5"))) == ()


def test_every_engine_has_its_own() -> None:
    found = curves_of(table(answers(engine="small") + answers(engine="large")))
    assert [one.origin.engine for one in found if isinstance(one, OperatingCurve)] == ["large", "small"]


def test_a_run_that_carries_none_is_passed_over_and_a_sweep_says_why() -> None:
    assert curves_of(table(answers(provenance="modelled"))) == ()
    assert curves_of(table([])) == ()
    (why,) = curves_of(sample_sweep(provenance="modelled"))
    assert isinstance(why, NoCurve)
    assert "modelled" in why.why


def test_a_large_run_is_thinned_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating, "MOST", 20)
    monkeypatch.setattr(operating, "MOST_SHOWN", 7)
    one = curve_of(table(answers()))
    assert one.points == 20
    assert len(one.shown) == 7
    assert one.notes[0].startswith("20 of 40 Trials, evenly taken, carry it")

"""Joules by phase: planted powers are found again, and what cannot be told is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.analysis.cells import split
from joulewise.analysis.intervals import Quantity
from joulewise.analysis.phase_energy import (
    ACROSS,
    CLOSURE,
    ELSEWHERE,
    MODELLED,
    OPEN,
    SMALL,
    WIDE,
    PhaseEnergy,
    phase_energies,
)
from joulewise.analysis.phases import OVERHEAD
from joulewise.engines.engine import PHASES
from planted_phases import PLAIN, POWERS, SPECULATING, trials
from synthetic_table import part, row, table

HEAD = ("r", "e", "m", "direct")
SHARED = ("accept", "memory", "host")


def energies(*rows: list[dict[str, Any]], environments: Mapping[str, Mapping[str, Any]] | None = None) -> PhaseEnergy:
    cells = split(table([one for some in rows for one in some]))
    (found,) = phase_energies(cells, {HEAD: "gpu"}, environments or {})
    return found


def two(rng: np.random.Generator, **other: Any) -> PhaseEnergy:
    return energies(trials("vanilla", PLAIN, rng, **other), trials("coga-5", SPECULATING, rng, **other))


def remade(rows: list[dict[str, Any]], **seconds: Callable[[dict[str, Any], int], float]) -> list[dict[str, Any]]:
    """Answers with other seconds, and the joules that these draw."""
    for i, one in enumerate(rows):
        for name, of in seconds.items():
            one[f"phase_{name}_s"] = of(one, i)
        one["duration_s"] = sum(s for name, s in one.items() if name.startswith("phase_"))
        one["gpu_energy_j"] = sum(w * one[f"phase_{name}_s"] for name, w in POWERS.items())
    return rows


def share(found: PhaseEnergy, decoding: str, phase: str) -> Quantity:
    (cell,) = [cell for cell in found.cells if cell.key.decoding == decoding]
    (row_,) = [row_ for row_ in cell.rows if phase in row_.phases]
    return row_.share


def power(found: PhaseEnergy, *phases: str) -> Quantity:
    (one,) = [p.power_w for p in found.powers if p.phases == phases]
    return one


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), drawn=st.lists(st.floats(150.0, 700.0), min_size=6, max_size=6))
def test_planted_powers_are_found_and_the_shares_sum_to_what_was_measured(seed: int, drawn: list[float]) -> None:
    planted = dict(zip(POWERS, drawn, strict=True))
    found = two(np.random.default_rng(seed), powers=planted)
    names = {p.phases for p in found.powers}
    assert names == {(name,) for name in ("prefill", "draft of coga", "verify of vanilla", "verify of coga", *SHARED)}
    for one in found.powers:
        assert one.power_w.value == pytest.approx(planted[one.phases[0].split(" of ")[0]], rel=1e-4)
    for cell in found.cells:
        assert cell.closure.value == pytest.approx(0.0, abs=1e-6)
        assert sum(row_.share.value or 0.0 for row_ in cell.rows) == pytest.approx(1.0, abs=1e-6)
        assert sum((row_.phases for row_ in cell.rows), ()) == tuple(
            name for name in PHASES if name in (PLAIN if cell.key.decoding == "vanilla" else SPECULATING)
        )


def test_the_intervals_hold_the_planted_powers() -> None:
    """At 95 % of about 300 figures; the binomial's own spread leaves no less than 91 %."""
    held = []
    for seed in range(45):
        for one in two(np.random.default_rng(seed), noise_j=8.0).powers:
            if one.power_w.value is not None:
                assert one.power_w.lower is not None
                assert one.power_w.upper is not None
                planted = POWERS[one.phases[0].split(" of ")[0]]
                held.append(one.power_w.lower <= planted <= one.power_w.upper)
    assert len(held) > 200
    assert 0.91 <= np.mean(held) <= 0.99


def test_the_rows_of_a_cell_and_their_closure_are_exactly_its_joules() -> None:
    found = two(np.random.default_rng(1), noise_j=2.0)
    for cell in found.cells:
        assert cell.closure.value is not None
        assert 0.0 < abs(cell.closure.value) < CLOSURE
        assert all(row_.share.value is not None for row_ in cell.rows)
        assert sum(row_.share.value or 0.0 for row_ in cell.rows) == pytest.approx(1.0 + cell.closure.value)
        overhead = [row_.share.value or 0.0 for row_ in cell.rows if row_.phases[0] in OVERHEAD]
        assert cell.overhead.value == pytest.approx(sum(overhead))


@pytest.mark.parametrize("ratios", [(0.5, 0.5), (0.5, 0.501)])
def test_phases_that_always_vary_together_are_one(ratios: tuple[float, float]) -> None:
    rng = np.random.default_rng(2)
    rows = remade(trials("coga-5", SPECULATING, rng), draft=lambda one, i: ratios[i % 2] * one["phase_verify_s"])
    found = energies(trials("vanilla", PLAIN, rng), rows)
    together = power(found, "draft of coga", "verify of coga")
    assert together.value == pytest.approx((0.5 * 200.0 + 300.0) / 1.5, rel=1e-3)
    assert [row_.phases for row_ in found.cells[1].rows][1] == ("verify", "draft")
    assert found.cells[1].overhead.value is not None
    # Another size of the same family tells them apart.
    other = remade(trials("coga-2", SPECULATING, rng), draft=lambda one, _: 0.2 * one["phase_verify_s"])
    assert power(energies(rows, other), "draft of coga").value == pytest.approx(200.0, rel=1e-3)


def test_overhead_that_varies_with_the_verification_cannot_be_told() -> None:
    rng = np.random.default_rng(3)
    rows = remade(trials("coga-5", SPECULATING, rng), accept=lambda one, _: 0.1 * one["phase_verify_s"])
    found = energies(rows)
    assert power(found, "verify of coga", "accept").value is not None
    assert (found.cells[0].overhead.value, found.cells[0].overhead.reason) == (None, ACROSS)
    # Where the one is the other's in one decoding and almost nothing in the rest, the rest cannot use their power.
    few = remade(trials("medusa", SPECULATING, rng), accept=lambda *_: 0.001)
    mixed = energies(rows, few)
    assert share(mixed, "coga-5", "accept").value is not None
    assert (share(mixed, "medusa", "accept").reason, mixed.cells[1].overhead.reason) == (ELSEWHERE, ACROSS)


def test_what_drowns_in_the_noise_is_not_resolvable_and_never_0() -> None:
    rng = np.random.default_rng(4)
    found = energies(
        trials("vanilla", PLAIN, rng, n=300, noise_j=40.0), trials("coga-5", SPECULATING, rng, n=300, noise_j=40.0)
    )
    memory = power(found, "memory")
    assert (memory.value, memory.lower, memory.upper, memory.reason) == (None, None, None, WIDE)
    assert share(found, "coga-5", "memory").value is None
    assert power(found, "verify of coga").value == pytest.approx(300.0, rel=0.1)


def test_a_cell_that_does_not_close_keeps_its_large_rows_alone() -> None:
    """Steps draw more on one task than on another: one power for both is wrong, and the closure shows it."""
    rng = np.random.default_rng(5)
    rows = trials("vanilla", PLAIN, rng, n=300)
    other = trials("vanilla", PLAIN, rng, powers={name: 1.03 * w for name, w in POWERS.items()}, task="other")
    found = energies(rows, other)
    (cell,) = [cell for cell in found.cells if cell.key.task == "other"]
    assert cell.closure.value is not None
    assert cell.closure.value < -CLOSURE
    told = {row_.phases[0]: row_.share for row_ in cell.rows}
    assert (told["host"].value, told["host"].lower, told["host"].reason) == (None, None, OPEN)
    assert told["verify"].value is not None
    assert cell.overhead.reason == OPEN


def test_small_rows_are_not_told_however_sure_they_look() -> None:
    found = energies(trials("coga-5", SPECULATING | {"memory": (0.01, 0.005)}, np.random.default_rng(6)))
    assert (power(found, "memory").reason, share(found, "coga-5", "memory").reason) == (SMALL, SMALL)
    assert share(found, "coga-5", "host").value is not None


def test_modelled_and_missing_joules_have_no_phases() -> None:
    rng = np.random.default_rng(7)
    found = two(rng, provenance="modelled")
    assert (found.reason, found.powers, found.cells) == (MODELLED, (), ())
    nothing = trials("vanilla", PLAIN, rng)
    for one in nothing:
        one["gpu_energy_j"], one["gpu_provenance"] = None, "unknown"
    assert energies(nothing).reason == "the GPU joules could not be read"
    # Trials without joules are left out, those with them are told.
    half = energies(trials("vanilla", PLAIN, rng), [one | {"task": "other"} for one in nothing])
    assert [cell.key.task for cell in half.cells] == ["maths"]


def test_few_questions_tell_no_phases() -> None:
    found = two(np.random.default_rng(8), n=9)
    assert (found.reason, found.cells) == ("9 questions are too few to tell 6 phases apart", ())
    assert two(np.random.default_rng(8), n=10).reason is None


def test_engines_without_phases_are_not_there() -> None:
    cells = split(table([row("vanilla", "q1", energy=[part("gpu", 10.0)])]))
    assert phase_energies(cells, {HEAD: "gpu"}, {}) == ()


def test_what_a_window_holds_beyond_its_generations_is_the_hosts() -> None:
    rows = trials("coga-5", SPECULATING, np.random.default_rng(9))
    for one in rows:
        one["phase_host_s"] -= 0.05
    found = energies(rows)
    assert power(found, "host").value == pytest.approx(120.0, rel=1e-4)
    assert sum(p.seconds for p in found.powers) == pytest.approx(sum(one["duration_s"] for one in rows))


def test_the_same_seconds_at_idle_power() -> None:
    idle = {"engine": "e", "component": "gpu", "power_w": 100.0, "independent_w": 0.5, "duration_s": 5.0}
    rng = np.random.default_rng(10)
    rows = [trials("vanilla", PLAIN, rng), trials("coga-5", SPECULATING, rng)]
    found = energies(*rows, environments={"r": {"idle": [idle | {"provenance": "measured"}]}})
    assert found.idle_w == 100.0
    seconds, joules = (sum(one[name] for one in rows[0]) for name in ("duration_s", "gpu_energy_j"))
    assert found.cells[0].idle_share == pytest.approx(100.0 * seconds / joules)
    modelled = energies(*rows, environments={"r": {"idle": [idle | {"provenance": "modelled"}]}})
    assert (modelled.idle_w, modelled.cells[0].idle_share) == (None, None)

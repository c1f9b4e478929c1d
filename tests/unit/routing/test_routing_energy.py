from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.analysis.curves import Coefficient, Correction, Curve, HeldOut, Region, Spread
from joulewise.errors import UserError
from joulewise.routing.energy import OptionEnergy, expected_energy, lost_prefix_j, read_published
from joulewise.routing.lengths import Lengths, fit_lengths

NAMES = (
    "request",
    "request_shared",
    "token",
    "token_shared",
    "token_root_shared",
    "prompt_token",
    "prompt_token_squared",
    "attention",
)
VALUES = (2.0, 5.0, 0.02, 0.4, 0.1, 0.01, 1e-6, 1e-6)
LEADERBOARD = Path(__file__).parents[4] / "shared" / "data" / "ml-energy" / "leaderboard-v3-llm.csv"


def curve(
    values: tuple[float, ...] = VALUES, error: float | None = None, correction: Correction | None = None
) -> Curve:
    inside, none = Spread(10, error, error), Spread(0, None, None)
    region = Region((10.0, 2000.0), (10.0, 1000.0), (1.0, 64.0))
    coefficients = {n: Coefficient(v, v, v) for n, v in zip(NAMES, values, strict=True)}
    return Curve(coefficients, correction or Correction(2.0), HeldOut("question", inside, none), none, (), region)


def always(tokens: float) -> Lengths:
    return fit_lengths([100.0], [tokens])


numbers = st.floats(0, 3000)
loads = st.floats(1, 200)
coefficients = st.tuples(*[st.floats(0, 3)] * len(NAMES))


@given(coefficients, numbers, numbers, loads)
@settings(max_examples=40, deadline=None)
def test_the_joules_are_those_of_the_curve(c: tuple[float, ...], p: float, o: float, load: float) -> None:
    bent = Correction(2.0, (1.0, 8.0), (0.1, -0.05))
    found = expected_energy(OptionEnergy(always(o), curve(c, correction=bent)), p, load)
    assert found.energy_j.mean == pytest.approx(curve(c, correction=bent).energy_j(p, o, load), rel=1e-9, abs=1e-12)
    assert found.energy_j.p95 == pytest.approx(found.energy_j.p50)


@given(coefficients, numbers, numbers, loads, st.floats(0, 500), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_more_tokens_never_draw_less(
    c: tuple[float, ...], p: float, o: float, load: float, more: float, votes: int
) -> None:
    def joules(p: float, o: float) -> float:
        return expected_energy(OptionEnergy(always(o), curve(c), votes), p, load).energy_j.mean

    slack = 1e-9 * (1 + joules(p, o))
    assert joules(p + more, o) >= joules(p, o) - slack
    assert joules(p, o + more) >= joules(p, o) - slack


@given(coefficients, numbers, numbers, loads, st.floats(0, 100), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_more_load_never_raises_the_shared_part(
    c: tuple[float, ...], p: float, o: float, load: float, more: float, votes: int
) -> None:
    option = OptionEnergy(always(o), curve(c), votes)
    less, later = (expected_energy(option, p, at).shared_j for at in (load, load + more))
    assert less is not None
    assert later is not None
    assert later <= less * (1 + 1e-12)


@given(st.integers(2, 20))
@settings(max_examples=15, deadline=None)
def test_votes_multiply_what_is_not_shared(votes: int) -> None:
    own = curve((2.0, 0, 0.02, 0, 0, 0.01, 1e-6, 1e-6))
    one = expected_energy(OptionEnergy(always(80), own), 100).energy_j.mean
    assert expected_energy(OptionEnergy(always(80), own, votes), 100).energy_j.mean == pytest.approx(votes * one)
    prompt = 0.01 * 100 + 1e-6 * 100**2
    once = expected_energy(OptionEnergy(always(80), own, votes, prompt_read_once=True), 100).energy_j.mean
    assert once == pytest.approx(votes * one - (votes - 1) * prompt)
    shared = curve((0, 5.0, 0, 0.4, 0, 0, 0, 0))
    alone = expected_energy(OptionEnergy(always(80), shared), 100).energy_j.mean
    assert expected_energy(OptionEnergy(always(80), shared, votes), 100).energy_j.mean == pytest.approx(alone)


def test_retries_routing_and_budget_by_hand() -> None:
    option = OptionEnergy(always(80), curve())
    once = expected_energy(option, 100).energy_j.mean
    again = expected_energy(dataclasses.replace(option, retry_chance=0.1, retries=2), 100).energy_j
    assert again.mean == pytest.approx(once * (0.9 + 2 * 0.09 + 3 * 0.01))
    assert again.p50 == pytest.approx(once)
    assert again.p95 == pytest.approx(2 * once)
    assert expected_energy(option, 100, routing_j=7.0).energy_j.mean == pytest.approx(once + 7.0)
    capped = expected_energy(dataclasses.replace(option, most_output_tokens=30), 100)
    assert capped.energy_j.mean == pytest.approx(curve().energy_j(100, 30))
    assert capped.output_tokens.p95 == 30


def test_lengths_and_the_curves_error_widen_the_distribution() -> None:
    spread = fit_lengths([100.0] * 99, np.arange(50.0, 149.0).tolist())
    lengths_alone = expected_energy(OptionEnergy(spread, curve()), 100).energy_j
    both = expected_energy(OptionEnergy(spread, curve(error=0.2)), 100).energy_j
    assert lengths_alone.p50 < lengths_alone.p95 < both.p95
    assert both.mean == pytest.approx(lengths_alone.mean)


def test_outside_of_the_region_there_is_a_warning() -> None:
    option = OptionEnergy(always(80), curve())
    assert expected_energy(option, 100, 8).warnings == ()
    assert "running" in expected_energy(option, 100, 65).warnings[0]
    assert "prompt tokens" in expected_energy(option, 5000).warnings[0]
    long = OptionEnergy(fit_lengths([100.0] * 30, [80.0] * 27 + [5000.0] * 3), curve())
    assert expected_energy(long, 100).warnings[0].startswith("the longest answers: ")
    assert expected_energy(OptionEnergy(always(80), curve(), votes=70), 100).warnings


def test_a_lost_prefix_costs_reading_it_again() -> None:
    assert lost_prefix_j(curve(), 1000) == pytest.approx(0.01 * 1000 + 1e-6 * 1000**2)


@pytest.mark.parametrize("change", [{"votes": 0}, {"retries": -1}, {"retry_chance": 1.5}, {"most_output_tokens": -1}])
def test_options_that_cannot_be_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(UserError):
        OptionEnergy(always(1), curve(), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("asked", [(10, 0.5, 0.0), (-1, 1, 0.0), (10, 1, -1.0), (float("nan"), 1, 0.0)])
def test_queries_that_cannot_be_are_refused(asked: tuple[float, float, float]) -> None:
    with pytest.raises(UserError):
        expected_energy(OptionEnergy(always(1), curve()), asked[0], asked[1], routing_j=asked[2])


HEADER = "task,model_id,gpu_model,num_gpus,avg_batch_size,avg_output_len,energy_per_token_joules\n"


def table(folder: Path, *rows: str) -> Path:
    path = folder / "published.csv"
    path.write_text(HEADER + "".join(row + "\n" for row in rows))
    return path


def test_published_joules_are_interpolated_and_marked(tmp_path: Path) -> None:
    path = table(tmp_path, "chat,m,H100,1,64,300,0.1", "chat,m,H100,1,4,300,0.4", "chat,m,H100,2,4,300,9")
    option = OptionEnergy(always(200), read_published(path, "m", "H100"), votes=1)
    assert expected_energy(option, 100, 16).energy_j.mean == pytest.approx(200 * 0.2)
    found = expected_energy(option, 100, 1)
    assert found.energy_j.mean == pytest.approx(200 * 0.4)
    assert (found.source, found.shared_j) == ("published", None)
    assert "published.csv" in found.warnings[0]
    assert "1 running" in found.warnings[1]
    assert "output tokens" in expected_energy(OptionEnergy(always(2000), option.curve), 100, 8).warnings[1]


@pytest.mark.parametrize(
    ("rows", "model", "device", "said"),
    [
        (["chat,m,H100,1,4,300,0.4"], "m", "B200", "on H100"),
        (["chat,m,H100,1,4,300,0.4"], "other", "H100", "does not have"),
        (["chat,m,H100,1,4,300,0.4", "gpqa,m,H100,1,4,300,0.4"], "m", "H100", "name a task"),
        (["chat,m,H100,1,x,300,0.4"], "m", "H100", "missing"),
        (["chat,m,H100,1,0,300,0.4"], "m", "H100", "no row"),
    ],
)
def test_tables_without_what_is_asked_are_refused(
    rows: list[str], model: str, device: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        read_published(table(tmp_path, *rows), model, device)


def test_a_table_that_is_absent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_published(tmp_path / "none.csv", "m", "H100")


@pytest.mark.skipif(not LEADERBOARD.exists(), reason="../shared/data/ml-energy is absent")
def test_the_published_8b_at_little_load_costs_what_the_70b_costs_at_much() -> None:
    small = read_published(LEADERBOARD, "meta-llama/Llama-3.1-8B-Instruct", "H100", "lm-arena-chat")
    large = read_published(LEADERBOARD, "meta-llama/Llama-3.3-70B-Instruct", "H100", "lm-arena-chat")
    assert small.at(8) == pytest.approx(0.455, rel=0.03)
    assert large.at(large.running[-1]) < 1.2 * small.at(8)

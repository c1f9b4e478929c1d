"""``joulewise curve``: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from joulewise import ledger
from joulewise.analysis.curve_file import read_curve
from joulewise.analysis.curve_points import run_points
from joulewise.cli.main import app
from joulewise.errors import UserError
from joulewise.table import RunTable
from sample_run import ENVIRONMENT
from synthetic_table import part, row, table

Curve = Callable[..., Result]


def rows(**other: Any) -> list[dict[str, Any]]:
    """Forty questions that cost 1 J each, 0.5 J an output token and 0.01 J a prompt token."""
    found = []
    for i in range(40):
        p, o = 50 + 37 * (i % 8), 10 + 13 * (i % 11)
        energy = [part("gpu", 1.0 + 0.5 * o + 0.01 * p, gain=0.01), part("cpu", 5.0, "modelled")]
        values = {"engine": "small", "energy": energy, "generation_count": 1, "prompt_tokens": p, "output_tokens": o}
        found.append(row(question=f"q{i}", **(values | other)))
    return found


def run_of(found: list[dict[str, Any]]) -> RunTable:
    return table(found, environments={"r": ENVIRONMENT})


@pytest.fixture
def curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Curve:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()

    def call(*arguments: str, of: RunTable | None = None) -> Result:
        monkeypatch.setattr(ledger, "load", lambda _: run_of(rows()) if of is None else of)
        return CliRunner().invoke(app, ["curve", *arguments])

    return call


def test_coefficients_error_and_region_are_told(curve: Curve) -> None:
    done = curve("run")
    assert done.exit_code == 0, done.output
    for told in (
        "GPU energy",
        "NVIDIA H200",
        "each output token",
        "0.500",
        "Held-out error",
        "Error at the fitted points",
    ):
        assert told in done.stdout
    assert "50 – 309 prompt tokens, 10 – 140 output tokens, 1 request at a time" in done.stdout
    assert "The load did not vary" in done.stdout


def test_the_file_predicts_what_the_run_predicts(curve: Curve, tmp_path: Path) -> None:
    first = curve("run", "--predict", "200,100", "--json", "c.json")
    assert "1 prompt token, 1 output token, 1 running: " in curve("run", "--predict", "1,1").output
    again = curve("c.json", "--predict", "200,100")
    told = "200 prompt tokens, 100 output tokens, 1 running: 53.0 J"
    assert told in first.stdout
    assert told in again.stdout
    fitted, origin = read_curve(tmp_path / "c.json")
    assert (origin.device, origin.component, origin.dtype) == ("NVIDIA H200", "gpu", "bfloat16")
    assert fitted.energy_j(200, 100) == pytest.approx(53.0, rel=1e-3)


def test_outside_there_is_a_warning_and_no_error(curve: Curve) -> None:
    done = curve("run", "--predict", "20000,100,8")
    assert "no error is known here" in done.stdout
    assert done.stdout.count("Warning:") == 2


def test_standard_output_is_the_file_alone(curve: Curve) -> None:
    assert curve("run", "--json", "-").stdout.startswith("{")
    assert isinstance(curve("run", "--json", "-", "--predict", "1,1").exception, UserError)


@pytest.mark.parametrize(
    "text",
    ["", "5", "a,b", "1,2,3,4", "0,5", "5,nan", "5,inf", "5,5,0.5", "1.5,2", "1e200,1e200", "5,20000000", "5,5,1e6"],
)
def test_a_request_that_is_none_is_refused(curve: Curve, text: str) -> None:
    done = curve("run", "--predict", text)
    assert isinstance(done.exception, UserError)
    assert "such as 512,128" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--component", "cpu"), "modelled"),
        (("--component", "dram"), "unknown"),
        (("--component", "tpu"), "no such component"),
        (("--engine", "large"), "no such engine; name one with --engine: small"),
        (("--decoding", "coga-5"), "no such decoding"),
    ],
)
def test_what_the_run_has_not_is_refused(curve: Curve, arguments: tuple[str, ...], said: str) -> None:
    done = curve("run", *arguments)
    assert isinstance(done.exception, UserError)
    assert said in str(done.exception)


def test_a_modelled_run_is_refused_with_the_reason(curve: Curve) -> None:
    done = curve("run", of=run_of(rows(energy=[part("cpu", 5.0, "modelled")])))
    assert isinstance(done.exception, UserError)
    assert "would only give that model back" in str(done.exception)


def test_one_point_is_refused(curve: Curve) -> None:
    done = curve("run", of=run_of(rows()[:1]))
    assert isinstance(done.exception, UserError)
    assert "add prompts of other lengths" in str(done.exception)


def test_a_fitted_curve_has_nothing_to_choose(curve: Curve) -> None:
    curve("run", "--json", "c.json")
    assert "fitted already" in str(curve("c.json", "--engine", "small").exception)


def test_vanilla_is_taken_and_several_others_must_be_named() -> None:
    vanilla, coga = rows(), rows(energy=[part("gpu", 3.0)])
    for one in coga:
        one["decoding"], one["trial_id"] = "coga-5", one["trial_id"] + "c"
    assert run_points(run_of(vanilla + coga)).origin.decoding == "vanilla"
    assert run_points(run_of(coga)).origin.decoding == "coga-5"
    for one in vanilla:
        one["decoding"] = "dyga-20"
    with pytest.raises(UserError, match="several decodings; name one with --decoding: coga-5, dyga-20"):
        run_points(run_of(vanilla + coga))


def test_votes_pollution_and_empty_answers_are_left_out_and_told() -> None:
    found = rows()
    found[0]["generation_count"], found[1]["polluted"], found[2]["output_tokens"] = 3, True, 0
    found[3]["gpu_energy_j"] = 0.0
    got = run_points(run_of(found), without_polluted=True)
    assert len(got.points) == 36
    assert [note.split(",")[0] for note in got.notes[:-1]] == ["left out: 1 of 40 Trials"] * 4
    with pytest.raises(UserError, match=r"no Trial .* of several requests"):
        run_points(run_of(rows(generation_count=3)))


def test_pollution_is_told_where_nothing_is_left_out() -> None:
    found = rows()
    found[0]["polluted"], found[1]["other_cpu_cores"] = True, None
    told = run_points(run_of(found)).notes
    assert told[0].startswith("1 of 40 Trials (2.5 %) is polluted")
    assert told[1] == (
        "For 1 of 40 Trials other processes' CPU use is not known: in the figures, also with --without-polluted"
    )
    assert any(
        "not known: in the figures all the same" in n for n in run_points(run_of(found), without_polluted=True).notes
    )


def test_a_run_without_successes_is_refused() -> None:
    with pytest.raises(UserError, match="no successful Trial"):
        run_points(run_of(rows(status="failed")))


def test_a_run_that_says_little_is_fitted_all_the_same() -> None:
    origin = run_points(replace(run_of(rows()), environments={})).origin
    assert (origin.device, origin.dtype, origin.measured_at, dict(origin.versions)) == (None, None, None, {})

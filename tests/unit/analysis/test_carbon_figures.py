"""gCO2e of cells: joules times the intensity of the run's time, no better known than the joules."""

import json
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from joulewise import ledger
from joulewise.analysis.carbon import carbon, intensities
from joulewise.analysis.cells import split
from joulewise.analysis.per_token import costs
from joulewise.cli.main import app
from joulewise.energy.carbon import SCOPE, Intensity
from joulewise.errors import UserError
from joulewise.report import markdown
from joulewise.report.summary import summarise, to_json
from sample_run import sample_run
from synthetic_table import part, row, table

FLAT = Intensity(360.0, "Testland", "a test", "of now")  # 1e-4 g/J


def flat(start, end):
    return FLAT


def questions(*energy, **other):
    return [row(question=f"q{i}", energy=energy, **other) for i in range(6)]


def test_grams_are_joules_times_the_intensity_with_the_joules_interval_and_provenance():
    rows = questions(part("gpu", 500.0, gain=0.05), part("cpu", 100.0, "modelled", gain=0.5), output_tokens=10)
    found = costs(split(table(rows)))
    (cell,) = carbon(found, {"r": FLAT})
    gpu, total = cell.component("gpu"), cell.component("total")
    assert gpu.carbon_per_answer_g.value == pytest.approx(0.05)
    assert gpu.carbon_per_1000_output_tokens_g.value == pytest.approx(5.0)
    joules = found[0].component("gpu").energy_per_answer_j
    assert gpu.carbon_per_answer_g.lower == pytest.approx(joules.lower * 1e-4)
    assert gpu.carbon_per_answer_g.upper == pytest.approx(joules.upper * 1e-4)
    assert gpu.carbon_per_answer_g.provenance == "measured"
    assert total.carbon_per_answer_g.provenance == "modelled"
    assert cell.intensity is FLAT


def test_unknown_joules_are_unknown_grams():
    (cell,) = carbon(costs(split(table(questions(part("gpu", None))))), {"r": FLAT})
    figure = cell.component("gpu").carbon_per_answer_g
    assert figure.value is None
    assert figure.reason


def test_each_run_is_told_by_the_intensity_of_its_own_time():
    rows = [
        row(started_at="2026-03-01T10:00:00+00:00", duration_s=60.0),
        row(started_at="2026-03-01T12:00:00+00:00", duration_s=30.0, question="q2"),
        row(started_at="2026-03-02T00:00:00+00:00", duration_s=1.0, run="s"),
    ]
    asked = []

    def grid(start, end):
        asked.append((start, end))
        return FLAT

    assert set(intensities(table(rows), grid)) == {"r", "s"}
    assert asked == [
        (datetime(2026, 3, 1, 10, tzinfo=UTC), datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)),
        (datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 2, 0, 0, 1, tzinfo=UTC)),
    ]


def test_the_report_shows_grams_with_their_source_and_scope():
    text = markdown.render(summarise(sample_run(), grid=flat))
    assert "gCO2e per answer" in text
    assert "gCO2e per 1,000 output tokens" in text
    assert "Grid: 360 gCO2e/kWh, Testland; a test; of now." in text
    assert SCOPE in text


def test_without_an_intensity_there_are_no_grams():
    summary = summarise(sample_run())
    assert summary.carbon == ()
    assert "gCO2e" not in markdown.render(summary)


def test_a_run_without_trials_has_none():
    assert summarise(table([]), grid=flat).carbon == ()


def test_the_json_holds_grams_and_intensity():
    data = json.loads(json.dumps(to_json(summarise(sample_run(), grid=flat)), allow_nan=False))
    assert len(data["carbon"]) == len(data["costs"])
    assert data["carbon"][0]["intensity"]["g_per_kwh"] == 360.0
    joules = data["costs"][0]["components"][0]["energy_per_answer_j"]["value"]
    assert data["carbon"][0]["components"][0]["carbon_per_answer_g"]["value"] == pytest.approx(joules * 1e-4)


def test_the_command_takes_a_grid(monkeypatch, tmp_path):
    monkeypatch.setattr(ledger, "load", lambda _: sample_run(6))
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--carbon", "France", "--markdown", "-"])
    assert done.exit_code == 0
    assert "gCO2e/kWh, France; Our World in Data" in done.stdout


def test_a_wrong_grid_is_told_before_anything_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(ledger, "load", lambda _: pytest.fail("read"))
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--carbon", "Atlantis"])
    assert isinstance(done.exception, UserError)
    assert "--carbon Atlantis" in str(done.exception)

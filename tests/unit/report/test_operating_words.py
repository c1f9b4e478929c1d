"""Operating curves in words, tables and charts: what is said, and what is not."""

from __future__ import annotations

import io
import json
import re
from itertools import count
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from joulewise import ledger
from joulewise.analysis.operating import NoCurve, OperatingCurve
from joulewise.cli.main import app
from joulewise.report import html, latex, markdown
from joulewise.report.curve_charts import curve_charts
from joulewise.report.operating import TITLE, name, notes, operating_grids, sentences, why_none
from joulewise.report.summary import Summary, summarise, to_json
from joulewise.report.terminal import print_summary
from planted_curve import PLANTED, grid, one_load
from sample_run import sample_run
from sample_sweep import sample_sweep


def joules(p: float, o: float, b: float) -> float:
    """What is planted, term by term."""
    return (
        PLANTED["request"]
        + PLANTED["request_shared"] / b
        + o * (PLANTED["token"] + PLANTED["token_shared"] / b + PLANTED["token_root_shared"] / b**0.5)
        + PLANTED["prompt_token"] * p
        + PLANTED["prompt_token_squared"] * p * p
        + PLANTED["attention"] * o * (p + o / 2)
    )


@pytest.fixture(scope="module")
def swept() -> Summary:
    return summarise(sample_sweep())


def curve_of(summary: Summary) -> OperatingCurve:
    (one,) = summary.curves
    assert isinstance(one, OperatingCurve)
    return one


def printed(summary: Summary) -> str:
    out = io.StringIO()
    print_summary(summary, out)
    return " ".join(out.getvalue().split())


def numbers(sentence: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*\.?\d*", sentence)]


def test_the_sentences_carry_what_is_planted(swept: Summary) -> None:
    error, successive, margin, load = sentences(curve_of(swept))
    assert "(each point predicted from the others): median 0.0%, 90th percentile 0.0% (64 points)" in error
    p, first, its_j, last, last_j, *_ = numbers(successive)
    assert (p, first, last) == (1280, 1, 1024)
    assert its_j == pytest.approx(joules(1280, 1, 1) - joules(1280, 0, 1), rel=0.01)
    assert last_j == pytest.approx(joules(1280, 1024, 1) - joules(1280, 1023, 1), rel=0.01)
    p, o, whole, average, last_j, prompt_j = numbers(margin)
    assert (p, o) == (1280, 72)
    assert whole == pytest.approx(joules(p, o, 1), rel=0.01)
    assert average == pytest.approx(joules(p, o, 1) / o, rel=0.01)
    assert last_j == pytest.approx(joules(p, o, 1) - joules(p, o - 1, 1), rel=0.01)
    assert prompt_j == pytest.approx(joules(p + 1, o, 1) - joules(p, o, 1), rel=0.01)
    alone, crowded, most = numbers(load)
    assert most == 8
    assert (alone, crowded) == pytest.approx((joules(p, o, 1), joules(p, o, 8)), rel=0.01)


def test_with_one_load_nothing_is_said_of_others() -> None:
    one = curve_of(summarise(sample_sweep(one_load(PLANTED, 0.02))))
    assert sentences(one)[-1].startswith("The load did not vary")
    assert "J of one more such request" not in operating_grids([one])[1].columns
    captions = [caption for caption, _ in curve_charts(one, map("c{}".format, count()).__next__)]
    assert captions == [
        "Predicted against measured",
        "Residuals against prompt tokens",
        "Residuals against output tokens",
        "Successive output tokens",
    ]


def test_the_tables_hold_every_coefficient_and_measured_requests(swept: Summary) -> None:
    coefficients, requests = operating_grids(swept.curves)  # type: ignore[arg-type]
    assert len(coefficients.rows) == len(PLANTED)
    for row, value in zip(coefficients.rows, PLANTED.values(), strict=True):
        assert float(row.figures[0].main) == pytest.approx(value, rel=0.02)
        assert "–" in (row.figures[0].detail or "")
    assert [row.decoding.split(":")[0] for row in requests.rows] == ["small", "middling", "large"]
    for row in requests.rows:
        p, o, b = numbers(row.decoding)
        shown = [float(figure.main.replace(",", "")) for figure in row.figures]
        told = [
            joules(p, o, b),
            joules(p, o, b) / o,
            joules(p, o, b) - joules(p, o - 1, b),
            joules(p + 1, o, b) - joules(p, o, b),
            (b + 1) * joules(p, o, b + 1) - b * joules(p, o, b),
        ]
        assert shown[:4] == pytest.approx(told[:4], rel=0.01)
        assert shown[4] == pytest.approx(told[4], rel=0.05)


def test_charts_are_well_formed_with_their_own_ids_and_words(swept: Summary) -> None:
    panels = list(curve_charts(curve_of(swept), map("c{}".format, count()).__next__))
    assert [caption for caption, _ in panels] == [
        "Predicted against measured",
        "Residuals against prompt tokens",
        "Residuals against output tokens",
        "Residuals against requests at a time",
        "Successive output tokens",
        "Joules over the load",
    ]
    whole = ElementTree.fromstring(f"<div>{''.join(svg for _, svg in panels)}</div>")
    ids = [element.get("id") for element in whole.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    for _, svg in panels:
        description = ElementTree.fromstring(svg).find("desc")
        assert description is not None
        assert "http" not in svg
        assert len(numbers(description.text or "")) >= 3


def test_a_point_far_off_stands_on_the_edge() -> None:
    points = grid(noise=0.01)
    points.energy_j[5] *= 1000.0
    residuals = dict(curve_charts(curve_of(summarise(sample_sweep(points))), map("c{}".format, count()).__next__))
    assert ">10<" in residuals["Residuals against prompt tokens"]
    assert ">1000<" not in residuals["Residuals against prompt tokens"]


def test_every_form_of_the_report_has_it(swept: Summary) -> None:
    one = curve_of(swept)
    page, md, tex, screen = html.render(swept), markdown.render(swept), latex.render(swept), printed(swept)
    for text in (page, md, screen):
        assert TITLE in text
        assert "median 0.0%" in text
    assert page.count("<figcaption>Residuals against") == 3
    assert "The load did not vary" not in page
    assert "Coefficients of the curves" in md
    assert "Coefficients of the curves" in tex
    assert name(one) == "m (small, vanilla) on NVIDIA H200, Some Xeon & Co: energy of all components"
    assert notes(one).startswith(
        "Measured: 32 – 7,168 prompt tokens, 1 – 1,024 output tokens, 1 – 8 requests at a time."
    )
    assert json.loads(json.dumps(to_json(swept), allow_nan=False))["curves"][0]["points"] == 64


def test_a_sweep_of_modelled_joules_says_why_it_has_none() -> None:
    summary = summarise(sample_sweep(provenance="modelled"))
    (none,) = summary.curves
    assert isinstance(none, NoCurve)
    assert why_none(none).startswith("No operating curve of small: the joules of ")
    for text in (html.render(summary), markdown.render(summary), printed(summary)):
        assert "No operating curve of small" in text
        assert "Residuals" not in text


def test_a_run_of_tasks_without_what_a_curve_needs_is_silent() -> None:
    summary = summarise(sample_run(6, gpu=False))
    assert summary.curves == ()
    for text in (html.render(summary), markdown.render(summary), latex.render(summary), printed(summary)):
        assert "perating curve" not in text


def test_the_page_of_a_sweep_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "load", lambda _: sample_sweep(noise=0.05))
    (tmp_path / "swept").mkdir()
    done = CliRunner().invoke(app, ["report", str(tmp_path / "swept")])
    assert done.exit_code == 0, done.output
    assert "Held-out error" in done.stdout
    assert "Residuals against prompt tokens" in (tmp_path / "swept" / "report.html").read_text(encoding="utf-8")

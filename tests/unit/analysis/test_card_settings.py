"""Power limits at equal decoding: planted factors, and what is not compared."""

import io
import math

import pytest

from joulewise.report import html, latex, markdown
from joulewise.report.summary import summarise
from joulewise.report.terminal import print_summary
from planted_platforms import plan, run_table
from synthetic_table import part, row

FULL, LOW = (
    {"kind": "native", "model": "m", "name": "e"},
    {"kind": "native", "model": "m", "name": "e", "power_limit_w": 300},
)


def trials(engine, joules, seconds, decoding="vanilla", questions=8):
    sizes = [math.exp(0.3 * math.sin(q)) for q in range(questions)]
    return [
        row(decoding, f"q{q}", engine=engine, energy=[part("gpu", joules * s, gain=0.05)], duration_s=seconds * s)
        for q, s in enumerate(sizes)
    ]


def summary(rows, *engines):
    told = [{"label": label, "engine": "native", "dtype": "bfloat16"} for label in ("e", "e+300W", "e+500W")]
    return summarise(run_table(rows, engines=told, plan=plan(*engines)))


def test_a_power_limit_is_held_against_the_cards_as_found():
    found = summary([trials("e", 100.0, 1.0), trials("e+300W", 60.0, 1.5)], LOW, FULL)
    (one,) = found.settings
    assert (one.engine, one.baseline, [cell.setting for cell in one.cells]) == (
        "e",
        "as found",
        ["as found", "power limit 300 W"],
    )
    low = one.cells[1]
    assert (low.energy.value, low.time.value) == (pytest.approx(0.6), pytest.approx(1.5))
    assert low.energy.lower == pytest.approx(0.6)  # nothing scatters, and the gain cancels
    # Nor is it a platform, or a quantisation.
    assert found.platforms == ()


def test_where_all_are_set_the_highest_is_the_baseline():
    engines = [LOW, LOW | {"power_limit_w": 500}]
    (one,) = summary([trials("e+300W", 60.0, 1.5), trials("e+500W", 90.0, 1.1)], *engines).settings
    assert one.baseline == "power limit 500 W"
    assert one.cells[1].energy.value == pytest.approx(60 / 90)


def test_decodings_are_compared_within_a_setting_and_settings_within_a_decoding():
    rows = [
        trials(e, j * f, 1.0, d)
        for e, j in (("e", 100.0), ("e+300W", 60.0))
        for d, f in (("vanilla", 1.0), ("coga-5", 0.5))
    ]
    found = summary(rows, FULL, LOW)
    assert {(s.key.engine, round(s.gpu.ratio.value, 9)) for s in found.savings} == {("e", 2.0), ("e+300W", 2.0)}
    assert [(one.decoding, round(one.cells[1].energy.value, 9)) for one in found.settings] == [
        ("vanilla", 0.6),
        ("coga-5", 0.6),
    ]


def test_what_failed_is_told():
    broken = [r | {"status": "failed", "error": "out of memory"} for r in trials("e+300W", 60.0, 1.5)]
    (one,) = summary([trials("e", 100.0, 1.0), broken], FULL, LOW).settings
    assert one.cells[1].energy.reason == "no Trial succeeded (out of memory)"


def test_one_setting_is_no_table():
    assert summary([trials("e", 100.0, 1.0)], FULL).settings == ()


def test_every_form_of_the_report_has_it():
    found = summary([trials("e", 100.0, 1.0), trials("e+300W", 60.0, 1.5)], FULL, LOW)
    file = io.StringIO()
    print_summary(found, file)
    for text in (file.getvalue(), markdown.render(found), latex.render(found)):
        assert "Power limits and clocks (below 1 takes less)" in text
        assert "power limit 300 W" in text
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    assert "Power limits and clocks (below 1 takes less)" in html.render(found)

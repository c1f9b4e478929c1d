"""Servers under load in words, tables, a page and Markdown."""

from __future__ import annotations

import io
from typing import Any

import pytest

from joulewise.analysis.load_crossing import Crossing
from joulewise.report import html, latex, markdown
from joulewise.report.explain import refusal
from joulewise.report.summary import Summary, sections, summarise, to_json
from joulewise.report.terminal import print_brief, print_summary
from joulewise.report.under_load import findings, load_grids, name, saving_chart, sentence
from planted_loads import loads_table

FALLING = {1: [1.49, 1.5, 1.51], 4: [1.19, 1.2, 1.21], 16: [0.79, 0.8, 0.81]}


def told(**other: Any) -> Summary:
    return summarise(loads_table(FALLING, **other))


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (
            Crossing("crosses", "closed", 1.0, 64.0, level=11.04, lower=8.2, upper=15.03, saves_below=True),
            "coga-5 saves energy up to 11.0 requests in flight and costs energy beyond: crossing between 8.20 and "
            "15.0.",
        ),
        (
            Crossing("crosses", "poisson", 1.0, 8.0, level=2.0, lower=1.5, upper=2.5, saves_below=False),
            "coga-5 costs energy up to 2.00 requests a second and saves energy beyond: crossing between 1.50 and 2.50.",
        ),
        (
            Crossing("saves throughout", "closed", 1.0, 64.0),
            "coga-5 saves energy throughout: no crossing between 1 and 64 requests in flight.",
        ),
        (
            Crossing("cannot tell", "closed", 1.0, 64.0, reason="why"),
            "coga-5: cannot tell whether saving turns into loss between 1 and 64 requests in flight: why.",
        ),
    ],
)
def test_a_crossing_in_a_sentence(one: Crossing, words: str) -> None:
    assert sentence("coga-5", one) == words


def test_tables_stand_by_load_and_decoding() -> None:
    (found,) = told().under_load
    energy, requests, latency, saving = load_grids([found])
    assert energy.columns == ("J per token", "W", "tokens/s", "good/J")
    assert [row.decoding for row in energy.rows][:3] == ["c1 vanilla", "c1 coga-5", "c4 vanilla"]
    assert [shown.main for shown in energy.rows[2].figures] == ["0.250", "25.0", "100", "0.320"]
    assert [shown.main for shown in requests.rows[2].figures] == ["4.00", "10.0", "80%", "–"]
    assert latency.rows[0].figures[0].main == "0.100 / 0.300 / 0.400"
    assert [row.figures[0].mark for row in saving.rows] == ["saves energy", "saves energy", "costs energy"]
    assert findings(found)[0].startswith("coga-5 saves energy up to 7.46")


def test_a_late_generator_and_failures_are_told() -> None:
    (found,) = told(load={"late_p99_s": 0.012}).under_load
    assert any("generator itself was late, at worst 12 ms" in line for line in findings(found))
    (found,) = told(status="failed").under_load
    assert "18 Trials failed, and are not in these figures." in findings(found)


def test_it_is_in_every_form_of_the_report_and_in_no_other_section() -> None:
    summary = told()
    assert sections(summary) == ()
    said = "coga-5 saves energy up to 7.46"
    for show in (print_summary, print_brief):
        out = io.StringIO()
        show(summary, out)
        text = out.getvalue()
        assert "Under load" in text
        assert said in " ".join(text.split())
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
    assert "### Under load" in markdown.render(summary)
    assert said in markdown.render(summary).replace("\\", "")
    paper = latex.render(summary)
    assert r"\caption{Under load: " in paper
    assert f"% {name(summary.under_load[0])}: coga-5 saves energy up to" in paper
    page = html.render(summary)
    assert '<a href="#run-1-loads">Under load</a>' in page
    assert '<section id="run-1-loads">' in page
    assert said in page
    assert "chat: saving against load" in page
    assert "coga-5: c1 1.50, c4 1.20, c16 0.800." in page
    assert to_json(summary)["under_load"][0]["crossings"]["coga-5"][0]["shape"] == "crosses"


def test_modelled_joules_are_marked_and_prove_nothing() -> None:
    summary = told(provenance="modelled")
    (found,) = summary.under_load
    *_, saving = load_grids([found])
    assert {row.figures[0].mark for row in saving.rows} == {"modelled"}
    assert "modelled joules prove neither" in findings(found)[0]
    assert "† Modelled" in markdown.render(summary)


def test_a_chart_needs_a_figure() -> None:
    (found,) = told().under_load
    assert saving_chart(found, "poisson", "a") is None
    assert saving_chart(found, "closed", "a") is not None


def test_runs_without_load_have_no_such_section() -> None:
    summary = summarise(loads_table({}))
    assert summary.under_load == ()
    assert "Under load" not in markdown.render(summary)


def test_nothing_is_explained_of_a_run_under_load() -> None:
    assert "This is a run under load" in str(refusal(told()))

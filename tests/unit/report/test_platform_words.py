"""Platforms against quantisations in words, tables, a page, Markdown and LaTeX."""

import io

import pytest

from joulewise.report import html, latex, markdown
from joulewise.report.platforms import findings, platform_grids
from joulewise.report.summary import summarise
from joulewise.report.terminal import print_summary
from planted_platforms import ALL, engine, plan, run_table, spec, trials

SQUARE = [ALL[0], ALL[1], ALL[3], ALL[4]]


def told(cells, **other):
    return summarise(run_table(cells, **other))


def test_findings_and_tables_say_what_each_does():
    (found,) = told(SQUARE, noise=0.01).platforms
    platform, quantisation = findings(found)
    assert platform.startswith("Platform, against transformers: native takes 0.7")
    assert quantisation.startswith("Quantisation, against bfloat16: nf4 takes 1.6")
    effects, cells, interactions = platform_grids([found])
    assert [row.decoding for row in effects.rows] == [
        "platform transformers", "platform native", "quantisation bfloat16", "quantisation nf4"
    ]  # fmt: skip
    assert cells.columns == ("total joules", "seconds", "accuracy or score, %")
    assert interactions.columns == ("total joules", "seconds")
    assert len(interactions.rows) == 4
    assert cells.rows[0].figures[0].main == "1"
    assert {row.figures[2].main for row in cells.rows} == {"50.0"}
    assert {row.n for row in cells.rows} == {12}


def test_a_missing_cell_is_named_with_its_reason_and_the_rest_is_told():
    engines = [spec("transformers", "bfloat16"), spec("native", "bfloat16")]
    engines.append(spec("transformers", "nf4", quantisation="nf4"))
    failed = [{"engine": "nf4@transformers", "error": "bitsandbytes is not installed"}]
    (found,) = told([ALL[0], ALL[3]], plan=plan(*engines), not_loaded=failed).platforms
    assert any(
        "transformers, nf4: nf4@transformers could not be loaded: bitsandbytes" in line for line in findings(found)
    )
    _, cells, interactions = platform_grids([found])
    assert [row.figures[0].main for row in cells.rows] == ["1", "–", "0.741", "–"]
    assert interactions.columns == ()
    assert interactions.notes[0].startswith("total joules: unknown (it takes four cells")


def test_answers_of_other_lengths_and_other_prompts_are_told():
    longer = trials(ALL[1], output_tokens=20, prompt_tokens=30)
    (found,) = told([ALL[0], longer], engines=[engine(*at) for at in ALL[:2]]).platforms
    lines = findings(found)
    assert any(
        line.startswith("Output tokens per answer differ (10.0 in transformers, bfloat16, 20.0") for line in lines
    )
    assert any(line.startswith("Prompt tokens per answer differ (20.0") for line in lines)


def test_modelled_factors_are_marked():
    summary = told(SQUARE, provenance="modelled", noise=0.01)
    assert ", modelled)" in findings(summary.platforms[0])[0]
    assert markdown.MODELLED in markdown.render(summary)


def test_every_form_of_the_report_has_it():
    summary = told(SQUARE, noise=0.01)
    file = io.StringIO()
    print_summary(summary, file)
    for text in (file.getvalue(), markdown.render(summary), latex.render(summary)):
        assert "Every platform in every quantisation" in text
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    page = html.render(summary)
    assert "<h3>Platform and quantisation</h3>" in page
    assert "Effects of platform and quantisation" in page


def test_a_run_of_one_platform_and_quantisation_has_no_such_part():
    summary = told([ALL[0]])
    assert summary.platforms == ()
    assert "Platform and quantisation" not in markdown.render(summary)

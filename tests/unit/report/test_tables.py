"""Markdown and LaTeX: what they show, and that no name can break them."""

import re
import shutil
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulewise.report import latex, markdown
from joulewise.report.grids import grids
from joulewise.report.markdown import words
from joulewise.report.summary import sections, summarise
from sample_run import sample_run
from synthetic_table import part, row, table

NAMES = st.text(st.sampled_from("ab1 -–_%&#$~^{}[]()<>|`*\\\"'!@γ_tµ.\n"), min_size=1, max_size=12)


def odd(name):
    """A run whose names and notes are all ``name``."""
    rows = [
        row(d, f"q{i}", energy=[part("gpu", 1.0)], task=name, engine=name, model=name, check_status="different",
            check_note=name)
        for d in ("vanilla", name)
        for i in range(5)
    ]  # fmt: skip
    return summarise(table(rows, environments={"r": {"machine": {"cpu": name}}}, warnings=(name,)))


@pytest.fixture(scope="module")
def summary():
    return summarise(sample_run(), price_per_kwh=0.3, currency="EUR")


def cells_of_row(line):
    return re.split(r"(?<!\\)\|", line)[1:-1]


def test_every_figure_of_the_grids_is_in_both(summary):
    (section,) = sections(summary)
    md, tex = markdown.render(summary), latex.render(summary)
    for grid in grids(section, summary):
        for line in grid.rows:
            for shown in line.figures:
                assert markdown._escaped(words(shown)) in md
                for piece in (shown.main, shown.detail, None if shown.mark == "modelled" else shown.mark):
                    assert all(latex.escaped(line) in tex for line in latex._wrapped(piece or ""))


def test_a_vote_s_requests_stand_in_its_own_table():
    energy = [part("gpu", 1.0)]
    counts = [3, 2, 3, 2, 2]
    rows = [row(question=f"q{i}", energy=energy, generation_count=1, score_note="no answer found") for i in range(5)]
    rows += [row(question=f"q{i}", energy=energy, generation_count=n, reasoning="vote-3") for i, n in enumerate(counts)]
    summary = summarise(table(rows))
    direct, vote = ({g.title: g for g in grids(s, summary)}["Answers, speed and watt-hours"] for s in sections(summary))
    assert "requests per answer" not in direct.columns
    assert vote.rows[0].figures[vote.columns.index("requests per answer")].main == "2.40"
    assert any("5 x no answer found" in note for note in direct.notes)


def test_modelled_figures_are_marked_and_the_mark_is_explained(summary):
    for text, mark, after in (
        (markdown.render(summary), "†", r" \("),
        (latex.render(summary), r"\textsuperscript{\dag}", " "),
    ):
        assert re.search(rf"\d{re.escape(mark)}{after}", text)
        assert f"{mark} Modelled, not measured" in text
    plain = summarise(table([row(question=f"q{i}", energy=[part("gpu", 1.0)]) for i in range(5)]))
    assert "†" not in markdown.render(plain)
    assert r"\dag" not in latex.render(plain)


@pytest.mark.parametrize("render", [markdown.render, latex.render])
def test_what_cannot_be_shown_is_said(render):
    assert "no Trials yet" in render(summarise(table([], plans={"r": {}})))
    polluted = table([row(polluted=True, energy=[part("gpu", 1.0)])])
    assert "without-polluted" in render(summarise(polluted, without_polluted=True)).replace("{}", "")
    assert "All Trials that succeeded (1) are polluted" in render(summarise(polluted, without_polluted=True))


@settings(max_examples=25, deadline=None)
@given(NAMES)
@example("a|b\\|c")
@example("<script>")
def test_no_name_breaks_a_markdown_table(name):
    lines = markdown.render(odd(name)).splitlines()
    for i, line in enumerate(lines):
        if line.startswith(("| ---", "| task")):
            width = len(cells_of_row(line))
        elif line.startswith("| "):
            assert len(cells_of_row(line.replace("\\\\", "//"))) == width, line
        assert not re.search(r"(?<!\\)(?:\\\\)*<", line), line
        assert "\r" not in line, i


@settings(max_examples=25, deadline=None)
@given(NAMES)
@example("50% of a_b & c")
@example("[x]")
@example("--x---")
def test_no_name_breaks_a_latex_table(name):
    text = latex.render(odd(name))
    depth = 0
    for line in text.splitlines():
        if line.startswith("%"):
            continue
        bare = re.sub(r"\\[\\{}$&#%_]", lambda m: "\n" if m[0] == r"\\" else "", line)
        assert not re.search(r"[~^<>|\"]", bare.replace("\n", "")), line
        assert "%" not in bare, line
        assert "#" not in bare, line
        assert "_" not in re.sub(r"\$\\gamma_\{\\mathrm\{[A-Za-z]+\}\}\$", "", bare), line
        assert bare.count("$") % 2 == 0, line
        depth += bare.count("{") - bare.count("}")
        assert depth == 0, line
        columns = re.match(r"\\begin\{tabular\}\{(\w+)\}", line)
        if columns:
            width = len(columns[1])
        elif line.endswith(r" \\") and not line.startswith(r"\multicolumn"):
            assert bare.count("&") == width - 1, line
    for environment in ("table*", "tabular"):
        assert text.count(rf"\begin{{{environment}}}") == text.count(rf"\end{{{environment}}}")
    labels = re.findall(r"\\label\{(.*?)\}", text)
    assert len(labels) == len(set(labels)) == text.count(r"\caption{")


def test_a_tex_engine_takes_it(summary, tmp_path):
    tex = next((found for name in ("tectonic", "pdflatex", "lualatex") if (found := shutil.which(name))), None)
    if tex is None:
        pytest.skip("no TeX at hand; the structure is tested above")
    (tmp_path / "tables.tex").write_text(latex.render(summary))
    packages = r"\usepackage[T1]{fontenc}\usepackage{textcomp}\usepackage{booktabs}"
    (tmp_path / "x.tex").write_text(
        rf"\documentclass{{article}}{packages}\begin{{document}}\input{{tables}}\end{{document}}"
    )
    done = subprocess.run([tex, "x.tex"], cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def notes(rows):
    summary = summarise(table(rows))
    return [grid.notes for grid in grids(sections(summary)[0], summary)]


def test_a_missing_interval_is_short_in_the_cell_and_explained_once_under_the_table():
    rows = [row(d, q, energy=[part("gpu", 1.0)]) for d in ("vanilla", "coga-5") for q in ("q1", "q2")]
    summary = summarise(table(rows))
    for text in (markdown.render(summary), latex.render(summary)):
        assert "no interval" in text
    savings = grids(sections(summary)[0], summary)[0]
    assert savings.notes == ("No interval: fewer than 5 questions.",)
    assert {shown.detail for line in savings.rows for shown in line.figures} == {"no interval"}


def test_several_reasons_name_their_rows():
    odd_task = [row(d, "q1", task="odd", energy=[part("gpu", 0.0)]) for d in ("vanilla", "coga-5")]
    many = [row(d, f"q{i}", energy=[part("gpu", 1.0)]) for d in ("vanilla", "coga-5") for i in range(5)]
    failed = [row("vanilla", "q1", task="none", status="failed", output_tokens=0), row("coga-5", "q1", task="none")]
    found = notes([*odd_task, *many, *failed])[0]
    assert any(note.startswith("Unknown (none, coga-5): ") for note in found), found
    assert any(note.startswith("Unknown (odd, coga-5): ") for note in found), found

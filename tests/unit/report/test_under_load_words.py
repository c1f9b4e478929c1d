"""Servers under load in words, tables, a page and Markdown."""

from __future__ import annotations

import gzip
import io
import re
from pathlib import Path
from typing import Any

import pytest

from joulewise.analysis.load_crossing import Crossing
from joulewise.report import html, latex, markdown
from joulewise.report.explain import refusal
from joulewise.report.summary import Summary, sections, summarise, to_json
from joulewise.report.terminal import print_brief, print_summary
from joulewise.report.under_load import findings, load_grids, name, saving_chart, sentence
from planted_loads import Sent, in_folder, keep_requests, loads_table, stretch
from synthetic_table import table

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


def with_requests(folder: Path, idle_w: float | None = None, seconds: float = 9.0, **other: Any) -> Summary:
    """Two loads of 500 J in 10 s: one request of 1 to 30 tokens after the other, all within the first seconds."""
    rows = []
    for number, concurrency in enumerate((1, 8)):
        file = f"requests/{number:05d}.jsonl.gz"
        keep_requests(folder, file, (Sent(i * seconds / 30, (i + 1) * seconds / 30, 0, i + 1) for i in range(30)))
        rows.append(stretch("vanilla", concurrency, 0, 500.0, load={"file": file}, **other))
    return summarise(in_folder(table(rows), folder, idle_w))


def test_the_joules_of_a_request_stand_by_load_and_decoding(tmp_path: Path) -> None:
    (found,) = with_requests(tmp_path, idle_w=20.0).under_load
    _, grid, *_ = load_grids([found])
    assert grid.title == "Under load: joules of a request, by token share"
    assert [row.decoding for row in grid.rows] == ["c1 vanilla", "c8 vanilla"]
    # Of 500 J 200 are idle and 30 above it in the last second; 270 J over 465 tokens, 15.5 of them in the median.
    assert [shown.main for shown in grid.rows[0].figures] == ["30", "9.00", "2.32 – 15.7", "54 / 40 / 6"]
    assert grid.rows[0].figures[1].mark is None
    assert not any("nothing is left" in note or "Idle –" in note for note in grid.notes)


@pytest.mark.parametrize(
    ("idle_w", "parts", "note"),
    [
        (None, "90 / – / 10", "Idle –: idle power was not measured"),
        (49.9, "0 / 100 / 0", "Next to nothing is left to requests"),
    ],
)
def test_idle_power_that_is_unknown_or_all_there_is(tmp_path: Path, idle_w: float, parts: str, note: str) -> None:
    _, grid, *_ = load_grids(with_requests(tmp_path, idle_w).under_load)
    assert grid.rows[0].figures[-1].main == parts
    assert any(note in told for told in grid.notes)


def test_modelled_joules_of_requests_are_marked(tmp_path: Path) -> None:
    _, grid, *_ = load_grids(with_requests(tmp_path, provenance="modelled").under_load)
    assert {row.figures[1].mark for row in grid.rows} == {"modelled"}


def test_too_few_requests_tell_no_middle_and_none_no_median(tmp_path: Path) -> None:
    several = ([Sent(float(i), i + 1.0) for i in range(9)], [Sent(-1.0, 20.0)])
    rows = []
    for number, requests in enumerate(several):
        keep_requests(tmp_path, f"requests/{number}", requests)
        rows.append(stretch("vanilla", number + 1, 0, 500.0, load={"file": f"requests/{number}"}))
    _, grid, *_ = load_grids(summarise(in_folder(table(rows), tmp_path)).under_load)
    assert [shown.main for shown in grid.rows[0].figures[:3]] == ["9", "50.0", "–"]
    assert [shown.main for shown in grid.rows[1].figures[:3]] == ["0", "unknown", "–"]
    assert "Unknown: no request lay in the steady part from start to end." in grid.notes


def test_a_ledger_without_its_requests_is_reported_all_the_same(tmp_path: Path) -> None:
    with_requests(tmp_path)
    rows = [stretch("vanilla", c, r, 500.0, load={"file": f"requests/{c}{r}.jsonl.gz"}) for c in (1, 8) for r in (0, 1)]
    summary = summarise(in_folder(table(rows), tmp_path))
    (found,) = summary.under_load
    assert [grid.title for grid in load_grids([found]) if "joules of a request" in grid.title] == []
    told = (
        "Stretches of which the joules of single requests are not told, as the file of their requests cannot be read "
        "in the run folder: 4 of 4 (requests/10.jsonl.gz, requests/11.jsonl.gz, requests/80.jsonl.gz, ...)."
    )
    assert told in findings(found)
    assert told in html.render(summary)
    assert "J per token" in html.render(summary)
    assert "objective (<code>slo</code>; all, where it has none)" in html.render(summary)


def test_every_form_shows_them_and_the_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    really = gzip.open
    monkeypatch.setattr(gzip, "open", lambda file, *how, **more: opened.append(file.name) or really(file, *how, **more))
    summary = with_requests(tmp_path, idle_w=20.0)
    out = io.StringIO()
    print_summary(summary, out)
    terminal = out.getvalue()
    assert max(map(len, terminal.splitlines())) <= 80
    forms = (terminal, markdown.render(summary), latex.render(summary), html.render(summary))
    for form in forms:
        text = " ".join(re.sub(r"[\\`]", "", form).split())
        assert "joules of a request, by token share" in text
        assert "54 / 40 / 6" in text
        assert "joulewise requests RUN --curve FILE" in text.replace("\N{WORD JOINER}", "")
    assert to_json(summary)["under_load"][0]["requests"][1]["idle_j"] == 200.0
    assert sorted(opened) == ["00000.jsonl.gz", "00001.jsonl.gz"]

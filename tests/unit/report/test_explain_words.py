"""``joulewise explain``: its sentences, tables, chart and command."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from joulewise import ledger
from joulewise.cli.main import app
from joulewise.errors import UserError
from joulewise.report.break_even_chart import break_even_chart
from joulewise.report.explain import explain_grids, sentences, to_json
from joulewise.report.html import render
from joulewise.report.markdown import render_explanation
from joulewise.report.summary import Section, Summary, sections, summarise
from joulewise.report.terminal import print_explanation
from joulewise.table import RunTable
from planted_phases import PLAIN, POWERS, SPECULATING, trials
from speculation import answers
from synthetic_table import table

VANILLA = answers("vanilla", 0.02, 6.0)
PARADOX = answers("coga-5", 0.018, 7.0, tau=2.0)
PHASES = {"prefill": 0.1, "draft_prefill": 0.0, "draft": 0.4, "verify": 1.3, "accept": 0.1, "memory": 0.0, "host": 0.1}


def run_of(*rows: list[dict[str, Any]]) -> RunTable:
    return table([one for some in rows for one in some])


def failed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one | {"status": "failed", "error": "too long"} for one in rows]


def section(*rows: list[dict[str, Any]]) -> tuple[Section, Summary]:
    summary = summarise(run_of(*rows))
    (found,) = sections(summary)
    return found, summary


def told(*rows: list[dict[str, Any]]) -> str:
    return " ".join(sentences(section(*rows)[0]))


def test_the_paradox_in_one_sentence() -> None:
    assert told(VANILLA, PARADOX) == (
        "coga-5 on maths needs 1.80 tokens a round to save time and 2.33 to save energy, reaches 2.00: 9.62 % less "
        "time and 15.4 % more energy, because a round draws 1.30 times the power of a plain step. To save energy it "
        "would need an acceptance of 0.59 per token instead of 0.51 or rounds that draw 14.3 % less."
    )


def test_what_saves_both_needs_nothing() -> None:
    words = told(VANILLA, answers("coga-5", 0.010, 3.0, tau=2.0))
    assert words.endswith(
        "48.1 % less time and 46.3 % less energy; a round draws about the power of a plain step (1.00 times)."
    )


def test_a_round_that_costs_less_than_a_plain_step_is_told_to_be_disturbed() -> None:
    assert "other work disturbed the times" in told(VANILLA, answers("coga-5", 0.005, 3.0, tau=2.0))
    assert "disturbed" not in told(VANILLA, answers("coga-5", 0.018, 7.0, tau=2.0))


def test_a_cheaper_draft_and_an_acceptance_that_is_out_of_reach() -> None:
    rows = answers("coga-2", 0.035, 7.0, tau=2.0, size=2)
    for one in rows:
        one["phase_draft_s"] = 0.05 * one["rounds"]
    assert (
        "To save time no acceptance is enough: it would need a draft that costs 60.0 % less or rounds that take 42.9 %"
        in told(VANILLA, rows)
    )


def test_where_it_cannot_be_told_the_interval_is_told() -> None:
    rows = answers("coga-5", 0.02, 6.0, tau=2.0)
    for i, one in enumerate(rows):
        one["duration_s"] *= (0.9, 1.2, 0.8, 1.1, 0.9, 1.1)[i]
    words = told(VANILLA, rows)
    assert "cannot tell whether it saves time (0." in words
    assert "% more to" in words


def test_modelled_and_unknown_joules_leave_time_standing() -> None:
    modelled = told(
        answers("vanilla", 0.02, 6.0, provenance="modelled"),
        answers("coga-5", 0.018, 7.0, tau=2.0, provenance="modelled"),
    )
    assert modelled == (
        "coga-5 on maths needs 1.80 tokens a round to save time, reaches 2.00: 9.62 % less time; energy: cannot tell "
        "(its joules are modelled, not measured)."
    )
    old = [[one | {"gpu_prefill_j": None} for one in rows] for rows in (VANILLA, PARADOX)]
    for one in [*old[0], *old[1]]:
        one.pop("total_prefill_j", None)
    assert "energy: cannot tell (what the prefill drew was not recorded, and nothing bounds it)" in told(*old)


def test_no_number_of_tokens_is_enough() -> None:
    rows = answers("coga-5", 0.04, 12.0, tau=2.0)
    for one in rows:
        one["phase_draft_prefill_s"] = 0.03 * (one["output_tokens"] - 1)
    found, _ = section(VANILLA, rows)
    assert "cannot save time or energy with any number of tokens a round, reaches 2.00" in " ".join(sentences(found))
    assert [f.main for f in explain_grids(found)[0].rows[0].figures][1:3] == ["none is enough", "none is enough"]


def test_the_best_size_is_told() -> None:
    words = told(VANILLA, answers("coga-2", 0.015, 4.0, tau=2.0), answers("coga-5", 0.010, 5.0, tau=2.0))
    assert "coga on maths: coga-5 takes the least time per output token." in words
    assert "coga on maths: coga-2 takes the least energy per output token." in words


def test_vanilla_alone_is_not_refused_where_nothing_else_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "Nothing to explain: vanilla is the only decoding, and it does not speculate."
    assert told(VANILLA) == why
    monkeypatch.setattr(ledger, "load", lambda _: run_of(VANILLA))
    assert why in " ".join(command("run").stdout.split())
    for arguments in (["--json"], ["--markdown", "-"]):
        done = command("run", *arguments)
        assert (done.exit_code, done.stderr) == (0, f"{why}\n")


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (
            PARADOX,
            "no Trial of vanilla is there to compare with; add `vanilla` to the plan's decodings and run it again",
        ),
        (
            VANILLA + failed(PARADOX),
            "no decoding that speculates has an answer beside vanilla's; `joulewise report` says",
        ),
    ],
)
def test_a_run_of_which_nothing_can_be_explained_is_refused(
    rows: list[dict[str, Any]], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(rows).startswith(f"Nothing to explain: {why}")
    monkeypatch.setattr(ledger, "load", lambda _: run_of(rows))
    for arguments in ([], ["--json"], ["--markdown", "-"]):
        done = command("run", *arguments)
        assert isinstance(done.exception, UserError)
        assert str(done.exception).startswith(f"r: Nothing to explain: {why}")
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "it holds no Trial at all"),
        (failed(VANILLA), "all 6 failed, most with: too long"),
    ],
)
def test_a_run_without_an_answer_is_refused(
    rows: list[dict[str, Any]], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "load", lambda _: table(rows, plans={"r": {}}))
    for arguments in ([], ["--json"]):
        done = command("run", *arguments)
        assert isinstance(done.exception, UserError)
        assert str(done.exception) == f"r has no successful Trial: {why}. Mend it and run it again"
        assert done.stdout == ""


def test_the_tables_and_their_notes() -> None:
    rows = answers("coga-5", 0.018, 7.0, tau=2.0, **{f"phase_{name}_s": s for name, s in PHASES.items()})
    found, _ = section(VANILLA, rows)
    threshold, costs, saved, phases, overhead, *_ = explain_grids(found)
    assert [f.main for f in threshold.rows[0].figures] == ["2.00", "1.80", "2.33", "80.0 %"]
    assert [f.mark for f in threshold.rows[0].figures] == [None, "saves", "costs", None]
    assert "needed to save net total energy: unknown (idle power was not measured)." in threshold.notes
    assert [f.main for f in costs.rows[0].figures] == ["36.0", "20.0", "14.0", "6.00", "1.30"]
    assert [f.main for f in saved.rows[0].figures] == ["9.62", "-15.4"]
    assert [f.main for f in phases.rows[0].figures] == ["5.0", "0.0", "20.0", "65.0", "10.0"]
    assert [f.main for f in overhead.rows[0].figures] == ["5.0", "0.0", "5.0", "6.42"]
    assert any("6% to 10% of the time" in note for note in phases.notes)
    assert any(note.startswith("maths, coga-5: the phases are") for note in phases.notes)


def test_the_joules_by_phase_and_what_cannot_be_told_of_them() -> None:
    rng = np.random.default_rng(0)
    rows = trials("coga-5", SPECULATING | {"memory": (0.01, 0.005)}, rng)
    for i, one in enumerate(rows):  # a draft that is always half as long as the verification, to 1 in 1,000
        one["phase_draft_s"] = (0.5, 0.501)[i % 2] * one["phase_verify_s"]
        one["duration_s"] = sum(s for name, s in one.items() if name.startswith("phase_"))
        joules = sum(watts * one[f"phase_{name}_s"] for name, watts in POWERS.items())
        one["gpu_energy_j"] = one["total_energy_j"] = joules
    found, summary = section(trials("vanilla", PLAIN, rng), rows)
    joules, overhead = explain_grids(found)[-2:]
    assert joules.title == "Where the total joules go, %"
    assert joules.columns == ("prefill", "draft prefill", "draft", "verify", "overhead", "closure error")
    words = {row.decoding: [f.main for f in row.figures] for row in joules.rows}
    assert words["vanilla"][1:3] == ["–", "–"]
    assert words["coga-5"][1:3] == ["–", "with verify"]
    assert [f.main for f in overhead.rows[1].figures][1] == "not resolvable"
    notes = " ".join((*joules.notes, *overhead.notes))
    assert "Fitted: prefill 400 W (400 – 400), draft of coga + verify of coga 267 W" in notes
    assert "; not resolvable: memory. The sensor's" in notes
    assert "Not resolvable: less than 1 % of the joules or seconds" in notes
    plain = json.loads(json.dumps(to_json(summary), allow_nan=False))["phase_energy"]
    assert [row["phases"] for row in plain[0]["cells"][1]["rows"]][1] == ["verify", "draft"]
    out = io.StringIO()
    print_explanation(summary, out)
    for shown in (out.getvalue(), render(summary), render_explanation(summary)):
        assert "Where the total joules go, %" in shown


def test_modelled_joules_have_seconds_by_phase_alone() -> None:
    rng = np.random.default_rng(0)
    found, _ = section(trials("vanilla", PLAIN, rng, provenance="modelled"))
    seconds, _ = explain_grids(found)
    assert "Joules by phase: not resolvable (its joules are modelled, not measured)." in seconds.notes


def test_outputs_of_other_lengths_are_told() -> None:
    rows = answers("coga-5", 0.018, 7.0, tau=2.0)
    for one in rows:
        one["duration_s"] = 0.1 + 0.018 * 300
        one["output_tokens"], one["accepted_tokens"], one["rounds"] = 301, 150, 150
    notes = explain_grids(section(VANILLA, rows)[0])[2].notes
    assert any("its outputs have other lengths than vanilla's" in note for note in notes)


def test_the_chart_names_every_figure() -> None:
    found, _ = section(VANILLA, PARADOX, answers("coga-2", 0.03, 20.0, tau=1.5))
    svg = break_even_chart(found.explanations, {"coga-5": 0, "coga-2": 1}, title="maths", prefix="c1")
    assert svg is not None
    words = ElementTree.fromstring(svg).findtext("desc") or ""
    assert words.startswith("plain decoding: 6.00 J per token; ")
    assert "coga-5: 2.00 tokens per round at 7.00 J per token" in words
    assert "breaks even at 2.33" in words
    assert "plain decoding" in svg


def test_the_chart_falls_back_to_seconds_and_then_to_nothing() -> None:
    old = [[one | {"gpu_prefill_j": None, "total_prefill_j": None} for one in rows] for rows in (VANILLA, PARADOX)]
    svg = break_even_chart(section(*old)[0].explanations, {"coga-5": 0}, title="maths", prefix="c1")
    assert "plain decoding: 20.0 ms per token" in (svg or "")
    untold = [[one | {"prefill_s": None} for one in rows] for rows in old]
    found = section(*untold)[0]
    assert break_even_chart(found.explanations, {"coga-5": 0}, title="maths", prefix="c1") is None
    assert "cannot be explained: the engine does not tell when the first token was there" in " ".join(sentences(found))


def test_terminal_page_and_markdown_say_the_same() -> None:
    _, summary = section(VANILLA, PARADOX)
    out = io.StringIO()
    print_explanation(summary, out)
    sentence = "because a round draws 1.30 times the power of a plain step"
    assert sentence in " ".join(out.getvalue().split())
    page = render(summary)
    assert sentence in " ".join(page.split())
    assert "Why it pays or not" in page
    assert "cost per token against acceptance length" in page
    assert sentence in render_explanation(summary)
    assert "Why it pays or not" not in render(section(VANILLA)[1])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ledger, "load", lambda _: run_of(VANILLA, PARADOX))
    return tmp_path


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def test_the_command_prints_and_writes_what_is_asked_for(folder: Path) -> None:
    done = command(folder, "--html", folder / "p.html", "--markdown", folder / "p.md")
    assert done.exit_code == 0, done.output
    assert "needs 1.80 tokens a round to save time" in " ".join(done.stdout.split())
    assert "Why it pays or not" in (folder / "p.html").read_text()
    assert (folder / "p.md").read_text().startswith("# Why it pays or not")
    assert command(folder, "--markdown", "-").stdout.startswith("# Why it pays or not")


def test_the_command_as_json(folder: Path) -> None:
    data = json.loads(command(folder, "--json").stdout)
    (found,) = data["explanations"]
    assert found["gross"]["needed"]["value"] == pytest.approx(2.333, abs=0.01)
    assert found["net"]["needed"]["reason"] == "idle power was not measured"
    assert data["sections"][0]["sentences"][0].startswith("coga-5 on maths needs")


def test_two_outputs_for_one_stream_are_refused(folder: Path) -> None:
    done = command(folder, "--json", "--markdown", "-")
    assert done.exit_code != 0
    assert "--markdown and --json would both go to standard output" in str(done.exception)

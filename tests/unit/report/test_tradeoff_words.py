"""Accuracy against joules in words, tables and files: what is said, and what is not."""

import io
import json
import re

import pytest
from typer.testing import CliRunner

from joulewise.analysis.budget_advice import NONE_RIGHT
from joulewise.analysis.tradeoffs import NO_WISHES, Wishes
from joulewise.cli.main import app
from joulewise.errors import UserError
from joulewise.report import latex, markdown
from joulewise.report.summary import summarise, to_json
from joulewise.report.terminal import print_result, print_summary
from joulewise.report.tradeoffs import TITLE, findings, fine_grids, notes, tradeoff_grids
from sample_tradeoff import QUESTIONS, sample_tradeoff, script
from sample_trial import sample_trial
from synthetic_table import part, row, table


def told(rows, wishes=NO_WISHES):
    return summarise(table(rows), wishes=wishes)


def sentences(rows, wishes=NO_WISHES):
    return [line for one in told(rows, wishes).tradeoffs for line in findings(one)]


def grids(rows):
    return {grid.title: grid for grid in tradeoff_grids(told(rows).tradeoffs)}


def printed(summary):
    out = io.StringIO()
    print_summary(summary, out)
    return out.getvalue()


def test_the_findings_carry_their_numbers():
    lines = sentences(script(), Wishes(reach=0.55, points_per_kj=100.0))
    frontier, cannot_tell, first, second, stop, reach = lines
    assert frontier.startswith(
        "On the frontier of accuracy against joules per answer, over 10 questions: "
        "direct (20.0 %, 2.00 J; on it in 100 % of samples), then vote-3 (30.0 %, 5.00 J;"
    )
    assert ", then cot-256 (60.0 %, 20.0 J;" in frontier
    assert cannot_tell == (
        "Whether more or less accurate than direct cannot be told: cot-256 (10.0 times the joules); vote-1 (1.00 times "
        "the joules); vote-3 (2.50 times the joules); vote-5 (4.00 times the joules)."
    )
    assert first == ("vote-3 beats vote-5: it takes 0.625 of the joules and is as accurate (in 100 % of samples).")
    assert second.startswith("direct beats vote-1: it takes 1.00 of the joules and is 10.0 points more accurate")
    assert stop.startswith("Votes: where another joule begins to buy less than 100 points per kJ cannot be told: at ")
    assert reach.startswith("The cheapest that reaches 55.0 %: cot-256 (60.0 %, 20.0 J; it reaches it in ")


def test_a_clear_gain_and_a_clear_loss():
    ways = {"direct": ({0}, 2.0, 10), "cot-9": (set(QUESTIONS), 20.0, 100), "few-shot-2": ({0}, 3.0, 10)}
    lines = sentences(script(ways))
    assert "More accurate than direct: cot-9 by 90.0 points for 10.0 times the joules." in lines
    turned = sentences(script(ways), Wishes(baseline="e/vanilla/cot-9"))
    assert any(line.startswith("Less accurate than cot-9: direct by 90.0 points for 0.100 times") for line in turned)


def test_how_much_is_enough():
    ways = {"budget-16": (set(), 1.0, 9), "budget-64": (set(QUESTIONS), 4.0, 9), "budget-256": (set(QUESTIONS), 9.0, 9)}
    assert (
        "Tokens to think: beyond budget-64 another joule buys no more accuracy (the best in 100 % of samples)."
        in sentences(script(ways))
    )
    del ways["budget-256"]
    assert any("up to budget-64, the largest that was run" in line for line in sentences(script(ways)))


def test_ways_without_a_direct_answer_are_held_against_nothing():
    rows = script({"budget-16": ({0}, 1.0, 9), "budget-64": (set(QUESTIONS), 4.0, 9)})
    assert not any(title.startswith("Against") for title in grids(rows))
    assert "Accuracy against joules" in printed(told(rows))


def test_nothing_right_is_said_and_bounded():
    (line,) = sentences(script({"direct": (set(), 2.0, 10), "cot-9": (set(), 20.0, 100)}))
    assert line == (
        "No way has any of 10 questions right; at most 27.8 % is (95 %): whatever a way costs, it buys nothing here."
    )


def test_where_some_way_has_a_right_answer_those_without_one_are_not_called_accurate():
    ways = {"direct": (set(), 8.0, 99), "budget-16": (set(), 5.0, 16), "budget-64": (set(), 9.0, 64)}
    ways["few-shot-2"] = ({0}, 6.0, 9)
    lines = sentences(script(ways))
    assert (
        "budget-16 beats direct: it takes 0.625 of the joules and has no answer right either (in 100 % of samples)."
        in lines
    )
    assert not any(line.startswith("Tokens to think") for line in lines)
    (row,) = [row for row in grids(script(ways))["Where to stop"].rows if row.names[1] == "all"]
    assert (row.figures[0].main, row.figures[0].detail, row.figures[0].mark) == ("–", NONE_RIGHT, None)


def test_modelled_joules_have_no_frontier_in_words():
    summary = told(script(provenance="modelled"))
    lines = findings(summary.tradeoffs[0])
    assert lines[0].startswith("The highest accuracy: cot-256 with 60.0 % (31.3 – 83.2), over 10 questions.")
    assert "no frontier" in lines[0]
    assert "modelled joules" in lines[1]
    assert len(lines) == 2
    assert any("prove nothing about energy" in note for note in notes(summary.tradeoffs))
    titles = [grid.title for grid in tradeoff_grids(summary.tradeoffs)]
    assert "Where to stop" not in titles
    assert not [title for title in titles if title.startswith("Beaten")]
    first = tradeoff_grids(summary.tradeoffs)[0]
    assert "optimal, % of samples" not in first.columns
    assert first.rows[0].figures[1].mark == "modelled"


def test_what_cannot_be_reached_by_modelled_joules_is_said():
    (line,) = [
        one for one in sentences(script(provenance="modelled"), Wishes(reach=0.3)) if "cheapest that reaches" in one
    ]
    assert line == "The cheapest that reaches 30.0 % cannot be told: these joules are not all measured."


def test_unjudged_answers_in_words():
    rows = script()
    rows[0] |= {"correct": None, "score": None}
    found = told(rows).tradeoffs
    assert notes(found)[:-1] == [
        "maths: 9 of 10 questions were answered, judged and metered in every way; the others are left out.",
        "maths: on 1 of 10 questions an answer has no verdict; such answers are left out, and never count as wrong.",
    ]
    (line,) = sentences([r | {"correct": None, "score": None} for r in script()])
    assert line.startswith(
        "Nothing judges these answers, so joules alone are told, per answer over 10 questions: direct"
    )


def test_cells_left_out_and_nothing_in_common():
    rows = script() + [row(question=f"q{q}", reasoning="budget-9", status="failed") for q in QUESTIONS]
    assert "Left out: budget-9 (no Trial succeeded)." in sentences(rows)
    apart = [row(question=f"{r}{i}", reasoning=r, correct=True) for r in ("direct", "cot-9") for i in range(6)]
    assert sentences(apart) == ["No question was answered in every way, so nothing can be compared yet."]
    assert tradeoff_grids(told(apart).tradeoffs) == ()


def test_without_direct_answers_a_baseline_is_asked_for():
    ways = {"cot-9": ({0}, 2.0, 10), "cot-99": ({0, 1}, 20.0, 100)}
    assert [note for note in notes(told(script(ways)).tradeoffs) if "left out of the tables" not in note] == [
        "On maths nothing is held against a baseline, as no engine has direct answers beside others; "
        "--baseline ENGINE/DECODING/REASONING names one."
    ]
    assert len(notes(told(script(ways), Wishes(baseline="e/vanilla/cot-9")).tradeoffs)) == 1


def test_the_tables():
    found = grids(script())
    worth = found["Accuracy against joules, total"]
    assert [(r.task, r.decoding, r.n) for r in worth.rows][:2] == [("maths", "direct", 10), ("maths", "cot-256", 10)]
    direct = [figure.main for figure in worth.rows[0].figures]
    assert direct == ["20.0", "2.00", "10.0", "100", "100"]
    assert worth.rows[0].figures[4].mark == "optimal"
    against = found["Against direct"].rows[0]
    assert [figure.main for figure in against.figures] == ["+40.0", "+200", "1 / 5", "+900"]
    assert [figure.mark for figure in against.figures] == ["cannot tell", None, None, "more joules"]
    stop = {r.decoding: r.figures[0] for r in found["Where to stop"].rows}
    assert (stop["all"].main, stop["all"].mark) == ("vote-3", "cannot tell")
    assert re.fullmatch(r"the best in 6\d % of samples; or direct", stop["all"].detail)
    steps = {r.decoding: [f.main for f in r.figures] for r in found["What a larger size buys"].rows}
    assert steps["vote-1 → vote-3"] == ["20.0", "3.00", "6,670"]


def test_groups_with_too_few_questions_are_left_out_in_one_line():
    assert "By category" not in grids(script())
    left_out = "maths by category: left out of the tables, as nothing can be told of fewer than 10 questions: "
    assert [n for n in notes(told(script()).tradeoffs) if n.startswith(left_out)] == [f"{left_out}a (7) and b (3)."]
    assert [r.decoding for r in grids(script())["Where to stop"].rows] == ["all"]
    rows = [r | {"question_id": f"{r['question_id']}-{i}"} for r in script() for i in range(2)]
    grid = grids(rows)["By category"]
    assert {r.task for r in grid.rows} == {"maths: a"}
    assert any("Holm" in note for note in grid.notes)
    assert f"{left_out}b (6)." in notes(told(rows).tradeoffs)
    assert "left out of the tables" in " ".join(printed(told(rows)).split())


def test_many_left_out_groups_are_counted():
    (line,) = [n for n in notes(summarise(sample_tradeoff(60)).tradeoffs) if "by subject: left out" in n]
    assert line.endswith("57 of 57 subjects.")


def test_it_appears_only_where_there_is_something_to_trade():
    alone = told(script({"direct": ({0}, 2.0, 10)}))
    for text in (printed(alone), markdown.render(alone), latex.render(alone)):
        assert TITLE not in text
        assert "Accuracy against joules" not in text


def test_every_form_shows_it():
    summary = summarise(sample_tradeoff(60))
    text = printed(summary)
    assert TITLE in text
    assert max(map(len, text.splitlines())) <= 80
    page = markdown.render(summary)
    assert f"### {TITLE}" in page
    assert "| mmlu: STEM | direct, llama-1b |" in page
    paper = latex.render(summary)
    assert r"\caption{Against direct, llama-1b and direct, llama-8b. run r.}" in paper
    assert json.loads(json.dumps(to_json(summary), allow_nan=False))["tradeoffs"][0]["task"] == "mmlu"
    out = io.StringIO()
    print_result(summary, out)
    assert "Result, mmlu: On the frontier" in out.getvalue()
    assert fine_grids(summary.tradeoffs[0]) == ()
    (fine,) = fine_grids(summarise(sample_tradeoff(150)).tradeoffs[0])
    assert fine.title == "By subcategory"
    assert all(row.n >= 10 for row in fine.rows)


def test_several_engines_and_decodings_are_told_apart():
    rows = [
        row(d, f"q{i}", engine=e, reasoning=r, energy=[part("gpu", 1.0)], correct=True)
        for e in ("one", "two")
        for d in ("vanilla", "coga-5")
        for r in ("direct", "cot-9")
        for i in range(5)
    ]
    names = {r.decoding for r in grids(rows)["Accuracy against joules, total"].rows}
    assert {"direct, vanilla, one", "cot-9, coga-5, two"} <= names
    assert len(names) == 8


@pytest.fixture
def folder(tmp_path):
    """A run folder with a ledger: six questions, direct and with steps, 2 J and 20 J on the GPU."""
    energy = {"component": "gpu", "provenance": "measured"}
    trials = [
        sample_trial(
            i,
            energy | {"energy_j": joules},
            trial_id=f"{reasoning}|{i}|0",
            reasoning=reasoning,
            correct=i in right,
            score=float(i in right),
        )
        for reasoning, right, joules in (("direct", {0}, 2.0), ("cot-9", {0, 1, 2, 3}, 20.0))
        for i in range(6)
    ]
    (tmp_path / "ledger.jsonl").write_text("".join(f"{trial.model_dump_json()}\n" for trial in trials))
    (tmp_path / "plan.yaml").write_text(
        "name: p\nengines: [{kind: transformers, model: default}]\ndecodings: [vanilla]\ntasks: [starter-maths]\n"
    )
    return tmp_path


def report(*arguments):
    return CliRunner().invoke(app, ["report", *(str(a) for a in arguments)])


def test_the_command_on_a_ledger(folder):
    done = report(folder, "--json", "--baseline", "e/vanilla/cot-9", "--reach", "60%", "--worth", "200")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["tradeoffs"]
    direct, steps = found["groups"][0]["cells"]
    assert (direct["quality"]["value"], steps["quality"]["value"]) == pytest.approx((1 / 6, 4 / 6))
    assert (direct["correct_answers_per_kj"]["value"], steps["correct_answers_per_kj"]["value"]) == pytest.approx(
        (1000 / 12, 4000 / 120)
    )
    assert direct["against"]["energy_relative"]["value"] == pytest.approx(-0.9)
    assert steps["against"] is None
    assert (found["reach"]["key"]["reasoning"], found["points_per_kj"]) == ("cot-9", 200.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--baseline", "e/vanilla/drect"), "did you mean 'e/vanilla/direct'"),
        (("--reach", "60"), "such as 60%"),
        (("--reach", "many"), "not a number; write 60% or 0.6"),
        (("--reach", "120%"), "from 0% to 100%, such as 60%"),
        (("--worth", "-3"), "0 or more"),
    ],
)
def test_options_that_cannot_be(folder, options, words):
    done = report(folder, *options)
    assert isinstance(done.exception, UserError)
    assert words in str(done.exception)
    assert not (folder / "report.html").exists()


def test_the_cells_are_named_once(folder):
    assert str(report(folder, "--baseline", "?").exception).count("e/vanilla/direct") == 1

"""The papers' claims as a report shows them, in every form."""

import io
import json

import pytest

from joulewise.report import html, latex, markdown
from joulewise.report.claims import TITLE, claim_grid, claim_words, lines, not_touched
from joulewise.report.summary import summarise, to_json
from joulewise.report.terminal import print_summary
from sample_run import sample_run
from sample_tradeoff import sample_tradeoff, script
from synthetic_table import part, row, table


@pytest.fixture(scope="module")
def speculation():
    return summarise(sample_run(40))


@pytest.fixture(scope="module")
def thinking():
    return summarise(sample_tradeoff(114))


def words(summary, letter):
    return next(w for w in claim_words(summary.claims) if w.statement.startswith(f"({letter})"))


def printed(summary):
    out = io.StringIO()
    print_summary(summary, out)
    return out.getvalue()


def test_a_claim_with_its_numbers_and_the_papers_beside(speculation):
    told = words(speculation, "d")
    assert told.verdict == "confirmed"
    run, published = lines(told)
    assert run.startswith("This run: 3 comparisons, ")
    assert "coga-5: gsm8k against cnn_dm: energy factor (gsm8k) 1." in run
    assert "rank correlation is" in run
    assert published.startswith("Published, arXiv 2602.09113: EAGLE-3 on Llama-3.1-8B, GPU energy: HumanEval 1.74")
    assert published.endswith("(well attested).")


def test_every_claim_of_a_polluted_run_has_a_caveat(speculation):
    run, touched = speculation.runs[0], len(claim_words(speculation.claims))
    caveat = (
        f"Caveat: of this run's {run.ok} Trials {run.polluted} are polluted by other processes' CPU use, and seconds"
    )
    assert touched
    assert " ".join(printed(speculation).split()).count(caveat) == touched
    assert markdown.render(speculation).count(caveat) == touched
    assert html.render(speculation).replace("&#39;", "'").count(caveat) == touched
    assert "Caveat" not in printed(summarise(sample_run(40), without_polluted=True))


def test_changes_are_told_with_their_sign_and_interval(thinking):
    told = words(thinking, "i") if any(c.letter == "i" and c.verdict for c in thinking.claims) else None
    assert told is None  # the sample's engines do not say how large they are
    votes = words(thinking, "g")
    assert "vote-5 on mmlu (llama-1b): accuracy " in votes.run
    assert "energy +22" in votes.run
    assert votes.verdict == "contradicted"


def test_what_would_decide_a_claim():
    few = words(summarise(table(script({"direct": ({0, 1}, 2.0, 10), "vote-3": ({0, 1, 2}, 4.5, 30)}))), "g")
    assert few.verdict == "cannot tell"
    assert lines(few)[-1] == "To decide it: more questions or repeats, so that the intervals narrow."
    modelled = words(summarise(table(script(provenance="modelled"))), "h")
    assert modelled.verdict == "cannot tell"
    assert modelled.run == "1 comparison, 1 cannot be told (the joules are modelled)."
    assert lines(modelled)[-1] == "To decide it: the same where a card or a counter measures the joules."


def test_what_a_run_does_not_touch_is_one_line(speculation):
    line = not_touched(speculation.claims)
    assert line.startswith("Not touched by this run: (b) target against draft size needs ")
    assert "(g) votes needs votes beside direct answers, with measured joules" in line
    assert "(d)" not in line
    assert "\n" not in line


def test_nothing_is_shown_where_no_claim_is_touched():
    alone = summarise(table([row(energy=[part("gpu", 1.0)])]))
    assert claim_words(alone.claims) == []
    for text in (printed(alone), markdown.render(alone), latex.render(alone), html.render(alone)):
        assert TITLE not in text
        assert "Not touched" not in text


def test_the_table_counts_sides(speculation):
    grid = claim_grid(speculation.claims)
    rows = {r.decoding: [shown.main for shown in r.figures] for r in grid.rows}
    assert rows["(d) code, maths, summaries"] == ["confirmed", "3", "3", "0"]
    assert {r.task for r in grid.rows} == {"arXiv 2602.09113"}


def test_every_form_shows_them(speculation):
    text = printed(speculation)
    assert TITLE in text
    assert max(map(len, text.splitlines())) <= 80
    page = markdown.render(speculation)
    assert "### The papers' claims, held against this run" in page
    assert "- (d) The task decides: code saves the most energy, then maths, then summaries: **confirmed**" in page
    paper = latex.render(speculation)
    assert "% (d) The task decides: code saves the most energy, then maths, then summaries: confirmed" in paper
    assert r"\caption{The papers' claims, held against this run. run sample-run.}" in paper
    whole = html.render(speculation)
    confirmed = '<em class="mark good">confirmed</em> <em class="mark soft">with a caveat</em></h4>'
    assert f"then maths, then summaries {confirmed}" in whole
    assert "Not touched by this run: (b)" in whole
    found = json.loads(json.dumps(to_json(speculation), allow_nan=False))["claims"]
    assert [claim["letter"] for claim in found] == list("abcdefghijk")
    assert found[3]["published"]["reliability"] == "well attested"


def test_runs_have_their_own(speculation):
    both = summarise(table([row(run="one"), row(run="two"), row("coga-5", run="two", duration_s=0.5)]))
    assert [claim.run for claim in both.claims] == ["one"] * 11 + ["two"] * 11


def test_what_is_not_known_for_want_of_questions_needs_what_the_claim_needs():
    few = [r for r in script({"direct": ({0}, 2.0, 10), "vote-3": ({0}, 4.5, 30)}) if r["question_id"] in {"q0", "q1"}]
    told = words(summarise(table(few)), "g")
    assert "1 cannot be told (fewer than 5 questions)" in told.run
    assert lines(told)[-1] == "To decide it: votes beside direct answers, with measured joules."

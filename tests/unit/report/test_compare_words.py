"""A comparison in words: the last line, the warnings, Markdown that stays whole, JSON without infinities."""

import io
import json
import re

import pytest

from joulewise.analysis.compare import Gate, compare_tables
from joulewise.report.compare import headline, print_comparison, to_json, to_markdown, warnings
from planted import environment, plan, side
from synthetic_table import part


def compared(*sides, **gate):
    return compare_tables(*sides, Gate(**gate))


def printed(comparison):
    file = io.StringIO()
    print_comparison(comparison, file)
    return file.getvalue()


PASSED = compared(side(), side(seed=1))
FAILED = compared(side(), side(0.2, seed=1))
UNCLEAR = compared(side(questions=8, noise=0.2), side(0.05, questions=8, noise=0.2, seed=1))


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        (PASSED, "PASSED: total joules per output token rose by more than 5 % in none of 2 cells."),
        (FAILED, "FAILED: total joules per output token rose by more than 5 % in 2 of 2 cells"),
        (UNCLEAR, "CANNOT TELL whether total joules per output token rose by more than 5 %"),
    ],
)
def test_the_verdict_is_the_last_line(comparison, words):
    assert headline(comparison).startswith(words)
    last = re.sub(r"\s+", " ", printed(comparison).strip().rpartition("\n\n")[2])
    assert last.startswith(words)


def test_cannot_tell_says_how_it_ends_and_what_would_help():
    assert "That passes, as --on-unclear pass says." in headline(UNCLEAR)
    assert "more questions" in headline(UNCLEAR)
    strict = compared(side(questions=8, noise=0.2), side(0.05, questions=8, noise=0.2, seed=1), on_unclear="fail")
    assert "That fails, as --on-unclear fail says." in headline(strict)


def test_no_line_is_wider_than_a_terminal():
    for comparison in (PASSED, FAILED, UNCLEAR):
        assert max(len(line) for line in printed(comparison).splitlines()) <= 80


def test_what_should_make_one_doubt_is_told():
    def other(values, i):
        return values | {"output_hash": "g", "correct": i % 2 == 0 and i > 9}

    told = " ".join(
        warnings(
            compared(
                side(),
                side(change=other, environment_=environment(driver="570"), questions=40, seed=1),
                allow_different=True,
            )
        )
    )
    assert "The outputs differ: 80 of 80 greedy answers" in told
    assert "Accuracy fell in gsm8k, vanilla, gsm8k, prompt-lookup-3: 10 right answers went wrong" in told
    assert "--allow-different), though these differ: GPU driver (580 → 570)" in told
    assert "10 of BASE, 0 of NEW" in told
    assert warnings(PASSED) == []


def test_markdown_is_one_table_whatever_the_names():
    evil = plan(engines=[{"kind": "transformers", "name": "a|b*c`d<script>"}, {"kind": "transformers", "name": "f"}])

    def both(values, _):
        return values | {"engine": "a|b*c`d<script>"}

    text = to_markdown(compared(side(plan_=evil, change=both), side(0.2, seed=1, plan_=evil, change=both)))
    table = [line for line in text.splitlines() if line.startswith("|")]
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table}
    assert len(columns) == 1
    assert "<script>" not in text
    assert text.splitlines()[0] == "### Energy gate"
    assert "FAILED" in text.splitlines()[2]


def test_json_holds_everything_and_no_infinity():
    for comparison in (PASSED, FAILED, UNCLEAR):
        data = json.loads(json.dumps(to_json(comparison), allow_nan=False))
        assert data["exit_code"] == comparison.exit_code
        assert data["verdict"] in data["headline"].lower()
        assert {c["verdict"] for c in data["cells"]} == {c.verdict for c in comparison.cells}
        assert data["format_version"] == 1


def test_engines_are_named_where_there_are_several_and_never_averaged():
    two = plan(engines=[{"kind": "transformers", "name": "e"}, {"kind": "transformers", "name": "f"}])

    def engines(rise, seed):
        from synthetic_table import table

        tables = [side(rise, seed=seed), side(seed=seed + 9, change=lambda v, _: v | {"engine": "f"})]
        rows = [r for t in tables for r in t.arrow.to_pylist()]
        return table(rows, plans={"run": two}, environments={"run": environment()})

    found = compared(engines(0.0, 0), engines(0.2, 1))
    assert [c.engine for c in found.overall] == ["e", "f"]
    assert [c.verdict for c in found.overall] == ["above the limit", "within the limit"]
    assert "all 2 cells of e" in printed(found)


def test_the_last_line_counts_the_most_frequent_reason_where_there_are_several():
    def few_right(values, i):
        return values | {"correct": i < (3 if values["trial_id"].startswith("vanilla") else 0)}

    sides = side(change=few_right), side(change=few_right, seed=1)
    mixed = headline(compared(*sides, metric="energy_per_correct_answer_j"))
    assert "(2 of 2 cells unclear: fewer than 5 correct answers in 1, another reason in the rest)" in mixed
    same = headline(compared(side(questions=4), side(questions=4, seed=1)))
    assert "(2 of 2 cells unclear: fewer than 5 questions)" in same


def test_answered_questions_without_a_figure_are_not_told_as_unanswered():
    def unjudged(values, i):
        return values | ({"correct": None} if values["trial_id"].startswith("vanilla") else {})

    def unread(values, i):
        return values | ({"energy": [part("gpu", None)]} if i < 3 else {})

    nothing = compared(side(change=unjudged), side(change=unjudged, seed=1), metric="energy_per_correct_answer_j")
    assert [(c.only_base, c.only_new, c.no_figure) for c in nothing.cells] == [(0, 0, 50), (0, 0, 0)]
    assert warnings(nothing) == ["Cannot tell in 1 of 2 cells: the task has no right and wrong answers."]
    some = warnings(compared(side(), side(change=unread, seed=1)))
    assert [w.startswith("gsm8k, vanilla: left out are 3 questions that both sides answered") for w in some] == [
        True,
        False,
    ]


def test_the_same_recording_on_both_sides_is_told_everywhere():
    same = compared(side(), side())
    for text in (printed(same), to_markdown(same), to_json(same)["headline"]):
        assert "BASE and NEW are the same recording." in " ".join(text.split())
    assert "100 Trials of NEW are BASE's own" in warnings(same)[0]
    assert to_json(same)["same_recording"] is True
    assert to_json(PASSED)["same_recording"] is False


def test_a_missing_record_is_not_told_as_a_difference():
    bare = {"environment_": {"python": "3.12.3"}}
    neither = compared(side(**bare), side(seed=1, **bare), allow_different=True)
    assert warnings(neither)[0] == "What BASE and NEW ran on is not recorded, so whether it was alike is not known."
    told = warnings(compared(side(), side(seed=1, **bare), allow_different=True))
    assert "What NEW ran on is not recorded, so whether it was alike is not known." in told

"""A run's answers before a judge: graded, compared, unjudged, and gone on with."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joulewise.energy.meter import Meter
from joulewise.errors import EnvironmentFault, UserError
from joulewise.judge.client import Judge
from joulewise.judge.grade import judge_run
from joulewise.judge.prompts import REFERENCES_FILE
from joulewise.judge.record import JUDGEMENTS, judgements_file, read_judgements
from joulewise.ledger import load
from joulewise.ledger_lines import read_ledger
from joulewise.runner import run
from local_judge import Answer, fails, local_judge, says
from scripted_runs import make_plan, questions_task

pytestmark = pytest.mark.usefixtures("scripted")

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Again, please."]},
    {"question_id": 111, "category": "math", "turns": ["Add.", "And once more."]},
]
WAITS: list[float] = []


@pytest.fixture(autouse=True)
def waits() -> None:
    WAITS.clear()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "mt_bench_questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    row = {"question_id": 111, "choices": [{"turns": ["The sum is 4.", "The sum is 8."]}]}
    (tmp_path / REFERENCES_FILE).write_text(json.dumps(row))
    return tmp_path


@pytest.fixture
def finished(data: Path, meter: Meter) -> Path:
    """A run of two cells, two questions of two turns each."""
    plan = make_plan("mt_bench", decodings=["vanilla", "prompt_lookup"])
    return run(plan, data / "run", meter=meter, data_dir=data).folder


def judge_at(url: str, **more: Any) -> Judge:
    return Judge(url, "big", sleep=WAITS.append, **more)


def by_question(grades: dict[str, str]) -> Callable[[dict[str, Any]], Answer]:
    """Answers with the first of these texts whose name is in the prompt."""

    def answer(body: dict[str, Any]) -> Answer:
        said = body["messages"][-1]["content"]
        return says(next(text for name, text in grades.items() if name in said))

    return answer


def test_every_turn_is_graded_and_a_report_has_a_tenth_of_the_mean(finished: Path, data: Path) -> None:
    grades = {"Again, please.": "[[9]]", "Write.": "[[6]]", "once more": "[[1]]", "Add.": "Wrong. [[2]]"}
    with local_judge(by_question(grades)) as server:
        result = judge_run(finished, judge_at(server.url), data_dir=data)
    assert (result.asked, result.stopped, len(server.requests)) == (8, None, 8)
    assert {(j.trial_id.split("|")[1], j.turn): j.rating for j in result.judgements} == {
        ("81", 1): 6.0, ("81", 2): 9.0, ("111", 1): 2.0, ("111", 2): 1.0,
    }  # fmt: skip
    assert {j.guided for j in result.judgements if "|111|" in j.trial_id} == {True}
    assert {j.guided for j in result.judgements if "|81|" in j.trial_id} == {False}
    shown = [p for p in server.prompts if "The sum is 4." in p]
    assert len(shown) == 4, "the reference of both turns is shown in the second, of the first alone in the first"
    table = load(finished)
    rows = table.arrow.to_pylist()
    assert {(r["question_id"], round(r["score"], 9)) for r in rows} == {("81", 0.75), ("111", 0.15)}
    assert {(r["correct"], r["metric"]) for r in rows} == {(None, "rating by big")}
    assert table.warnings == ()


def test_a_grade_without_a_reference_is_given_anew_once_there_is_one(finished: Path, data: Path) -> None:
    references = (data / REFERENCES_FILE).read_text()
    (data / REFERENCES_FILE).unlink()
    with local_judge(lambda _: says("[[5]]")) as server:
        first = judge_run(finished, judge_at(server.url), data_dir=data)
        assert first.notes == (
            "no reference answers are at hand, so mathematics, coding and reasoning are judged without",
        )
        (data / REFERENCES_FILE).write_text(references)
        again = judge_run(finished, judge_at(server.url), data_dir=data)
    assert (first.asked, again.asked, again.notes) == (8, 4, ())
    assert {j.guided for j in again.judgements if "|111|" in j.trial_id} == {True}


def test_the_ledger_keeps_the_answers_for_the_judge_and_not_the_questions(finished: Path) -> None:
    trials = read_ledger(finished / "ledger.jsonl").trials
    assert all(g.text for t in trials for g in t.generations)
    assert "Again, please." not in (finished / "ledger.jsonl").read_text()


def test_without_a_judge_nothing_is_scored(finished: Path) -> None:
    assert {(r["score"], r["metric"]) for r in load(finished).arrow.to_pylist()} == {(None, "unscored")}


def test_a_judge_that_talks_nonsense_leaves_answers_unjudged_and_never_at_0(finished: Path, data: Path) -> None:
    grades = {"Write.": "As an AI I would say it is [[great]].", "Add.": "[[10]]"}
    with local_judge(by_question(grades)) as server:
        result = judge_run(finished, judge_at(server.url), data_dir=data)
    assert len(server.requests) == 4 * 3 + 4, "three tries for each reply without a grade"
    assert WAITS == [], "a server that answers needs no rest"
    bad = [j for j in result.judgements if j.status == "unjudged"]
    assert {(j.trial_id.split("|")[1], j.rating, j.reason) for j in bad} == {("81", None, "no grade is in its reply")}
    table = load(finished)
    assert {(r["question_id"], r["score"]) for r in table.arrow.to_pylist()} == {("81", None), ("111", 1.0)}
    assert table.warnings == (
        "run: unjudged and without a score: 2 answers (2 x no grade is in its reply); `joulewise judge` goes on",
    )


def test_a_judge_that_is_down_loses_nothing_and_is_asked_again_later(finished: Path, data: Path) -> None:
    answers = iter([says("[[5]]")])
    with local_judge(lambda _: next(answers, fails(503, "loading"))) as server:
        result = judge_run(finished, judge_at(server.url), data_dir=data)
        assert result.stopped == "the judge answers HTTP 503 loading"
        assert [j.status for j in result.judgements] == ["judged", *["unjudged"] * 3]
        assert len(server.requests) == 1 + 3 * 3, "after three answers in a row the rest is left"
    assert WAITS == [1.0, 2.0] * 3
    with local_judge(lambda _: says("[[7]]")) as server:
        again = judge_run(finished, judge_at(server.url), data_dir=data)
        assert (again.stopped, again.asked, len(server.requests)) == (None, 7, 7)
    assert sorted(j.rating or 0.0 for j in again.judgements) == [5.0, *[7.0] * 7]
    with local_judge(lambda _: says("[[1]]")) as server:
        assert judge_run(finished, judge_at(server.url), data_dir=data).asked == 0
        assert server.requests == []


def test_the_server_may_ask_for_a_rest(finished: Path, data: Path) -> None:
    answers = iter([fails(429, Retry_After="30"), says("[[4]]")])
    with local_judge(lambda _: next(answers)) as server:
        result = judge_run(finished, judge_at(server.url), data_dir=data, limit=1)
    assert (WAITS, result.asked, result.judgements[0].rating) == ([30.0], 1, 4.0)
    assert result.stopped == "no more than 1 judgements were asked for"
    first, second = result.judgements[0].calls
    assert (first.duration_s, first.said, second.said, second.output_tokens) == (None, None, "4", 10)


def test_a_request_that_the_judge_refuses_is_unjudged_at_once(finished: Path, data: Path) -> None:
    with local_judge(lambda _: fails(400, "context too long")) as server:
        result = judge_run(finished, judge_at(server.url), data_dir=data)
    assert len(server.requests) == 8
    assert {j.reason for j in result.judgements} == {"the judge answers HTTP 400 context too long"}


def test_a_wrong_key_ends_it_and_what_was_judged_is_kept(finished: Path, data: Path) -> None:
    answers = iter([says("[[5]]")])
    with local_judge(lambda _: next(answers, fails(401, "bad key"))) as server, pytest.raises(UserError, match="401"):
        judge_run(finished, judge_at(server.url, key="sk-secret"), data_dir=data)
    assert [j.rating for j in read_judgements(finished)] == [5.0]
    assert b"sk-secret" not in (finished / JUDGEMENTS).read_bytes()
    assert read_judgements(finished)[0].server == server.url.removesuffix("/v1")


def test_its_joules_are_apart_and_unknown_unless_measured(finished: Path, data: Path, meter: Meter) -> None:
    with local_judge(lambda _: says("[[5]]")) as server:
        judge_run(finished, judge_at(server.url), data_dir=data, limit=1)
        judge_run(finished, judge_at(server.url), data_dir=data, limit=1, meter=meter)
    first, second = read_judgements(finished)
    assert first.calls[0].energy is None
    assert {part.component for part in second.calls[0].energy or ()} == {"gpu", "cpu", "dram"}
    before = {r["trial_id"]: r["total_energy_j"] for r in load(finished).arrow.to_pylist()}
    assert all(joules is not None for joules in before.values())


def cells_of(folder: Path) -> list[str]:
    return sorted({t.cell_id for t in read_ledger(folder / "ledger.jsonl").trials})


def marked(folder: Path, mark: str) -> None:
    """Give the answers of the cell with prompt lookup a mark of their own."""
    file = folder / "ledger.jsonl"
    lines = file.read_text().splitlines()
    changed = [re.sub(r'"text":"', f'"text":"{mark} ', line) if "prompt-lookup" in line else line for line in lines]
    file.write_text("\n".join(changed) + "\n")


@pytest.mark.parametrize(
    ("likes", "verdict"),
    [
        (lambda a, b: "[[A]]" if "OURS" in a else "[[B]]", "win"),
        (lambda a, b: "[[B]]" if "OURS" in a else "[[A]]", "loss"),
        (lambda a, b: "[[C]]", "tie"),
        (lambda a, b: "[[A]]", "tie"),  # always the first: the place, not the answer
        (lambda a, b: "[[B]]", "tie"),
        (lambda a, b: "[[A]]" if "OURS" in a else "[[C]]", "tie"),
        (lambda a, b: "[[A]]" if "OURS" in a else "?", None),
    ],
)
def test_a_comparison_is_made_in_both_orders(
    finished: Path, data: Path, likes: Callable[[str, str], str], verdict: str | None
) -> None:
    marked(finished, "OURS")
    baseline = next(cell for cell in cells_of(finished) if "vanilla" in cell)

    def answer(body: dict[str, Any]) -> Answer:
        a, _, b = body["messages"][-1]["content"].partition("<<< assistant B")
        return says(likes(a, b))

    with local_judge(answer) as server:
        result = judge_run(finished, judge_at(server.url), data_dir=data, against=baseline)
    assert {j.verdict for j in result.judgements} == {verdict}
    assert len(result.judgements) == 4
    assert {j.status for j in result.judgements} == {"unjudged" if verdict is None else "judged"}
    assert {tuple(dict.fromkeys(c.order for c in j.calls)) for j in result.judgements} == {
        ("ours first", "theirs first")
    }
    assert {r["score"] for r in load(finished).arrow.to_pylist()} == {None}, "a comparison is no grade"


def test_cells_that_cannot_be_compared_are_told(finished: Path, data: Path) -> None:
    with pytest.raises(UserError, match=r"--against x: no such cell with answers to judge; there are: toy/"):
        judge_run(finished, judge_at("http://127.0.0.1:9/v1"), data_dir=data, against="x")


def test_runs_that_cannot_be_judged_are_told(tmp_path: Path, data: Path, meter: Meter, finished: Path) -> None:
    judge = judge_at("http://127.0.0.1:9/v1")
    with pytest.raises(UserError, match="not a run folder"):
        judge_run(tmp_path / "nothing", judge, data_dir=data)
    other = run(make_plan(questions_task(tmp_path, ["a"])), tmp_path / "other", meter=meter)
    with pytest.raises(UserError, match="none of its tasks has answers for a judge; mt_bench has"):
        judge_run(other.folder, judge, data_dir=data)
    file = finished / "ledger.jsonl"
    file.write_text(re.sub(r'"text":"[^"]*"', '"text":null', file.read_text()))
    with pytest.raises(UserError, match="left out: 4 Trials whose texts were not kept"):
        judge_run(finished, judge, data_dir=data)
    (data / "mt_bench_questions.jsonl").write_text(json.dumps(QUESTIONS[0] | {"turns": ["Read.", "Again."]}))
    with pytest.raises(UserError, match="no longer reads as it did"):
        judge_run(finished, judge, data_dir=data)


def test_grades_of_two_judges_are_not_mixed(finished: Path, data: Path) -> None:
    with local_judge(lambda body: says("[[2]]" if body["model"] == "small" else "[[8]]")) as server:
        judge_run(finished, Judge(server.url, "small"), data_dir=data)
        judge_run(finished, judge_at(server.url), data_dir=data, limit=2)
    table = load(finished)
    assert sorted(str(r["score"]) for r in table.arrow.to_pylist()) == ["0.8", "None", "None", "None"]
    assert any("asked last, not by small (joulewise-1)" in w for w in table.warnings)


def test_a_line_that_was_cut_off_is_judged_again(finished: Path, data: Path) -> None:
    with local_judge(lambda _: says("[[5]]")) as server:
        judge_run(finished, judge_at(server.url), data_dir=data, limit=2)
        file = finished / JUDGEMENTS
        file.write_bytes(file.read_bytes()[:-20])
        assert len(read_judgements(finished)) == 1
        assert judge_run(finished, judge_at(server.url), data_dir=data).asked == 7
    assert len(read_judgements(finished)) == 8


def test_a_broken_line_is_told_with_its_place(finished: Path) -> None:
    (finished / JUDGEMENTS).write_text("{}\n")
    with pytest.raises(UserError, match=r"judgements\.jsonl:1: trial_id: is missing; restore the file"):
        load(finished)


def test_one_judge_at_a_time(finished: Path, data: Path) -> None:
    with judgements_file(finished), pytest.raises(EnvironmentFault, match="another `joulewise judge` is writing"):
        judge_run(finished, judge_at("http://127.0.0.1:9/v1"), data_dir=data)


def test_a_full_disk_is_told_with_its_place_and_loses_no_judgement(finished: Path, data: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with local_judge(lambda _: says("[[5]]")) as server:
        judge_run(finished, judge_at(server.url), data_dir=data, limit=1)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((finished / JUDGEMENTS).stat().st_size + 50, hard))
        try:
            with pytest.raises(EnvironmentFault, match=r"judgements\.jsonl: cannot be written \(.*make room"):
                judge_run(finished, judge_at(server.url), data_dir=data)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert judge_run(finished, judge_at(server.url), data_dir=data).asked == 7
    assert len(read_judgements(finished)) == 8

"""Tasks of lm-eval from files of one's own, by lm-eval's own code; by name where its index is looked at, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from joulewise.errors import EnvironmentFault, UserError
from joulewise.plan import Plan, load_plan
from joulewise.tasks import harness, open_task
from joulewise.tasks.task import question_hash

CONFIG: dict[str, Any] = {
    "task": "sums",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "sums.jsonl", "train": "shown.jsonl"}},
    "output_type": "generate_until",
    "test_split": "test",
    "fewshot_split": "train",
    "num_fewshot": 1,
    "description": "Add.\n\n",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["\n\n", "Question:"], "max_gen_toks": 24},
    "filter_list": [
        {"name": "last", "filter": [
            {"function": "regex", "regex_pattern": r"(-?\d+)", "group_select": -1}, {"function": "take_first"}]},
        {"name": "first", "filter": [
            {"function": "regex", "regex_pattern": r"(-?\d+)"}, {"function": "take_first"}]},
    ],
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    "metadata": {"version": 1.0},
}  # fmt: skip
ROWS = [
    {"question": "1 + 1?", "answer": "2", "kind": "easy"},
    {"question": "7 + 5?", "answer": "12", "kind": "häßlich"},
]


@pytest.fixture
def lm_eval(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra 'lm-eval'")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def write(folder: Path, rows: list[dict[str, Any]] = ROWS, **changed: Any) -> str:
    for name, lines in (("sums", rows), ("shown", [{"question": "0 + 0?", "answer": "0", "kind": "easy"}])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "sums.yaml").write_text(yaml.safe_dump({k: v for k, v in (CONFIG | changed).items() if v is not None}))
    return f"lm_eval:{folder / 'sums.yaml'}"


@pytest.mark.usefixtures("lm_eval")
def test_prompts_budget_and_scores_are_lm_evals(tmp_path: Path) -> None:
    task = open_task(write(tmp_path))
    first, second = task.questions()
    assert (first.question_id, second.question_id, first.reference) == ("test-0", "test-1", "2")
    ((said,),) = task.turns(first)
    assert said.content == "Add.\n\nQuestion: 0 + 0?\nAnswer: 0\n\nQuestion: 1 + 1?\nAnswer:"
    assert (task.max_new_tokens, task.metric, task.third_party) == (24, "exact_match", True)
    assert "task sums (version 1.0), 1 examples shown, exact_match by the filter last" in task.source
    assert task.asked(first).extract is None
    for text, value, extracted in (
        (" 2", 1.0, "2"),
        ("1 + 1 = 2.", 1.0, "2"),
        ("2\n\nQuestion: 3 + 4?\nAnswer: 7", 1.0, "2"),
        ("It is 12", 0.0, "12"),
        ("", 0.0, None),
        ("zwei, ２, 二", 0.0, "２"),
    ):
        score = task.score(first, text)
        assert (score.value, score.correct, score.extracted) == (value, value == 1.0, extracted), text
    assert task.score(first, "").note == "no answer found"
    assert task.score(second, "12").correct, "questions are scored by themselves"


@pytest.mark.usefixtures("lm_eval")
def test_a_budget_by_another_name_or_none_and_one_stop_string(tmp_path: Path) -> None:
    task = open_task(write(tmp_path, generation_kwargs={"max_new_tokens": 7, "until": "STOP"}))
    assert task.max_new_tokens == 7
    assert task.score(task.questions()[0], "2 STOP 3").correct
    assert open_task(write(tmp_path, generation_kwargs={"until": [""]})).max_new_tokens == 256


@pytest.mark.usefixtures("lm_eval")
def test_options(tmp_path: Path) -> None:
    name = write(tmp_path)
    task = open_task(name, options={"num_fewshot": 0, "filter": "first", "category": "kind"})
    question = task.questions()[0]
    assert task.turns(question)[0][0].content == "Add.\n\nQuestion: 1 + 1?\nAnswer:"
    assert task.score(question, "2, not 3").correct
    assert [q.category for q in task.questions()] == ["easy", "häßlich"]
    chat = open_task(name, options={"chat": True})
    assert [(m.role, m.content) for m in chat.turns(question)[0]] == [
        ("system", "Add.\n\n"),
        ("user", "Question: 0 + 0?\nAnswer:"),
        ("assistant", "0"),
        ("user", "Question: 1 + 1?\nAnswer:"),
    ]
    assert question_hash(task, question) != question_hash(chat, question)


@pytest.mark.usefixtures("lm_eval")
@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({"output_type": "multiple_choice", "doc_to_choice": ["2", "3"], "doc_to_target": 0, "filter_list": None},
         {}, "scores it by 'multiple_choice', not by what a model writes"),
        ({"output_type": "loglikelihood", "filter_list": None, "metric_list": None, "generation_kwargs": None},
         {}, "scores it by 'loglikelihood'"),
        ({"unsafe_code": True}, {}, "in no sandbox; the tasks humaneval"),
        ({"repeats": 8}, {}, "its filters want 8 samples; use the reasoning `vote`"),
        ({"metric_list": [{"metric": "bleu", "aggregation": "bleu", "higher_is_better": True}]}, {},
         r"its metrics \(bleu\) score no single answers"),
        ({"doc_to_text": "{{question"}, {}, "lm-eval cannot open it"),
        ({"dataset_kwargs": {"data_files": {"test": "gone.jsonl"}}}, {}, "lm-eval cannot open it: .*gone"),
        ({}, {"filter": "frist"}, "option 'filter': no filter 'frist'; did you mean 'first'"),
        ({}, {"metric": "bleu"}, "option 'metric': no metric 'bleu' of single answers"),
        ({}, {"category": "knid"}, "option 'category': no field 'knid' in its data; did you mean 'kind'"),
        ({}, {"num_fewshot": -1}, "option 'num_fewshot'"),
        ({}, {"shots": 1}, "unknown option 'shots'"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(
    tmp_path: Path, changed: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        open_task(write(tmp_path, **changed), options=options)


@pytest.mark.usefixtures("lm_eval")
def test_a_metric_that_fails_on_an_answer_leaves_it_unscored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = open_task(write(tmp_path))
    assert isinstance(task, harness.HarnessTask)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(task.inner, "process_results", fail)
    score = task.score(task.questions()[0], "2")
    assert (score.value, score.correct, score.note) == (None, None, "lm-eval could not score it (ZeroDivisionError)")
    monkeypatch.setattr(task.inner, "process_results", lambda *_: {"exact_match": 73.0})
    score = task.score(task.questions()[0], "2")
    assert (score.value, score.note) == (None, "lm-eval's exact_match is not between 0 and 1")


@pytest.mark.slow
@pytest.mark.usefixtures("lm_eval")
def test_names_of_lm_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "hub_out_of_reach", lambda: "no network")
    for name, kind, message in (
        ("gsm8k", EnvironmentFault, r"its data could not be fetched from the hub \(no network\)"),
        ("gsm8kk", UserError, "lm-eval has no such task; did you mean 'gsm8k'"),
        ("mmlu", UserError, "a group of several tasks in lm-eval"),
        ("hellaswag", UserError, "scores it by 'multiple_choice'"),
        ("humaneval", UserError, "in no sandbox"),
    ):
        with pytest.raises(kind, match=message):
            open_task(f"lm_eval:{name}")


def test_without_the_package_the_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentFault, match=r"pip install 'joulewise\[lm-eval\]'"):
        open_task("lm_eval:gsm8k")


def plan_of(tasks: Any) -> dict[str, Any]:
    return {"name": "p", "engines": [{"kind": "transformers"}], "decodings": ["vanilla"], "tasks": tasks}


def test_in_a_plan(tmp_path: Path) -> None:
    write(tmp_path)
    tasks = [
        {"lm_eval": "gsm8k", "questions": 3},
        "lm_eval:sums.yaml",
        {"name": "lm_eval:aime24", "label": "aime", "options": {"num_fewshot": 2}},
        {"name": "lm_eval:a/b c"},
    ]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan_of(tasks)))
    plan = load_plan(tmp_path / "plan.yaml")
    assert [(spec.name, spec.label) for spec in plan.tasks] == [
        ("lm_eval:gsm8k", "gsm8k"),
        (f"lm_eval:{tmp_path / 'sums.yaml'}", "sums"),
        ("lm_eval:aime24", "aime"),
        ("lm_eval:a/b c", "a-b-c"),
    ]
    assert Plan.model_validate(plan.model_dump(mode="json")).content_hash == plan.content_hash


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("lm_eval:gone.yaml", r"plan\.yaml:\d+: tasks\[0\].*no file .*gone\.yaml"),
        ({"lm_eval": "gsm8k", "options": {"shots": 3}}, r"plan\.yaml:\d+: tasks\[0\]\.options\.shots: unknown option"),
        ({"lm_eval": 3}, r"tasks\[0\]"),
    ],
)
def test_faults_in_a_plan_are_told_with_their_place(tmp_path: Path, task: Any, message: str) -> None:
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan_of([task])))
    with pytest.raises(UserError, match=message):
        load_plan(tmp_path / "plan.yaml")

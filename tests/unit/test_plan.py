"""Plans: what is accepted, what is refused and in which words, and the grid that comes out."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError

from joulewise.errors import UserError
from joulewise.plan import Plan, load_plan
from joulewise.tasks.custom import CustomTask
from joulewise.yaml_file import in_words, parse_yaml

GOOD = """\
name: demo
engines:
  - kind: transformers
    model: default
decodings:
  - vanilla
  - {kind: coga, tokens: 5}
tasks:
  - {name: starter-maths, questions: 5}
"""


def parse(text: str) -> Plan:
    return parse_yaml(text, Plan, "plan.yaml")


def refused(text: str) -> str:
    with pytest.raises(UserError) as caught:
        parse(text)
    return str(caught.value)


def test_a_random_head_and_a_folder_of_such_a_name_may_be_named() -> None:
    plan = parse(GOOD.replace("transformers\n    model: default", "native\n    heads: {medusa: random}"))
    assert plan.engines[0].model_dump()["heads"] == {"medusa": "random"}
    assert parse(GOOD.replace("model: default", "draft: ./random")).engines[0].model_dump()["draft"] == "./random"


def test_a_plan_becomes_cells_in_grid_order() -> None:
    assert [c.cell_id for c in parse(GOOD).cells()] == [
        "default@transformers/vanilla/direct/starter-maths",
        "default@transformers/coga-5/direct/starter-maths",
    ]


def test_the_group_starter_stands_for_its_tasks() -> None:
    plan = parse(GOOD.replace("{name: starter-maths, questions: 5}", "{name: starter, questions: 5}"))
    assert [t.name for t in plan.tasks] == ["starter-maths", "starter-summarisation", "starter-choice", "starter-code"]
    assert {t.questions for t in plan.tasks} == {5}


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("tokens: 5", "token: 5", 7, "decodings[1].token: unknown key; did you mean 'tokens'?"),
        ("decodings:", "decoding:", 5, "decoding: unknown key; did you mean 'decodings'?"),
        ("- vanilla", "- vanila", 6, "did you mean 'vanilla'?"),
        ("kind: coga", "kind: coca", 7, "unknown kind 'coca'; did you mean 'coga'?"),
        ("tokens: 5", "tokens: 0", 7, "greater than or equal to 1 (found 0)"),
        ("model: default", "model: ''", 4, "engines[0].model: is empty: name something, or leave the key out"),
        ("model: default", "draft: ''", 4, "engines[0].draft: is empty: name something, or leave the key out"),
        ("kind: coga", "kind: coga, draft: ''", 7, "decodings[1].draft: is empty"),
        ("kind: coga, tokens: 5", "kind: medusa, head: ''", 7, "decodings[1].head: is empty"),
        ("kind: coga, tokens: 5", "kind: eagle3, head: ''", 7, "decodings[1].head: is empty"),
        ("transformers\n    model: default", "native\n    heads: {medusa: ''}", 4, "engines[0].heads.medusa: is empty"),
        (
            "model: default",
            "draft: random",
            4,
            "engines[0].draft: `random` stands for a head, and there is no such draft",
        ),
        ("kind: coga", "kind: coga, draft: random", 7, "decodings[1].draft: `random` stands for a head"),
        ("kind: coga", "kind: dyga, draft: random", 7, "decodings[1].draft: `random` stands for a head"),
        ("model: default", "model: random", 4, "engines[0].model: random stands for a draft or a head, and a model is"),
        ("model: default", "model: first-layers:4", 4, "engines[0].model: first-layers:4 stands for a draft or a head"),
        ("model: default", "model: shipped:draft", 4, "engines[0].model: shipped:draft stands for a draft or a head"),
        (
            "transformers\n    model: default",
            "native\n    heads: {eagle3: default}",
            4,
            "engines[0].heads.eagle3: default is a model, and a head is wanted",
        ),
        (
            "kind: coga, tokens: 5",
            "kind: medusa, head: first-layers:4",
            7,
            "decodings[1].head: first-layers:4 is a model, and a head is wanted",
        ),
        ("model: default", "modell: default", 4, "engines[0].modell: unknown key; did you mean 'model'?"),
        ("questions: 5", "question: 5", 9, "tasks[0].question: unknown key; did you mean 'questions'?"),
        ("name: demo", "name: de mo", 1, "name: must consist of letters, digits, '.', '_' and '-', and begin with"),
        (
            "model: default",
            "device: gpu",
            4,
            "engines[0].device: must be auto, cpu, cuda, cuda:N or balanced (found 'gpu",
        ),
        ("name: demo\n", "name: demo\nsampling: hot\n", 2, "sampling: must be a mapping, such as {key: value}"),
        ("name: demo\n", "name: demo\nexclude: {task: x}\n", 2, "exclude: must be a list, such as [a, b]"),
        ("name: demo\n", "name: demo\nrepeats: 2.5\n", 2, "repeats: must be a whole number (found 2.5)"),
        (
            "name: demo\n",
            "name: demo\ntemperature: 1\n",
            2,
            "unknown key; did you mean 'sampling: {temperature: ...}'?",
        ),
        (
            "name: starter-maths",
            "lm_eval: ",
            9,
            "tasks[0].lm_eval: must be the name of a task of lm-eval, such as arc_easy",
        ),
        ("questions: 5", "scoring: likelihood", 9, "options, questions; others go below 'options'"),
        (
            "name: demo\n",
            "name: demo\nreasonings: [{kind: vote, batched: maybe}]\n",
            2,
            "batched: must be true or false",
        ),
        (
            "name: demo\n",
            "name: demo\nreasonings: [{kind: best_of, by: reward}]\n",
            2,
            "reasonings[0]: 'by: reward' needs 'reward'",
        ),
        ("name: demo\n", "name: demo\nstop: {rule: fixed}\n", 2, "needs 'tokens'"),
        ("name: demo\n", "name: demo\nexclude:\n  - {decoding: eagle*}\n", 3, "exclude[0]: matches no cell"),
        ("name: demo\n", "name: demo\nexclude: [{}]\n", 2, "exclude: every cell is excluded"),
        ("- {kind: coga, tokens: 5}", "- vanilla", 7, "decodings[1]: two decodings have the label 'vanilla'"),
    ],
)
def test_faults_name_line_and_field_and_the_way_out(old: str, new: str, line: int, words: str) -> None:
    message = refused(GOOD.replace(old, new))
    assert words in message
    assert f"plan.yaml:{line}: " in message


def test_a_key_in_place_of_its_variables_name_is_told_in_words_and_never_shown() -> None:
    reward = "{url: 'http://localhost:8000/v1', key_env: sk-123}"
    message = refused(GOOD + f"reasonings: [{{kind: best_of, by: reward, reward: {reward}}}]\n")
    assert "key_env: must be the name of an environment variable, not what it holds" in message
    assert "sk-123" not in message


def test_no_pattern_is_told_as_a_regular_expression() -> None:
    def patterns(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            yield from (p for p in [node.get("pattern")] if isinstance(p, str))
            node = list(node.values())
        for part in node if isinstance(node, list) else []:
            yield from patterns(part)

    def refusal(text: str, pattern: str) -> ValidationError:
        with pytest.raises(ValidationError) as caught:
            TypeAdapter(Annotated[str, Field(pattern=pattern)]).validate_python(text)
        return caught.value

    found = {p for model in (Plan, CustomTask) for p in patterns(model.model_json_schema())}
    assert len(found) > 3
    for pattern in found:
        (error,) = refusal("", pattern).errors()
        assert re.match(r"must .*[a-zN]$", in_words(error)), pattern
        assert not re.search(r"[\\^$|*+]", in_words(error)), pattern


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        ("1.5", "synthetic_acceptance: must be less than or equal to 1 (found 1.5)"),
        ("half", "synthetic_acceptance: must be a number (found 'half')"),
        ("true", "synthetic_acceptance: it is no switch: give a rate from 0 to 1"),
        ("[0.9, 1.5]", "synthetic_acceptance[1]: must be less than or equal to 1 (found 1.5)"),
        ("[0.5, 0.9]", "synthetic_acceptance: a token is accepted only where the one before it is"),
    ],
)
def test_a_wrong_rate_is_one_fault_though_it_may_be_a_list(rate: str, words: str) -> None:
    message = refused(GOOD.replace("tokens: 5", f"tokens: 5, synthetic_acceptance: {rate}"))
    assert message.startswith(f"plan.yaml:7: decodings[1].{words}")
    assert len(message.splitlines()) == 1


def test_all_faults_are_told_at_once() -> None:
    message = refused(GOOD.replace("tokens: 5", "token: 5").replace("questions: 5", "question: 5"))
    assert len(message.splitlines()) == 2


def test_a_key_given_twice_is_refused() -> None:
    assert "plan.yaml:2: name: the key is given twice" in refused("name: a\n" + GOOD)


def test_broken_yaml_is_told_with_its_line() -> None:
    assert "not valid YAML" in refused("name: [demo\n")
    assert "expected a mapping" in refused("- a\n- b\n")
    assert "expected a mapping" in refused("")


def test_a_missing_file_is_told_with_a_way_to_a_plan(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: no such file; .*plans/.*joulewise schema"):
        load_plan(tmp_path / "none.yaml")


def test_a_tasks_file_in_place_of_a_plan_is_one_fault(tmp_path: Path) -> None:
    task = "name: w\nquestions: w.jsonl\nprompt: '{text}'\nreference: a\nscorer: exact\nmax_new_tokens: 8\n"
    (tmp_path / "w.yaml").write_text(task)
    with pytest.raises(UserError) as told:
        load_plan(tmp_path / "w.yaml")
    assert str(told.value) == (
        f"{tmp_path / 'w.yaml'}:1: the file: this is a task's file, not a plan; name it under 'tasks' in a plan"
    )


def test_exclusions_leave_cells_out() -> None:
    plan = parse(GOOD + "exclude:\n  - {decoding: 'coga*', task: starter-maths, reason: no draft}\n")
    assert [c.decoding.label for c in plan.cells()] == ["vanilla"]


CAPITALS = """\
name: capitals
questions: capitals.jsonl
prompt: "{country}?"
reference: capital
scorer: exact
max_new_tokens: 12
"""


def plan_file(folder: Path, tasks: str) -> Path:
    (folder / "mine").mkdir()
    (folder / "mine" / "task.yaml").write_text(CAPITALS)
    (folder / "plan.yaml").write_text(GOOD.replace("{name: starter-maths, questions: 5}", tasks))
    return folder / "plan.yaml"


def test_custom_tasks_are_found_beside_the_plan_and_labelled_by_their_own_name(tmp_path: Path) -> None:
    plan = load_plan(plan_file(tmp_path, "mine/task.yaml\nexclude: [{task: capitals, decoding: coga-5}]"))
    assert (plan.tasks[0].name, plan.tasks[0].label) == (str(tmp_path / "mine" / "task.yaml"), "capitals")
    assert [c.cell_id for c in plan.cells()] == ["default@transformers/vanilla/direct/capitals"]
    (tmp_path / "mine" / "task.yaml").unlink()
    recorded = Plan.model_validate(json.loads(plan.model_dump_json()))
    assert recorded == plan, "the plan in a run folder stands alone"


def test_a_label_tells_two_uses_of_a_task_apart(tmp_path: Path) -> None:
    twice = "gsm8k\n  - {name: gsm8k, label: gsm8k-train, options: {split: train}}"
    plan = load_plan(plan_file(tmp_path, twice))
    assert [(t.label, t.options) for t in plan.tasks] == [("gsm8k", {}), ("gsm8k-train", {"split": "train"})]
    assert Plan.model_validate(json.loads(plan.model_dump_json())).content_hash == plan.content_hash


@pytest.mark.parametrize(
    ("tasks", "line", "words"),
    [
        ("{name: startr}", 9, "tasks[0].name: unknown task 'startr'; did you mean 'starter'?"),
        ("startr", 9, "tasks[0]: unknown task 'startr'; did you mean 'starter'?"),
        ("starter\n  - gsm9k", 10, "tasks[1]: unknown task 'gsm9k'; did you mean 'gsm8k'?"),
        ("starter\n  - {name: gsm8k, question: 1}", 10, "tasks[1].question: unknown key; did you mean 'questions'?"),
        ("starter\n  - mine/none.yaml", 10, "tasks[1]: no file "),
        ("starter\n  - mine", 10, "tasks[1]: unknown task 'mine'"),
        ("starter\n  - starter-maths", 10, "tasks[1]: two tasks have the label 'starter-maths'; give each a 'label'"),
        (
            "{name: gsm8k, options: {spilt: train}}",
            9,
            "tasks[0].options.spilt: unknown option 'spilt'; did you mean 'split'?",
        ),
        ("{name: gsm8k, options: {split: dev}}", 9, "tasks[0].options.split: must be 'test' or 'train'"),
        ("{name: mmlu, options: {subjects: [7]}}", 9, "tasks[0].options.subjects[0]: "),
        (
            "{name: cnn_dm, options: {split: dev}}",
            9,
            "tasks[0].options.split: unknown option 'split'; this task has no opt",
        ),
        ("{name: gsm8k, label: a/b}", 9, "tasks[0].label: "),
    ],
)
def test_a_fault_of_a_task_names_its_line_in_the_plan(tmp_path: Path, tasks: str, line: int, words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_plan(plan_file(tmp_path, tasks))
    assert f"plan.yaml:{line}: {words}" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_fault_in_a_custom_tasks_file_names_that_file(tmp_path: Path) -> None:
    path = plan_file(tmp_path, "mine/task.yaml")
    (tmp_path / "mine" / "task.yaml").write_text(CAPITALS.replace("scorer: exact", "scorer: exakt"))
    with pytest.raises(UserError, match=r"mine/task\.yaml:5: scorer: "):
        load_plan(path)


def test_the_hash_tells_plans_apart_and_survives_a_round_trip() -> None:
    plan = parse(GOOD)
    again = Plan.model_validate(json.loads(plan.model_dump_json()))
    assert again.content_hash == plan.content_hash
    assert parse(GOOD.replace("tokens: 5", "tokens: 6")).content_hash != plan.content_hash


def test_shipped_plans_are_valid(repository: Path) -> None:
    plans = sorted((repository / "plans").glob("*.yaml"))
    assert plans
    for plan in plans:
        assert load_plan(plan).cells()


@settings(max_examples=50)
@given(st.text(max_size=200))
def test_no_text_gives_anything_but_a_plan_or_a_user_error(text: str) -> None:
    with contextlib.suppress(UserError):
        parse(text)


def test_quantising_a_draft_that_nobody_uses_is_a_fault() -> None:
    plan = {"name": "p", "tasks": ["starter-maths"], "engines": [{"draft_quantisation": "nf4"}]}
    with pytest.raises(ValueError, match="no decoding of this plan has a draft"):
        Plan.model_validate({**plan, "decodings": ["vanilla"]})
    assert Plan.model_validate({**plan, "decodings": ["vanilla", {"kind": "coga", "draft": "x"}]}).cells()

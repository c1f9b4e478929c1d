"""Custom tasks: a few lines of YAML and a JSON Lines file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joulewise.errors import EnvironmentFault, UserError
from joulewise.tasks import open_task

YAML = """\
name: capitals
questions: capitals.jsonl
prompt: "What is the capital of {country}? Name the city only."
reference: capital
scorer: exact
max_new_tokens: 12
"""
ROWS: list[dict[str, Any]] = [
    {"country": "France", "capital": "Paris", "code": 33, "area": "Europe"},
    {"country": "Japan", "capital": "Tokyo", "code": 81, "area": "Asia"},
]


def write(folder: Path, text: str = YAML, rows: list[dict[str, Any]] | None = None) -> str:
    (folder / "capitals.jsonl").write_text("\n".join(json.dumps(r) for r in (ROWS if rows is None else rows)))
    (folder / "capitals.yaml").write_text(text)
    return str(folder / "capitals.yaml")


def test_the_plain_case(tmp_path: Path) -> None:
    task = open_task(write(tmp_path))
    assert (task.name, task.third_party, task.metric, task.max_new_tokens) == ("capitals", False, "exact_match", 12)
    first, second = task.questions()
    assert (first.question_id, first.reference, first.category) == ("row-0", "Paris", None)
    assert task.turns(second)[0][0].content == "What is the capital of Japan? Name the city only."
    assert task.score(first, " paris\n").correct is True
    assert task.score(first, "Lyon").correct is False
    assert task.source == "custom task capitals.yaml"


def test_every_key(tmp_path: Path) -> None:
    more = "id: code\ncategory: area\nsource: an atlas (CC0)\nthird_party: true\n"
    task = open_task(write(tmp_path, YAML + more))
    assert [(q.question_id, q.category) for q in task.questions()] == [("33", "Europe"), ("81", "Asia")]
    assert task.third_party
    assert task.source == "an atlas (CC0)"


def test_a_list_becomes_lettered_options_and_double_braces_stay(tmp_path: Path) -> None:
    text = YAML.replace("{country}? Name the city only.", "{country}? {{letter}}\\n{options}").replace(
        "exact", "letter"
    )
    task = open_task(write(tmp_path, text, [{"country": "Peru", "options": ["Lima", "Cusco"], "capital": "A"}]))
    assert task.turns(task.questions()[0])[0][0].content == "What is the capital of Peru? {letter}\nA) Lima\nB) Cusco"


def test_braces_in_a_row_stay_as_they_are(tmp_path: Path) -> None:
    task = open_task(write(tmp_path, rows=[{"country": "{capital}", "capital": "x"}]))
    assert "{capital}" in task.turns(task.questions()[0])[0][0].content


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("scorer: exact", "scorer: [", r"capitals\.yaml:\d+: not valid YAML"),
        ("reference:", "refrence:", r"capitals\.yaml:4: refrence: unknown key; did you mean 'reference'"),
        ("scorer: exact", "scorer: exakt", r"capitals\.yaml:5: scorer: .*'exact'"),
        ("max_new_tokens: 12", "max_new_tokens: 0", r"capitals\.yaml:6: max_new_tokens: "),
        ("max_new_tokens: 12\n", "", r"max_new_tokens: this key is missing"),
        ("name: capitals", "name: my/capitals", r"capitals\.yaml:1: name: "),
        ("name: capitals", "name: gsm8k", r"capitals\.yaml: name: 'gsm8k' is a shipped task"),
        ("capitals.jsonl", "towns.jsonl", r"capitals\.yaml: questions: no file .*towns\.jsonl; .*relative"),
        ("{country}", "it", r"capitals\.yaml:3: prompt: no \{field\} placeholder"),
        ("{country}", "{country", r"capitals\.yaml:3: prompt: "),
        ("{country}", "{country:>9}", r"capitals\.yaml:3: prompt: the placeholder \{country\} has a format"),
        ("{country}", "{country.__class__}", r"capitals\.yaml:3: prompt: .*plain name"),
        ("{country}", "{}", r"capitals\.yaml:3: prompt: .*plain name"),
        ("{country}", "{country} {capital}", r"yaml:3: prompt: .*shows \{capital\}, which is the right answer"),
        ("{country}", "{land}", r"capitals\.yaml:3: prompt: no line of .*capitals\.jsonl has the field 'land'"),
        ("{country}", "{contry}", r"capitals\.yaml:3: prompt: no line .*'contry'; did you mean 'country'\?$"),
        ("reference: capital", "reference: city", r"capitals\.yaml:4: reference: no line .*'city'"),
        (
            "scorer: exact",
            "scorer: letter",
            r"none of 2 lines can be used; the first: .*jsonl:1: the field 'capital' is not one of the letters",
        ),
    ],
)
def test_a_fault_in_the_yaml_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in YAML
    with pytest.raises(UserError, match=message) as told:
        open_task(write(tmp_path, YAML.replace(old, new)))
    assert "--skip-bad" not in str(told.value)  # no other line fares better


def test_a_missing_yaml_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"mine\.yaml: no such file"):
        open_task(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capital": None}, r"capitals\.jsonl:2: the field 'capital' must be text or a number, found NoneType"),
        ({"capital": ["a"]}, r"capitals\.jsonl:2: the field 'capital' must be text or a number, found list"),
        ({"capital": "  "}, r"capitals\.jsonl:2: the field 'capital' is empty"),
        ({"country": {"name": "x"}}, r"capitals\.jsonl:2: the field 'country' .*or a list of texts, found dict"),
        ({"country": []}, r"capitals\.jsonl:2: the field 'country' .*or a list of texts, found list"),
        ({"code": 33}, r"capitals\.jsonl:2: the id '33' stands already at .*capitals\.jsonl:1"),
    ],
)
def test_a_fault_in_a_row(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"{message}.*; correct it, or use the other lines with --skip-bad$"):
        open_task(write(tmp_path, YAML + "id: code\n", [ROWS[0], ROWS[1] | change]))


def test_a_fault_in_the_only_row_advises_no_other(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"capitals\.jsonl:1: the field 'capital' is empty .*; correct it$"):
        open_task(write(tmp_path, YAML, [ROWS[0] | {"capital": " "}]))


def test_a_field_that_only_some_rows_have(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"capitals\.jsonl:2: no field 'area', which the task's 'category' names"):
        open_task(write(tmp_path, YAML + "category: area\n", [ROWS[0], {"country": "x", "capital": "y"}]))


def test_an_empty_file_and_a_broken_line(tmp_path: Path) -> None:
    path = write(tmp_path, rows=[])
    with pytest.raises(UserError, match=r"capitals\.jsonl: holds no questions"):
        open_task(path)
    (tmp_path / "capitals.jsonl").write_text(json.dumps(ROWS[0]) + "\n{country: France}\n")
    with pytest.raises(UserError, match=r"capitals\.jsonl:2: not valid JSON"):
        open_task(path)


def test_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no options"):
        open_task(write(tmp_path), options={"split": "test"})


def test_a_missing_extra_is_said_when_the_task_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulewise.tasks.scorers.find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match=r"task capitals: .*'rouge_score'.*joulewise\[score\]"):
        open_task(write(tmp_path, YAML.replace("exact", "rouge")))
    assert open_task(write(tmp_path)).metric == "exact_match"

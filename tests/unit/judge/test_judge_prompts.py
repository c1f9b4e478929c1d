"""What a judge is asked, and what is taken from what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joulewise.errors import UserError
from joulewise.judge.prompts import PUBLISHED_FILE, REFERENCES_FILE, grade, open_prompts, open_references, verdict


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Good. Rating: [[7]]", 7.0),
        ("[[ 8.5 ]]", 8.5),
        ("A form such as [[5]] was asked for; I give [[3]].", 3.0),
        ("<think>[[9]]</think> [[2]]", 2.0),
        ("<think>[[9]]", None),
        ("[[0]]", None),
        ("[[11]]", None),
        ("[[-3]]", None),
        ("[[seven]]", None),
        ("[[7/10]]", None),
        ("7", None),
        ("", None),
        ("[[٧]]", 7.0),
        ("[[" + "9" * 5_000 + "]]", None),
    ],
)
def test_grades(text: str, found: float | None) -> None:
    assert grade(text) == found


@pytest.mark.parametrize(
    ("text", "found"), [("[[A]]", "A"), ("Not [[A]] but [[C]]", "C"), ("[[D]]", None), ("[[a]]", None), ("A", None)]
)
def test_verdicts(text: str, found: str | None) -> None:
    assert verdict(text) == found


TEXTS = {
    **{name: name.upper() for name in ("question", "question_1", "question_2", "ref_answer_1", "ref_answer_2")},
    **{f"answer{who}{turn}": f"<answer{who}{turn}>" for who in ("", "_a", "_b") for turn in ("", "_1", "_2")},
}


@pytest.mark.parametrize("kind", ["single", "pair"])
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("turn", [1, 2])
def test_the_judge_sees_question_answers_and_a_reference_where_there_is_one(kind: Any, guided: bool, turn: int) -> None:
    system, user = open_prompts(None).templates[kind, guided, turn].messages(TEXTS)
    assert system["role"] == "system"
    said = user["content"]
    numbers = ("",) if turn == 1 else ("_1", "_2")
    who = ("",) if kind == "single" else ("_a", "_b")
    assert all(f"<answer{w}{n}>" in said and f"QUESTION{n.upper()}" in said for w in who for n in numbers)
    assert ("REF_ANSWER_1" in said, "REF_ANSWER_2" in said) == (guided, guided and turn == 2)
    assert ("[[4]]" in said, "[[C]]" in said) == (kind == "single", kind == "pair")


def test_braces_in_an_answer_are_no_placeholders() -> None:
    template = open_prompts(None).templates["single", False, 1]
    said = template.messages(TEXTS | {"answer": "{question} {0} {x!r}"})[-1]["content"]
    assert "{question} {0} {x!r}" in said


def published(**changed: str) -> str:
    names = [f"{kind}{subject}{turns}" for kind, subject, turns in (
        *((f"single{m}-v1", "", t) for m in ("", "-math") for t in ("", "-multi-turn")),
        *(("pair-v2", "", t) for t in ("", "-multi-turn")),
        *(("pair-math-v1", "", t) for t in ("", "-multi-turn")),
    )]  # fmt: skip
    rows = [{"name": n, "system_prompt": "Judge!", "prompt_template": changed.get(n, "{question}")} for n in names]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_published_prompts_in_the_data_folder_are_used_and_named(tmp_path: Path) -> None:
    (tmp_path / PUBLISHED_FILE).write_text(published(**{"single-v1": "Q {question} A {answer}"}))
    prompts = open_prompts(tmp_path)
    assert prompts.name.startswith("published-")
    assert prompts.templates["single", False, 1].messages(TEXTS) == [
        {"role": "system", "content": "Judge!"},
        {"role": "user", "content": "Q QUESTION A <answer>"},
    ]
    assert open_prompts(tmp_path / "elsewhere").name == "joulewise-1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (published(**{"single-v1": "{ref_answer_1}"}), r":1: the template holds \{ref_answer_1\}"),
        (published().partition("\n")[2], "no template 'single-v1'"),
        ("{", "not valid JSON"),
        ('{"name": "single-v1"}\n', "the field 'system_prompt' is missing"),
    ],
)
def test_broken_prompts_are_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / PUBLISHED_FILE).write_text(text)
    with pytest.raises(UserError, match=message):
        open_prompts(tmp_path)


def test_reference_answers(tmp_path: Path) -> None:
    assert open_references(None) == open_references(tmp_path) == {}
    row = {"question_id": 101, "choices": [{"turns": ["one", "two"]}]}
    (tmp_path / REFERENCES_FILE).write_text(json.dumps(row))
    assert open_references(tmp_path) == {"101": ("one", "two")}
    (tmp_path / REFERENCES_FILE).write_text(json.dumps(row | {"choices": []}))
    with pytest.raises(UserError, match="'choices' holds no answer"):
        open_references(tmp_path)


def test_the_real_files(shared_data: Path) -> None:
    assert open_prompts(shared_data).name == "published-fd283293"
    assert len(open_references(shared_data)) == 30

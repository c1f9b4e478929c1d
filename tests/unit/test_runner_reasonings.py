"""Reasonings through the loop: what does not go together is refused before anything runs, joules hold all requests."""

from __future__ import annotations

from pathlib import Path

import pytest

import scripted_engine
from joulewise.energy.meter import Meter
from joulewise.errors import UserError
from joulewise.ledger import load, read_ledger
from joulewise.plan import load_plan
from joulewise.runner import run
from joulewise.schedule import check_reasonings, open_tasks
from scripted_runs import make_plan, questions_task

pytestmark = pytest.mark.usefixtures("scripted")


def stepwise_task(folder: Path, prompts: list[str]) -> str:
    task = questions_task(folder, prompts)
    with Path(task).open("a") as file:
        file.write("cot_prompt: 'Step by step: {text}'\n")
    return task


def test_cells_of_two_reasonings_differ_in_what_is_asked(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(stepwise_task(tmp_path, ["a", "b"]), reasonings=["direct", {"kind": "cot", "max_new_tokens": 4}])
    result = run(plan, tmp_path / "run", meter=meter)
    assert (result.done, result.failed, result.different) == (12, 0, 0)
    rows = load(result).arrow.to_pylist()
    assert {(r["reasoning"], r["output_tokens"]) for r in rows} == {("direct", 8), ("cot-4", 4)}
    assert {r["check_status"] for r in rows if r["decoding"] != "vanilla"} == {"identical"}
    prompts = {prompt for _, prompt in scripted_engine.CALLS if "Count" not in prompt}
    assert prompts == {"a", "b", "Step by step: a", "Step by step: b"}


def test_a_stated_answer_is_what_is_scored(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(stepwise_task(tmp_path, ["a"]), reasonings=["direct", "cot"], decodings=["vanilla"])
    trials = {
        t.reasoning: t for t in read_ledger(run(plan, tmp_path / "run", meter=meter).folder / "ledger.jsonl").trials
    }
    said = trials["cot-256"].generations[0].text
    assert said is not None
    assert (said.startswith("Answer: "), trials["cot-256"].extracted) == (True, said.removeprefix("Answer: "))
    assert (trials["direct"].extracted or "").startswith("answer: ")


def test_a_task_that_a_reasoning_cannot_answer_is_refused_before_anything_runs(tmp_path: Path, meter: Meter) -> None:
    tasks = [questions_task(tmp_path, ["a"], "plain"), "starter-summarisation"]
    plan = make_plan(tasks, reasonings=["direct", "cot"])
    with pytest.raises(UserError) as caught:
        run(plan, tmp_path / "run", meter=meter)
    told = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in told] == [
        "reasoning cot-256 cannot answer task plain",
        "reasoning cot-256 cannot answer task starter-summarisation",
    ]
    assert "exclude: [{reasoning: 'cot-256', task: 'plain'}]" in told[0]
    assert scripted_engine.CALLS == []
    assert not (tmp_path / "run").exists()


def test_the_way_out_that_is_told_leads_out(tmp_path: Path) -> None:
    tasks = [questions_task(tmp_path, ["a"], "plain"), "starter-maths"]
    plan = make_plan(tasks, reasonings=["direct", "cot"], exclude=[{"reasoning": "cot-256", "task": "plain"}])
    check_reasonings(plan, open_tasks(plan, None, None))


@pytest.mark.parametrize(
    ("reasoning", "words"),
    [
        ("ctо", "unknown name"),  # a Cyrillic letter
        ("{kind: cot, max_new_tokens: 0}", "max_new_tokens"),
        ("{kind: cot, budget: 3}", "budget: unknown key; known: kind, max_new_tokens"),
        ("{kind: few_shot, examples: 0}", "examples"),
        ("{max_new_tokens: 3}", "the key 'kind' is missing"),
    ],
)
def test_a_wrong_reasoning_is_told_with_its_place(tmp_path: Path, reasoning: str, words: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(
        "name: x\nengines: [{kind: transformers}]\ndecodings: [vanilla]\ntasks: [starter-maths]\n"
        f"reasonings:\n  - {reasoning}\n"
    )
    with pytest.raises(UserError, match=words) as caught:
        load_plan(file)
    assert f"{file}:6" in str(caught.value)

"""What a plan says of loads, and what it refuses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from joulewise.errors import UserError
from joulewise.plan import Plan, load_plan
from joulewise.schedule import Job, blocks, open_tasks, schedule
from joulewise.traffic.loads import Loads
from scripted_runs import questions_task

PLAN = """name: served
engines:
  - {kind: endpoint, url: "http://localhost:8000/v1", model: m}
decodings: [vanilla]
tasks: [starter-maths]
loads:
  - {kind: closed, concurrency: [1, 4], duration_s: 10}
  - {kind: poisson, rate: 0.5}
slo: {to_first_s: 0.5}
"""


def planned(folder: Path, text: str) -> Plan:
    (folder / "plan.yaml").write_text(text)
    return load_plan(folder / "plan.yaml")


def test_the_grid_has_a_cell_for_each_level(tmp_path: Path) -> None:
    plan = planned(tmp_path, PLAN)
    assert [cell.cell_id for cell in plan.cells()] == [
        f"m@localhost-8000/vanilla/direct/starter-maths/{load}" for load in ("c1", "c4", "r0.5")
    ]
    stretches = [cell.load for cell in plan.cells()]
    assert [(s.level, s.duration_s) for s in stretches if s is not None] == [(1.0, 10.0), (4.0, 10.0), (0.5, 60.0)]
    again = Plan.model_validate(plan.model_dump(mode="json"))
    assert again == plan
    assert again.content_hash == plan.content_hash


def test_without_loads_a_cell_is_as_before(tmp_path: Path) -> None:
    plan = planned(tmp_path, PLAN.partition("loads:")[0])
    (cell,) = plan.cells()
    assert (cell.cell_id, cell.task_label, cell.load) == (
        "m@localhost-8000/vanilla/direct/starter-maths",
        "starter-maths",
        None,
    )


@pytest.mark.parametrize(
    ("load", "told"),
    [
        ("{kind: poisson, rate: []}", "loads[0].rate: is empty: give at least one"),
        ("{kind: closed, concurrency: 0}", "loads[0].concurrency: must be greater than or equal to 1 (found 0)"),
        ("{kind: closed, concurrency: }", "loads[0].concurrency: must be a whole number"),
        (
            "{kind: closed, concurrency: 1000000000}",
            "loads[0].concurrency: must be less than or equal to 20000 (found 1000000000)",
        ),
        (
            "{kind: closed, concurrency: 1, to_concurrency: 1000000}",
            "loads[0].to_concurrency: must be less than or equal to 20000 (found 1000000)",
        ),
        ("{kind: poisson, rate: 1e9}", "loads[0].rate: must be less than or equal to 10000 (found '1e9')"),
        ("{kind: poisson, rate: 10001}", "loads[0].rate: must be less than or equal to 10000 (found 10001)"),
        ("{kind: replay, trace: [a.csv]}", "loads[0].trace: must be a text"),
        ("{concurrency: 4}", "loads[0]: the key 'kind' is missing; known kinds: closed, poisson, replay"),
    ],
)
def test_what_is_no_load_is_told_in_our_own_words(tmp_path: Path, load: str, told: str) -> None:
    with pytest.raises(UserError) as refused:
        planned(tmp_path, PLAN.partition("loads:")[0] + f"loads:\n  - {load}\n")
    assert str(refused.value) == f"{tmp_path / 'plan.yaml'}:7: {told}"


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("url: 5", "url: must be a text or a mapping, such as {key: value} (found 5)"),
        ("url: 'http://h/v1', api: fast", "api: must be 'auto', 'chat' or 'completions' (found 'fast')"),
        ("url: 'http://h/v1', model: 5", "model: must be a text (found 5); put it in quotes"),
        ("url: 'http://h/v1', timeout_s: .inf", "timeout_s: must be a finite number (found inf)"),
        ("server: {kind: vllm, model: ''}", "server.model: is empty: name something, or leave the key out"),
        ("server: {kind: vllm, port: 70000}", "server.port: must be less than or equal to 65535 (found 70000)"),
        ("server: {kind: vllm, env: {A: 1}}", "server.env.A: must be a text (found 1); put it in quotes"),
        (
            "server: {kind: vllm, args: {a: }}",
            "server.args.a: must be true or false or a whole number or a number or a text or a list, such as [a, b] "
            "or a mapping, such as {key: value}",
        ),
    ],
)
def test_what_is_no_server_is_told_in_our_own_words(tmp_path: Path, engine: str, told: str) -> None:
    with pytest.raises(UserError) as refused:
        planned(tmp_path, f"name: a\nengines: [{{kind: endpoint, {engine}}}]\ndecodings: [vanilla]\ntasks: [starter]\n")
    assert str(refused.value) == f"{tmp_path / 'plan.yaml'}:2: engines[0].{told}"


@pytest.mark.parametrize(("text", "found"), [("", "nothing: the file is empty"), ("- a", "a list"), ("3", "3")])
def test_what_is_no_plan_at_all(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(UserError, match=f"expected a mapping of keys to values at the top, found {found}$"):
        planned(tmp_path, text)


@pytest.mark.parametrize(
    ("loads", "labels", "ramps"),
    [
        ({"kind": "closed", "concurrency": 8}, ["c8"], [False]),
        ({"kind": "closed", "concurrency": [1, 8], "to_concurrency": 8}, ["c1-8", "c8-8"], [True, False]),
        ({"kind": "poisson", "rate": [2, 0.25]}, ["r2", "r0.25"], [False, False]),
        ({"kind": "poisson", "rate": 1, "to_rate": 4}, ["r1-4"], [True]),
        ({"kind": "replay", "trace": "code.csv", "speed": [1, 0.5]}, ["code-x1", "code-x0.5"], [False, False]),
    ],
)
def test_labels_and_levels(loads: dict[str, Any], labels: list[str], ramps: list[bool]) -> None:
    found = TypeAdapter(Loads).validate_python(loads).each()
    assert [stretch.label for stretch in found] == labels
    assert [stretch.ramp for stretch in found] == ramps
    assert all(stretch.level is None for stretch in found if stretch.ramp or loads["kind"] == "replay")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'kind: endpoint, url: "http://localhost:8000/v1", model: m',
            "kind: native",
            r"plan.yaml:3: engines\[0\].kind: ",
        ),
        ("[1, 4]", "[4, 4]", r"plan.yaml:7: loads\[0\]: two loads have the label 'c4'"),
        ("[1, 4]", "[0]", r"plan.yaml:7: loads\[0\].concurrency\[0\]: "),
        ("duration_s: 10", "duration_s: 4000", r"plan.yaml:7: loads\[0\].duration_s: "),
        ("kind: poisson", "kind: poison", r"plan.yaml:8: loads\[1\]: .*did you mean 'poisson'"),
        ("kind: poisson, rate: 0.5", "kind: replay, trace: none.csv", r"plan.yaml:8: loads\[1\].trace: no file "),
        ("slo:", "reasonings: [{kind: vote, samples: 3}]\nslo:", "vote-3 asks several requests a question"),
        ("slo:", "target: {relative_half_width: 0.1, max_s: 9}\nslo:", "target: goes on question by question"),
        (
            "loads:\n  - {kind: closed, concurrency: [1, 4], duration_s: 10}\n  - {kind: poisson, rate: 0.5}\n",
            "",
            "plan.yaml:6: slo: is about requests under load, and the plan has no 'loads'",
        ),
    ],
)
def test_what_does_not_go_is_refused_with_its_place(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in PLAN
    with pytest.raises(UserError, match=words):
        planned(tmp_path, PLAN.replace(old, new))


def test_a_load_can_be_left_out_of_a_decoding(tmp_path: Path) -> None:
    more = "exclude: [{load: 'c*', decoding: vanilla}]\n"
    assert [cell.task_label for cell in planned(tmp_path, PLAN + more).cells()] == ["starter-maths/r0.5"]


def jobs_of(folder: Path, repeats: int, seed: int, side_by_side: bool, order: str) -> list[Job]:
    plan = Plan.model_validate(
        {
            "name": "test",
            "engines": [{"kind": "endpoint", "server": {"kind": "llamacpp", "side_by_side": side_by_side}}],
            "decodings": ["vanilla", "prompt_lookup"],
            "tasks": [questions_task(folder, ["a1", "a2"], "a"), questions_task(folder, ["b"], "b")],
            "loads": [{"kind": "closed", "concurrency": [1, 2, 16]}],
            "repeats": repeats,
            "seed": seed,
            "order": order,
        }
    )
    return schedule(plan, open_tasks(plan, None, None))


@given(st.integers(1, 3), st.integers(0, 20), st.booleans(), st.sampled_from(["interleaved", "sequential"]))
@settings(max_examples=20, deadline=None)
def test_each_cell_has_one_stretch_a_repeat(
    tmp_path_factory: Any, repeats: int, seed: int, side_by_side: bool, order: str
) -> None:
    jobs = jobs_of(tmp_path_factory.mktemp("plan"), repeats, seed, side_by_side, order)
    assert len({job.trial_id for job in jobs}) == len(jobs) == 2 * 2 * 3 * repeats
    assert set(Counter(job.cell.cell_id for job in jobs).values()) == {repeats}
    if side_by_side and order == "interleaved":
        # The decodings of one load take turns, so that drift falls on both alike.
        for block in blocks(jobs):
            assert {job.cell.decoding.kind for job in block} == {"vanilla", "prompt_lookup"}
            assert len({job.cell.task_label for job in block}) == 1

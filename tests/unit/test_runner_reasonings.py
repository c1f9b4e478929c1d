"""Reasonings through the loop: what does not go together is refused before anything runs, joules hold all requests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

import scripted_engine
from joulewise.decoding import Decoding
from joulewise.energy.meter import Meter, Window
from joulewise.energy.part import Part
from joulewise.engines.engine import THINKING_SWITCH, Cut, Generation, Message, Request
from joulewise.errors import ChoiceError, UserError
from joulewise.ledger import load
from joulewise.ledger_columns import quick_rows
from joulewise.ledger_lines import read_ledger
from joulewise.plan import load_plan
from joulewise.reasoning.reward import RewardSpec
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


ANSWERS = {"even": ["4", "5", "4", "6"], "split": ["1", "2", "3", "3"], "mute": ["", "", "", "9"]}


@pytest.fixture
def known_answers(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The scripted engine answers a question's requests one after another from ``ANSWERS``; what it was asked."""
    asked: list[Request] = []
    generate = scripted_engine.ScriptedEngine.generate
    count: Counter[tuple[str, str]] = Counter()

    def answer(engine: object, request: Request, decoding: Decoding) -> Generation:
        generation = generate(engine, request, decoding)
        prompt = request.messages[-1].content
        if prompt not in ANSWERS:
            return generation
        asked.append(request)
        count[decoding.label, prompt] += 1
        return replace(generation, text=ANSWERS[prompt][count[decoding.label, prompt] - 1])

    monkeypatch.setattr(scripted_engine.ScriptedEngine, "generate", answer)
    return asked


def test_a_vote_s_joules_hold_all_its_samples(tmp_path: Path, meter: Meter, known_answers: list[Request]) -> None:
    plan = make_plan(questions_task(tmp_path, list(ANSWERS)), reasonings=[{"kind": "vote", "samples": 4}])
    result = run(plan, tmp_path / "run", meter=meter)
    trials = read_ledger(result.folder / "ledger.jsonl").trials
    rows = {row["trial_id"]: row for row in load(result).arrow.to_pylist()}
    told = {"q0": ("4", ("4", "5", "4")), "q1": ("3", ("1", "2", "3", "3")), "q2": ("9", (None, None, None, "9"))}
    for trial in trials:
        assert (trial.extracted, trial.votes) == told[trial.question_id]
        assert trial.start_s <= trial.generations[0].start_s
        assert trial.generations[-1].end_s <= trial.end_s
        row = rows[trial.trial_id]
        assert row["gpu_energy_j"] == pytest.approx(100.0 * trial.duration_s, rel=0.5, abs=1e-3)
        assert (row["generation_count"], row["output_tokens"]) == (len(trial.votes), 8 * len(trial.votes))
    # The same samples for every decoding of a question, and in number and order of the same seeds.
    by_prompt = Counter((request.messages[-1].content, request.seed) for request in known_answers)
    assert set(by_prompt.values()) == {3}
    assert len(by_prompt) == 3 + 4 + 4


def test_a_batched_vote_is_told_as_one_batch(tmp_path: Path, meter: Meter, known_answers: list[Request]) -> None:
    votes = [{"kind": "vote", "samples": 4, "batched": True}]
    plan = make_plan(questions_task(tmp_path, ["even"]), reasonings=votes, decodings=["vanilla"])
    told: list[str] = []
    result = run(plan, tmp_path / "run", meter=meter, on_progress=lambda progress: told.append(progress.text))
    (trial,) = read_ledger(result.folder / "ledger.jsonl").trials
    assert (trial.reasoning, trial.extracted, trial.votes) == ("vote-4-batched", "4", ("4", "5", "4", "6"))
    assert len({(g.start_s, g.end_s) for g in trial.generations}) == 1
    assert [g.first_token_s is None for g in trial.generations] == [False, True, True, True]
    (row,) = load(result).arrow.to_pylist()
    assert (row["generation_count"], row["prefill_s"], row["running"]) == (4, None, None)
    assert told.count("warming up vanilla, 4 texts at once") == 1


def test_what_an_engine_cannot_do_side_by_side_is_refused_before_anything_runs(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a"]), reasonings=["direct", {"kind": "vote", "batched": True}])
    with pytest.raises(UserError) as caught:
        run(plan, tmp_path / "run", meter=meter)
    coga, lookup = str(caught.value).splitlines()
    assert coga.startswith("engine toy cannot do vote-3-batched by coga-5: coga-5 cannot run several at once; leave")
    assert "exclude: [{engine: 'toy', decoding: 'prompt-lookup-10', reasoning: 'vote-3-batched'}]" in lookup
    assert scripted_engine.CALLS == []


def test_answers_that_a_vote_samples_are_not_compared_with_vanilla_s(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan(questions_task(tmp_path, ["a"]), reasonings=["direct", "vote"])
    rows = load(run(plan, tmp_path / "run", meter=meter)).arrow.to_pylist()
    told = {(r["reasoning"], r["check_status"], r["check_note"]) for r in rows if r["decoding"] != "vanilla"}
    assert told == {("direct", "identical", None), ("vote-3", "not_checked", "sampled output")}


def test_a_vote_that_may_quote_others_work_is_not_kept(
    tmp_path: Path, meter: Meter, known_answers: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = questions_task(tmp_path, list(ANSWERS))
    with Path(task).open("a") as file:
        file.write("third_party: true\n")
    monkeypatch.setitem(ANSWERS, "split", ["1", "word " * 20, "1", "1"])
    plan = make_plan(task, reasonings=[{"kind": "vote", "samples": 4}], decodings=["vanilla"])
    trials = read_ledger(run(plan, tmp_path / "run", meter=meter).folder / "ledger.jsonl").trials
    assert {t.question_id: (t.extracted, t.votes) for t in trials} == {
        "q0": ("4", ("4", "5", "4")),
        "q1": ("1", None),
        "q2": ("9", (None, None, None, "9")),
    }


def test_a_vote_on_open_answers_is_refused(tmp_path: Path, meter: Meter) -> None:
    plan = make_plan("starter-summarisation", reasonings=["vote"])
    with pytest.raises(UserError, match="reasoning vote-3 cannot answer task starter-summarisation: no answer is"):
        run(plan, tmp_path / "run", meter=meter)


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
        ("{kind: budget, tokens: 0}", "tokens"),
        ("{kind: vote, samples: 0}", "samples"),
        ("{kind: vote, of: vote}", "of"),
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


def test_what_was_chosen_and_by_whom_is_kept(tmp_path: Path, meter: Meter, known_answers: list[Request]) -> None:
    task = questions_task(tmp_path, ["even"])
    (tmp_path / "words.jsonl").write_text('{"id": "q0", "text": "even", "answer": "6"}\n')
    best = {"kind": "best_of", "samples": 4, "by": "oracle"}
    plan = make_plan(task, reasonings=[best], decodings=["vanilla"])
    (trial,) = read_ledger(run(plan, tmp_path / "run", meter=meter).folder / "ledger.jsonl").trials
    assert (trial.extracted, trial.correct, trial.ratings) == ("6", True, (0.0, 0.0, 0.0, 1.0))
    assert (trial.note, len(trial.generations)) == ("chosen by who knows the answer", 4)
    assert load(tmp_path / "run").warnings == ("run: best-of-4-oracle: chosen by who knows the answer (1 Trial)",)
    assert not any(request.log_probability for request in known_answers)


def test_who_cannot_choose_fails_the_trial_and_no_other(
    tmp_path: Path, meter: Meter, known_answers: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rate(_: RewardSpec, messages: Sequence[Message], answer: str) -> float:
        if messages[0].content == "split":
            raise ChoiceError("who chooses is down")
        return float(answer or 0)

    monkeypatch.setattr(RewardSpec, "rate", rate)
    best = {"kind": "best_of", "samples": 3, "by": "reward", "reward": {"url": "http://rater:1/x"}}
    plan = make_plan(questions_task(tmp_path, list(ANSWERS)), reasonings=[best], decodings=["vanilla"])
    result = run(plan, tmp_path / "run", meter=meter)
    assert (result.done, result.failed) == (3, 1)
    trials = {t.question_id: t for t in read_ledger(result.folder / "ledger.jsonl").trials}
    assert (trials["q1"].status, trials["q1"].error, trials["q1"].generations) == ("failed", "who chooses is down", ())
    assert (trials["q0"].extracted, trials["q0"].ratings) == ("5", (4.0, 5.0, 4.0))
    assert trials["q0"].note == "the joules of rater:1, which chose, are unknown"


def test_thinking_that_a_model_cannot_be_told_to_is_refused(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    thinking = {"kind": "vote", "of": {"kind": "cot", "thinking": True}}
    plan = make_plan(stepwise_task(tmp_path, ["a"]), reasonings=["cot", thinking], decodings=["vanilla"])
    with pytest.raises(UserError) as caught:
        run(plan, tmp_path / "run", meter=meter)
    assert "reasoning vote-3-cot-256-thinking asks for the own thinking of default" in str(caught.value)
    assert "exclude: [{engine: 'toy', reasoning: 'vote-3-cot-256-thinking'}]" in str(caught.value)
    assert scripted_engine.CALLS == []
    load_it = scripted_engine.ScriptedEngine.load
    monkeypatch.setattr(
        scripted_engine.ScriptedEngine, "load", lambda *args: replace(load_it(*args), notes=(THINKING_SWITCH,))
    )
    assert run(plan, tmp_path / "again", meter=meter).failed == 0


def test_a_probe_s_joules_are_not_the_budget_s(tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = scripted_engine.ScriptedEngine.generate

    def cut(engine: object, request: Request, decoding: Decoding) -> Generation:
        made = generate(engine, request, decoding)
        if request.messages[-1].role == "assistant":
            return replace(made, text="1" if "half" in request.messages[-1].content else "2")
        cuts = (Cut(2, "half", made.end_s), Cut(4, "answer: 2.", None))
        return replace(made, text="answer: 3.", token_ids=made.token_ids[:5], cuts=cuts)

    monkeypatch.setattr(scripted_engine.ScriptedEngine, "generate", cut)
    budget = {"kind": "budget", "tokens": 8, "probes": [2, 4, 6]}
    plan = make_plan(stepwise_task(tmp_path, ["a"]), reasonings=[budget], decodings=["vanilla"])
    (trial,) = read_ledger(run(plan, tmp_path / "run", meter=meter).folder / "ledger.jsonl").trials
    assert (trial.reasoning, trial.extracted, len(trial.generations)) == ("budget-8", "3", 1)
    half, stated, ended = trial.probes
    assert [(p.tokens, p.extracted, p.correct) for p in trial.probes] == [
        (2, "1", True),
        (4, "2", False),
        (6, "3", False),
    ]
    assert half.closing is not None
    assert half.closing.start_s >= trial.end_s
    assert {e.component for e in half.closing_energy or ()} == {e.component for e in trial.energy}
    assert half.energy is not None
    assert (stated.closing, stated.closing_energy, stated.energy) == (None, None, None)
    assert (ended.closing, ended.energy is None) == (None, False)
    # In tables each is a row of the budget that it stands for; what is not known up to a token is left out.
    table = load(tmp_path / "run").arrow
    rows = {row["reasoning"]: row for row in table.to_pylist()}
    assert set(rows) == {"budget-2", "budget-6", "budget-8"}
    row, closing_s = rows["budget-2"], half.closing.end_s - half.closing.start_s
    assert half.time_s is not None
    assert row["duration_s"] == pytest.approx(half.time_s - trial.start_s + closing_s)
    joules = [
        next(e.energy_j for e in part or () if e.component == "gpu") for part in (half.energy, half.closing_energy)
    ]
    assert None not in joules
    assert row["gpu_energy_j"] == pytest.approx(sum(joules))  # type: ignore[arg-type]
    assert (row["correct"], row["output_tokens"], row["generation_count"]) == (True, 2 + 8, 2)
    assert (row["probe_of"], row["trial_id"].split("|")[0]) == (trial.trial_id, row["cell_id"])
    assert (rows["budget-8"]["probe_of"], rows["budget-8"]["generation_count"]) == (None, 1)
    assert rows["budget-6"]["output_tokens"] == rows["budget-8"]["output_tokens"]
    # The quick reader leaves them to the strict one.
    assert quick_rows("run", tmp_path / "run" / "ledger.jsonl") is None
    assert load(tmp_path / "run").arrow.equals(table)


def test_a_budget_that_another_one_probes_is_named_once(tmp_path: Path) -> None:
    budgets = [{"kind": "budget", "tokens": 8}, {"kind": "budget", "tokens": 9, "probes": [4, 8]}]
    with pytest.raises(ValidationError, match="two reasonings have the label 'budget-8'; remove one"):
        make_plan(stepwise_task(tmp_path, ["a"]), reasonings=budgets)


def test_a_probe_that_does_not_fit_fails_alone(tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = scripted_engine.ScriptedEngine.generate

    def cut(engine: object, request: Request, decoding: Decoding) -> Generation:
        made = generate(engine, request, decoding)
        return replace(made, text="answer: 3.", cuts=tuple(Cut(k, "OVERLONG", None) for k in request.cuts))

    monkeypatch.setattr(scripted_engine.ScriptedEngine, "generate", cut)
    budget = {"kind": "budget", "tokens": 8, "probes": [2]}
    plan = make_plan(stepwise_task(tmp_path, ["a"]), reasonings=[budget], decodings=["vanilla"])
    (trial,) = read_ledger(run(plan, tmp_path / "run", meter=meter).folder / "ledger.jsonl").trials
    (probe,) = trial.probes
    assert (trial.status, trial.extracted, probe.correct) == ("ok", "3", None)
    assert "do not fit the context" in (probe.error or "")


def test_what_is_asked_again_is_in_no_joules(tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an engine does not tell a cut's text, it is got by a request of its own, before the closing's window."""
    generate, window, happened = scripted_engine.ScriptedEngine.generate, Meter.window, []

    def cut(engine: object, request: Request, decoding: Decoding) -> Generation:
        made = generate(engine, request, decoding)
        last = request.messages[-1]
        if last.role == "assistant":
            happened.append(last.content)
            return replace(made, text="1")
        happened.append(request.max_new_tokens)
        text = "a thought"[: request.max_new_tokens]
        return replace(made, text=text, cuts=tuple(Cut(k, None, made.end_s) for k in request.cuts))

    @contextmanager
    def told(meter: Meter, part: Part) -> Iterator[Window]:
        happened.append("open")
        with window(meter, part) as one:
            yield one
        happened.append("close")

    monkeypatch.setattr(scripted_engine.ScriptedEngine, "generate", cut)
    monkeypatch.setattr(Meter, "window", told)
    budget = {"kind": "budget", "tokens": 8, "probes": [4]}
    plan = make_plan(stepwise_task(tmp_path, ["a"]), reasonings=[budget], decodings=["vanilla"], warm_up=0)
    (trial,) = read_ledger(run(plan, tmp_path / "run", meter=meter).folder / "ledger.jsonl").trials
    (probe,) = trial.probes
    assert (probe.error, probe.extracted, probe.energy is not None) == (None, "1", True)
    in_trial = ["open", 8, "a though\n\nThe answer is", "close"]
    assert happened == [*in_trial, 4, "open", "a th\n\nThe answer is", "close"]


def test_resuming_after_the_examples_were_changed_is_refused(tmp_path: Path, meter: Meter) -> None:
    task = questions_task(tmp_path, ["a", "b"])
    with Path(task).open("a") as file:
        file.write("examples: shown.jsonl\n")
    shown = tmp_path / "shown.jsonl"
    shown.write_text('{"id": "e0", "text": "one", "answer": "1"}\n')
    few = {"kind": "few_shot", "examples": 1}
    plan = make_plan(task, reasonings=["direct", few, {"kind": "vote", "of": few}], decodings=["vanilla"])
    ledger = run(plan, tmp_path / "run", meter=meter, limit=1).folder / "ledger.jsonl"
    hashes = {t.reasoning: t.prompt_hash for t in read_ledger(ledger).trials}
    assert hashes["direct"] != hashes["few-shot-1"] == hashes["vote-3-few-shot-1"]
    shown.write_text('{"id": "e0", "text": "two", "answer": "2"}\n')
    with pytest.raises(
        UserError, match=r"'q.' of task words no longer .*examples for (vote-3-)?few-shot-1 were changed"
    ):
        run(plan, tmp_path / "run", meter=meter, resume=True)
    # A ledger of before this was kept goes on.
    lines = [json.loads(line) | {"prompt_hash": None} for line in ledger.read_text().splitlines()]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(plan, tmp_path / "run", meter=meter, resume=True, limit=1).done == 3

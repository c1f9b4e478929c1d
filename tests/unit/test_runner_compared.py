"""Tasks whose answers are compared, not generated, through the loop."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import scripted_engine
from joulewise.cli.dry_run import dry_run
from joulewise.energy.meter import Meter
from joulewise.engines import ENGINES
from joulewise.engines.engine import Generation, Request
from joulewise.errors import UserError
from joulewise.ledger import load
from joulewise.ledger_lines import read_ledger
from joulewise.runner import run
from scripted_runs import make_plan

ASKED: list[tuple[str, tuple[str, ...]]] = []


class ComparingScript(scripted_engine.ScriptedEngine):
    """Finds the letter the most likely that the question names."""

    def compare(self, request: Request, continuations: Sequence[str]) -> Generation:
        said = request.messages[-1].content
        ASKED.append((said, tuple(continuations)))
        likely = said.partition("likes ")[2][:1]
        logs = tuple(-0.5 if text == likely else -2.0 for text in continuations)
        return Generation(likely, (), 7, "length", 1.0, 2.0, log_probabilities=logs)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(ENGINES, "transformers", "test_runner_compared:ComparingScript")
    scripted_engine.CALLS.clear()
    ASKED.clear()
    rows = [("test", 0, "likes B", "B"), ("test", 1, "likes C", "A"), *(("dev", i, "shown", "D") for i in range(5))]
    with gzip.open(tmp_path / "mmlu.jsonl.gz", "wt") as file:
        for split, index, question, answer in rows:
            row = {"split": split, "subject": "virology", "index": index, "question": f"{question} {split}{index}"}
            file.write(json.dumps(row | {"choices": list("wxyz"), "answer": answer}) + "\n")
    return tmp_path


def plan_of(**more: Any) -> Any:
    task = {"name": "mmlu", "options": {"scoring": "likelihood"}}
    return make_plan([task], **({"decodings": ["vanilla"]} | more))  # type: ignore[list-item]


def test_the_most_likely_letter_is_scored_and_its_joules_are_the_trials(data: Path, meter: Meter) -> None:
    plan = plan_of(reasonings=["direct", {"kind": "few_shot", "examples": 5}], warm_up=0)
    result = run(plan, data / "run", meter=meter, data_dir=data)
    trials = read_ledger(result.folder / "ledger.jsonl").trials
    assert {(t.question_id, t.reasoning): (t.extracted, t.correct) for t in trials} == {
        (f"virology-test-{i}", reasoning): (letter, right)
        for reasoning in ("direct", "few-shot-5")
        for i, letter, right in ((0, "B", True), (1, "C", False))
    }
    assert {t.generations[0].log_probabilities for t in trials} == {(-2.0, -0.5, -2.0, -2.0), (-2.0, -2.0, -0.5, -2.0)}
    assert scripted_engine.CALLS == [], "nothing was generated"
    assert {letters for _, letters in ASKED} == {("A", "B", "C", "D")}
    rows = load(result).arrow.to_pylist()
    assert {(r["output_tokens"], r["prompt_tokens"]) for r in rows} == {(0, 7)}
    assert all(r["total_energy_j"] is not None for r in rows)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"decodings": ["vanilla", "prompt_lookup"]},
            r"^toy/prompt-lookup.*/mmlu: .*nothing is drafted.*decoding: 'prompt",
        ),
        ({"stop": {"rule": "fixed", "tokens": 4}}, r"no tokens are generated that the stop rule `fixed` could count"),
        ({"reasonings": ["vote"]}, r"reasoning vote-3 cannot answer task mmlu: no answer is extracted"),
        ({"reasonings": ["cot"]}, r"reasoning cot-256 cannot answer task mmlu: it has no prompt that asks for steps"),
    ],
)
def test_what_has_nothing_to_do_there_is_refused(data: Path, meter: Meter, more: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(plan_of(**more), data / "run", meter=meter, data_dir=data)
    assert ASKED == []


@pytest.mark.usefixtures("scripted")
def test_an_engine_that_cannot_compare_is_refused_by_name(data: Path, meter: Meter, monkeypatch: Any) -> None:
    monkeypatch.setitem(ENGINES, "transformers", "scripted_engine:ScriptedEngine")
    with pytest.raises(UserError, match=r"toy/vanilla/direct/mmlu: this engine does not compare .*scoring: generation"):
        run(plan_of(), data / "run", meter=meter, data_dir=data)
    with pytest.raises(UserError, match=r"this engine does not compare answers"):
        dry_run(plan_of(), data, None, False, True)


def test_the_way_out_that_is_told_leads_out(data: Path, meter: Meter) -> None:
    out = [{"decoding": "prompt-lookup*", "task": "mmlu"}]
    plan = plan_of(decodings=["vanilla", "prompt_lookup"], exclude=out)
    assert run(plan, data / "run", meter=meter, data_dir=data).done == 2

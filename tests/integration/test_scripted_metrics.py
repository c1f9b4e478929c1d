"""A whole run of known answers and joules, from the engine to the report: every metric, exactly.

Two scripted models answer MMLU directly, by steps, by votes and on a budget. Each request adds its joules to a counter;
what should come out is added up here from the script alone, by plain sums.
"""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter as Counts
from collections.abc import Callable, Sequence
from math import comb, sqrt
from typing import Any

import pytest

from joulewise.analysis.tradeoffs import Tradeoff, Wishes
from joulewise.analysis.worth import Group
from joulewise.decoding import Decoding
from joulewise.energy.meter import Meter
from joulewise.engines import ENGINES
from joulewise.engines.engine import EngineInfo, Generation, Request
from joulewise.engines.spec import TransformersSpec
from joulewise.ledger import load
from joulewise.plan import Plan
from joulewise.report.summary import Summary, summarise
from joulewise.runner import run
from scripted_sweep import Counter

SUBJECTS = {
    "astronomy": ("physics", "STEM"),
    "college_physics": ("physics", "STEM"),
    "marketing": ("business", "other"),
    "anatomy": ("health", "other"),
}
EACH = 7
QUESTIONS = [(subject, i) for subject in SUBJECTS for i in range(EACH)]
TIMES = {"small": 1.0, "large": 8.0}
"""By model: how many times the joules of ``REQUESTS`` a request costs."""

REQUESTS = {"direct": (2.0, 30, 4), "steps": (20.0, 34, 40), "close": (3.0, 70, 2)}
"""By kind of request: joules, prompt tokens and output tokens. A vote's sample is as a direct answer."""


def right(model: str, way: str, subject: str, i: int) -> bool:
    """Which questions a model has right."""
    if way == "direct":
        return i < (2 if model == "small" else 5) or (subject, i) == ("marketing", 6)
    if way == "steps":
        return i >= (3 if model == "small" else 1) and subject != "anatomy"
    return i % 3 == 0  # on a budget


def samples(i: int) -> str:
    """The letters that a vote of three draws for question ``i``: two equal ones settle it. B is right."""
    return ("BB", "ABB", "CC", "ABC")[i % 4]


class KnownEngine:
    """Answers and costs what the script says."""

    def __init__(self, spec: TransformersSpec) -> None:
        self.spec = spec
        self.drawn: Counts[str] = Counts()

    def refuses(self, decoding: Decoding) -> str | None:
        return None

    def load(self, decodings: Sequence[Decoding]) -> EngineInfo:
        size = int(1e6 * TIMES[self.spec.label])
        return EngineInfo("transformers", self.spec.model, "Scripted", size, "float32", ("cpu",), 512)

    def generate(self, request: Request, decoding: Decoding) -> Generation:
        text = next(m.content for m in request.messages if m.role == "user")
        asked = next(((s, i) for s, i in QUESTIONS if f"{s} {i}?" in text), None)
        model = self.spec.label
        kind = "direct" if "step by step" not in text else "steps"
        if asked is None:  # a warm-up
            said = "A"
        elif request.messages[-1].role == "assistant":
            kind, said = "close", "B" if right(model, "budget", *asked) else "C"
        elif kind == "steps":
            said = f"The answer is {'B' if right(model, kind, *asked) else 'D'}"
            if request.max_new_tokens == 9:
                said = "so many steps"
        elif request.sampling.temperature:
            said = samples(asked[1])[self.drawn[text]]
            self.drawn[text] += 1
        else:
            said = "B" if right(model, kind, *asked) else "A"
        joules, prompt_tokens, output_tokens = REQUESTS[kind]
        start_s = time.monotonic()
        Counter.joules += TIMES[model] * joules
        ids = tuple(range(output_tokens))
        return Generation(said, ids, prompt_tokens, "eos", start_s, time.monotonic(), first_token_s=time.monotonic())

    def close(self) -> None:
        pass


Totals = dict[str, float]


def totals(model: str, way: str, questions: Sequence[tuple[str, int]]) -> Totals:
    """Right answers, joules and tokens of a way of answering, added up from the script."""
    found = dict.fromkeys(("right", "joules", "output", "tokens"), 0.0) | {"questions": float(len(questions))}
    for subject, i in questions:
        if way == "vote-3":
            drawn = samples(i)
            kinds, correct = ["direct"] * len(drawn), drawn.count("B") > 1
        else:
            kinds = {"direct": ["direct"], "cot-99": ["steps"], "budget-9": ["steps", "close"]}[way]
            correct = right(model, {"direct": "direct", "cot-99": "steps", "budget-9": "budget"}[way], subject, i)
        found["right"] += correct
        for kind in kinds:
            joules, prompt_tokens, output_tokens = REQUESTS[kind]
            found["joules"] += TIMES[model] * joules
            found["output"] += output_tokens
            found["tokens"] += prompt_tokens + output_tokens
    return found


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    folder = tmp_path_factory.mktemp("scripted")
    rows = [
        {
            "split": "test",
            "subject": subject,
            "index": i,
            "question": f"{subject} {i}?",
            "choices": ["1", "2", "3", "4"],
            "answer": "B",
        }
        for subject, i in QUESTIONS
    ]
    (folder / "mmlu.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
    plan = Plan.model_validate(
        {
            "name": "known",
            "engines": [{"kind": "transformers", "name": model} for model in TIMES],
            "decodings": ["vanilla"],
            "reasonings": [
                "direct",
                {"kind": "cot", "max_new_tokens": 99},
                {"kind": "budget", "tokens": 9},
                {"kind": "vote", "samples": 3},
            ],
            "tasks": ["mmlu"],
            "idle_baseline_s": 0,
        }
    )
    with pytest.MonkeyPatch.context() as patch, Meter([Counter()]) as meter:
        patch.setitem(ENGINES, "transformers", f"{__name__}:KnownEngine")
        result = run(plan, folder / "run", meter=meter, data_dir=folder)
    assert (result.done, result.failed) == (2 * 4 * len(QUESTIONS), 0)
    return summarise(load(result), wishes=Wishes(reach=0.5))


@pytest.fixture(scope="module")
def tradeoff(summary: Summary) -> Tradeoff:
    (one,) = summary.tradeoffs
    return one


def groups(tradeoff: Tradeoff) -> list[tuple[Group, list[tuple[str, int]]]]:
    """Every group with the questions that should be in it."""

    def belongs(group: Group, subject: str) -> bool:
        names = {"task": "mmlu", "subject": subject}
        names |= dict(zip(("subcategory", "category"), SUBJECTS[subject], strict=True))
        return names[group.level] == group.name

    return [(group, [q for q in QUESTIONS if belongs(group, q[0])]) for group in tradeoff.groups]


def test_the_groups_are_the_task_s(tradeoff: Tradeoff) -> None:
    levels = Counts(group.level for group, _ in groups(tradeoff))
    assert levels == {"task": 1, "subject": 4, "subcategory": 3, "category": 2}
    for group, questions in groups(tradeoff):
        assert (group.questions, group.too_few) == (len(questions), False)
        assert len(group.cells) == 8
    assert (tradeoff.measure, tradeoff.measured, tradeoff.unjudged, tradeoff.left_out) == ("accuracy", True, 0, ())


METRICS: dict[str, Callable[[Totals], float | None]] = {
    "quality": lambda t: t["right"] / t["questions"],
    "energy_per_answer_j": lambda t: t["joules"] / t["questions"],
    "energy_per_token_j": lambda t: t["joules"] / t["tokens"],
    "energy_per_output_token_j": lambda t: t["joules"] / t["output"],
    "energy_per_correct_answer_j": lambda t: t["joules"] / t["right"] if t["right"] else None,
    "correct_answers_per_kj": lambda t: 1000 * t["right"] / t["joules"],
}


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_of_every_way_in_every_group(tradeoff: Tradeoff, metric: str) -> None:
    for group, questions in groups(tradeoff):
        for worth in group.cells:
            want = METRICS[metric](totals(worth.key.engine, worth.key.reasoning, questions))
            found = getattr(worth, metric)
            assert found.value == (None if want is None else pytest.approx(want, rel=1e-9)), (group.name, worth.key)
            assert found.n_questions == len(questions)
            assert found.provenance == "measured"


def test_accuracy_has_wilson_s_interval(tradeoff: Tradeoff) -> None:
    z = 1.959963984540054
    for group, questions in groups(tradeoff):
        for worth in group.cells:
            n, share = (
                len(questions),
                totals(worth.key.engine, worth.key.reasoning, questions)["right"] / len(questions),
            )
            centre, half = share + z * z / (2 * n), z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
            ends = ((centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n))
            assert (worth.quality.lower, worth.quality.upper) == pytest.approx(ends, abs=1e-9)


def test_every_change_against_the_model_s_own_direct_answers(tradeoff: Tradeoff) -> None:
    for group, questions in groups(tradeoff):
        for worth in group.cells:
            model, way = worth.key.engine, worth.key.reasoning
            if way == "direct":
                assert worth.against is None
                continue
            against = worth.against
            assert against is not None
            assert (against.baseline.engine, against.baseline.reasoning) == (model, "direct")
            base, new = totals(model, "direct", questions), totals(model, way, questions)
            pairs = [(totals(model, "direct", [q])["right"], totals(model, way, [q])["right"]) for q in questions]
            lost, gained = pairs.count((1, 0)), pairs.count((0, 1))
            assert (against.lost, against.gained) == (lost, gained)
            assert against.quality_difference.value == pytest.approx((gained - lost) / len(questions), abs=1e-12)
            relative = None if not base["right"] else pytest.approx(new["right"] / base["right"] - 1, abs=1e-12)
            assert against.quality_relative.value == relative
            tail = sum(comb(lost + gained, k) for k in range(min(lost, gained) + 1)) / 2 ** (lost + gained)
            assert against.quality_p == pytest.approx(min(1.0, 2 * tail))
            assert against.energy_relative.value == pytest.approx(new["joules"] / base["joules"] - 1, rel=1e-9)


def test_the_frontier_and_the_cheapest_that_reaches_half(tradeoff: Tradeoff) -> None:
    spots = {}
    for place in tradeoff.places:
        found = totals(place.key.engine, place.key.reasoning, QUESTIONS)
        spots[place.key] = (found["joules"], found["right"])

    def beaten(spot: tuple[float, float]) -> bool:
        return any(o != spot and o[0] <= spot[0] and o[1] >= spot[1] for o in spots.values())

    assert {place.key for place in tradeoff.places if place.optimal} == {k for k, s in spots.items() if not beaten(s)}
    reached = {key: spot for key, spot in spots.items() if spot[1] >= len(QUESTIONS) / 2}
    assert tradeoff.reach is not None
    assert tradeoff.reach.key == min(reached, key=lambda key: reached[key][0])


def test_the_ledger_s_tables_tell_the_same(summary: Summary) -> None:
    assert len(summary.costs) == 8
    for cost in summary.costs:
        want = totals(cost.key.engine, cost.key.reasoning, QUESTIONS)
        found: Any = cost.component("gpu")
        assert found.energy_per_answer_j.value == pytest.approx(want["joules"] / want["questions"], rel=1e-9)
        assert found.energy_per_token_j.value == pytest.approx(want["joules"] / want["tokens"], rel=1e-9)
        assert found.energy_per_output_token_j.value == pytest.approx(want["joules"] / want["output"], rel=1e-9)
        assert cost.accuracy.value == pytest.approx(want["right"] / want["questions"])
